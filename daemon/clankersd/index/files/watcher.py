"""Notifications of file changes from the system, filtered to the files that are indexed."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread

from clankersd.index.files.scan import IGNORED_NAMES

MODIFIED = 2
"""The kind `modified` of watchfiles.Change."""

STEP_MS = 100
BATCH_MS = 500
MAX_DEBOUNCES = 10
"""Longest wait for a quiet moment, in debounce intervals: a file that is written continuously is indexed as well."""


class WatchUnavailable(Exception):
    """The system does not report changes; the message is its reason."""


class Watcher:
    """Reports changes in `folders`, from its creation until `stop` is set.

    Each folder is watched by itself, so that ignored folders cost nothing. Create it in a worker thread.
    """

    def __init__(self, folders: Mapping[str, frozenset[str] | None], stop: anyio.Event) -> None:
        self.folders = folders
        self._stop = stop
        try:
            # Documented; awatch would add its folders on the event loop.
            from watchfiles._rust_notify import RustNotify
        except Exception as error:
            raise WatchUnavailable(f"the package watchfiles cannot be used: {error}") from error
        try:
            self._notify = RustNotify(list(folders), False, False, 0, False, True)
        except FileNotFoundError:
            raise
        except (OSError, RuntimeError) as error:
            raise WatchUnavailable(str(error)) from error

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait up to `seconds` for a relevant change; return whether there was one."""
        return await anyio.to_thread.run_sync(self._wait, seconds, abandon_on_cancel=True)

    async def wait_until_quiet(self, debounce_ms: int) -> None:
        """Wait until nothing has changed for `debounce_ms`, at most MAX_DEBOUNCES times as long."""
        seconds = debounce_ms / 1000
        deadline = time.monotonic() + seconds * MAX_DEBOUNCES
        while time.monotonic() < deadline and await self.wait_for_change(seconds):
            pass

    def close(self) -> None:
        """Stop watching, which also ends a wait in a worker thread."""
        self._stop.set()
        self._notify.close()

    def _wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                changes = self._notify.watch(BATCH_MS, STEP_MS, max(1, round(left * 1000)), self._stop)
            except RuntimeError as error:
                raise WatchUnavailable(str(error)) from error
            if isinstance(changes, str):  # "timeout", "stop" or "signal"
                return False
            if any(self._is_relevant(kind, path) for kind, path in changes):
                return True
        return False

    def _is_relevant(self, kind: int, path: str) -> bool:
        folder, name = os.path.split(path)
        if path in self.folders and kind != MODIFIED:
            return True
        if name in IGNORED_NAMES or folder not in self.folders:
            return False
        names = self.folders[folder]
        if names is not None:
            return name in names
        return name.endswith(".md") or Path(path).is_dir()
