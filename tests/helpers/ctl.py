"""Running `clankers-ctl` as a person does: as a process, piped or on a terminal."""

import atexit
import json
import os
import pty
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from helpers.daemon import DaemonProcess


class Ran:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "clankers.ctl", *words]


@cache
def loaded() -> socket.socket:
    """The way to the process that has `clankers-ctl` loaded; it ends when ours does."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = [sys.executable, "-P", str(Path(__file__).with_name("ctl_forks.py"))]
        process = subprocess.Popen(program, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def ctl(daemon: DaemonProcess, *words: str, typed: str = "", cwd: Path | None = None, **environ: str) -> Ran:
    """What the command leaves behind: a process of its own, but one that need not load everything first."""
    known = daemon.environ | {"COLUMNS": ""} | environ  # as wide as it needs to be
    call = {"words": words, "environ": known, "cwd": str(cwd or Path.cwd())}
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile("w+")) for _ in range(4)]
        for file, text in zip(files, (json.dumps(call), typed), strict=False):
            file.write(text)
            file.seek(0)
        socket.send_fds(loaded(), [b"."], [file.fileno() for file in files])
        code = int(loaded().recv(16))
        for file in files[2:]:
            file.seek(0)
        out, err = (file.read() for file in files[2:])
    return Ran(code, out, err)


def quickly_on_a_terminal(daemon: DaemonProcess, *words: str, **environ: str) -> str:
    """What the command writes when it has a terminal, without loading everything first."""
    known = daemon.environ | {"TERM": "xterm-256color", "COLUMNS": ""} | environ
    ours, theirs = pty.openpty()
    with TemporaryFile("w+") as call:
        call.write(json.dumps({"words": words, "environ": known, "cwd": str(Path.cwd())}))
        call.seek(0)
        socket.send_fds(loaded(), [b"."], [call.fileno(), theirs, theirs, theirs])
    os.close(theirs)
    written = _read_terminal(ours)
    loaded().recv(16)
    return written


def on_a_terminal(daemon: DaemonProcess, *words: str, **environ: str) -> str:
    """What the command writes when it has a terminal."""
    ours, theirs = pty.openpty()
    known = {"TERM": "xterm-256color", "COLUMNS": ""} | environ
    process = subprocess.Popen(command(*words), env=daemon.environ | known, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = _read_terminal(ours)
    process.wait(30)
    return written


def _read_terminal(ours: int) -> str:
    written = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while data := os.read(ours, 65536):
            written += data
    os.close(ours)
    return written.decode()
