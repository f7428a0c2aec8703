"""Errors of the database file, each with a sentence that says what to do."""

import apsw

from clankers_protocol.errors import StorageUnavailable

CORRUPTION_ERRORS = (apsw.CorruptError, apsw.NotADBError)
STORAGE_ERRORS = (
    *CORRUPTION_ERRORS,
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ProtocolError,
    apsw.NoMemError,
    apsw.NoLFSError,
    apsw.ConnectionClosedError,
)

RESTORE_HINT = "list the backups with clankers-ctl backup list, then run clankers-ctl backup restore NAME"
FILE_DELETED = "the database file was deleted while it was open: put it back, restore a backup, or call ensureDb"

_SENTENCES: list[tuple[type[Exception], str]] = [
    (apsw.CorruptError, f"the database file is damaged: {RESTORE_HINT}"),
    (apsw.NotADBError, f"the file is not a database, or is damaged: {RESTORE_HINT}"),
    (apsw.FullError, "the disk is full: free some space"),
    (apsw.ReadOnlyError, "the database file or its folder is read-only: make it writable"),
    (apsw.CantOpenError, "the database file cannot be opened: check that its folder is there and writable"),
    (apsw.PermissionsError, "the database file may not be read: check its permissions"),
    (apsw.BusyError, "another program holds the database locked: close it"),
    (apsw.LockedError, "another program holds the database locked: close it"),
    (apsw.IOError, "the disk reports an error: check its space, quota and health"),
    (apsw.NoMemError, "the machine is out of memory"),
]


class FileGone(Exception):
    """The database file was deleted or replaced while it was open."""


class ServerGone(FileGone, apsw.ConnectionClosedError):
    """The database server does not answer, or has closed the connection."""


class ServerBusy(apsw.BusyError):
    """The database server took too long for a statement, or to get a lock for it."""


class RightMissing(apsw.PermissionsError):
    """The role on the database server lacks a right."""


class FileChanged(FileGone):
    """Another program wrote to the database file; nothing was committed since, so it can be opened again."""


class SchemaRefused(Exception):
    """The database has a schema this program must not touch."""


def describe_error(error: BaseException) -> str:
    """Describe the error in a sentence for people, without paths or SQL."""
    if isinstance(error, FileGone | SchemaRefused | ServerBusy | RightMissing):
        return str(error)
    for kind, sentence in _SENTENCES:
        if isinstance(error, kind):
            return sentence
    return "the database cannot be used"


def read_unavailable(problem: str) -> StorageUnavailable:
    """Return the error for a read that failed."""
    return StorageUnavailable(f"storage unavailable: {problem}", {"reason": problem})


def write_unavailable(problem: str) -> StorageUnavailable:
    """Return the error for a write that failed; it asks the client to spool its event."""
    return StorageUnavailable(
        f"storage unavailable: {problem}; keep the event and send it again later",
        {"reason": problem, "retry": "spool"},
    )
