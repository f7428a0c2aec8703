"""One daemon per database, and a socket path is never taken by force."""

import os
import signal
import socket
from pathlib import Path

import pytest
from helpers.daemon import DaemonProcess, running_daemon


@pytest.fixture
def second(home: Path, fresh_daemon: DaemonProcess) -> DaemonProcess:
    return DaemonProcess(home)


def refusal(process: DaemonProcess, *flags: str) -> str:
    """What a daemon that refuses to start says on stderr."""
    process.start(*flags, wait=False)
    try:
        assert process.wait() == 1
        return process.errors()
    finally:
        process.close()


def test_second_daemon_on_the_same_database_exits_and_says_why(
    fresh_daemon: DaemonProcess, second: DaemonProcess
) -> None:
    said = refusal(second)
    assert "another clankersd" in said
    assert "Traceback" not in said


def test_first_daemon_is_unharmed_by_a_second(fresh_daemon: DaemonProcess, second: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        connection.call("upsertMessage", message={"id": "before", "sessionId": "s"})
        refusal(second)
        connection.call("upsertMessage", message={"id": "after", "sessionId": "s"})
    with fresh_daemon.connect() as another:
        found = another.call("message.list", sessionId="s")["messages"]
        assert {one["id"] for one in found} == {"before", "after"}


def test_second_daemon_on_the_same_database_is_refused_at_another_socket_too(
    home: Path, fresh_daemon: DaemonProcess, second: DaemonProcess
) -> None:
    elsewhere = home / "elsewhere.sock"
    assert "another clankersd" in refusal(second, "--socket", str(elsewhere))
    assert not elsewhere.exists()


def test_second_daemon_on_another_database_does_not_take_the_first_ones_socket(
    home: Path, fresh_daemon: DaemonProcess, second: DaemonProcess
) -> None:
    refusal(second, "--db-path", str(home / "other.db"))
    with fresh_daemon.connect() as connection:
        status = connection.call("daemon.status")
    assert fresh_daemon.process
    assert status["pid"] == fresh_daemon.process.pid
    assert status["dbPath"] == str(fresh_daemon.database)


def test_socket_left_by_kill_9_does_not_keep_the_next_daemon_from_starting(home: Path) -> None:
    with running_daemon(home) as first:
        first.kill()
        assert first.socket_path.is_socket()
    with running_daemon(home) as again, again.connect() as connection:
        assert connection.call("health")["ok"]


def test_file_that_is_no_socket_is_not_removed(home: Path) -> None:
    process = DaemonProcess(home)
    process.data.mkdir(mode=0o700)
    process.socket_path.write_text("somebody's notes")
    said = refusal(process)
    assert str(process.socket_path) in said
    assert "Traceback" not in said
    assert process.socket_path.read_text() == "somebody's notes"


def test_another_programs_socket_is_not_taken_while_it_listens(home: Path) -> None:
    process = DaemonProcess(home)
    process.data.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(process.socket_path))
        listener.listen()
        inode = process.socket_path.stat().st_ino
        refusal(process)
        assert process.socket_path.stat().st_ino == inode


def test_lock_goes_with_the_process_that_held_it(home: Path) -> None:
    with running_daemon(home) as first:
        assert first.process
        os.kill(first.process.pid, signal.SIGSTOP)
        assert "another clankersd" in refusal(DaemonProcess(home))
        os.kill(first.process.pid, signal.SIGCONT)
        first.kill()
    with running_daemon(home) as again, again.connect() as connection:
        assert connection.call("health")["ok"]
