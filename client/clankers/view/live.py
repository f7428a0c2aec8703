"""Changes of the store as a stream of server-sent events, with what a page missed while it was away."""

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, get_args

import anyio
import msgspec

from clankers.aio import AsyncClient
from clankers.messages import DaemonUnavailable
from clankers.view.encoding import to_page_json
from clankers_protocol.errors import RpcError
from clankers_protocol.subscriptions import CHANGED, DROPPED, ChangeKind, Subscribe

MAX_KEPT_EVENTS = 2_000
HEARTBEAT_SECONDS = 15.0
RECONNECT_SECONDS = 1.0
PROBE_SECONDS = 2.0


@dataclass
class Changes:
    """The last changes with their sequence numbers; pages wait for later ones.

    A page whose last number is not among them, or that comes from another run of the view, is told to read again.
    """

    run: str
    last: int = 0
    is_connected: bool = False
    problem: str = "not connected yet"
    _kept: deque[tuple[int, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=MAX_KEPT_EVENTS))
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def publish(self, event: dict[str, Any]) -> None:
        self.last += 1
        self._kept.append((self.last, event))
        self._wake()

    def set_connected(self, connected: bool, problem: str = "") -> None:
        """Note whether the daemon answers. After a lost connection, pages read again what they show."""
        if connected and not self.is_connected:
            self.publish({"type": "reread"})
        elif self.is_connected and not connected:
            self.publish({"type": "away", "problem": problem})
        self.is_connected, self.problem = connected, problem

    def since(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the events after a number; one that says `reread` if some of them are gone."""
        oldest = self._kept[0][0] if self._kept else self.last + 1
        if number > self.last or number + 1 < oldest:
            return [(self.last, {"type": "reread"})]
        return [(at, event) for at, event in self._kept if at > number]

    async def wait(self) -> None:
        """Wait for the next event, or for the time of a heartbeat."""
        with anyio.move_on_after(HEARTBEAT_SECONDS):
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


async def follow_changes(socket: str | None, changes: Changes) -> None:
    """Subscribe to all changes of the daemon, and subscribe again whenever the connection is lost, until cancelled."""
    while True:
        dropped = anyio.Event()

        def on_notification(method: str, params: Any, dropped: anyio.Event = dropped) -> None:
            if method == CHANGED:
                changes.publish({"type": "change", **{k: v for k, v in params.items() if k != "subscriptionId"}})
            elif method == DROPPED:
                dropped.set()

        try:
            async with AsyncClient(socket, name="clankers-view", on_notification=on_notification) as client:
                await client.call(Subscribe(kinds=list(get_args(ChangeKind))))
                changes.set_connected(True)
                await _until_lost(client, dropped)
        except (DaemonUnavailable, RpcError, TimeoutError) as error:
            changes.set_connected(False, str(error))
        await anyio.sleep(RECONNECT_SECONDS)


async def _until_lost(client: AsyncClient, dropped: anyio.Event) -> None:
    """Return when the subscription was dropped; raises DaemonUnavailable when the connection is lost."""
    while not dropped.is_set():
        with anyio.move_on_after(PROBE_SECONDS):
            await dropped.wait()
        if client.is_lost:
            raise DaemonUnavailable("the connection to clankersd was lost")


async def stream(changes: Changes, last_event_id: str | None) -> AsyncIterator[bytes]:
    """Yield server-sent events from where a page stopped; their id is `run:number`."""
    run, _, number = (last_event_id or "").partition(":")
    is_known = run == changes.run and number.isascii() and number.isdecimal()
    position = int(number) if is_known else changes.last
    first = {"type": "hello", "connected": changes.is_connected, "problem": changes.problem}
    yield _event(changes, position, first if is_known or not last_event_id else {"type": "reread"})
    while True:
        for at, event in changes.since(position):
            position = at
            yield _event(changes, at, event)
        await changes.wait()
        if changes.last == position:
            yield b": heartbeat\n\n"


def _event(changes: Changes, number: int, event: dict[str, Any]) -> bytes:
    data = to_page_json(msgspec.to_builtins(event))
    return b"id: %s:%d\ndata: %s\n\n" % (changes.run.encode(), number, data)
