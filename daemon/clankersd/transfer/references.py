"""References between records of two machines: the same thing may have another id here."""

from collections.abc import Callable
from typing import Any

from clankers_protocol import transfer as records
from clankers_protocol.errors import InvalidParams
from clankersd.db import Db
from clankersd.index.backlog import add_to_backlog
from clankersd.memories.entities import name_key
from clankersd.transfer.projects import current_project
from clankersd.transfer.tables import TABLE_OF, Row, rank

_SAME_OPEN_RELATION = """
    SELECT id, created_at FROM memory_relationships
    WHERE source_memory_id = :source_memory_id AND target_memory_id = :target_memory_id
      AND relationship_type = :relationship_type AND valid_until IS NULL AND id <> :id
      AND NOT EXISTS (SELECT 1 FROM memory_relationships WHERE id = :id)
"""
_SKILL_ID = """
    SELECT id FROM skills WHERE id = :id UNION ALL SELECT id FROM skills WHERE name = :name LIMIT 1
"""
_ENTITY_BY_NAME = "SELECT id, created_at FROM entities WHERE name_key = :key AND entity_type = :type"


class OlderState(Exception):
    """The record belongs to a state of something that is stored here in a newer one."""


def settle(db: Db, row: Row, record: records.Record) -> None:
    """Replace ids in the row by those that the things have here.

    Raises OlderState if the row must not be stored. Of two ids of one thing, the older one stays, on both machines.
    """
    if (settle_kind := _SETTLE.get(type(record))) is not None:
        settle_kind(db, row, record)


def _settle_project(db: Db, row: Row, _: Any) -> None:
    row["project_id"] = current_project(db, row["project_id"])


def _settle_memory(db: Db, row: Row, _: Any) -> None:
    row["project_id"] = current_project(db, row["project_id"])
    row["scope"] = _current_scope(db, row["scope"])


def _current_scope(db: Db, scope: str) -> str:
    kind, _, project_id = scope.partition(":")
    return f"project:{current_project(db, project_id) or project_id}" if kind == "project" else scope


def _settle_change(db: Db, row: Row, _: Any) -> None:
    params = {"before": row["before_json"]}
    scope = db.value("SELECT json_extract(:before, '$.scope')", params)
    if isinstance(scope, str) and (current := _current_scope(db, scope)) != scope:
        params["scope"] = current
        row["before_json"] = db.value("SELECT json_set(:before, '$.scope', :scope)", params)


def _settle_identity(db: Db, row: Row, _: Any) -> None:
    sql = "SELECT 1 FROM told_messages WHERE line_id = :line_id AND message_id <> :message_id"
    if db.value(sql, row):
        row["line_id"] = None


# -- entities and skills: a name means one of them


def _settle_entity(db: Db, row: Row, record: records.EntityRecord) -> None:
    same = db.fetch_one(_ENTITY_BY_NAME, {"key": name_key(record.name), "type": record.entity_type})
    if same is None:
        return
    created_at, survivor = _elder(db, "entities", same, row)
    if survivor != same["id"]:
        _replace_id(db, "entities", same["id"], survivor, "name_key", {"memory_entities": "entity_id"})
    if created_at != same["created_at"]:
        db.execute("UPDATE entities SET created_at = :at WHERE id = :id", {"at": created_at, "id": survivor})
    row["id"], row["created_at"] = survivor, created_at


def _settle_skill(db: Db, row: Row, record: records.SkillRecord) -> None:
    same = db.fetch_one("SELECT id, created_at FROM skills WHERE name = :name", row)
    if same is None:
        return
    created_at, survivor = _elder(db, "skills", same, row)
    if survivor != same["id"]:
        references = {"skill_versions": "skill_id", "scheduled_actions": "skill_id"}
        _replace_id(db, "skills", same["id"], survivor, "name", references)
        sql = "UPDATE skill_versions SET skill_json = json_set(skill_json, '$.id', :id) WHERE skill_id = :id"
        db.execute(sql, {"id": survivor})
        add_to_backlog(db, "skill", survivor)
    if created_at != same["created_at"]:
        db.execute("UPDATE skills SET created_at = :at WHERE id = :id", {"at": created_at, "id": survivor})
    row["id"], row["created_at"] = survivor, created_at


def _elder(db: Db, table: str, stored: Row, given: Row) -> tuple[int, str]:
    """Return the time and id of the one that was created first; an id that something else has here is not used."""
    ours, theirs = (stored["created_at"], stored["id"]), (given["created_at"], given["id"])
    is_taken = given["id"] != stored["id"] and db.value(f"SELECT 1 FROM {table} WHERE id = :id", given)
    return ours if is_taken else min(ours, theirs)


