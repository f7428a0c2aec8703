"""Settings that clients keep with the daemon. Its own are `daemon.config` and `daemon.configure`."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from clankers_protocol.wire import Cursor, Limit, Method, Wire

MAX_VALUE = 64 * 1024
MAX_KEYS = 1000

Namespace = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
"""Whose settings: the name of a plugin or program."""

Key = Annotated[str, Meta(min_length=1, max_length=256)]


class ConfigEntry(Wire):
    namespace: str
    key: str
    value: Any
    updated_at: int


class ConfigPage(Wire):
    """Entries by namespace and key; `cursor` asks for the next page and is null on the last one."""

    entries: list[ConfigEntry]
    cursor: str | None = None


class ConfigRemoved(Wire):
    """How many entries were deleted."""

    deleted: int


class ConfigGet(Method[ConfigEntry | None]):
    """One setting of a client; null when it was never set."""

    method: ClassVar[str] = "config.get"
    namespace: Namespace
    key: Key


class ConfigSet(Method[ConfigEntry]):
    """Set a setting of a client to any JSON value of at most 64 KiB; a namespace holds at most 1,000 keys."""

    method: ClassVar[str] = "config.set"
    namespace: Namespace
    key: Key
    value: Any


class ConfigDelete(Method[ConfigRemoved]):
    """Delete a setting of a client; deleting one that is not there deletes nothing."""

    method: ClassVar[str] = "config.delete"
    namespace: Namespace
    key: Key


class ConfigList(Method[ConfigPage]):
    """The settings of one namespace whose keys begin with `prefix`, or of all namespaces."""

    method: ClassVar[str] = "config.list"
    namespace: Namespace | None = None
    prefix: Annotated[str, Meta(max_length=256)] = ""
    limit: Limit = 100
    cursor: Cursor | None = None
