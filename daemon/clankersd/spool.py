"""Events that hooks kept while we were away, stored in the order in which they were kept."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import structlog

from clankers_protocol.errors import ParseError, RpcError, StorageUnavailable
from clankers_protocol.events import HookEvent
from clankersd import rpc
from clankersd.changes import Change, keep
from clankersd.hooks import change_of
from clankersd.index.index import Index

if TYPE_CHECKING:
    from clankersd.app import Daemon

REPLAY_SECONDS = 5.0
AT_ONCE = 200
BYTES_AT_ONCE = 32 * 1024 * 1024
GIVEN_UP_SECONDS = 60.0
"""A file that is still unfinished then belongs to a hook that was killed."""

MOST_REJECTED = 1000
MOST_REJECTED_BYTES = 256 * 1024 * 1024
"""Of the events that can never be stored so many are shown to the owner; older ones make room."""

log = structlog.get_logger(component="spool")


class Spool:
    """The folder that hooks keep events in."""

    def __init__(self, daemon: "Daemon", folder: Path) -> None:
        self._daemon = daemon
        self._folder = folder
        self._turn = anyio.Lock()

    async def run(self) -> None:
        """Store what was kept while we were away: now, and whenever something appears."""
        while True:
            await anyio.to_thread.run_sync(_finish_unfinished, self._folder)
            await self.catch_up()
            await anyio.sleep(REPLAY_SECONDS)

    async def catch_up(self) -> None:
        """Store all that is kept and can be stored: before what came later, so that it does not undo that."""
        if self._is_empty() and not self._turn.locked():  # nearly always: this is asked for every event
            return
        async with self._turn:
            try:
                while replayed := await self._replay_some():
                    log.info("spool replayed", events=replayed)
            except OSError as error:
                log.error("spool cannot be read", error=str(error))

    def _is_empty(self) -> bool:
        try:
            with os.scandir(self._folder) as entries:
                return not any(entry.name.endswith(".json") for entry in entries)
        except OSError:
            return True

    async def _replay_some(self) -> int:
        """Store the oldest events in order and remove them; tells how many are dealt with."""
        kept = await anyio.to_thread.run_sync(_oldest, self._daemon.index, self._folder)
        dealt_with: list[Path] = []
        async with anyio.create_task_group() as tasks:  # each its own change, all in one commit
            for path, change in kept:
                tasks.start_soon(self._replay, path, change, dealt_with)
        self._daemon.index.wake()
        self._daemon.transcripts.wake()
        return len(dealt_with)

    async def _replay(self, path: Path, change: Change | RpcError, dealt_with: list[Path]) -> None:
        try:
            if isinstance(change, RpcError):
                raise change
            await keep(self._daemon, change, bulk=True)
            path.unlink(missing_ok=True)  # noqa: ASYNC240  # a millisecond at most, and only after an outage
        except StorageUnavailable as error:
            log.debug("spool waits", problem=error.message)
            return
        except Exception as error:
            if not _set_aside(path, error):
                return
        dealt_with.append(path)


def _oldest(index: Index, folder: Path) -> list[tuple[Path, Change | RpcError]]:
    read: list[tuple[Path, Change | RpcError]] = []
    length = 0
    for path in sorted(folder.glob("*.json"))[:AT_ONCE]:
        length += path.stat().st_size
        if read and length > BYTES_AT_ONCE:
            break
        read.append((path, _read(index, path)))
    return read


def _read(index: Index, path: Path) -> Change | RpcError:
    try:
        return change_of(index, msgspec.convert(rpc.decode(path.read_bytes()), HookEvent))
    except msgspec.ValidationError as error:
        return ParseError(str(error))
    except RpcError as error:
        return error


def _finish_unfinished(folder: Path) -> None:
    """What a hook had no time to rename is taken for whole; reading it shows whether it is."""
    with suppress(OSError):
        for path in folder.glob("*.unfinished"):
            if time.time() - path.stat().st_mtime > GIVEN_UP_SECONDS:
                path.rename(path.with_suffix(".json"))


def make_room(rejected: Path) -> None:
    """Keep the newest of what was set aside: their names begin with their time."""
    size = 0
    for count, path in enumerate(sorted(rejected.iterdir(), reverse=True), 1):
        size += path.stat().st_size
        if count > MOST_REJECTED or (count > 1 and size > MOST_REJECTED_BYTES):
            path.unlink(missing_ok=True)


def _set_aside(path: Path, problem: Exception) -> bool:
    """An event that can never be stored must not hold up the rest, and must not vanish either."""
    log.error("spooled event set aside", file=path.name, problem=repr(problem))
    rejected = path.parent / "rejected"
    try:
        rejected.mkdir(mode=0o700, exist_ok=True)
        path.rename(rejected / path.name)
        make_room(rejected)
    except OSError as error:
        log.error("spool cannot be written", error=str(error))
        return False
    return True
