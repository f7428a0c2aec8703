"""Built-in actions that the daemon executes on a schedule. It runs no commands, only these functions."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from clankersd.backups import make_backup
from clankersd.forgetting.retention import apply_retention
from clankersd.index.reindex import rebuild
from clankersd.memories.maintenance import maintain
from clankersd.wire.jobs import Progress

if TYPE_CHECKING:
    from clankersd.app import Daemon

Builtin = Callable[["Daemon", Progress], Awaitable[Any]]


async def backup(daemon: "Daemon", progress: Progress) -> dict[str, Any]:
    """Make a verified backup and delete the oldest automatic ones."""
    return await make_backup(daemon, progress, "scheduled")


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


BUILTINS: dict[str, Builtin] = {
    "backup": backup,
    "maintain": maintain_memories,
    "reindex": reindex,
    "retention": apply_retention,
    "sync": sync,
}
"""Built-in actions by name. Each runs as a job of that kind, so that none runs twice at the same time."""
