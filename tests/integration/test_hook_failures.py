"""`clankers-hook` under failures: it exits 0, prints nothing, and loses no event that can be spooled."""

import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, running_daemon
from helpers.fake_daemon import Peer, played
from helpers.hook import EVENT, autostarting, hook, linux, spooled
from helpers.waiting import eventually

from clankers.ctl.plugin_files import hook_command
from clankers.hook import MAX_LOG_BYTES, read_setting, recall_seconds
from clankers.spool import spool_event

PROMPT = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "hello"}


def rejected(home: Path) -> list[Path]:
    return sorted((home / "clankers" / "spool" / "rejected").glob("*"))


@contextmanager
def hung(home: Path) -> Iterator[None]:
    """Run a daemon that accepts connections and never replies."""
    (home / "clankers").mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(home / "clankers" / "dxta-clankers.sock"))
        silent.listen(10)
        yield


# --- Writing to the spool


@pytest.mark.parametrize("event", [b"{not json", b"[1]", b'{"message": {"id": 5}}'])
def test_hook_events_that_the_daemon_refuses_go_to_the_rejected_folder(
    fresh_daemon: DaemonProcess, event: bytes
) -> None:
    assert hook(fresh_daemon.environ, event) == b""
    eventually(lambda: rejected(fresh_daemon.home), "the event is rejected")
    (file,) = rejected(fresh_daemon.home)
    assert event in file.read_bytes()


def test_hook_spools_no_private_text_and_nothing_of_a_project_that_opted_out(home: Path) -> None:
    environ, project, gone = DaemonProcess(home).environ, home / "project", home / "gone"
    (project / "deep").mkdir(parents=True)
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "a <private>b</private> c"}
    hook(environ, event, "claude-code", cwd=project)
    [path] = spooled(home)
    assert json.loads(path.read_bytes())["event"]["prompt"] == "a [redacted:private] c"
    (project / ".clankers-ignore").touch()
    hook(environ, event, "claude-code", cwd=project / "deep")
    hook(environ | {"CLAUDE_PROJECT_DIR": str(project)}, event, "claude-code", cwd=home)
    assert len(spooled(home)) == 1
    hook(environ | {"CLAUDE_PROJECT_DIR": str(home)}, event, "claude-code", cwd=project)
    gone.mkdir()
    command = shlex.join([*hook_command(), "claude-code"])
    run = ["/bin/sh", "-c", f"cd {gone} && rmdir {gone} && {command}"]
    subprocess.run(run, input=json.dumps(event).encode(), env=environ, check=True, timeout=60)
    assert len(spooled(home)) == 3, "the session's project decides, and a folder that is gone is none"


def test_hook_spools_an_event_too_large_for_a_frame(fresh_daemon: DaemonProcess) -> None:
    tool = {"id": "t", "sessionId": "s", "toolName": "Bash", "toolOutput": "x" * 50_000_000, "success": True}
    hook(fresh_daemon.environ, {"tool": tool})
    eventually(lambda: not spooled(fresh_daemon.home), "the spool is replayed")
    assert rejected(fresh_daemon.home) == []
    with fresh_daemon.connect() as connection:
        assert connection.call("session.get", id="s")["counts"]["tools"] == 1


@linux
def test_hook_spools_the_event_if_killed_while_waiting(home: Path) -> None:
    environ = patient(home, "60")
    with hung(home):
        process = subprocess.Popen([*hook_command(), "claude-code", "--recall"], env=environ, stdin=subprocess.PIPE)
        assert process.stdin
        process.stdin.write(json.dumps(PROMPT).encode())
        process.stdin.close()
        eventually(lambda: _catches(process.pid, signal.SIGTERM), "the hook listens to signals")
        while process.poll() is None:  # until it waits for the reply; before that, the signal is ignored
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
    assert process.returncode == 0
    assert json.loads(spooled(home)[0].read_bytes())["event"] == PROMPT


