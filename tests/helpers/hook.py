"""Running `clankers-hook` as a harness does, with and without a daemon."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clankers.ctl.plugin_files import hook_command
from helpers.daemon import DaemonProcess
from helpers.waiting import eventually

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at the process through /proc")

EVENT = {"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "hello"}}


def hook(environ: dict[str, str], event: Any, *words: str, **more: Any) -> bytes:
    """What the hook prints; it must exit 0 and say nothing on stderr, whatever happens."""
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    done = subprocess.run(
        [*hook_command(), *(words or ("generic",))], input=body, env=environ, capture_output=True, timeout=60, **more
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return bytes(done.stdout)


def spooled(home: Path) -> list[Path]:
    return sorted((home / "clankers" / "spool").glob("*.json"))


@contextmanager
def autostarting(home: Path) -> Iterator[DaemonProcess]:
    """A place where hooks may start the daemon; whatever they have started is gone after the block."""
    daemon = DaemonProcess(home, CLANKERS_HOOK_AUTOSTART="true", HOME=str(home), SECRET_TOKEN="harness's own")
    daemon.environ.pop("XDG_CONFIG_HOME", None)
    (home / "clankers.toml").write_text('embedder = "none"\n')
    try:
        yield daemon
    finally:
        end_started_daemons(home)


def end_started_daemons(home: Path) -> None:
    """End the daemons that hooks have started below this folder, wherever they keep their data."""
    for lock in home.rglob("clankers.db.lock"):
        pid = lock.read_text().strip()
        if pid and not is_dead(int(pid)):
            os.kill(int(pid), signal.SIGTERM)
            eventually(lambda pid=pid: is_dead(int(pid)), "the daemon has ended")  # type: ignore[misc]


def is_dead(pid: int) -> bool:
    """Tell whether all threads of a process have ended, also if nobody has asked for its exit code yet."""
    process = Path(f"/proc/{pid}")
    try:
        return ") Z " in (process / "stat").read_text() and len(list((process / "task").iterdir())) == 1
    except OSError:
        return True
