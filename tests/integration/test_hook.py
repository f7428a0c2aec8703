"""`clankers-hook`: every event is stored or spooled, and the harness never sees an error."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, running_daemon

from clankers.hook import data_folder, socket_path
from clankers.spool import MAX_SPOOL_BYTES, SpoolFull, spool_event
from clankers_protocol.paths import default_paths

EVENT = {"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "hello"}}


def hook(environ: dict[str, str], event: bytes, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from clankers.hook import main; main()", *(words or ["generic"])],
        input=event, env=environ, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def spooled(home: Path) -> list[Path]:
    return sorted((home / "clankers" / "spool").glob("*.json"))


def wait_until_gone(home: Path) -> None:
    for _ in range(400):
        if not spooled(home):
            return
        time.sleep(0.05)
    raise AssertionError("the spool was not replayed")


def test_hook_event_reaches_the_database(fresh_daemon: DaemonProcess) -> None:
    hook(fresh_daemon.environ, json.dumps(EVENT).encode())
    wait_until_gone(fresh_daemon.home)  # on a slow machine the hook may have timed out and spooled the event
    with fresh_daemon.connect() as connection:
        (message,) = connection.call("message.list", sessionId="s")["messages"]
    assert message["textContent"] == "hello"


def test_hook_spools_events_without_a_daemon_which_replays_them_in_order(home: Path) -> None:
    environ = DaemonProcess(home).environ
    for number in range(5):
        hook(environ, json.dumps({"session": {"id": "s", "title": f"title {number}"}}).encode())
    assert len(spooled(home)) == 5
    with running_daemon(home) as daemon:
        wait_until_gone(home)
        with daemon.connect() as connection:
            assert connection.call("session.get", id="s")["title"] == "title 4"


def test_hook_spools_the_event_if_the_daemon_hangs(home: Path) -> None:
    environ = DaemonProcess(home).environ
    (home / "clankers").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(home / "clankers" / "dxta-clankers.sock"))
        silent.listen(1)
        hook(environ, json.dumps(EVENT).encode())
    assert len(spooled(home)) == 1


def test_hook_events_that_are_invalid_are_rejected_without_delaying_others(home: Path) -> None:
    environ = DaemonProcess(home).environ
    for event in (b"{not json", b'{"message": {"id": 5}}', json.dumps(EVENT).encode()):
        hook(environ, event)
    with running_daemon(home) as daemon:
        wait_until_gone(home)
        with daemon.connect() as connection:
            assert connection.call("session.get", id="s")["counts"]["messages"] == 1
    assert len(list((home / "clankers" / "spool" / "rejected").iterdir())) == 2


@pytest.mark.parametrize("event", [b"", b"\n", b"\x80\xff", b"[1]", b"x" * 1_000_000])
def test_hook_exits_silently_for_invalid_input(shared_daemon: DaemonProcess, event: bytes) -> None:
    hook(shared_daemon.environ, event)
    with shared_daemon.connect() as connection:
        assert connection.call("health")["ok"]


@pytest.mark.parametrize(
    ("event", "expected"),
    [(b'{"a": 1}', {"name": "x", "a": 1}), (b" {} ", {"name": "x"}), (b'{ "b": {}}', {"name": "x", "b": {}})],
)
def test_hook_adds_fields_to_the_event(home: Path, event: bytes, expected: dict[str, Any]) -> None:
    hook(DaemonProcess(home).environ, event, "copilot", '--with={"name": "x"}')
    (path,) = spooled(home)
    assert json.loads(path.read_bytes())["event"] == expected


def test_hook_exits_silently_if_nothing_can_be_written(home: Path) -> None:
    (home / "clankers").write_text("a file where the folder should be")
    hook(DaemonProcess(home).environ, json.dumps(EVENT).encode())


def test_spool_event_refuses_new_events_when_the_spool_is_full(home: Path) -> None:
    first = spool_event(str(home), b"{}")
    (home / f"2-1-{MAX_SPOOL_BYTES - 3}.json").touch()  # the name contains the size
    with pytest.raises(SpoolFull):
        spool_event(str(home), b"{}")
    assert sorted(path.name for path in home.iterdir()) == sorted([Path(first).name, f"2-1-{MAX_SPOOL_BYTES - 3}.json"])


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": "/home/me"},
        {"HOME": "/home/me", "XDG_DATA_HOME": "/data"},
        {"HOME": "/home/me", "CLANKERS_DATA_PATH": "/other"},
        {"HOME": "/home/me", "CLANKERS_SOCKET_PATH": "/run/x.sock"},
    ],
)
def test_hook_paths_equal_the_paths_of_the_daemon(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("CLANKERS_", "XDG_", "HOME"))]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    paths = default_paths(environ)
    assert (data_folder(environ), socket_path(environ)) == (str(paths.data), str(paths.socket))
