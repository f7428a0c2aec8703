"""Telling clients of changes as they happen. What a client does not read costs that client, and nobody else."""

import json
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import anyio
import structlog

from clankers_protocol.errors import Conflict, InvalidParams, InvalidRequest, NotFound, RpcError
from clankers_protocol.subscriptions import (
    CHANGED,
    DROPPED,
    Changed,
    ChangeKind,
    Dropped,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from clankers_protocol.wire import Ok
from clankersd import clock
from clankersd.db import Db, Notification, Store
from clankersd.wire.rpc import current_peer, handles

if TYPE_CHECKING:
    from clankersd.app import Daemon
    from clankersd.wire.server import Peer

MOST_PER_CONNECTION = 100
MOST_UNTOLD = 100_000
"""News. An import may bring many thousands in one go; more than this are told to nobody."""

AT_ONCE = 500

_KINDS_WITH: dict[str, tuple[ChangeKind, ...]] = {
    "id": get_args(ChangeKind),
    "sessionId": ("session", "message"),
    "chatId": ("session", "message"),
    "project": ("session", "message", "memory", "document"),
    "role": ("message",),
}
"""Which kinds a filter means anything for."""

_PLACE = 'chat_id AS "chatId", project_path AS "projectPath", project_id AS "projectId"'
_FACTS = {
    "session": f"""
        SELECT id, id AS "sessionId", {_PLACE} FROM sessions WHERE id IN (SELECT value FROM json_each(:ids))
    """,
    "message": f"""
        SELECT messages.id, session_id AS "sessionId", role, {_PLACE}
        FROM messages JOIN sessions ON sessions.id = session_id
        WHERE messages.id IN (SELECT value FROM json_each(:ids))
    """,
    "memory": """
        SELECT memories.id, scope, sector, tier, project_id AS "projectId", path AS "projectPath"
        FROM memories LEFT JOIN projects ON projects.id = project_id
        WHERE memories.id IN (SELECT value FROM json_each(:ids))
    """,
    "document": """
        SELECT documents.id, source, title, kind, project_id AS "projectId", path AS "projectPath"
        FROM documents LEFT JOIN projects ON projects.id = project_id
        WHERE documents.id IN (SELECT value FROM json_each(:ids))
    """,
}
"""What is told of a change beside its id, by the names it has on the wire."""

log = structlog.get_logger(component="subscriptions")


@dataclass
class News:
    """Something that changed and was committed."""

    number: int
    kind: ChangeKind
    action: str
    id: str
    at: int
    facts: dict[str, Any]


@dataclass
class Subscription:
    """What one client wants to hear of: news later than `after`, of which the `conditions` are true."""

    id: str
    peer: "Peer"
    kinds: frozenset[str]
    conditions: dict[str, str]
    after: int

    def wants(self, news: News) -> bool:
        if news.kind not in self.kinds or news.number <= self.after:
            return False
        facts = news.facts | {"id": news.id}
        return all(facts.get(name) == value for name, value in self.conditions.items())


class Hub:
    """Who wants to hear of what, and what they have not been told yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscriptions: dict[str, Subscription] = {}
        self._wanted: Counter[str] = Counter()
        self._untold: deque[News] = deque()
        self._published = 0
        self._woken = anyio.Event()

    def publish(self, notification: Notification) -> None:
        """Queue a notification for its subscribers. The store calls this after the commit.

        Further facts of the kinds in `_FACTS` are looked up.
        """
        kind = notification.kind
        if not self._wanted[kind]:
            return
        if len(self._untold) >= MOST_UNTOLD:
            self._drop(self.to(kind), "more happened than could be told")
            return
        self._published += 1
        self._untold.append(
            News(self._published, kind, notification.action, notification.id, clock.now(), notification.facts)
        )
        self._woken.set()

    def subscribe(self, peer: "Peer", kinds: frozenset[str], conditions: dict[str, str]) -> str:
        """Tell this peer from now on; returns the subscription's id."""
        if len(self.of(peer)) >= MOST_PER_CONNECTION:
            raise Conflict(f"a connection may have {MOST_PER_CONNECTION} subscriptions")
        subscription = Subscription(clock.new_id(), peer, kinds, conditions, self._published)
        self._subscriptions[subscription.id] = subscription
        self._wanted.update(kinds)
        return subscription.id

    def unsubscribe(self, peer: "Peer", subscription_id: str) -> None:
        """End one subscription of this peer."""
        found = self._subscriptions.get(subscription_id)
        if found is None or found.peer is not peer:
            raise NotFound(f"this connection has no subscription {subscription_id}")
        self._remove(found)

    def of(self, peer: "Peer") -> list[Subscription]:
        return [one for one in self._subscriptions.values() if one.peer is peer]

    def to(self, kind: str) -> list[Subscription]:
        """The subscriptions to one kind, oldest first."""
        return [one for one in self._subscriptions.values() if kind in one.kinds]

    def forget(self, peer: "Peer") -> None:
        """That connection is no more."""
        for one in self.of(peer):
            self._remove(one)

    def tell(self, peer: "Peer", method: str, params: Any) -> bool:
        """Say something to a subscribed peer, without waiting for it; one that is too far behind is told no more."""
        if peer.offer(method, params):
            return True
        peer.take_back()
        self._drop(self.of(peer), "this client reads too slowly")
        return False

    async def run(self) -> None:
        """Pass on what is published, in its order, for as long as the daemon lives."""
        while True:
            await self._woken.wait()
            self._woken = anyio.Event()
            while self._untold:
                some = [self._untold.popleft() for _ in range(min(AT_ONCE, len(self._untold)))]
                await self._look_up(some)
                for news in some:
                    self._pass_on(news)

    async def _look_up(self, some: list[News]) -> None:
        """Add what is known of what changed; of what was deleted it came with the news."""
        sought = {kind: [news.id for news in some if news.kind == kind] for kind in _FACTS}

        def fetch(db: Db) -> dict[tuple[str, str], dict[str, Any]]:
            return {
                (kind, row.pop("id")): row
                for kind, ids in sought.items()
                for row in (db.fetch(_FACTS[kind], {"ids": json.dumps(ids)}) if ids else ())
            }

        try:
            rows = await self._store.read(fetch) if any(sought.values()) else {}
        except RpcError as error:
            log.warning("told without facts", problem=error.message)
            return
        for news in some:
            news.facts = rows.get((news.kind, news.id), {}) | news.facts

    def _pass_on(self, news: News) -> None:
        for one in list(self._subscriptions.values()):
            if one.id in self._subscriptions and one.wants(news):
                self.tell(one.peer, CHANGED, Changed(one.id, news.kind, news.action, news.id, news.at, news.facts))

    def _remove(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.id]
        self._wanted.subtract(subscription.kinds)

    def _drop(self, subscriptions: list[Subscription], reason: str) -> None:
        for one in subscriptions:
            log.warning("subscription dropped", subscription=one.id, reason=reason)
            self._remove(one)
            one.peer.offer(DROPPED, Dropped(one.id, reason))


def asking_peer() -> "Peer":
    """The connection that asks; it must be there to be told anything."""
    peer = current_peer.get()
    if peer is None:
        raise InvalidRequest("invalid request: only a connection can subscribe")
    return peer


@handles(Subscribe)
async def subscribe(daemon: "Daemon", request: Subscribe) -> Subscribed:
    given = {
        "id": request.id,
        "sessionId": request.session_id,
        "chatId": request.chat_id,
        "project": request.project,
        "role": request.role,
    }
    conditions = {name: value for name, value in given.items() if value is not None}
    for name in conditions:
        if useless := set(request.kinds) - set(_KINDS_WITH[name]):
            raise InvalidParams(f"invalid params: a {min(useless)} has no {name} to tell by - at `$.{name}`")
    if project := conditions.pop("project", None):
        conditions["projectPath" if project.startswith("/") else "projectId"] = project.rstrip("/") or "/"
    return Subscribed(daemon.hub.subscribe(asking_peer(), frozenset(request.kinds), conditions))


@handles(Unsubscribe)
async def unsubscribe(daemon: "Daemon", request: Unsubscribe) -> Ok:
    daemon.hub.unsubscribe(asking_peer(), request.subscription_id)
    return Ok()
