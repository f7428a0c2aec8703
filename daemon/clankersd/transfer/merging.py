"""Store one record in a transaction: insert it, combine it with the row that has its key, or leave that row alone."""

from typing import Any

from clankers_protocol import transfer as records
from clankers_protocol.errors import InvalidParams
from clankersd import clock
from clankersd.capture.opt_out import is_session_opted_out
from clankersd.db import Db, Notification
from clankersd.index.backlog import add_to_backlog
from clankersd.redaction.engine import count_redactions
from clankersd.transfer.parsing import ParsedRecord
from clankersd.transfer.projects import Stored, store_project
from clankersd.transfer.references import OlderState, settle
from clankersd.transfer.tables import Row, combine

_ACTIONS = {"session": "stored", "message": "stored", "memory": "imported", "skill": "updated", "schedule": "updated"}
"""Action that subscribers are notified of, by kind of change."""

_OF_SESSION = ("messages", "tools", "session_errors", "compaction_events", "injections")

_REQUIRED: dict[type[records.Record], dict[str, str]] = {
    records.SkillVersionRecord: {"skill_id": "skills"},
    records.MessageRecord: {"session_id": "sessions"},
    records.ToolRecord: {"session_id": "sessions"},
    records.SessionErrorRecord: {"session_id": "sessions"},
    records.CompactionRecord: {"session_id": "sessions"},
    records.MessageIdentityRecord: {"session_id": "sessions"},
    records.InjectionRecord: {"session_id": "sessions"},
    records.ExtractionRecord: {"session_id": "sessions"},
    records.MemoryChangeRecord: {"memory_id": "memories"},
    records.SessionMemoryRecord: {"session_id": "sessions", "memory_id": "memories"},
    records.MentionedEntityRecord: {"memory_id": "memories"},
    records.RelationRowRecord: {"source_memory_id": "memories", "target_memory_id": "memories"},
    records.DocumentPartRecord: {"document_id": "documents"},
    records.DocumentChunkRecord: {"document_id": "documents", "parent_id": "document_chunks"},
    records.ScheduleRunRecord: {"action_id": "scheduled_actions"},
}
"""Tables of the rows that must exist for a record, by its column."""


def store_record(db: Db, parsed: ParsedRecord) -> Stored:
    """Store a record; raises InvalidParams if something that it refers to is missing."""
    if isinstance(parsed.record, records.ProjectRecord):
        return store_project(db, parsed.record)
    table = parsed.table
    row = dict(parsed.row)
    changes_before = db.total_changes()
    try:
        settle(db, row, parsed.record)
    except OlderState:
        return Stored("unchanged")
    stored = db.fetch_one(table.by_key, row)
    if stored is None:
        _check_references(db, parsed, row)
        _insert(db, parsed, row)
        return Stored("new")
    combined = combine(table, stored, row)
    if isinstance(parsed.record, records.ScheduleRecord) and not combined["enabled"]:
        combined["next_run"] = None
    if combined != stored:
        _check_references(db, parsed, combined)
        _update(db, parsed, combined)
    return Stored("updated" if db.total_changes() != changes_before else "unchanged")


def _check_references(db: Db, parsed: ParsedRecord, row: Row) -> None:
    """Raise InvalidParams if a row that must exist does not, or if its session has opted out."""
    table = parsed.table
    if parsed.is_opted_out:
        raise InvalidParams("its project has opted out of capture - at `$.projectPath`")
    session_id = row["id"] if table.name == "sessions" else row.get("session_id")
    if (table.name == "sessions" or table.name in _OF_SESSION) and is_session_opted_out(db, str(session_id)):
        raise InvalidParams("its session has opted out of capture")
    for column, referred in _REQUIRED.get(type(parsed.record), {}).items():
        if row[column] is not None and not db.value(f"SELECT 1 FROM {referred} WHERE id = :id", {"id": row[column]}):
            field = parsed.record.__struct_encode_fields__[parsed.record.__struct_fields__.index(column)]
            raise InvalidParams(f"{referred} have no {row[column]!r} - at `$.{field}`")


def _insert(db: Db, parsed: ParsedRecord, row: Row) -> None:
    columns = row | parsed.derived
    values = ", ".join(f":{name}" for name in columns)
    db.execute(f"INSERT INTO {parsed.table.name} ({', '.join(columns)}) VALUES ({values})", columns)
    _follow_up(db, parsed, row)


def _update(db: Db, parsed: ParsedRecord, row: Row) -> None:
    table = parsed.table
    db.execute(table.update, row)
    # Columns are derived from these two; a text that stays as it is stored has its own already.
    if parsed.derived and all(row[name] == parsed.row[name] for name in ("content", "name") if name in row):
        sets = ", ".join(f"{name} = :{name}" for name in parsed.derived)
        db.execute(f"UPDATE {table.name} SET {sets} WHERE id = :id", {**parsed.derived, "id": row["id"]})
    if table.index_owner:
        db.execute(f"DELETE FROM chunks WHERE {table.index_owner} = :id", row)
    _follow_up(db, parsed, row)


def _follow_up(db: Db, parsed: ParsedRecord, row: Row) -> None:
    """Have the text of a stored row indexed, count its secrets, and notify subscribers."""
    table = parsed.table
    count_redactions(db, parsed.redactions, clock.now())
    if table.text_kind:
        add_to_backlog(db, table.text_kind, row["id"])
    if table.notification:
        facts: dict[str, Any] = {}
        if table.notification == "message":
            facts = {"sessionId": row["session_id"], "role": row["role"]}
        elif table.notification == "skill":
            facts = {"name": row["name"], "version": row["version"]}
        db.after_commit(Notification(table.notification, _ACTIONS[table.notification], row["id"], facts))
