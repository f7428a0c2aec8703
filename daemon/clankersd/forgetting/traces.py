"""Copies of deleted texts outside the rows that were deleted: in other tables, in logs, and in files aside."""

import re
from pathlib import Path
from typing import Any

from clankers_protocol.paths import Paths
from clankersd.db import Db

MAX_NEEDLES = 5000
"""Session ids to look for in files; a larger number of sessions has left no trace that is worth the time."""

TEXTS_ELSEWHERE = {
    "skills": ("name", "description", "instructions", "tags_json", "references_json", "extra_json", "files_json"),
    "scheduled_actions": ("description", "tool_calls_json", "synthesis_prompt"),
    "config": ("key", "value_json"),
    "files": ("path",),
    "watched_paths": ("path",),
    "projects": ("name", "path", "settings_json"),
}
"""Columns that `matching` looks into if it is the only criterion: these rows belong to no session."""

CONDITIONS_ELSEWHERE = {
    "skills": " OR id IN (SELECT skill_id FROM skill_versions WHERE skill_json LIKE :matching ESCAPE '\\')",
    "files": " OR id IN (SELECT file_id FROM chunks WHERE file_id IS NOT NULL AND text LIKE :matching ESCAPE '\\')",
    "projects": " OR id IN (SELECT project_id FROM project_folders WHERE path LIKE :matching ESCAPE '\\')"
    " OR id IN (SELECT project_id FROM project_repositories WHERE repository LIKE :matching ESCAPE '\\')",
}
"""Further conditions on rows that belong to those of a table."""

_REPEATING_TABLES = {
    "injections": ("text",),
    "recall_log": ("query", "facts_json"),
    "extracted_summaries": ("summary",),
    "entities": ("name", "summary"),
    "jobs": ("note", "result_json", "error"),
    "schedule_runs": ("result_json", "error"),
    "ingest_items": ("request", "error"),
}
"""Tables whose rows may repeat a text; rows that match are deleted."""

_NAMING_TABLES = {
    "transcripts": ("path", "state"),
    "project_folders": ("path",),
    "project_repositories": ("repository",),
}
"""Tables whose rows have the names of folders; rows that match are deleted if the words are forgotten everywhere."""

_REPEATING_COLUMNS = {
    "sessions": ("model", "chat_id"),
    "messages": ("model",),
    "capture_counts": ("last_refusal", "last_event", "last_session_id"),
    "chunk_edges": ("description",),
    "index_queue": ("error",),
}
"""Columns that may repeat a text, and are cleared."""

_NAMING_COLUMNS = {"sessions": ("project_path", "project_name"), "projects": ("name", "settings_json")}
"""Columns with the names of folders; they are cleared if the words are forgotten everywhere."""

_LASTING_JOBS = "('backup', 'forget', 'retention', 'vacuum', 'check', 'reindex')"
"""Kinds of jobs whose results have no captured text."""


def matches(columns: tuple[str, ...]) -> str:
    """Return an SQL condition: one of the columns holds the words."""
    return " OR ".join(rf"{column} LIKE :matching ESCAPE '\'" for column in columns)


def count_words(db: Db, params: dict[str, Any]) -> int:
    """Count the rows that only repeat the words."""
    tables = (*_REPEATING_TABLES.items(), *_REPEATING_COLUMNS.items())
    return sum(db.value(f"SELECT count(*) FROM {table} WHERE {matches(columns)}", params) for table, columns in tables)


def clear_words(db: Db, params: dict[str, Any], everywhere: bool) -> None:
    """Clear the words from rows that repeat them; `everywhere` also from rows that belong to no session."""
    for table, columns in (*_REPEATING_TABLES.items(), *(_NAMING_TABLES.items() if everywhere else ())):
        db.execute(f"DELETE FROM {table} WHERE {matches(columns)}", params)
    for table, columns in (*_REPEATING_COLUMNS.items(), *(_NAMING_COLUMNS.items() if everywhere else ())):
        for column in columns:
            db.execute(f"UPDATE {table} SET {column} = NULL WHERE {matches((column,))}", params)
    if not everywhere:
        return
    db.execute(f"UPDATE projects SET path = 'project:' || id WHERE {matches(('path',))}", params)
    for table, columns in TEXTS_ELSEWHERE.items():
        if table != "projects":
            db.execute(f"DELETE FROM {table} WHERE {matches(columns)}{CONDITIONS_ELSEWHERE.get(table, '')}", params)


def clear_copies(db: Db) -> None:
    """Clear what may quote a deleted text, whoever it belongs to: injected blocks, queries, results of jobs.

    A block that was injected into one session quotes others, and cannot be told apart by its ids for certain.
    """
    db.execute("DELETE FROM injections")
    db.execute("DELETE FROM recall_log")
    db.execute(f"DELETE FROM jobs WHERE state <> 'running' AND kind NOT IN {_LASTING_JOBS}")
    db.execute("DELETE FROM ingest_items WHERE outcome IS NOT NULL")
    db.execute(
        "UPDATE transcripts SET state = '{}' WHERE session_id IS NOT NULL "
        "AND session_id NOT IN (SELECT id FROM sessions)"
    )


def count_lines(paths: Paths, words: str) -> int:
    """Count the log lines, and the spooled events that were rejected, in which the words occur."""
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    lines = sum(1 for path in _log_files(paths) for line in _text(path).splitlines() if pattern.search(line))
    return lines + sum(1 for path in _rejected_files(paths) if pattern.search(_text(path)))


def clear_files(paths: Paths, needles: list[str]) -> None:
    """Remove the log lines, and the spooled events that were rejected, in which one of the texts occurs."""
    if not needles:
        return
    pattern = re.compile("|".join(map(re.escape, needles)), re.IGNORECASE)
    for path in _log_files(paths):
        lines = _text(path).splitlines(keepends=True)
        kept = [line for line in lines if not pattern.search(line)]
        if len(kept) < len(lines):
            with path.open("r+", encoding="utf-8") as file:  # in place: the daemon has it open for appending
                file.write("".join(kept))
                file.truncate()
    for path in _rejected_files(paths):
        if pattern.search(_text(path)):
            path.unlink(missing_ok=True)


def _log_files(paths: Paths) -> list[Path]:
    return list(paths.logs.glob("clankers*"))


def _rejected_files(paths: Paths) -> list[Path]:
    rejected = paths.spool / "rejected"
    found = [] if rejected.is_symlink() else rejected.glob("*")
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


def list_copies(database: Path) -> list[Path]:
    """List files beside the database that are copies of it, or of its log: left by restores and repairs."""
    real = database.resolve()
    return sorted(
        path
        for kind in (".replaced-", ".refused-", ".damaged-", "-wal.foreign-")
        for path in real.parent.glob(f"{real.name}{kind}*")
    )