def _replace_id(db: Db, table: str, old: str, new: str, unique: str, references: dict[str, str]) -> None:
    """Give a row another id, with all rows that refer to it. `unique` is a column whose value only one row may have."""
    columns = db.engine.column_names(db, table)
    copied = ", ".join({"id": ":new", unique: f"'moving ' || {unique}"}.get(name, name) for name in columns)
    params = {"old": old, "new": new}
    value = db.value(f"SELECT {unique} FROM {table} WHERE id = :old", params)
    db.execute(f"INSERT INTO {table} ({', '.join(columns)}) SELECT {copied} FROM {table} WHERE id = :old", params)
    for referring, column in references.items():
        db.execute(f"UPDATE {referring} SET {column} = :new WHERE {column} = :old", params)
    db.execute(f"DELETE FROM {table} WHERE id = :old", params)
    db.execute(f"UPDATE {table} SET {unique} = :value WHERE id = :new", {"value": value, "new": new})


def _settle_skill_version(db: Db, row: Row, record: records.SkillVersionRecord) -> None:
    found = db.value(_SKILL_ID, {"id": record.skill_id, "name": record.skill_name})
    if found is not None and found != record.skill_id:
        row["skill_id"] = found
        params = {"skill": row["skill_json"], "id": found}
        row["skill_json"] = db.value("SELECT json_set(:skill, '$.id', :id)", params)


def _settle_schedule(db: Db, row: Row, record: records.ScheduleRecord) -> None:
    if record.skill_id is not None:
        row["skill_id"] = db.value(_SKILL_ID, {"id": record.skill_id, "name": record.skill_name})


def _settle_mention(db: Db, row: Row, record: records.MentionedEntityRecord) -> None:
    found = db.fetch_one(_ENTITY_BY_NAME, {"key": name_key(record.entity_name), "type": record.entity_type})
    if found is None:
        raise InvalidParams(f"there is no {record.entity_type} {record.entity_name!r} - at `$.entityName`")
    row["entity_id"] = found["id"]


def _settle_relation(db: Db, row: Row, record: records.RelationRowRecord) -> None:
    """Of two open relations that say the same, the older one stays."""
    same = db.fetch_one(_SAME_OPEN_RELATION, row) if record.valid_until is None else None
    if same is None:
        return
    if (same["created_at"], same["id"]) < (record.created_at, record.id):
        raise OlderState
    db.execute("DELETE FROM memory_relationships WHERE id = :id", {"id": same["id"]})


# -- documents: a source means one of them, and its parts belong to one state of it


def _settle_document(db: Db, row: Row, record: records.DocumentRecord) -> None:
    row["project_id"] = current_project(db, row["project_id"])
    for document_id in outdated_documents(db, row):
        db.execute("DELETE FROM documents WHERE id = :id", {"id": document_id})


def outdated_documents(db: Db, row: Row) -> list[str]:
    """Return the ids of stored documents that an imported one replaces; raises OlderState if one of them is newer."""
    table = TABLE_OF[records.DocumentRecord]
    columns = ", ".join(table.column_of.values())
    sql = f"SELECT {columns} FROM documents WHERE (id = :id OR source = :source) AND revision >= 0"
    outdated = []
    for stored in db.fetch(sql, row):
        if stored["id"] == row["id"] and stored["updated_at"] == row["updated_at"]:
            continue
        if rank(table, stored) >= rank(table, row):
            raise OlderState
        outdated.append(stored["id"])
    return outdated


def _settle_part(db: Db, _: Row, record: records.DocumentPartRecord | records.DocumentChunkRecord) -> None:
    sql = "SELECT id, updated_at FROM documents WHERE id = :id OR source = :source"
    for stored in db.fetch(sql, {"id": record.document_id, "source": record.document_source}):
        if (stored["id"], stored["updated_at"]) != (record.document_id, record.document_updated_at):
            raise OlderState


def _settle_edge(db: Db, row: Row, _: records.EdgeRecord) -> None:
    """An edge of a document that is stored here in another state has chunks that are not."""
    sql = "SELECT count(*) FROM document_chunks WHERE id IN (:source_id, :target_id)"
    if db.value(sql, row) < 2:
        raise OlderState


_SETTLE: dict[type[records.Record], Callable[[Db, Row, Any], None]] = {
    records.SkillRecord: _settle_skill,
    records.SkillVersionRecord: _settle_skill_version,
    records.SessionRecord: _settle_project,
    records.MessageIdentityRecord: _settle_identity,
    records.MemoryRowRecord: _settle_memory,
    records.MemoryChangeRecord: _settle_change,
    records.EntityRecord: _settle_entity,
    records.MentionedEntityRecord: _settle_mention,
    records.RelationRowRecord: _settle_relation,
    records.DocumentRecord: _settle_document,
    records.DocumentPartRecord: _settle_part,
    records.DocumentChunkRecord: _settle_part,
    records.EdgeRecord: _settle_edge,
    records.ScheduleRecord: _settle_schedule,
}
