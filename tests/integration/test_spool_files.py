"""The spool with files in it that no hook wrote or that cannot be read: every other event is stored all the same."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, running_daemon
from helpers.waiting import eventually

from clankers.spool import spool_event
from clankersd.capture import spool as spool_module
from clankersd.capture.pause import Pauses
from clankersd.capture.spool import MAX_EVENT_BYTES, Spool
from clankersd.safe_files import read_regular

FIRST = "00000000000000000001-1-1.json"
"""Sorts before every event that a hook spools now."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def message(number: int) -> bytes:
    event = {"message": {"id": f"m{number}", "sessionId": "s", "role": "user", "textContent": "hello"}}
    return json.dumps({"harness": "generic", "event": event}).encode()


def messages(daemon: DaemonProcess) -> int:
    with daemon.connect() as connection:
        reply = connection.request("session.get", {"id": "s"})
    return int(reply["result"]["counts"]["messages"]) if "result" in reply else 0


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_EVENT_BYTES + 1)


def make_hard_link(path: Path) -> None:
    path.write_bytes(message(90))
    os.link(path, path.with_name("second name"))


def make_foreign(path: Path) -> None:
    path.write_bytes(message(91))
    os.chown(path, 12345, 12345)


def make_link(path: Path) -> None:
    target = path.parent.parent / "target"
    target.write_bytes(message(92))
    path.symlink_to(target)


BAD: dict[str, Callable[[Path], Any]] = {
    "directory": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link": make_link,
    "pipe": os.mkfifo,
    "huge": make_huge,
    "hard link": make_hard_link,
    "not JSON": lambda path: path.write_bytes(b"{not json"),
    "not UTF-8": lambda path: path.write_bytes(b'{"harness":"generic","event":"\xff\xfe'),
    "empty": Path.touch,
    "no event": lambda path: path.write_bytes(b"[1, 2]"),
    **({"foreign": make_foreign} if os.geteuid() == 0 else {}),
}


@pytest.fixture
def spool(home: Path) -> Path:
    folder = home / "clankers" / "spool"
    folder.mkdir(parents=True)
    return folder


def test_spool_sets_bad_files_aside_and_stores_the_rest(home: Path, spool: Path) -> None:
    names = set()
    for number, make in enumerate(BAD.values()):
        make(spool / f"{number:020}-1-1.json")
        names.add(f"{number:020}-1-1.json")
    strange = os.fsdecode(b"0\xff\xfe\n\x1b[31m.json")
    (spool / strange).write_bytes(b"{not json")
    for number in range(3):
        spool_event(str(spool), message(number))
    with running_daemon(home) as daemon:
        eventually(lambda: messages(daemon) == 3, "the events behind the bad files are stored")
        eventually(lambda: not list(spool.glob("*.json")), "the spool is empty")
        assert {path.name for path in (spool / "rejected").iterdir()} == names | {strange}
        with daemon.connect() as connection:
            report = connection.call("capture.status")
            health = connection.call("health")
        assert (report["ok"], report["spool"]["rejected"]) == (False, len(names) + 1)
        assert all(event["problem"] for event in report["spool"]["newest"])
        assert f"{len(names) + 1} spooled events could not be stored" in " ".join(health["warnings"])
        assert "warning" in ctl(daemon, "health").out
        shown = ctl(daemon, "capture", "status")
        assert (shown.code, "\x1b" in shown.out) == (4, False)
        checks = ctl(daemon, "doctor", "--json").json["checks"]
        found = next(check for check in checks if check["name"] == "rejected events")
        assert found["finding"].startswith(f"{len(names) + 1} events could not be stored")


