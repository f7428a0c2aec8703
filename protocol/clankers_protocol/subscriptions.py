"""Subscriptions: notifications about committed changes."""

from typing import Annotated, Any, ClassVar, Literal, get_args

from msgspec import Meta

from clankers_protocol.wire import Id, Method, Ok, Wire

ChangeKind = Literal["session", "message", "memory", "document", "skill", "job", "schedule"]

CHANGED = "subscription.changed"
DROPPED = "subscription.dropped"


class Changed(Wire):
    """Payload of the notification `subscription.changed`: `action` happened to the object of this `kind` and `id`.

    `facts` holds further fields; for a message, its session, chat, project and role.
    """

    subscription_id: str
    kind: ChangeKind
    action: str
    id: str
    at: int
    facts: dict[str, Any]


class Dropped(Wire):
    """Payload of the notification `subscription.dropped`: the subscription has ended."""

    subscription_id: str
    reason: str


class Subscribed(Wire):
    subscription_id: str


class Subscribe(Method[Subscribed]):
    """Receive changes on this connection, each after its commit, as `subscription.changed` notifications.

    All given conditions must hold: `id` of the changed object, `sessionId` and `chatId` of sessions and messages,
    `project` (a folder, name or id) of sessions, messages, memories and documents, `role` of messages. A thread is a
    session. The subscription ends with the connection, with `unsubscribe`, or with the notification
    `subscription.dropped` if the client reads too slowly.
    """

    method: ClassVar[str] = "subscribe"
    kinds: Annotated[list[ChangeKind], Meta(min_length=1, max_length=len(get_args(ChangeKind)))]
    id: Id | None = None
    session_id: Id | None = None
    chat_id: Id | None = None
    project: str | None = None
    role: str | None = None


class Unsubscribe(Method[Ok]):
    """End a subscription of this connection, made by `subscribe` or `schedule.subscribe`."""

    method: ClassVar[str] = "unsubscribe"
    subscription_id: str
