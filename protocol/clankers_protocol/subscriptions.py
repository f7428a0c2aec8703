"""Being told of changes as they happen, on the connection that asked for it."""

from typing import Annotated, Any, ClassVar, Literal, get_args

from msgspec import Meta

from clankers_protocol.wire import Id, Method, Ok, Wire

ChangeKind = Literal["session", "message", "memory", "document", "skill", "job", "schedule"]

CHANGED = "subscription.changed"
DROPPED = "subscription.dropped"


class Changed(Wire):
    """What the notification `subscription.changed` holds: `action` was done to the thing of this `kind` and `id`.

    `facts` tell more of it; of a message, its session, chat, project and role.
    """

    subscription_id: str
    kind: ChangeKind
    action: str
    id: str
    at: int
    facts: dict[str, Any]


class Dropped(Wire):
    """What the notification `subscription.dropped` holds: from now on the subscription tells nothing."""

    subscription_id: str
    reason: str


class Subscribed(Wire):
    subscription_id: str


class Subscribe(Method[Subscribed]):
    """Be told of changes on this connection, each after its commit, as the notification `subscription.changed`.

    All given conditions must hold: `id` of what changes, `sessionId` and `chatId` of sessions and messages,
    `project` (a path or its id) of sessions, messages, memories and documents, `role` of messages. A thread is a
    session. It ends with the connection, with `unsubscribe`, or with the notification `subscription.dropped` when
    the client reads too slowly.
    """

    method: ClassVar[str] = "subscribe"
    kinds: Annotated[list[ChangeKind], Meta(min_length=1, max_length=len(get_args(ChangeKind)))]
    id: Id | None = None
    session_id: Id | None = None
    chat_id: Id | None = None
    project: str | None = None
    role: str | None = None


class Unsubscribe(Method[Ok]):
    """End a subscription of this connection, of `subscribe` or of `schedule.subscribe`."""

    method: ClassVar[str] = "unsubscribe"
    subscription_id: str