def test_spool_skips_and_remembers_what_it_cannot_move(home: Path, spool: Path) -> None:
    (spool / "rejected").write_text("a file where the directory should be")
    (spool / FIRST).mkdir()
    with running_daemon(home) as daemon, daemon.connect() as connection:
        for number in range(20):
            spool_event(str(spool), message(number))
            event = json.loads(message(number + 20))["event"]
            connection.call("hook.event", harness="generic", event=event)
        eventually(lambda: messages(daemon) == 40, "all events are stored")
        (skipped,) = connection.call("capture.status")["spool"]["skipped"]
        assert skipped["name"] == FIRST
        assert "not a regular file" in skipped["problem"]
        assert "rejected" in skipped["problem"]
        assert FIRST in connection.call("health")["warnings"][0]
        assert "skipped" in ctl(daemon, "capture", "status").out
        checks = ctl(daemon, "doctor", "--json").json["checks"]
        assert next(check for check in checks if check["name"] == "spool")["state"] == "problem"
        log = "".join(path.read_text() for path in daemon.logs.glob("*.jsonl"))
        assert log.count("spooled event skipped") == 1  # not once for every event


def test_spool_does_not_overwrite_what_was_set_aside_under_the_same_name(home: Path, spool: Path) -> None:
    (spool / "rejected").mkdir()
    (spool / "rejected" / FIRST).write_text("the one before")
    (spool / FIRST).write_text("{not json")
    with running_daemon(home):
        eventually(lambda: len(list((spool / "rejected").iterdir())) == 2, "the second is set aside too")
    assert sorted(path.read_text() for path in (spool / "rejected").iterdir()) == ["the one before", "{not json"]


def test_spool_does_not_write_through_a_link_called_rejected(home: Path, spool: Path) -> None:
    (home / "elsewhere").mkdir()
    (spool / "rejected").symlink_to(home / "elsewhere")
    (spool / FIRST).write_text("{not json")
    spool_event(str(spool), message(1))
    with running_daemon(home) as daemon:
        eventually(lambda: messages(daemon) == 1, "the event is stored")
    assert list((home / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "dangling link", pytest.param("foreign", marks=as_root)])
def test_spool_directory_that_cannot_be_used_is_a_problem(fresh_daemon: DaemonProcess, kind: str) -> None:
    folder = fresh_daemon.data / "spool"
    if kind == "file":
        folder.write_text("in the way")
    elif kind == "dangling link":
        folder.symlink_to(fresh_daemon.home / "nowhere")
    else:
        folder.mkdir()
        os.chown(folder, 12345, 12345)

    with fresh_daemon.connect() as connection:
        problem = eventually(lambda: connection.call("health")["problem"], "health tells")
        assert str(folder) in problem
        assert str(folder) in connection.call("capture.status")["spool"]["problem"]
        connection.call("hook.event", harness="generic", event=json.loads(message(1))["event"])
        assert ctl(fresh_daemon, "health").code == 4
        checks = ctl(fresh_daemon, "doctor", "--json").json["checks"]
        assert next(check for check in checks if check["name"] == "spool")["state"] == "problem"
        if folder.is_dir():
            folder.rmdir()
        else:
            folder.unlink()
        eventually(lambda: connection.call("health")["ok"], "health tells that it is over")
        spool_event(str(folder), message(2))
        eventually(lambda: messages(fresh_daemon) == 2, "it is replayed once the directory is in order")


def test_spool_directory_may_be_a_link_to_ones_own(home: Path) -> None:
    (home / "clankers").mkdir()
    (home / "disk").mkdir()
    (home / "clankers" / "spool").symlink_to(home / "disk")
    spool_event(str(home / "clankers" / "spool"), message(1))
    with running_daemon(home) as daemon:
        eventually(lambda: messages(daemon) == 1, "the event is stored")


def drop_privileges() -> None:
    """Let root, too, be refused what a file's mode forbids."""
    for capability in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: from the next exec on


@pytest.fixture
def ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start daemons without root's right to read every file."""
    if os.geteuid() == 0:
        if sys.platform != "linux":
            pytest.skip("root may read everything")
        monkeypatch.setattr("helpers.daemon.subprocess.Popen", partial(subprocess.Popen, preexec_fn=drop_privileges))


