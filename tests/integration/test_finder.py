"""`clankers-ctl search` without words: the finder, on a real pseudo-terminal."""

import signal

import pytest
from helpers.ctl import command, ctl
from helpers.daemon import DaemonProcess
from helpers.store import message
from helpers.terminal import Terminal
from helpers.waiting import settled

ATTACK = "\x1b]0;pwned\x07\x1b[8m\x9b31m\u202ehsup\x08\x7f"
ALTERNATE_SCREEN, LEFT_ALTERNATE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def store(daemon: DaemonProcess) -> None:
    with daemon.connect() as connection:
        for name in ("lamp", "door"):
            session = {"id": f"{name}-1", "title": f"The {name} of the hall", "projectPath": f"/p/{name}"}
            connection.call("upsertSession", session=session)
            for number in range(120):
                role = "user" if number % 2 == 0 else "assistant"
                text = f"The {name} flickers: {role} message {number}"
                said = message(f"{name}-m{number:03}", f"{name}-1", text) | {"role": role}
                connection.call("upsertMessage", message=said | {"createdAt": 1_760_000_000_000 + number * 1000})
        output = {"toolName": "Bash", "toolOutput": "the message: lamp flickers at 60 volts"}
        connection.call(
            "upsertTool", tool={"id": "measured", "sessionId": "lamp-1", "createdAt": 1_760_000_060_500} | output
        )
        for number in range(3):
            said = message(f"light-{number}", f"light-{number}", "please switch off the light in the hall")
            connection.call("upsertMessage", message=said | {"createdAt": 1_750_000_000_000})
        connection.call("memory.add", content="The lamp needs a new switch 电灯开关 every year.", force=True)
        said = message("hostile", "door-1", f"quuxword 広い文字 {ATTACK}") | {"createdAt": 1_760_000_900_000}
        connection.call("upsertMessage", message=said)
        settled(connection)


def finder(daemon: DaemonProcess, *words: str, columns: int = 120, lines: int = 30) -> Terminal:
    return Terminal(command("search", *words), daemon.environ, columns, lines)


def test_finder_searches_previews_filters_opens_and_leaves(fresh_daemon: DaemonProcess) -> None:
    store(fresh_daemon)
    with finder(fresh_daemon) as terminal:
        terminal.shows("last sessions", "The lamp of the hall", "The door of the hall")
        terminal.press("lamp flickers message 60")
        shown = terminal.shows("hits in", "▶")
        assert "The lamp flickers: user message 60" in shown
        assert "The lamp flickers: assistant message 61" in shown.split("▶")[1], "the answer follows in the preview"
        first = terminal.lines[3]
        terminal.press("down")
        terminal.shows(f"  {first[2:40].strip()}"[:30])
        terminal.press("\x12")  # Ctrl-R: role
        shown = terminal.shows("role user", "hits in")
        terminal.press("\x12")
        terminal.shows("role assistant", "assistant The lamp")
        terminal.press("\x12\x12\x12")
        terminal.press("\x14\x14\x14")  # Ctrl-T: any, files, sessions, memories
        terminal.shows("kind memories", "The lamp needs a new switch 电灯开关")
        terminal.press("\x14\x14\x14")
        terminal.shows("kind tool calls", "1 tool call; searched all 1", "Bash The lamp", "60 volts")
        terminal.press("\x14")
        terminal.shows("role any", "kind any", "▶")

        terminal.press("enter")
        terminal.shows("Esc back", "The lamp flickers: user message 60")
        terminal.press("end")
        terminal.shows("assistant message 119")
        while "The lamp flickers: user message 0" not in terminal.text:
            before = terminal.text
            terminal.press("page up")
            terminal.changes(before)
        terminal.press("escape")
        terminal.shows("Enter open", "> lamp flickers message 60")
        for _ in "lamp flickers message 60":
            terminal.press("\x08")
        terminal.press("switch off the light")
        terminal.shows("2 more like it")
        terminal.press("\x03")
        assert terminal.ended() == 0
        assert terminal.has_its_settings()
        assert ALTERNATE_SCREEN in terminal.written
        assert LEFT_ALTERNATE_SCREEN in terminal.written.rpartition(ALTERNATE_SCREEN)[2]
        assert b"\x1b[?25l" not in terminal.written.rpartition(b"\x1b[?25h")[2], "the cursor is visible"


def test_finder_is_safe_on_a_narrow_terminal_and_shows_a_lost_daemon(fresh_daemon: DaemonProcess) -> None:
    store(fresh_daemon)
    with finder(fresh_daemon, columns=34, lines=12) as terminal:
        terminal.shows("last sessions")
        terminal.press("quuxword")
        shown = terminal.shows("広い文字", "hit")
        assert "▶" not in shown, "there is no room for a preview"
        terminal.press("enter")
        terminal.shows("▶", "広い文字")
        terminal.resize(110, 30)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.shows("Esc back", "▶", "quuxword 広い文字")
        terminal.press("q")
        terminal.shows("> quuxword", "│")
        assert terminal.screen.title != "pwned"
        assert b"\x1b]0;pwned" not in terminal.written
        assert b"\x1b[8m" not in terminal.written
        assert "\u202e".encode() not in terminal.written

        fresh_daemon.stop()
        terminal.press("x")
        shown = terminal.shows("Error: clankersd")
        assert "nothing found" not in shown
        fresh_daemon.close()
        fresh_daemon.start()
        terminal.press("\x7f")
        terminal.shows("広い文字", "Enter open")
        terminal.process.terminate()
        assert terminal.ended() == 0
        assert terminal.has_its_settings()


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_search_without_words_needs_a_terminal(shared_daemon: DaemonProcess, words: list[str]) -> None:
    ran = ctl(shared_daemon, "search", *words)
    assert ran.code == 2
    assert "Missing argument" in ran.err


def test_finder_without_a_daemon_says_so(fresh_daemon: DaemonProcess) -> None:
    fresh_daemon.stop()
    with finder(fresh_daemon) as terminal:
        assert terminal.ended() == 3
        assert "clankersd does not answer" in terminal.text
        assert ALTERNATE_SCREEN not in terminal.written
