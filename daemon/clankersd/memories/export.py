"""`memory.export` and `memory.import`: memories on their way elsewhere, with the ids, times and links they have."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.errors import InvalidParams, RpcError
from clankers_protocol.memory_transfer import (
    Imported,
    MemoryExport,
    MemoryImport,
    MemoryRecord,
    MentionRecord,
    RecordPage,
    RelationRecord,
)
from clankersd import clock
from clankersd.capture.redaction import count_redactions, without_secrets
from clankersd.db import Db, Notification
from clankersd.db.paging import decode_cursor, encode_cursor, fetch_page, that_fit
from clankersd.memories.classify import classify
from clankersd.memories.drafts import Draft, draft, list_columns, store_row, text_columns
from clankersd.memories.entities import mention, mentions_of, name_key
from clankersd.memories.filters import of_project
from clankersd.memories.relations import relations_of, take_over
from clankersd.memories.scopes import IN_SCOPE, Allowed, allowed
from clankersd.memories.store import SELECT, Row, as_json, note, to_memory
from clankersd.projects import project_id, project_row, store_project
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_OF_FIVE = {1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8, 5: 0.95}
"""Importance from a scale of 1 to 5."""

_TIMES = (
    "created_at", "updated_at", "last_accessed", "valid_from", "valid_until", "expires_at", "archived_at",
    "deleted_at", "salience_at",
)  # fmt: skip
_ELSEWHERE = ("tags", "concepts", "files", "project_path", "relations", "entities")
"""What of a record is no column of a memory."""


# -- export


@handles(MemoryExport)
async def memory_export(daemon: "Daemon", request: MemoryExport) -> RecordPage:
    def page(db: Db) -> RecordPage:
        permitted = allowed(db, request)
        params: dict[str, Any] = permitted.params | {"now": clock.now(), "limit": request.limit + 1}
        at, after = decode_cursor(request.cursor, int, str) if request.cursor else (-1, "")
        narrowed = " AND ".join([IN_SCOPE, *of_project(db, request, params)])
        rows = fetch_page(
            db,
            f"{SELECT} WHERE {narrowed} AND (memories.created_at, memories.id) > (:at, :after) "
            "ORDER BY memories.created_at, memories.id LIMIT :limit",
            params | {"at": at, "after": after},
        )
        shown = that_fit(rows[: request.limit])
        more = len(rows) > len(shown)
        cursor = encode_cursor(shown[-1]["created_at"], shown[-1]["id"]) if more else None
        return RecordPage([_record(db, row, permitted) for row in shown], cursor)

    return await daemon.store.aside(page)


def _record(db: Db, row: Row, permitted: Allowed) -> MemoryRecord:
    memory = to_memory(row, row["salience_at"])
    facts = {name: getattr(memory, name) for name in MemoryRecord.__struct_fields__ if hasattr(memory, name)}
    facts |= {name: row[name] for name in ("salience", "salience_at")}
    relations = [RelationRecord(**msgspec.structs.asdict(one)) for one in relations_of(db, row["id"], permitted)]
    mentions = [_mention(one) for one in mentions_of(db, row["id"], permitted)]
    return MemoryRecord(**facts, relations=relations, entities=mentions)


def _mention(row: Row) -> MentionRecord:
    return MentionRecord(**row | {"noticed": bool(row["noticed"])})


# -- import


@handles(MemoryImport)
async def memory_import(daemon: "Daemon", request: MemoryImport) -> Imported:
    refused: dict[str, str] = {}
    secrets: Counter[str] = Counter()
    read: list[tuple[MemoryRecord, Draft]] = []
    for number, given in enumerate(request.memories):
        try:
            record = await prepare(partial(_clean, given, secrets))
            read.append((record, await draft(daemon.index, record.content, compare=False)))
        except RpcError as error:
            refused[str(given.get("id") or f"number {number + 1}")] = error.message

    def store(db: Db) -> tuple[list[str], int]:
        count_redactions(db, secrets, clock.now())
        return _store_all(db, request, read, refused)

    created, relations = await daemon.store.write(store, bulk=True) if read else ([], 0)
    daemon.index.wake()
    return Imported(len(created), relations, len(request.memories) - len(created) - len(refused), refused)


def _clean(given: dict[str, Any], secrets: Counter[str]) -> MemoryRecord:
    record, found = without_secrets(_read(given))
    secrets.update(found)
    return record


def _read(given: dict[str, Any]) -> MemoryRecord:
    try:
        record = msgspec.convert(given, MemoryRecord)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {error}") from error
    _check_times(record.valid_from or record.created_at, record.valid_until, "$.validUntil")
    if not record.content.strip():
        raise InvalidParams("invalid params: there is nothing in it to remember - at `$.content`")
    if record.importance > 1 and record.importance not in _OF_FIVE:
        raise InvalidParams("invalid params: importance is between 0 and 1, or 1 to 5 - at `$.importance`")
    for one in record.relations:
        if record.id not in (one.source, one.target) or one.source == one.target:
            raise InvalidParams("invalid params: a relation is of this memory with another - at `$.relations`")
        _check_times(one.valid_from or one.created_at, one.valid_until, "$.relations")
    if not all(name_key(one.name) for one in record.entities):
        raise InvalidParams("invalid params: there is no name in it - at `$.entities`")
    return record


def _check_times(begins: float, ends: float | None, where: str) -> None:
    if ends is not None and (clock.moment(ends) or 0) < (clock.moment(begins) or 0):
        raise InvalidParams(f"invalid params: it ends before it begins - at `{where}`")


def _store_all(
    db: Db, request: MemoryImport, read: list[tuple[MemoryRecord, Draft]], refused: dict[str, str]
) -> tuple[list[str], int]:  # fmt: skip
    """The ids of the memories that are new, and how many relations came with them."""
    permitted, created = allowed(db, request), []
    relations: list[RelationRecord] = []
    for record, drafted in read:
        refused.pop(record.id, None)  # this may be run a second time
        known = db.fetch_one("SELECT scope FROM memories WHERE id = :id", {"id": record.id})
        project = _project(db, record)
        own = project is not None and record.scope == f"project:{record.project_id}"
        scope = f"project:{project}" if own else record.scope
        if scope not in permitted or (known and known["scope"] not in permitted):
            refused[record.id] = f"invalid params: {scope} is not one of the caller's scopes - at `$.scope`"
        elif not known:
            _store(db, record, drafted, {"project_id": project, "scope": scope}, permitted)
            created.append(record.id)
            db.after_commit(Notification("memory", "imported", record.id))
            relations += record.relations
    # When all are there: a relation may come with the first of its memories.
    return created, sum(take_over(db, _relation(one), permitted) for one in relations)


def _project(db: Db, record: MemoryRecord) -> str | None:
    """The id here of the project that a record is of: of the one at its path, else the id it had elsewhere."""
    path, given = record.project_path, record.project_id
    return None if path is None else project_id(db, path) or given or clock.new_id()


def _store(db: Db, record: MemoryRecord, drafted: Draft, place: Row, permitted: Allowed) -> None:
    row = _row(record, drafted) | place
    if record.project_path and project_id(db, row["project_id"]) is None:
        store_project(db, project_row(record.project_path) | {"id": row["project_id"]})
    store_row(db, row, drafted.prepared)
    for one in record.entities:
        mention(db, row["id"], msgspec.structs.asdict(one), permitted)
    note(db, row["id"], "imported", "user")
    if row["deleted_at"]:
        note(db, row["id"], "deleted", "user", "it was forgotten where it came from", at=row["deleted_at"])


def _row(record: MemoryRecord, drafted: Draft) -> Row:
    given = msgspec.structs.asdict(record)
    times = {name: clock.moment(given[name]) for name in _TIMES}
    created = times["created_at"] or clock.now()
    for name in ("updated_at", "last_accessed", "valid_from", "salience_at"):
        times[name] = times[name] or created
    return {
        **{name: value for name, value in given.items() if name not in _ELSEWHERE},
        **times,
        **text_columns(drafted.text),
        **list_columns(record.content, record.tags, record.concepts, record.files),
        "created_at": created,
        "sector": record.sector or classify(record.content, record.category),
        "tier": record.tier or ("project" if record.project_path else "global"),
        "category": record.category or "other",
        "importance": _OF_FIVE[int(record.importance)] if record.importance > 1 else record.importance,
        "is_deleted": int(times["deleted_at"] is not None),
        "metadata": as_json(record.metadata),
    }


def _relation(given: RelationRecord) -> Row:
    made = clock.moment(given.created_at) or clock.now()
    times = {"now": made, "begins": clock.moment(given.valid_from) or made, "ends": clock.moment(given.valid_until)}
    return msgspec.structs.asdict(given) | times
