"""`memory.export` and `memory.import`: copy memories to another database, with their ids, times and links."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.entities import Relation
from clankers_protocol.errors import InvalidParams, NotFound, RpcError
from clankers_protocol.memory_transfer import (
    Imported,
    MemoryExport,
    MemoryImport,
    MemoryRecord,
    RecordPage,
    RelationRecord,
)
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.db.paging import decode_cursor, encode_cursor, fetch_page, fit_reply
from clankersd.memories.classify import classify
from clankersd.memories.entities import import_mention, mentions_in, name_key
from clankersd.memories.filters import project_conditions
from clankersd.memories.prepared import PreparedMemory, insert_memory, list_columns, prepare_memory, text_columns
from clankersd.memories.relations import import_relation, relations_of
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes, allowed_scopes
from clankersd.memories.store import SELECT_MEMORIES, Columns, MemoryRow, log_change, to_json, to_memory
from clankersd.projects import Folder, ensure_project, find_folder, resolve_scope
from clankersd.projects.store import match_folder
from clankersd.redaction.engine import count_redactions, without_secrets
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_IMPORTANCE_OF_FIVE = {1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8, 5: 0.95}
"""Importance for each grade of a scale from 1 to 5."""

_TIME_COLUMNS = (
    "created_at", "updated_at", "last_accessed", "valid_from", "valid_until", "expires_at", "archived_at",
    "deleted_at",
)  # fmt: skip
_NOT_COLUMNS = ("tags", "concepts", "files", "project_path", "project_repository", "relations", "entities")
"""Fields of a record that are not columns of `memories`."""

_REPOSITORY = """
    SELECT repository FROM project_repositories WHERE project_id = :id AND repository NOT LIKE 'project:%'
    ORDER BY repository LIKE 'commit:%', repository LIMIT 1
