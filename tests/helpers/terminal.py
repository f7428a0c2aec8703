"""A terminal with a screen that can be read, and a program that runs on it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyte

SHOWN_WITHIN_SECONDS = 30
KEYS = {"down": "\x1b[B", "enter": "\r", "escape": "\x1b", "page up": "\x1b[5~", "end": "\x1b[F"}


class Terminal:
    """A pseudo-terminal, the program on it, and what its screen shows."""

    def __init__(self, program: Sequence[str], environ: dict[str, str], columns: int = 120, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, self._theirs = pty.openpty()  # the other end stays open, so that its settings can be read
        self.resize(columns, lines)
        self.settings = termios.tcgetattr(self._theirs)
        self.written = b""
        known = environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        known.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            program,
            env=known,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            preexec_fn=self._control,
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def press(self, keys: str) -> None:
        """Type a text, or press a key by its name."""
        os.write(self._ours, KEYS.get(keys, keys).encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size; the program is told by SIGWINCH."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def shows(self, *texts: str) -> str:
        """Wait until the screen shows all texts; return the screen."""
        return self._until(lambda: all(text in self.text for text in texts), f"no {texts} on the screen")

    def changes(self, before: str) -> str:
        """Wait until the screen shows something else; return the screen."""
        return self._until(lambda: self.text != before, "nothing changes on the screen")

    def ended(self) -> int:
        """Wait for the end of the program; return its exit code."""
        self._until(lambda: self.process.poll() is not None, "the program still runs")
        self._read(0)
        return self.process.returncode or 0

    def has_its_settings(self) -> bool:
        """Return whether echo, line editing and the rest are as before the program started."""
        now: list[Any] = termios.tcgetattr(self._theirs)
        return now == self.settings

    def _until(self, is_so: Callable[[], bool], otherwise: str) -> str:
        deadline = time.monotonic() + SHOWN_WITHIN_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, f"{otherwise}:\n{self.text}"
            self._read(0.1)
        return self.text

    def _read(self, seconds: float) -> None:
        while select.select([self._ours], [], [], seconds)[0]:
            data = os.read(self._ours, 65536)
            self.written += data
            self._stream.feed(data)
            seconds = 0

    def _control(self) -> None:
        os.setsid()
        fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)
