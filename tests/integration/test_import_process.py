"""The process that reads the history of an import: it may end at any time, and ends with the import."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.hook import is_dead
from helpers.waiting import eventually

SESSIONS, PROMPTS = 30, 300


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon whose user has a history that takes a while to import."""
    folder = tmp_path / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True)
    for session in range(SESSIONS):
        lines = []
        for number in range(PROMPTS):
            text = f"prompt {number} of session {session} " + "about the queue and its retries " * 60
            line = {"type": "user", "uuid": f"{session}-{number}", "sessionId": f"s{session}", "cwd": "/w"}
            at = f"2026-01-{session % 28 + 1:02}T10:{number // 60:02}:{number % 60:02}Z"
            lines.append(json.dumps(line | {"timestamp": at, "message": {"content": text}}))
        (folder / f"s{session}.jsonl").write_text("\n".join(lines) + "\n")
    with running_daemon(tmp_path, HOME=str(tmp_path), CLANKERS_EMBEDDER="none") as started:
        yield started


@pytest.fixture
def rpc(daemon: DaemonProcess) -> Iterator[RawConnection]:
    with daemon.connect() as connection:
        yield connection


def start_import(rpc: RawConnection) -> str:
    return str(rpc.call("import.start", harness="claude-code")["jobId"])


def reader_of(daemon: DaemonProcess) -> int:
    """Wait until the process that reads the history runs; return its id."""
    assert daemon.process
    threads = Path(f"/proc/{daemon.process.pid}/task")

    def find() -> int | None:
        children = [pid for thread in threads.iterdir() for pid in (thread / "children").read_text().split()]
        for pid in children:
            if b"history_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        return None

    return int(eventually(find, "the history is being read"))


def ended(rpc: RawConnection, job: str) -> dict[str, Any]:
    return dict(eventually(lambda: (one := rpc.call("job.status", id=job))["state"] != "running" and one, "it ends"))


def test_sessions_are_imported_although_the_reader_is_killed(daemon: DaemonProcess, rpc: RawConnection) -> None:
    job = start_import(rpc)
    first = reader_of(daemon)
    os.kill(first, signal.SIGKILL)
    summary = ended(rpc, job)["result"]
    assert summary["unreadable"] == 1
    assert summary["files"] == SESSIONS - 1
    again = ended(rpc, start_import(rpc))["result"]
    assert again["unreadable"] == 0
    assert summary["messages"] + again["messages"] == SESSIONS * PROMPTS


def test_a_cancelled_import_ends_the_reader(daemon: DaemonProcess, rpc: RawConnection) -> None:
    job = start_import(rpc)
    pid = reader_of(daemon)
    rpc.call("job.cancel", id=job)
    assert ended(rpc, job)["state"] == "cancelled"
    eventually(lambda: is_dead(pid), "the reader ends")
    assert ended(rpc, start_import(rpc))["state"] == "done"


def test_the_reader_ends_with_a_daemon_that_is_killed(daemon: DaemonProcess, rpc: RawConnection) -> None:
    start_import(rpc)
    pid = reader_of(daemon)
    daemon.kill()
    eventually(lambda: is_dead(pid), "the reader ends")
    with running_daemon(daemon.home, HOME=str(daemon.home)) as restarted, restarted.connect() as connection:
        ended(connection, start_import(connection))
        assert connection.call("query", sql="SELECT count(*) FROM messages")["rows"] == [[SESSIONS * PROMPTS]]