"""


# -- export


@handles(MemoryExport)
async def memory_export(daemon: "Daemon", request: MemoryExport) -> RecordPage:
    def page(db: Db) -> RecordPage:
        scopes = allowed_scopes(db, request)
        params: dict[str, Any] = scopes.params | {"now": clock.now(), "limit": request.limit + 1}
        at, after = decode_cursor(request.cursor, int, str) if request.cursor else (-1, "")
        condition = " AND ".join([IN_SCOPE, *project_conditions(db, request, params)])
        rows = fetch_page(
            db,
            f"{SELECT_MEMORIES} WHERE {condition} AND (memories.created_at, memories.id) > (:at, :after) "
            "ORDER BY memories.created_at, memories.id LIMIT :limit",
            params | {"at": at, "after": after},
        )
        shown = fit_reply(rows[: request.limit])
        more = len(rows) > len(shown)
        cursor = encode_cursor(shown[-1]["created_at"], shown[-1]["id"]) if more else None
        return RecordPage([_to_record(db, MemoryRow(**row), scopes) for row in shown], cursor)

    return await daemon.store.snapshot_read(page)


def _to_record(db: Db, row: MemoryRow, scopes: AllowedScopes) -> MemoryRecord:
    memory = to_memory(row, row.salience_at)
    fields = {name: getattr(memory, name) for name in MemoryRecord.__struct_fields__ if hasattr(memory, name)}
    fields |= {"salience": row.salience, "salience_at": row.salience_at}
    fields["project_repository"] = db.value(_REPOSITORY, {"id": row.project_id})
    fields["relations"] = [
        RelationRecord(**msgspec.structs.asdict(relation)) for relation in relations_of(db, row.id, scopes)
    ]
    fields["entities"] = mentions_in(db, row.id, scopes)
    return MemoryRecord(**fields)


# -- import


@handles(MemoryImport)
async def memory_import(daemon: "Daemon", request: MemoryImport) -> Imported:
    refused: dict[str, str] = {}
    secrets: Counter[str] = Counter()
    valid: list[tuple[MemoryRecord, PreparedMemory]] = []
    for number, fields in enumerate(request.memories, 1):
        try:
            record, counts = await prepare(partial(_parse_record, fields))
            secrets.update(counts)
            valid.append((record, await prepare_memory(daemon.index, record.content, compare=False)))
        except RpcError as error:
            refused[str(fields.get("id") or f"number {number}")] = error.message

    def store(db: Db) -> tuple[list[str], int]:
        count_redactions(db, secrets, clock.now())
        return _store_records(db, request, valid, refused)

    created, relations = await daemon.store.write(store, bulk=True) if valid else ([], 0)
    daemon.index.wake()
    return Imported(len(created), relations, len(request.memories) - len(created) - len(refused), refused)


def _parse_record(fields: dict[str, Any]) -> tuple[MemoryRecord, dict[str, int]]:
    """Validate a record and redact it; returns it with the number of secrets of each kind. Raises InvalidParams."""
    try:
        record = msgspec.convert(fields, MemoryRecord)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {error}") from error
    _validate_period(record.valid_from or record.created_at, record.valid_until, "$.validUntil")
    if not record.content.strip():
        raise InvalidParams("invalid params: the content is empty - at `$.content`")
    if record.importance > 1 and record.importance not in _IMPORTANCE_OF_FIVE:
        raise InvalidParams("invalid params: importance is between 0 and 1, or 1 to 5 - at `$.importance`")
    for relation in record.relations:
        if record.id not in (relation.source, relation.target) or relation.source == relation.target:
            raise InvalidParams("invalid params: a relation is of this memory with another - at `$.relations`")
        _validate_period(relation.valid_from or relation.created_at, relation.valid_until, "$.relations")
    if not all(name_key(mention.name) for mention in record.entities):
        raise InvalidParams("invalid params: there is no name in it - at `$.entities`")
    return without_secrets(record)


def _validate_period(valid_from: float, valid_until: float | None, field: str) -> None:
    if valid_until is not None and (clock.to_ms(valid_until) or 0) < (clock.to_ms(valid_from) or 0):
        raise InvalidParams(f"invalid params: it ends before it begins - at `{field}`")


def _store_records(
    db: Db, request: MemoryImport, records: list[tuple[MemoryRecord, PreparedMemory]], refused: dict[str, str]
) -> tuple[list[str], int]:
    """Store the records that are new, and return their ids and the number of new relations."""
    scopes = allowed_scopes(db, request)
    created: list[str] = []
    relations: list[RelationRecord] = []
    new_scopes: set[str] = set()
    for record, prepared in records:
        refused.pop(record.id, None)  # the transaction may run a second time
        stored_scope = db.value("SELECT scope FROM memories WHERE id = :id", {"id": record.id})
        project = None  # one that does not exist here gets the id it has in the export
        if record.project_path is not None:
            project = match_folder(db, _folder_of(record)).project_id or record.project_id or clock.new_id()
        scope = record.scope
        if scope == f"project:{record.project_id}" and project:
            scope = f"project:{project}"
        elif scope.startswith("project:") and scope not in new_scopes:
            with suppress(NotFound):  # of a project that was not exported with the memory
                scope = resolve_scope(db, scope)
        new_scopes.add(scope)
        if scope not in scopes or (stored_scope is not None and stored_scope not in scopes):
            refused[record.id] = f"invalid params: {scope} is not one of the caller's scopes - at `$.scope`"
        elif stored_scope is None:
            _store_record(db, record, prepared, project, scope, scopes)
            created.append(record.id)
            db.after_commit(Notification("memory", "imported", record.id))
            relations += record.relations
    new_relations = 0
    for relation in relations:  # after all memories: a relation may come with the first of its two
        created_at = clock.to_ms(relation.created_at) or clock.now()
        times = {
            "created_at": created_at,
            "valid_from": clock.to_ms(relation.valid_from) or created_at,
            "valid_until": clock.to_ms(relation.valid_until),
        }
        new_relations += import_relation(db, Relation(**msgspec.structs.asdict(relation) | times), scopes)
    return created, new_relations


def _store_record(
    db: Db, record: MemoryRecord, prepared: PreparedMemory, project: str | None, scope: str, scopes: AllowedScopes
) -> None:
    if record.project_path and project:
        ensure_project(db, _folder_of(record), new_id=project)
    row = MemoryRow(**_record_columns(record, prepared) | {"project_id": project, "scope": scope})
    insert_memory(db, row, prepared.chunks)
    for mention in record.entities:
        import_mention(db, row.id, mention, scopes)
    log_change(db, row.id, "imported", "user")
    if row.deleted_at:
        log_change(db, row.id, "deleted", "user", "it was deleted where it comes from", at=row.deleted_at)


def _folder_of(record: MemoryRecord) -> Folder:
    """Return the folder of a record's project; one that is not on this machine has the repository it had there."""
    folder = find_folder(record.project_path or "")
    return folder if folder.directory or folder.git_dir else replace(folder, repository=record.project_repository)


def _record_columns(record: MemoryRecord, prepared: PreparedMemory) -> Columns:
    fields = msgspec.structs.asdict(record)
    times = {name: clock.to_ms(fields[name]) for name in _TIME_COLUMNS}
    created = times["created_at"] or clock.now()
    for name in ("updated_at", "last_accessed", "valid_from"):
        times[name] = times[name] or created
    importance = record.importance
    if importance > 1:
        importance = _IMPORTANCE_OF_FIVE[int(importance)]
    return {
        **{name: value for name, value in fields.items() if name not in _NOT_COLUMNS},
        **times,
        **text_columns(prepared.text),
        **list_columns(record.content, record.tags, record.concepts, record.files),
        "created_at": created,
        "salience_at": clock.now(),  # it decays from its import on, or maintenance would archive an old one at once
        "sector": record.sector or classify(record.content, record.category),
        "tier": record.tier or ("project" if record.project_path else "global"),
        "category": record.category or "other",
        "importance": importance,
        "is_deleted": int(times["deleted_at"] is not None),
        "metadata": None if record.metadata is None else to_json(record.metadata),
    }
