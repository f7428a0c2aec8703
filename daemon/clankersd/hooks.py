"""Events from `clankers-hook`."""

from typing import TYPE_CHECKING

from clankers_protocol.errors import InvalidParams
from clankers_protocol.events import HookEvent
from clankers_protocol.wire import Ok
from clankersd.events import Change, read_event
from clankersd.index.index import Index
from clankersd.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


@handles(HookEvent)
async def hook_event(daemon: "Daemon", request: HookEvent) -> Ok:
    await daemon.spool.catch_up()  # what was kept earlier happened earlier
    await daemon.store.write(change_of(daemon.index, request))
    daemon.index.wake()
    return Ok()


def change_of(index: Index, request: HookEvent) -> Change:
    """What a harness's event changes; raises RpcError for one that cannot be read."""
    if request.harness != "generic":
        raise InvalidParams(f"invalid params: there is no harness {request.harness!r} - at `$.harness`")
    return read_event(index, request.event)