def _catches(pid: int, number: signal.Signals) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@linux
def test_hook_spools_what_it_has_read_if_killed_while_reading(home: Path) -> None:
    environ = DaemonProcess(home).environ
    process = subprocess.Popen([*hook_command(), "generic"], env=environ, stdin=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(json.dumps(EVENT).encode())
    process.stdin.flush()
    eventually(lambda: _catches(process.pid, signal.SIGTERM) and _has_read_all(process), "all of it is read")
    process.send_signal(signal.SIGTERM)  # the harness never closes our stdin
    assert process.wait(30) == 0
    process.stdin.close()
    assert json.loads(spooled(home)[0].read_bytes())["event"] == EVENT


def _has_read_all(process: "subprocess.Popen[bytes]") -> bool:
    import array
    import fcntl
    import termios

    assert process.stdin
    waiting = array.array("i", [0])
    fcntl.ioctl(process.stdin, termios.FIONREAD, waiting)
    return waiting[0] == 0


def test_hook_exits_silently_on_a_full_disk_and_leaves_no_fragments(home: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    assert hook(DaemonProcess(home).environ, EVENT, preexec_fn=no_room) == b""
    assert list((home / "clankers" / "spool").iterdir()) == []


def test_hook_exits_silently_if_the_data_folder_cannot_be_written(home: Path) -> None:
    (home / "clankers").write_text("a file where the folder should be")
    assert hook(DaemonProcess(home).environ, EVENT) == b""


def test_hook_spools_the_event_after_an_invalid_reply(home: Path) -> None:
    (home / "clankers").mkdir()

    def babble(peer: Peer) -> None:
        peer.receive()
        peer.send_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}")

    with played(home / "clankers" / "dxta-clankers.sock", babble):
        hook(DaemonProcess(home).environ, EVENT)
    assert len(spooled(home)) == 1


def test_hook_spools_the_event_if_the_connection_is_closed(home: Path) -> None:
    (home / "clankers").mkdir()
    with played(home / "clankers" / "dxta-clankers.sock", lambda peer: peer.hang_up()):
        hook(DaemonProcess(home).environ, EVENT)
    assert len(spooled(home)) == 1


def test_hook_truncates_a_large_log(home: Path) -> None:
    log = home / "clankers" / "logs" / "hook.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    (home / "clankers" / "spool").write_text("in the way")
    hook(DaemonProcess(home).environ, EVENT)
    assert "event lost" in log.read_text()
    assert log.stat().st_size < 1000


def test_hook_accepts_the_event_as_an_argument(home: Path) -> None:
    """Standard input, which may be a terminal, is then not read."""
    event = {"type": "agent-turn-complete", "thread-id": "é"}
    hook(DaemonProcess(home).environ, b"{}", "codex", json.dumps(event))
    (file,) = spooled(home)
    sent = json.loads(file.read_bytes())
    assert (sent["harness"], sent["event"]) == ("codex", event)


def test_hook_spool_is_private_to_the_user(home: Path) -> None:
    hook(DaemonProcess(home, CLANKERS_DATA_PATH=str(home / "new")).environ, EVENT)
    (event,) = (home / "new").rglob("*.json")
    places = [home / "new" / "clankers", home / "new" / "clankers" / "spool", event]
    assert [oct(place.stat().st_mode & 0o777) for place in places] == ["0o700", "0o700", "0o600"]


# --- Replay of the spool


def params(event: Any) -> bytes:
    return json.dumps({"harness": "generic", "event": event}).encode()


def test_spooled_events_are_stored_before_live_ones(fresh_daemon: DaemonProcess) -> None:
    spool = str(fresh_daemon.home / "clankers" / "spool")
    for number in range(300):
        spool_event(spool, params({"session": {"id": "s", "title": f"old {number}"}}))
    with fresh_daemon.connect() as connection:
        connection.call("hook.event", harness="generic", event={"session": {"id": "s", "title": "new"}})
        assert spooled(fresh_daemon.home) == []
        assert connection.call("session.get", id="s")["title"] == "new"


def test_spooled_generic_events_keep_the_time_at_which_they_happened(fresh_daemon: DaemonProcess) -> None:
    spool, at = str(fresh_daemon.home / "clankers" / "spool"), 1_700_000_000_000
    events: list[dict[str, Any]] = [
        {"session": {"id": "told", "title": "a session"}},
        {"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "hello"}},
        {"tool": {"id": "t", "sessionId": "s", "toolName": "Bash"}},
        {"sessionError": {"id": "e", "sessionId": "s", "errorType": "api"}},
        {"compactionEvent": {"id": "c", "sessionId": "s"}},
        {"message": {"id": "own", "sessionId": "s", "role": "user", "createdAt": at - 5000}},
    ]
    for number, event in enumerate(events):
        spool_event(spool, json.dumps({"harness": "generic", "at": at + number * 1000, "event": event}).encode())
    with fresh_daemon.connect() as connection:
        connection.call("hook.event", harness="generic", event={"session": {"id": "live"}})
        assert spooled(fresh_daemon.home) == []
        told = connection.call("session.get", id="told")
        assert (told["createdAt"], told["updatedAt"]) == (at, at)
        entries = connection.call("session.timeline", sessionId="s")["entries"]
        assert [entry["at"] - at for entry in entries] == [-5000, 1000, 2000, 3000, 4000]


def test_spooled_event_that_was_also_sent_is_stored_once(fresh_daemon: DaemonProcess) -> None:
    hook(fresh_daemon.environ, EVENT)
    spool_event(str(fresh_daemon.home / "clankers" / "spool"), params(EVENT))
    eventually(lambda: not spooled(fresh_daemon.home), "the spool is replayed")
    with fresh_daemon.connect() as connection:
        assert connection.call("session.get", id="s")["counts"]["messages"] == 1


def test_spool_replay_continues_after_the_daemon_is_killed(home: Path) -> None:
    spool = str(home / "clankers" / "spool")
    for number in range(600):
        spool_event(spool, params({"message": {"id": f"m{number}", "sessionId": "s", "role": "user"}}))
    daemon = DaemonProcess(home).start(wait=False)
    eventually(lambda: len(spooled(home)) < 600, "some of it is replayed")
    daemon.kill()
    daemon.close()
    with running_daemon(home) as again:
        eventually(lambda: not spooled(home), "all of it is replayed")
        with again.connect() as connection:
            assert connection.call("session.get", id="s")["counts"]["messages"] == 600
    assert rejected(home) == []


def test_spool_replay_stores_unfinished_files_that_are_complete(home: Path) -> None:
    spool = home / "clankers" / "spool"
    spool.mkdir(parents=True)
    long_ago = time.time() - 3600
    for name, content in (("1-1-9.unfinished", params(EVENT)), ("2-1-9.unfinished", params(EVENT)[:30])):
        (spool / name).write_bytes(content)
        os.utime(spool / name, (long_ago, long_ago))
    (spool / "3-1-9.unfinished").write_bytes(b'{"harness":"gen')  # by a hook that is still writing
    with running_daemon(home) as daemon:
        eventually(lambda: rejected(home), "the fragment is rejected")
        with daemon.connect() as connection:
            assert connection.call("session.get", id="s")["counts"]["messages"] == 1
    assert [path.name for path in rejected(home)] == ["2-1-9.json"]
    assert [path.name for path in spool.glob("*.unfinished")] == ["3-1-9.unfinished"]


# --- Recall


def patient(home: Path, seconds: str = "30") -> dict[str, str]:
    """Return an environment with a long recall timeout, for slow machines."""
    return DaemonProcess(home).environ | {"CLANKERS_RECALL_SECONDS": seconds}


def answer_both(output: dict[str, Any] | None) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        event, question = peer.receive(), peer.receive()
        assert (event["method"], question["method"]) == ("hook.event", "recall.hook")
        assert event["params"]["event"] == question["params"]["event"] == PROMPT
        peer.answer(question, {"output": output})  # replies may arrive in any order
        peer.answer(event, {"ok": True})

    return script


def test_hook_prints_the_recall_output(home: Path) -> None:
    (home / "clankers").mkdir()
    output = {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": 'näive "id":1}'}}
    with played(home / "clankers" / "dxta-clankers.sock", answer_both(output)):
        printed = hook(patient(home), PROMPT, "claude-code", "--recall")
    assert json.loads(printed) == output
    assert spooled(home) == []


def test_hook_prints_nothing_if_nothing_is_recalled(home: Path) -> None:
    (home / "clankers").mkdir()
    with played(home / "clankers" / "dxta-clankers.sock", answer_both(None)):
        assert hook(patient(home), PROMPT, "claude-code", "--recall") == b""
    assert spooled(home) == []


def test_hook_stops_waiting_for_a_slow_recall(home: Path) -> None:
    (home / "clankers").mkdir()
    gone = threading.Event()

    def slow(peer: Peer) -> None:
        peer.answer(peer.receive(), {"ok": True})
        peer.receive()
        gone.wait(30)

    with played(home / "clankers" / "dxta-clankers.sock", slow):
        assert hook(patient(home, "2"), PROMPT, "claude-code", "--recall") == b""
        gone.set()
    assert spooled(home) == []


@pytest.mark.parametrize("seconds", ["inf", "nan"])
def test_hook_sends_the_event_whatever_the_time_for_recall_is(home: Path, seconds: str) -> None:
    (home / "clankers").mkdir()
    with played(home / "clankers" / "dxta-clankers.sock", answer_both(None)):
        hook(patient(home, seconds), PROMPT, "claude-code", "--recall")
    assert not (home / "clankers" / "lost-events").exists()


@pytest.mark.parametrize(("setting", "seconds"), [("1e9", 60), ("inf", 60), ("nan", 1), ("5", 5), ("", 1)])
def test_hook_waits_for_recall_no_longer_than_the_setting_allows(
    monkeypatch: pytest.MonkeyPatch, setting: str, seconds: float
) -> None:
    monkeypatch.setenv("CLANKERS_RECALL_SECONDS", setting)
    monkeypatch.setenv("CLANKERS_CONFIG_PATH", "/dev/null")
    assert recall_seconds() == seconds


def test_hook_that_recalls_spools_the_event_if_the_daemon_hangs(home: Path) -> None:
    with hung(home):
        assert hook(DaemonProcess(home).environ, PROMPT, "claude-code", "--recall") == b""
    assert len(spooled(home)) == 1


@pytest.mark.parametrize(
    ("environ", "file", "value"),
    [
        ({}, None, ""),
        ({}, "recall_seconds = 0.5  # half\n", "0.5"),
        ({}, '# recall_seconds = 9\nlog_level = "info"\n', ""),
        ({}, "recall_seconds='3'", "3"),
        ({"CLANKERS_RECALL_SECONDS": "2"}, "recall_seconds = 0.5\n", "2"),
        ({}, b"\xff\xfe recall_seconds = 1", ""),
    ],
)
def test_read_setting_reads_environment_and_file(
    home: Path, environ: dict[str, str], file: str | bytes | None, value: str
) -> None:
    if file is not None:
        (home / "c.toml").write_bytes(file if isinstance(file, bytes) else file.encode())
    assert read_setting("recall_seconds", environ | {"CLANKERS_CONFIG_PATH": str(home / "c.toml")}) == value


# --- Starting the daemon


@linux
def test_hooks_without_a_daemon_start_one_detached_daemon(home: Path) -> None:
    with autostarting(home) as daemon:
        events = [{"message": {"id": f"m{number}", "sessionId": "s", "role": "user"}} for number in range(8)]
        threads = [threading.Thread(target=hook, args=(daemon.environ, event)) for event in events]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(daemon.socket_path.exists, "a daemon listens")
        eventually(lambda: not spooled(home), "the spool is replayed")
        with daemon.connect() as connection:
            assert connection.call("session.get", id="s")["counts"]["messages"] == 8
            pid = connection.call("daemon.status")["pid"]
        assert os.getsid(pid) == pid
        streams = [Path(f"/proc/{pid}/fd/{stream}").readlink() for stream in range(3)]
        assert streams == [Path(os.devnull), Path(os.devnull), home / "clankers" / "logs" / "hook.log"]
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert b"SECRET_TOKEN" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert int((home / "clankers" / "clankers.db.lock").read_text()) == pid


def test_autostart_failure_is_in_the_log(home: Path) -> None:
    with autostarting(home) as daemon:
        (home / "clankers.toml").write_text("no_such_setting = 1\n")
        hook(daemon.environ, EVENT)
        log = home / "clankers" / "logs" / "hook.log"
        eventually(lambda: log.exists() and "no_such_setting" in log.read_text(), "the reason is in the log")
    assert len(spooled(home)) == 1


def test_autostart_waits_before_the_next_attempt(home: Path) -> None:
    with autostarting(home) as daemon:
        lock = home / "clankers" / "autostart.lock"
        lock.parent.mkdir()
        lock.write_text(f"{time.time_ns()}\n")
        hook(daemon.environ, EVENT)
        assert not (home / "clankers" / "clankers.db.lock").exists()
        assert len(spooled(home)) == 1


@pytest.mark.parametrize("how", ["environment", "file"])
def test_autostart_can_be_disabled(home: Path, how: str) -> None:
    with autostarting(home) as daemon:
        environ = dict(daemon.environ)
        if how == "environment":
            environ["CLANKERS_HOOK_AUTOSTART"] = "false"
        else:
            del environ["CLANKERS_HOOK_AUTOSTART"]
            (home / "clankers.toml").write_text("hook_autostart = false\n")
        hook(environ, EVENT)
        hook(environ, b"", "opencode", "--start")
        assert not (home / "clankers" / "autostart.lock").exists()


def test_autostart_works_without_an_event(home: Path) -> None:
    with autostarting(home) as daemon:
        hook(daemon.environ, b"", "opencode", "--start")
        eventually(daemon.socket_path.exists, "a daemon listens")
        assert spooled(home) == []
