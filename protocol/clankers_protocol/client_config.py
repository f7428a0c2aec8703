"""Key-value settings of clients. For the daemon's own settings see `daemon.config` and `daemon.configure`."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from clankers_protocol.wire import Cursor, Limit, Method, Wire

MAX_VALUE = 64 * 1024
MAX_KEYS = 1000

Namespace = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
"""Owner of the settings: the name of a plugin or program."""

Key = Annotated[str, Meta(min_length=1, max_length=256)]


class ConfigEntry(Wire):
    namespace: str
    key: str
    value: Any
    updated_at: int


class ConfigPage(Wire):
    """Entries ordered by namespace and key; `cursor` requests the next page and is null on the last one."""

    entries: list[ConfigEntry]
    cursor: str | None = None


class ConfigRemoved(Wire):
    """Number of deleted entries."""

    deleted: int


class ConfigGet(Method[ConfigEntry | None]):
    """Return one client setting, or null if it is not set."""

    method: ClassVar[str] = "config.get"
    namespace: Namespace
    key: Key


class ConfigSet(Method[ConfigEntry]):
    """Set a client setting to any JSON value of at most 64 KiB. A namespace holds at most 1,000 keys."""

    method: ClassVar[str] = "config.set"
    namespace: Namespace
    key: Key
    value: Any


class ConfigDelete(Method[ConfigRemoved]):
    """Delete a client setting. Deleting a missing one is not an error."""

    method: ClassVar[str] = "config.delete"
    namespace: Namespace
    key: Key


class ConfigList(Method[ConfigPage]):
    """List client settings whose keys start with `prefix`, in one namespace or in all of them."""

    method: ClassVar[str] = "config.list"
    namespace: Namespace | None = None
    prefix: Annotated[str, Meta(max_length=256)] = ""
    limit: Limit = 100
    cursor: Cursor | None = None
