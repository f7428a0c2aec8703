"""Events from `clankers-hook`: as they come over the socket, and as it kept them while we were away."""

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import structlog

from clankers_protocol.errors import InvalidParams, ParseError, RpcError, StorageUnavailable
from clankers_protocol.events import HookEvent
from clankers_protocol.wire import Ok
from clankersd import rpc
from clankersd.events import Change, keep, read_event
from clankersd.index.index import Index
from clankersd.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

REPLAY_SECONDS = 5.0
AT_ONCE = 200

log = structlog.get_logger(component="hooks")


@handles(HookEvent)
async def hook_event(daemon: "Daemon", request: HookEvent) -> Ok:
    await keep(daemon, change_of(daemon.index, request))
    daemon.index.wake()
    return Ok()


def change_of(index: Index, request: HookEvent) -> Change:
    """What a harness's event changes; raises RpcError for one that cannot be read."""
    if request.harness != "generic":
        raise InvalidParams(f"invalid params: there is no harness {request.harness!r} - at `$.harness`")
    return read_event(index, request.event)


async def replay_spool(daemon: "Daemon", folder: Path) -> None:
    """Store what was kept while we were away: now, and whenever something appears."""
    while True:
        try:
            while replayed := await replay_some(daemon, folder):
                log.info("spool replayed", events=replayed)
        except OSError as error:
            log.error("spool cannot be read", error=str(error))
        await anyio.sleep(REPLAY_SECONDS)


async def replay_some(daemon: "Daemon", folder: Path) -> int:
    """Store the oldest events of the spool in order and remove them; tells how many are dealt with."""
    kept = await anyio.to_thread.run_sync(_oldest, daemon.index, folder)
    dealt_with: list[Path] = []
    async with anyio.create_task_group() as tasks:  # each its own change, all in one commit
        for path, change in kept:
            tasks.start_soon(_replay, daemon, path, change, dealt_with)
    daemon.index.wake()
    return len(dealt_with)


async def _replay(daemon: "Daemon", path: Path, change: Change | RpcError, dealt_with: list[Path]) -> None:
    try:
        if isinstance(change, RpcError):
            raise change
        await keep(daemon, change)
        path.unlink(missing_ok=True)  # noqa: ASYNC240  # a millisecond at most, and only after an outage
    except StorageUnavailable as error:
        log.debug("spool waits", problem=error.message)
        return
    except Exception as error:
        _set_aside(path, error)
    dealt_with.append(path)


def _oldest(index: Index, folder: Path) -> list[tuple[Path, Change | RpcError]]:
    if not folder.is_dir():
        return []
    return [(path, _read(index, path)) for path in sorted(folder.glob("*.json"))[:AT_ONCE]]


def _read(index: Index, path: Path) -> Change | RpcError:
    try:
        return change_of(index, msgspec.convert(rpc.decode(path.read_bytes()), HookEvent))
    except msgspec.ValidationError as error:
        return ParseError(str(error))
    except RpcError as error:
        return error


def _set_aside(path: Path, problem: Exception) -> None:
    """An event that can never be stored must not hold up the rest, and must not vanish either."""
    rejected = path.parent / "rejected"
    rejected.mkdir(mode=0o700, exist_ok=True)
    path.rename(rejected / path.name)
    log.error("spooled event set aside", file=path.name, problem=repr(problem))
