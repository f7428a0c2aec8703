"""Subscriptions: notify clients of committed changes. A client that reads slowly loses its own subscriptions only."""

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
from clankersd.projects import find_folder, find_project_id
from clankersd.wire.rpc import current_connection, handles

if TYPE_CHECKING:
    from clankersd.app import Daemon
    from clankersd.wire.connection import ClientConnection

MAX_SUBSCRIPTIONS_PER_CONNECTION = 100
MAX_PENDING_EVENTS = 100_000
"""An import may publish many thousands of changes in one go; beyond this number subscriptions are dropped."""

EVENTS_PER_LOOKUP = 500

_KINDS_BY_FILTER: dict[str, tuple[ChangeKind, ...]] = {
    "id": get_args(ChangeKind),
    "sessionId": ("session", "message"),
    "chatId": ("session", "message"),
    "project": ("session", "message", "memory", "document"),
    "role": ("message",),
}
"""Kinds of changes that each filter applies to."""

_PROJECT_COLUMNS = 'chat_id AS "chatId", project_path AS "projectPath", project_id AS "projectId"'
_FACTS_SQL = {
    "session": f"""
        SELECT id, id AS "sessionId", {_PROJECT_COLUMNS} FROM sessions WHERE id IN (SELECT value FROM json_each(:ids))
    """,
    "message": f"""
        SELECT messages.id, session_id AS "sessionId", role, {_PROJECT_COLUMNS}
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
"""Facts that a notification holds beside the id, by their names on the wire."""

log = structlog.get_logger(component="subscriptions")


@dataclass
class ChangeEvent:
    """A committed change, waiting to be sent to its subscribers."""

    number: int
    kind: ChangeKind
    action: str
    id: str
    at: int
    facts: dict[str, Any]


@dataclass
class Subscription:
    """One client's interest in events after number `after` whose facts meet the `conditions`.

    The condition `folder` is that of a project that does not exist yet.
    """

    id: str
    connection: "ClientConnection"
    kinds: frozenset[str]
    conditions: dict[str, str]
    after: int

    def matches(self, event: ChangeEvent) -> bool:
        if event.kind not in self.kinds or event.number <= self.after:
            return False
        facts = event.facts | {"id": event.id}
        if "folder" in self.conditions:
            facts["folder"] = find_folder(facts.get("projectPath") or "").path
        return all(facts.get(name) == value for name, value in self.conditions.items())


class Hub:
    """All subscriptions, and the events that have not been sent to them yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscriptions: dict[str, Subscription] = {}
        self._subscribers: Counter[str] = Counter()
        self._pending: deque[ChangeEvent] = deque()
        self._published = 0
        self._woken = anyio.Event()

    @property
    def subscription_count(self) -> int:
        return len(self._subscriptions)

    def publish(self, notification: Notification) -> None:
        """Queue a notification for its subscribers. The store calls this after the commit.

        Further facts of the kinds in `_FACTS_SQL` are looked up.
        """
        kind = notification.kind
        if not self._subscribers[kind]:
            return
        if len(self._pending) >= MAX_PENDING_EVENTS:
            self._drop(self.subscriptions_to(kind), "more changes happened than could be sent")
            return
        self._published += 1
        self._pending.append(
            ChangeEvent(self._published, kind, notification.action, notification.id, clock.now(), notification.facts)
        )
        self._woken.set()

    def subscribe(self, connection: "ClientConnection", kinds: frozenset[str], conditions: dict[str, str]) -> str:
        """Notify this connection from now on; returns the subscription's id."""
        if len(self._subscriptions_of(connection)) >= MAX_SUBSCRIPTIONS_PER_CONNECTION:
            raise Conflict(f"a connection may have {MAX_SUBSCRIPTIONS_PER_CONNECTION} subscriptions")
        subscription = Subscription(clock.new_id(), connection, kinds, conditions, self._published)
        self._subscriptions[subscription.id] = subscription
        self._subscribers.update(kinds)
        return subscription.id

    def unsubscribe(self, connection: "ClientConnection", subscription_id: str) -> None:
        """End one subscription of this connection."""
        subscription = self._subscriptions.get(subscription_id)
        if subscription is None or subscription.connection is not connection:
            raise NotFound(f"this connection has no subscription {subscription_id}")
        self._remove(subscription)

    def follow_merge(self, merged: str, kept: str) -> None:
        """Let subscriptions to a project that was merged follow the project that is left."""
        for one in self._subscriptions.values():
            if one.conditions.get("projectId") == merged:
                one.conditions["projectId"] = kept

    def subscriptions_to(self, kind: str) -> list[Subscription]:
        """List the subscriptions to one kind, oldest first."""
        return [one for one in self._subscriptions.values() if kind in one.kinds]

    def remove_connection(self, connection: "ClientConnection") -> None:
        """End all subscriptions of a connection that was closed."""
        for one in self._subscriptions_of(connection):
            self._remove(one)

    def notify(self, connection: "ClientConnection", method: str, params: Any) -> bool:
        """Send a notification without waiting; a client that is too far behind loses its subscriptions."""
        if connection.try_notify(method, params):
            return True
        connection.discard_notifications()
        self._drop(self._subscriptions_of(connection), "this client reads too slowly")
        return False

    async def run(self) -> None:
        """Send published events to their subscribers, in order, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken = anyio.Event()
            while self._pending:
                events = [self._pending.popleft() for _ in range(min(EVENTS_PER_LOOKUP, len(self._pending)))]
                await self._add_facts(events)
                for event in events:
                    self._send(event)

    async def _add_facts(self, events: list[ChangeEvent]) -> None:
        """Look up the facts of the changed rows; those of deleted rows came with the event."""
        ids_by_kind = {kind: [event.id for event in events if event.kind == kind] for kind in _FACTS_SQL}

        def fetch(db: Db) -> dict[tuple[str, str], dict[str, Any]]:
            facts = {}
            for kind, ids in ids_by_kind.items():
                if ids:
                    for row in db.fetch(_FACTS_SQL[kind], {"ids": json.dumps(ids)}):
                        facts[kind, row.pop("id")] = row
            return facts

        if not any(ids_by_kind.values()):
            return
        try:
            facts = await self._store.read(fetch)
        except RpcError as error:
            log.warning("notifications without facts", problem=error.message)
            return
        for event in events:
            event.facts = facts.get((event.kind, event.id), {}) | event.facts

    def _send(self, event: ChangeEvent) -> None:
        for one in list(self._subscriptions.values()):
            if one.id in self._subscriptions and one.matches(event):
                changed = Changed(one.id, event.kind, event.action, event.id, event.at, event.facts)
                self.notify(one.connection, CHANGED, changed)

    def _subscriptions_of(self, connection: "ClientConnection") -> list[Subscription]:
        return [one for one in self._subscriptions.values() if one.connection is connection]

    def _remove(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.id]
        self._subscribers.subtract(subscription.kinds)

    def _drop(self, subscriptions: list[Subscription], reason: str) -> None:
        for one in subscriptions:
            log.warning("subscription dropped", subscription=one.id, reason=reason)
            self._remove(one)
            one.connection.try_notify(DROPPED, Dropped(one.id, reason))


def calling_connection() -> "ClientConnection":
    """Return the connection whose request is served; raises InvalidRequest if there is none to notify."""
    connection = current_connection.get()
    if connection is None:
        raise InvalidRequest("invalid request: only a connection can subscribe")
    return connection


@handles(Subscribe)
async def subscribe(daemon: "Daemon", request: Subscribe) -> Subscribed:
    filters = {
        "id": request.id,
        "sessionId": request.session_id,
        "chatId": request.chat_id,
        "project": request.project,
        "role": request.role,
    }
    conditions = {name: value for name, value in filters.items() if value is not None}
    for name in conditions:
        if unsupported := set(request.kinds) - set(_KINDS_BY_FILTER[name]):
            raise InvalidParams(f"invalid params: a {min(unsupported)} has no {name} to filter by - at `$.{name}`")
    if project := conditions.pop("project", None):
        found = await daemon.store.read(lambda db: find_project_id(db, project))
        conditions |= {"folder": find_folder(project).path} if found is None else {"projectId": found}
    return Subscribed(daemon.hub.subscribe(calling_connection(), frozenset(request.kinds), conditions))


@handles(Unsubscribe)
async def unsubscribe(daemon: "Daemon", request: Unsubscribe) -> Ok:
    daemon.hub.unsubscribe(calling_connection(), request.subscription_id)
    return Ok()
