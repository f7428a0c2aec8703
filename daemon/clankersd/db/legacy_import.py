"""Import of a database of the original clankers (written in Go), which has the same path as ours."""

from collections.abc import Callable

from clankersd import clock
from clankersd.db.connection import Db

_TABLES = ("sessions", "messages", "tools", "session_errors", "compaction_events")

_OTHER_TABLES = _TABLES[1:]

_FIRST_TIMES = f"""
    CREATE TEMP TABLE first_times AS
    SELECT id, min(at) AS at FROM (
        SELECT id, created_at AS at FROM sessions
        UNION ALL SELECT id, updated_at FROM sessions
        UNION ALL SELECT id, ended_at FROM sessions
        {" ".join(f"UNION ALL SELECT session_id, created_at FROM {table}" for table in _OTHER_TABLES)}
        UNION ALL SELECT session_id, completed_at FROM messages
    ) WHERE at > 0 GROUP BY id
"""
"""The first known time of each session."""

_FIRST_TIME = "coalesce((SELECT at FROM first_times WHERE first_times.id = {session}), :now)"
_COMMON_COLUMNS = """
    SELECT name FROM pragma_table_info(:table) WHERE name IN (SELECT name FROM pragma_table_info(:old))
"""
_PROJECTS = """
    INSERT INTO projects (id, path, name, created_at, updated_at)
    SELECT lower(hex(randomblob(16))), project_path, max(project_name), min(created_at), max(updated_at)
    FROM sessions WHERE project_path <> '' GROUP BY project_path;
    UPDATE sessions SET project_id = (SELECT id FROM projects WHERE path = sessions.project_path);
    UPDATE sessions SET title = NULL WHERE title = 'Untitled Session';
"""


def is_original(db: Db) -> bool:
    """Return True if the original daemon made this database."""
    return bool(db.value("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sessions'"))


def adopt_original(db: Db, apply_first_migration: Callable[[], None]) -> None:
    """Move its rows into our tables, in one transaction."""
    db.execute("PRAGMA foreign_keys = OFF")  # otherwise renaming would make the old tables refer to the new
    present = [table for table in _TABLES if _exists(db, table)]
    try:
        with db.transaction():
            for table in present:
                _rename_original(db, table)
            apply_first_migration()
            for table in present:
                _copy(db, table)
            _fill_times(db)
            db.execute(_PROJECTS)
    finally:
        db.execute("PRAGMA foreign_keys = ON")


def _exists(db: Db, table: str) -> bool:
    return bool(db.value("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :table", {"table": table}))


def _rename_original(db: Db, table: str) -> None:
    indexes = db.fetch(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = :table AND sql IS NOT NULL",
        {"table": table},
    )
    for index in indexes:
        db.execute(f'DROP INDEX "{index["name"]}"')
    db.execute(f"ALTER TABLE {table} RENAME TO original_{table}")


def _copy(db: Db, table: str) -> None:
    """Copy the columns that both tables have. Rows without an owner are dropped; a missing time becomes 0 and is filled
    in by the caller.
    """
    columns = [row["name"] for row in db.fetch(_COMMON_COLUMNS, {"table": table, "old": f"original_{table}"})]
    times = {"created_at", "updated_at"}
    values = [f"coalesce({name}, 0)" if name in times else name for name in columns]
    owner = "" if table == "sessions" else " AND session_id IN (SELECT id FROM sessions)"
    db.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) "
        f"SELECT {', '.join(values)} FROM original_{table} WHERE id IS NOT NULL{owner}"
    )
    db.execute(f"DROP TABLE original_{table}")


def _fill_times(db: Db) -> None:
    """Set the times that the original lacks to the first known time of their session, else to now."""
    now = {"now": clock.now()}
    db.execute(_FIRST_TIMES)
    first_time = _FIRST_TIME.format(session="sessions.id")
    db.execute(f"UPDATE sessions SET created_at = {first_time}, created_guessed = 1 WHERE created_at = 0", now)
    db.execute("UPDATE sessions SET updated_at = created_at WHERE updated_at = 0")
    for table in _OTHER_TABLES:
        first_time = _FIRST_TIME.format(session=f"{table}.session_id")
        db.execute(f"UPDATE {table} SET created_at = {first_time} WHERE created_at = 0", now)
    db.execute("DROP TABLE first_times")
