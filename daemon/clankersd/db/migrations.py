"""Migrations: numbered SQL files, each applied and recorded in one transaction."""

import hashlib
import time
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import apsw

from clankersd.db.connection import Db
from clankersd.db.errors import SchemaRefused
from clankersd.db.legacy_import import adopt_original, is_original


@dataclass(frozen=True)
class Migration:
    """A migration file, and the file that undoes it if there is one."""

    version: int
    name: str
    up: str
    down: str | None

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.up.encode()).hexdigest()


@dataclass(frozen=True)
class MigrationRun:
    """Result of a migration or rollback: schema versions, names of the migrations, and the backup made before."""

    before: int
    after: int
    applied: list[str]
    backup: Path | None


@cache
def bundled(engine: str = "sqlite") -> tuple[Migration, ...]:
    """Return the migrations of an engine that this program contains, in order."""
    folder = files("clankersd") / "migrations" / engine
    texts = {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}
    return tuple(
        Migration(
            version=int(name.partition("_")[0]),
            name=name.removesuffix(".sql"),
            up=text,
            down=texts.get(f"{name.removesuffix('.sql')}.down.sql"),
        )
        for name, text in sorted(texts.items())
        if not name.endswith(".down.sql")
    )


def version(db: Db) -> int:
    """Return the schema version; 0 for a database without one."""
    if "_migrations" not in db.engine.table_names(db):
        return 0
    return db.value("SELECT max(version) FROM _migrations") or 0


def migrate(db: Db, backups: Path, migrations: tuple[Migration, ...] | None = None) -> MigrationRun:
    """Apply pending migrations, after a backup unless the database is empty.

    Raises SchemaRefused for a database whose migrations this program does not know.
    """
    migrations = bundled(db.engine.name) if migrations is None else migrations
    refuse_unknown_schema(db, migrations)
    before = version(db)
    pending = [migration for migration in migrations if migration.version > before]
    original = before == 0 and db.engine.name == "sqlite" and is_original(db)
    backup = None
    if pending and (before or original):
        backup = db.engine.back_up(db, backups, f"before-{pending[-1].version:04}")
    if original:
        adopt_original(db, partial(_apply, db, pending[0]))
    for migration in pending[1:] if original else pending:
        with db.transaction():
            _apply(db, migration)
    return MigrationRun(before, version(db), [migration.name for migration in pending], backup)


def roll_back(db: Db, backups: Path, backup: Path | None = None) -> MigrationRun:
    """Undo the last migration, after a backup unless the caller passes one."""
    last = last_applied(db)
    assert last.down is not None
    before = last.version
    backup = backup or db.engine.back_up(db, backups, f"before-rollback-{before:04}")
    with db.transaction():
        db.execute(last.down)
        db.execute("DELETE FROM _migrations WHERE version = :version", {"version": last.version})
    return MigrationRun(before, version(db), [last.name], backup)


def last_applied(db: Db) -> Migration:
    """Return the migration that a rollback undoes; raises SchemaRefused if it cannot be undone."""
    refuse_unknown_schema(db)
    before = version(db)
    last = next((migration for migration in bundled(db.engine.name) if migration.version == before), None)
    if last is None or last.down is None:
        raise SchemaRefused(f"there is no way down from schema version {before}")
    return last


def migrated_in_memory() -> Db:
    """Return a new database in memory with all migrations."""
    new = Db(apsw.Connection(":memory:"))
    migrate(new, Path())
    return new


def refuse_unknown_schema(db: Db, migrations: tuple[Migration, ...] | None = None) -> None:
    """Raise SchemaRefused if a migration was applied that this program does not have."""
    known = bundled(db.engine.name) if migrations is None else migrations
    checksums = {migration.version: migration.checksum for migration in known}
    if version(db) == 0:
        return
    for row in db.fetch("SELECT version, name, checksum FROM _migrations ORDER BY version"):
        if row["version"] not in checksums:
            raise SchemaRefused(
                f"the database has schema version {row['version']}, this program knows {max(checksums)}: "
                "install a newer clankers, or run clankers-ctl backup restore with the backup made before the upgrade"
            )
        if row["checksum"] != checksums[row["version"]]:
            raise SchemaRefused(
                f"migration {row['name']} was applied with another text than this program's: "
                "install the clankers that made this database"
            )


def _apply(db: Db, migration: Migration) -> None:
    db.execute(db.engine.migrations_table)
    db.execute(migration.up)
    db.execute(
        "INSERT INTO _migrations (version, name, checksum, applied_at) VALUES (:version, :name, :checksum, :at)",
        {
            "version": migration.version,
            "name": migration.name,
            "checksum": migration.checksum,
            "at": int(time.time() * 1000),
        },
    )
