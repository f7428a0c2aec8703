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


def clear_words(db: Db, params: dict[str, Any], everywhere: bool) -> None:
    """Clear the words from rows that repeat them; `everywhere` also from rows that belong to no session."""
    tables = _REPEATING_TABLES | (_NAMING_TABLES if everywhere else {})
    for table, columns in tables.items():
        db.execute(f"DELETE FROM {table} WHERE {matches(columns)}", params)
    cleared = _REPEATING_COLUMNS | (_NAMING_COLUMNS if everywhere else {})
    for table, columns in cleared.items():
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


def clear_files(paths: Paths, needles: list[str]) -> None:
    """Remove the log lines, and the spooled events that were rejected, in which one of the texts occurs."""
    if not needles:
        return
    pattern = re.compile("|".join(map(re.escape, needles)), re.IGNORECASE)
    for path in paths.logs.glob("clankers*"):
        text = path.read_text("utf-8", errors="replace")
        kept = [line for line in text.splitlines(keepends=True) if not pattern.search(line)]
        if len(kept) < len(text.splitlines()):
            with path.open("r+", encoding="utf-8") as file:  # in place: the daemon has it open for appending
                file.write("".join(kept))
                file.truncate()
    rejected = paths.spool / "rejected"
    for path in rejected.glob("*") if not rejected.is_symlink() else ():
        if path.is_file() and not path.is_symlink() and pattern.search(path.read_text("utf-8", errors="replace")):
            path.unlink(missing_ok=True)


def list_copies(database: Path) -> list[Path]:
    """List files beside the database that are copies of it, or of its log: left by restores and repairs."""
    real = database.resolve()
    return sorted(
        path
        for kind in (".replaced-", ".refused-", ".damaged-", "-wal.foreign-")
        for path in real.parent.glob(f"{real.name}{kind}*")
    )
