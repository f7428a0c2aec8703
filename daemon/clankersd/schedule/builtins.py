"""What the daemon can do by itself on a schedule. It runs no commands: these functions are all there is."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from clankersd.index.reindex import rebuild
from clankersd.memories.maintenance import maintain
from clankersd.wire.jobs import Progress

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_SCHEDULED_BACKUPS = 7

Builtin = Callable[["Daemon", Progress], Awaitable[Any]]


async def backup(daemon: "Daemon", progress: Progress) -> dict[str, str]:
    """A verified copy of the database beside the others; of those made on a schedule the newest seven stay."""
    await progress(0, 1, "copying the database")
    made = await daemon.store.back_up("scheduled")
    for old in backups_to_delete(daemon.paths.backups, made):
        old.unlink(missing_ok=True)
    return {"file": made.name}


def backups_to_delete(folder: Path, made: Path) -> list[Path]:
    """List all scheduled backups but the newest. One dated after the one just made is old: the clock was wrong."""
    found = sorted(folder.glob("clankers-*-scheduled.db"), key=lambda path: (path.name <= made.name, path.name))
    return found[:-MAX_SCHEDULED_BACKUPS]


async def reindex(daemon: "Daemon", progress: Progress) -> dict[str, int]:
    """The whole index anew, beside the live one."""
    return await rebuild(daemon.index, daemon.queue, daemon.files, progress)


async def sync(daemon: "Daemon", progress: Progress) -> Any:
    """Compare all watched files with the index."""
    await progress(0, 1, "comparing files")
    return msgspec.to_builtins(await daemon.files.sync())


async def look_after_memories(daemon: "Daemon", progress: Progress) -> Any:
    """Promote, archive, merge and let expire what is due for it."""
    await progress(0, 1, "looking through memories")
    return msgspec.to_builtins(msgspec.structs.replace(await maintain(daemon), changes=[]))


BUILTINS: dict[str, Builtin] = {"backup": backup, "maintain": look_after_memories, "reindex": reindex, "sync": sync}
"""By the name an action gives; each runs as a job of that kind, so never twice at the same time."""
