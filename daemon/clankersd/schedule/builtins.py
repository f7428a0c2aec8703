"""Built-in actions that the daemon executes on a schedule. It runs no commands, only these functions."""

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
    """Make a verified copy of the database and delete all but the newest MAX_SCHEDULED_BACKUPS scheduled backups."""
    await progress(0, 1, "copying the database")
    made = await daemon.store.back_up("scheduled")
    for old in backups_to_delete(daemon.paths.backups, made):
        old.unlink(missing_ok=True)
    return {"file": made.name}


def backups_to_delete(folder: Path, made: Path) -> list[Path]:
    """List all scheduled backups but the newest. One dated after the one just made is old: the clock was wrong."""
    backups = sorted(folder.glob("clankers-*-scheduled.db"), key=lambda path: (path.name <= made.name, path.name))
    return backups[:-MAX_SCHEDULED_BACKUPS]


async def reindex(daemon: "Daemon", progress: Progress) -> dict[str, int]:
    """Rebuild the index while the live one stays in use."""
    return await rebuild(daemon.index, daemon.queue, daemon.files, progress)


async def sync(daemon: "Daemon", progress: Progress) -> Any:
    """Compare all watched files with the index."""
    await progress(0, 1, "comparing files")
    return msgspec.to_builtins(await daemon.files.sync())


async def maintain_memories(daemon: "Daemon", progress: Progress) -> Any:
    """Promote, archive, merge and expire memories that are due for it."""
    await progress(0, 1, "maintaining memories")
    return msgspec.to_builtins(msgspec.structs.replace(await maintain(daemon), changes=[]))


BUILTINS: dict[str, Builtin] = {"backup": backup, "maintain": maintain_memories, "reindex": reindex, "sync": sync}
"""Built-in actions by name. Each runs as a job of that kind, so that none runs twice at the same time."""