@pytest.mark.usefixtures("ordinary_user")
def test_spool_sets_aside_a_file_without_permissions(home: Path, spool: Path) -> None:
    (spool / FIRST).write_bytes(message(1))
    (spool / FIRST).chmod(0)
    spool_event(str(spool), message(2))
    with running_daemon(home) as daemon:
        eventually(lambda: messages(daemon) == 1, "the event behind it is stored")
        eventually((spool / "rejected" / FIRST).exists, "it is set aside")


@pytest.mark.usefixtures("ordinary_user")
def test_spool_directory_without_permissions_is_a_problem(home: Path, spool: Path) -> None:
    spool_event(str(spool), message(1))
    spool.chmod(0)
    with running_daemon(home) as daemon, daemon.connect() as connection:
        eventually(lambda: not connection.call("health")["ok"], "health tells")
        assert "chmod 700" in connection.call("health")["problem"]
        spool.chmod(0o700)
        eventually(lambda: messages(daemon) == 1, "it is replayed once the directory can be read")


# --- The class itself, with faults that a test cannot make on a disk


class FakeDaemon:
    """What the spool needs of the daemon; stores nothing."""

    class Waker:
        def wake(self) -> None: ...

    class Store:
        async def write(self, change: Any, bulk: bool = False) -> None: ...

    store = Store()
    index = transcripts = Waker()

    def __init__(self, data: Path) -> None:
        self.pauses = Pauses(data)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the messages that were stored, in order."""
    names: list[str] = []

    async def store(_self: Any, change: Any, bulk: bool = False) -> None:
        names.append(change.keywords["hook"])

    monkeypatch.setattr(FakeDaemon.Store, "write", store)
    monkeypatch.setattr(spool_module, "prepare_hook", lambda _index, event: event.event["message"]["id"])
    return names


@pytest.mark.anyio
async def test_spool_leaves_a_file_with_a_read_error_for_later(
    tmp_path: Path, stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = Path(spool_event(str(tmp_path), message(1))).name, spool_event(str(tmp_path), message(2))
    read = read_regular

    def fail(path: Path, **limits: Any) -> bytes:
        if path.name == bad:
            raise OSError(5, "Input/output error")
        return read(path, **limits)

    monkeypatch.setattr(spool_module, "read_regular", fail)
    replayed = Spool(FakeDaemon(tmp_path), tmp_path)  # type: ignore[arg-type]
    await replayed.catch_up()
    assert (stored, list(replayed.skipped)) == (["m2"], [bad])
    assert not Path(good).exists()
    monkeypatch.undo()
    assert "Input/output error" in replayed.warnings()[0]


@pytest.mark.anyio
async def test_spool_passes_over_a_file_that_vanishes(
    tmp_path: Path, stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = spool_event(str(tmp_path), message(1))
    spool_event(str(tmp_path), message(2))
    read = read_regular

    def vanish(path: Path, **limits: Any) -> bytes:
        Path(gone).unlink(missing_ok=True)
        return read(path, **limits)

    monkeypatch.setattr(spool_module, "read_regular", vanish)
    replayed = Spool(FakeDaemon(tmp_path), tmp_path)  # type: ignore[arg-type]
    await replayed.catch_up()
    assert (stored, replayed.skipped, replayed.rejected) == (["m2"], {}, 0)


@pytest.mark.anyio
async def test_spool_is_not_listed_for_every_batch_nor_for_every_event(
    tmp_path: Path, stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        (tmp_path / f"{number:020}-1-1.json").write_bytes(message(number))
    listings = 0
    scandir = os.scandir

    def count(path: Any) -> Any:
        nonlocal listings
        listings += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    monkeypatch.setattr(spool_module, "SETTLED_NS", -(10**18))
    replayed = Spool(FakeDaemon(tmp_path), tmp_path)  # type: ignore[arg-type]
    for _ in range(100):
        await replayed.catch_up()
        await anyio.lowlevel.checkpoint()
    assert stored == [f"m{number}" for number in range(1000)]
    assert listings == 2  # one that found them, and one that found no more
