"""Backups of the database: making one, and replacing the database with one."""

from typing import Annotated, ClassVar

from msgspec import Meta

from clankers_protocol.admin import JobStarted
from clankers_protocol.wire import Method, Wire


class BackupFile(Wire):
    """One file in the backup directory. `problem` is the reason why it cannot be restored, if any.

    `reason` says what it was made for: "daily", "manual", "before-0009" (a migration), "rescued". `rows` is the number
    of sessions, messages, tool calls, memories and documents together.
    """

    name: str
    path: str
    made_at: int
    bytes: int
    reason: str = ""
    sessions: int | None = None
    rows: int | None = None
    problem: str | None = None


class DumpManifest(Wire):
    """The manifest beside a dump of a PostgreSQL schema: what it was verified to contain when it was made."""

    schema: str
    server_version: str
    schema_version: int
    bytes: int
    sha256: str
    rows: dict[str, int]


class BackupCreate(Method[JobStarted]):
    """Make a verified backup of the database, as a job; its result is `{file, path, bytes, rows, note}`.

    On PostgreSQL it is a dump by pg_dump. Where that program is missing, the backup is a SQLite file without the index,
    and `note` says why.

    With `withoutDerived`, chunks, their full text and vectors are left out. After a restore of such a backup the daemon
    makes them again, which takes a while.
    """

    method: ClassVar[str] = "backup.create"
    without_derived: bool = False


class Restored(Wire):
    """Result of a restore: what is in use now, and the file or the schema with the replaced database.

    `rebuilding` is the number of texts of which the backup has no index; the daemon makes it in the background.
    """

    database: str
    backup: str
    sessions: int
    replaced: str | None
    rebuilding: int = 0


class BackupRestore(Method[Restored]):
    """Replace the database with a copy of a backup while the daemon runs.

    The copy is checked first. Requests wait while the files or schemas are swapped. A backup of an earlier version is
    migrated; one of a later version is refused. The replaced database stays beside the new one.
    """

    method: ClassVar[str] = "backup.restore"
    is_cancellable: ClassVar[bool] = False
    path: Annotated[str, Meta(min_length=1, max_length=4096)]
