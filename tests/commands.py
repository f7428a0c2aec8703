"""Running `clankers-ctl` as a person does: as a process, piped or on a terminal."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from support import DaemonProcess


class Ran:
    """What a command left behind."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "clankers.ctl", *words]


def ctl(daemon: DaemonProcess, *words: str, typed: str = "", cwd: Path | None = None, **environ: str) -> Ran:
    return Ran(
        subprocess.run(
            command(*words),
            env=daemon.environ | {"COLUMNS": ""} | environ,  # as wide as it needs to be
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=cwd,
        )
    )


def on_a_terminal(daemon: DaemonProcess, *words: str, **environ: str) -> str:
    """What the command writes when it has a terminal."""
    ours, theirs = pty.openpty()
    known = {"TERM": "xterm-256color", "COLUMNS": ""} | environ
    process = subprocess.Popen(command(*words), env=daemon.environ | known, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while data := os.read(ours, 65536):
            written += data
    process.wait(30)
    os.close(ours)
    return written.decode()
