"""Noticing changes: which folders to listen to, and which of what they tell matters."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread
from watchfiles import Change
from watchfiles._rust_notify import RustNotify  # documented; awatch would add its folders on the event loop

from clankersd.index.files.scan import IGNORED

STEP_MS = 100
TOGETHER_MS = 500
LONGEST_REST = 10
"""So many times the debounce: a file that is written without end is indexed all the same."""


class WatchUnavailable(Exception):
    """The system does not tell of changes; the message is its reason."""


class Watch:
    """Tells of changes in `folders`, from the moment it is made until `stop` is set.

    Each folder is listened to by itself: what lies in ignored folders costs nothing. To be made in a thread.
    """

    def __init__(self, folders: Mapping[str, frozenset[str] | None], stop: anyio.Event) -> None:
        self.folders = folders
        self._stop = stop
        try:
            self._notify = RustNotify(list(folders), False, False, 0, False, True)
        except FileNotFoundError:
            raise
        except (OSError, RuntimeError) as error:
            raise WatchUnavailable(str(error)) from error

    async def changed(self, seconds: float) -> bool:
        """Wait for a change that matters, at most so long; tells whether there was one."""
        return await anyio.to_thread.run_sync(self._wait, seconds, abandon_on_cancel=True)

    async def rest(self, milliseconds: int) -> None:
        """Wait until nothing has changed for so long."""
        seconds = milliseconds / 1000
        end = time.monotonic() + seconds * LONGEST_REST
        while time.monotonic() < end and await self.changed(seconds):
            pass

    def close(self) -> None:
        """Stop listening; whoever waits in a thread is let go."""
        self._stop.set()
        self._notify.close()

    def _wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                told = self._notify.watch(TOGETHER_MS, STEP_MS, max(1, round(left * 1000)), self._stop)
            except RuntimeError as error:
                raise WatchUnavailable(str(error)) from error
            if isinstance(told, str):
                return False
            if any(self._matters(Change(kind), path) for kind, path in told):
                return True
        return False

    def _matters(self, change: Change, path: str) -> bool:
        folder, name = os.path.split(path)
        if path in self.folders and change != Change.modified:
            return True
        if name in IGNORED or folder not in self.folders:
            return False
        names = self.folders[folder]
        if names is not None:
            return name in names
        return name.endswith(".md") or Path(path).is_dir()
