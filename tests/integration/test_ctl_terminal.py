"""What is stored, or said by a peer, never reaches a terminal as a command; what is piped stays exact."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.ctl import ctl, quickly_on_a_terminal
from helpers.daemon import DaemonProcess, running_daemon
from helpers.waiting import settled

ATTACK = "\x1b]0;pwned\x07\x1b[8m\x9b31m\u202ehsup\u2066 \U000e0041\U000e0042\x08\x7f"
HIDDEN = set(ATTACK) - set("]0;pwned[8m31hsu ")
CTL = Path(__file__).parents[2] / "client" / "clankers" / "ctl"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon in which every text is hostile."""
    with running_daemon(tmp_path_factory.mktemp("d"), CLANKERS_EMBEDDER="none") as daemon:
        with daemon.connect() as connection:
            session = {"id": "s1", "title": f"login {ATTACK}", "projectPath": f"/p{ATTACK}", "projectName": ATTACK}
            connection.call("upsertSession", session=session | {"model": ATTACK, "source": ATTACK, "status": ATTACK})
            text = f"The login fails {ATTACK}"
            message = {"id": "m1", "sessionId": "s1", "role": "user", "textContent": text}
            connection.call("upsertMessage", message=message)
            tool = {"id": "t1", "sessionId": "s1", "messageId": "m1", "toolName": ATTACK, "toolOutput": ATTACK}
            connection.call("upsertTool", tool=tool | {"toolInput": ATTACK, "filePath": ATTACK, "errorMessage": ATTACK})
            error = {"id": "e1", "sessionId": "s1", "errorType": ATTACK, "errorMessage": ATTACK}
            connection.call("upsertSessionError", sessionError=error)
            connection.call("memory.add", content=f"A memory of the login {ATTACK}", scope="global", tags=[ATTACK])
            connection.call("document.ingest", text=f"A document about the login {ATTACK}", title=ATTACK)
            connection.call("log.write", entry={"level": "error", "message": ATTACK, "component": "plugin"})
            settled(connection)
        yield daemon


def assert_safe(shown: str) -> None:
    """Only colours and cursor movements of our own are left."""
    bare = re.sub(r"\x1b\[(\?25[hl]|[0-9;]*[mKAH])", "", shown.replace("\x1b[8m", "CONCEALED"))
    assert "CONCEALED" not in bare
    assert not HIDDEN & set(bare)


@pytest.mark.parametrize(
    "words",
    [
        ["sessions"],
        ["session", "s1"],
        ["session", "s1", "--json"],
        ["search", "login"],
        ["memory", "list"],
        ["memory", "search", "login"],
        ["memory", "export", "-"],
        ["docs", "list"],
        ["stats"],
        ["logs", "-n", "5"],
        ["logs", "-n", "5", "--json"],
        ["thread", "list"],
        ["query", "SELECT title, project_path FROM sessions"],
        ["query", "SELECT title, project_path FROM sessions", "--format", "csv"],
        ["query", "SELECT title, project_path FROM sessions", "--format", "json"],
        ["query", f'SELECT title AS "{ATTACK}", 1 AS "{ATTACK}2" FROM sessions'],
        ["query", f'SELECT "{ATTACK}" FROM'],
        ["session", ATTACK],
        ["memory", "show", ATTACK],
        ["sessions", "--since", ATTACK],
        ["memory", "list", "--limit", ATTACK],
        ["config", "set", ATTACK, "1"],
        ["--socket", f"/nowhere/{ATTACK}", "health"],
    ],
    ids=lambda words: " ".join(words).replace(ATTACK, "ATTACK"),
)
def test_terminal_output_is_safe(attacked: DaemonProcess, words: list[str]) -> None:
    shown = quickly_on_a_terminal(attacked, *words)
    assert shown.strip()
    assert "Traceback" not in shown
    assert_safe(shown)


def test_piped_csv_and_json_are_exact(attacked: DaemonProcess) -> None:
    sql = "SELECT title FROM sessions"
    assert ctl(attacked, "query", sql, "--format", "csv").out == f"title\nlogin {ATTACK}\n"
    assert ctl(attacked, "query", sql, "--json").json == [{"title": f"login {ATTACK}"}]


def test_query_safe_defuses_formulas_in_csv(attacked: DaemonProcess) -> None:
    sql = "SELECT '=1+1' AS \"=a\", '+1' AS b, '-x' AS c, '@y' AS d, char(9) || 'z' AS e, -5 AS f, 'a=b' AS g"
    exact = ctl(attacked, "query", sql, "--format", "csv").out
    assert exact == "=a,b,c,d,e,f,g\n=1+1,+1,-x,@y,\tz,-5,a=b\n"
    safe = ctl(attacked, "query", sql, "--format", "csv", "--safe").out
    assert safe == "'=a,b,c,d,e,f,g\n'=1+1,'+1,'-x,'@y,'\tz,-5,a=b\n"
    assert ctl(attacked, "query", sql, "--safe").code == 2


def test_commands_print_only_through_the_sanitiser() -> None:
    """A command that called click itself would print what nobody has looked at."""
    direct = re.compile(r"click\.(echo|secho|confirm|prompt|echo_via_pager)\(|\bprint\(|Console\(|std(out|err)\.write")
    found = [
        f"{path.relative_to(CTL)}: {line.strip()}"
        for path in CTL.rglob("*.py")
        if path.name != "output.py"
        for line in path.read_text().splitlines()
        if direct.search(re.sub(r"[\w)]\.print\(", "", line))
    ]
    assert found == []


def test_daemon_log_on_a_terminal_is_safe(home: Path) -> None:
    ours, theirs = pty.openpty()
    daemon = DaemonProcess(home, CLANKERS_EMBEDDER="none")
    daemon.process = subprocess.Popen(
        [sys.executable, "-m", "clankersd"], env=daemon.environ | {"TERM": "xterm"}, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        daemon.wait_until_ready()
        with daemon.connect() as connection:
            entry = {"level": "error", "message": ATTACK, "component": ATTACK, "context": {ATTACK: [ATTACK]}}
            connection.call("log.write", entry=entry)
        daemon.process.terminate()
        shown = b""
        with suppress(OSError):  # how Linux says that the other end is closed
            while data := os.read(ours, 65536):
                shown += data
        assert daemon.wait() == 0
    finally:
        daemon.close()
        os.close(ours)
    assert "pwned" in shown.decode()
    assert_safe(shown.decode())


def test_daemon_start_error_is_safe(home: Path) -> None:
    path = home / f"x{ATTACK}.toml"
    path.write_text("=")
    ran = subprocess.run(
        [sys.executable, "-m", "clankersd", "--check-config", "--config", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 78
    assert "pwned" in ran.stderr
    assert_safe(ran.stderr)
