"""Settings of a daemon that a hook started.

Its environment comes from a harness, and a repository can change that (a project's harness settings, .envrc). The
environment may move files, but never decide where sessions are sent or that they are deleted: no setting is taken from
it, and settings that do so are taken only from a file that the owner is known to use and that no other user can write.
"""

import os
import pwd
import re
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clankers_protocol.admin import IgnoredSetting
from clankersd.safe_files import UnsafeFile, open_regular

LOCAL_EMBEDDERS = ("static", "onnx", "none")
"""Embedders that send no text."""

BUNDLED_EMBEDDERS = ("static", "none")
"""Embedders that load no model from a folder either: a repository may contain a hostile one."""

SERVICE_SETTINGS = (
    "database_url", "database_read_url",
    "embedder_url", "embedder_key_file", "embedder_fallback_url", "embedder_fallback_key_file",
    "chat_url", "chat_key_file", "reranker_url", "reranker_key_file",
)  # fmt: skip
"""Addresses and keys of services on the network."""

DATA_SETTINGS = (
    "retention", "retention_megabytes", "log_retention_days", "backup_hours", "backup_keep", "durability",
    "transcript_folders",
)  # fmt: skip
"""Settings that delete data, weaken what protects it, or read sessions from other folders."""

MAX_RECORD_BYTES = 4200
MAX_VARIABLES = 50
_VARIABLE = re.compile(r"CLANKERS_[A-Z0-9_]{1,64}")


@dataclass(frozen=True)
class HookStart:
    """A start of the daemon by a hook, and the variables that the hook did not pass on."""

    database: Path
    variables: tuple[str, ...] = ()

    @classmethod
    def parse(cls, database: Path, names: str) -> "HookStart":
        """Read the names as the hook gives them, separated by commas."""
        variables = [name for name in names.split(",") if _VARIABLE.fullmatch(name)]
        return cls(database, tuple(variables[:MAX_VARIABLES]))

    def select(self, path: Path, values: dict[str, Any]) -> tuple[dict[str, Any], list[IgnoredSetting]]:
        """Return the values of the file at `path` that are in force, and the ignored settings."""
        reason = "a hook started the daemon, and its environment is not the owner's: put it into the file"
        ignored = [IgnoredSetting(name.removeprefix("CLANKERS_").lower(), name, reason) for name in self.variables]
        reserved = owner_settings(values)
        distrust = find_distrust(path, self.database) if reserved else None
        if distrust:
            ignored += [IgnoredSetting(key, str(path), distrust) for key in sorted(reserved)]
            values = {key: value for key, value in values.items() if key not in reserved}
        return values, ignored


def secure_environment() -> None:
    """Drop the variables of libpq, which may lead to another server, and use the owner's service and password files."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
    with suppress(KeyError):  # a user without a home folder has neither
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
        os.environ |= {"PGSERVICEFILE": str(home / ".pg_service.conf"), "PGPASSFILE": str(home / ".pgpass")}


def owner_settings(values: dict[str, Any]) -> set[str]:
    """Name the settings among `values` that only the owner may make, and those that belong to them."""
    keys = {key for key in SERVICE_SETTINGS if values.get(key)}
    keys |= values.keys() & set(DATA_SETTINGS)
    if values.get("embedder", "none") not in BUNDLED_EMBEDDERS:
        keys |= {key for key in values if key.startswith("embedder")}
    if values.get("embedder_fallback", "none") != "none":
        keys |= {key for key in values if key.startswith("embedder_fallback")}
    if values.get("reranker", "none") != "none":
        keys |= {key for key in values if key.startswith("reranker")}
    if values.get("extract") == "model":
        keys.add("extract")
    return keys


def find_distrust(path: Path, database: Path) -> str | None:
    """Return the reason why the file at `path` is not known to be the owner's; None if it is."""
    known = [*default_path(), *recorded_path(database)]
    if not any(_same(path, each) for each in known):
        return (
            "a hook started the daemon, and this file was never used by a daemon that you started yourself: "
            f"start it once with `clankersd --config {path}`"
        )
    real = Path(os.path.realpath(path))
    for each in (real, real.parent):
        try:
            status = each.stat()
        except OSError as error:
            return f"{each} cannot be checked: {error.strerror}"
        if status.st_uid not in (os.geteuid(), 0):
            return f"{each} belongs to another user (uid {status.st_uid}): sudo chown {os.geteuid()} {each}"
        if stat.S_IMODE(status.st_mode) & 0o022:
            return f"others can write {each}: chmod go-w {each}"
    return None


def default_path() -> list[Path]:
    """Return the default path of the settings, below the home directory that the user database names."""
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:  # a container may run as a user that its database does not know
        return []
    folder = home / "Library/Application Support" if sys.platform == "darwin" else home / ".config"
    return [folder / "clankers" / "clankers.toml"]


def recorded_path(database: Path) -> list[Path]:
    """Return the settings file that the owner's own daemon used last with this database, if any.

    The environment can name a database in a repository, which can bring a record of its own. So a record counts only
    where it was written: it holds the inode numbers of itself and of its folder, which nobody can foresee.
    """
    try:
        with open_regular(_record(database), max_bytes=MAX_RECORD_BYTES, owner=os.geteuid()) as file:
            text, inodes = file.read(MAX_RECORD_BYTES), _inodes(file.fileno(), _record(database).parent)
    except (OSError, UnsafeFile):
        return []
    path, _, written = text.rstrip(b"\n").rpartition(b"\n")
    return [Path(os.fsdecode(path))] if written == inodes else []


def record_path(database: Path, path: Path) -> None:
    """Record the settings file of a daemon that the owner started, for daemons that hooks start later."""
    if recorded_path(database) == [path]:
        return
    record = _record(database)
    unfinished = record.with_name(f"{record.name}.unfinished")
    with suppress(OSError):  # without the record, daemons that hooks start use the default file only
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.fsencode(path) + b"\n" + _inodes(descriptor, record.parent) + b"\n")
        unfinished.replace(record)


def _inodes(descriptor: int, folder: Path) -> bytes:
    return b"inodes %d %d" % (os.fstat(descriptor).st_ino, folder.stat().st_ino)


def _record(database: Path) -> Path:
    """Return the path of the record, beside the database file itself and not beside a link to it."""
    real = Path(os.path.realpath(database))
    return real.with_name(f"{real.name}.settings-path")


def _same(path: Path, known: Path) -> bool:
    try:
        return path.samefile(known)
    except OSError:
        return False
