"""`memory.import`: memories from elsewhere, with the ids and times they had."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.errors import InvalidParams, RpcError
from clankers_protocol.memories import Imported, MemoryImport, MemoryRecord
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.drafts import Draft, draft, list_columns, store_row, text_columns, without_secrets
from clankersd.memories.rows import SELECT, Row, as_json, note
from clankersd.memories.scopes import allowed
from clankersd.memories.sectors import classify
from clankersd.memories.versions import link
from clankersd.projects import project_id, project_row, store_project
from clankersd.redaction import count_redactions
from clankersd.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_OF_FIVE = {1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8, 5: 0.95}
"""Importance from a scale of 1 to 5."""

_TIMES = (
    "created_at", "updated_at", "last_accessed", "valid_from", "valid_until", "expires_at", "archived_at",
    "deleted_at", "salience_at",
)  # fmt: skip


@handles(MemoryImport)
async def memory_import(daemon: "Daemon", request: MemoryImport) -> Imported:
    refused: dict[str, str] = {}
    secrets: Counter[str] = Counter()
    read: list[tuple[MemoryRecord, Draft]] = []
    for number, given in enumerate(request.memories):
        try:
            record, found = without_secrets(_read(given))
            secrets.update(found)
            read.append((record, await draft(daemon.index, record.content, compare=False)))
        except RpcError as error:
            refused[str(given.get("id") or f"number {number + 1}")] = error.message

    def store(db: Db) -> list[str]:
        count_redactions(db, secrets, clock.now())
        return _store_all(db, request, read, refused)

    created = await daemon.store.write(store) if read else []
    daemon.index.wake()
    for memory_id in created:
        daemon.hub.publish("memory", "imported", memory_id)
    return Imported(len(created), len(request.memories) - len(created) - len(refused), refused)


def _read(given: dict[str, Any]) -> MemoryRecord:
    try:
        record = msgspec.convert(given, MemoryRecord)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {error}") from error
    begins, ends = record.valid_from or record.created_at, record.valid_until
    if ends is not None and (clock.moment(ends) or 0) < (clock.moment(begins) or 0):
        raise InvalidParams("invalid params: it ends before it begins - at `$.validUntil`")
    if not record.content.strip():
        raise InvalidParams("invalid params: there is nothing in it to remember - at `$.content`")
    if record.importance > 1 and record.importance not in _OF_FIVE:
        raise InvalidParams("invalid params: importance is between 0 and 1, or 1 to 5 - at `$.importance`")
    return record


def _store_all(
    db: Db, request: MemoryImport, read: list[tuple[MemoryRecord, Draft]], refused: dict[str, str]
) -> list[str]:  # fmt: skip
    permitted, created = allowed(db, request), []
    for record, drafted in read:
        refused.pop(record.id, None)  # this may be run a second time
        known = db.fetch_one("SELECT scope FROM memories WHERE id = :id", {"id": record.id})
        if record.scope not in permitted or (known and known["scope"] not in permitted):
            refused[record.id] = f"invalid params: {record.scope} is not one of the caller's scopes - at `$.scope`"
        elif not known:
            _store(db, record, drafted)
            created.append(record.id)
    return created


def _store(db: Db, record: MemoryRecord, drafted: Draft) -> None:
    row = _row(db, record, drafted)
    store_row(db, row, drafted.prepared)
    note(db, row["id"], "imported", "user")
    for old in record.supersedes:
        superseded = db.fetch_one(f"{SELECT} WHERE memories.id = :id", {"id": old, "now": clock.now()})
        if superseded and superseded["scope"] == row["scope"] and not superseded["superseded_by"]:
            link(db, row["id"], old, row["created_at"], "system")
    if row["deleted_at"]:
        note(db, row["id"], "deleted", "user", "it was forgotten where it came from", at=row["deleted_at"])


def _row(db: Db, record: MemoryRecord, drafted: Draft) -> Row:
    given = msgspec.structs.asdict(record)
    times = {name: clock.moment(given[name]) for name in _TIMES}
    created = times["created_at"] or clock.now()
    for name in ("updated_at", "last_accessed", "valid_from", "salience_at"):
        times[name] = times[name] or created
    row = {
        name: value
        for name, value in given.items()
        if name not in ("tags", "concepts", "files", "project_path", "supersedes")
    }
    return {
        **row,
        **times,
        **text_columns(drafted.text),
        **list_columns(record.content, record.tags, record.concepts, record.files),
        "created_at": created,
        "project_id": _project(db, record.project_path),
        "sector": record.sector or classify(record.content, record.category),
        "tier": record.tier or ("project" if record.project_path else "global"),
        "category": record.category or "other",
        "importance": _OF_FIVE[int(record.importance)] if record.importance > 1 else record.importance,
        "is_deleted": int(times["deleted_at"] is not None),
        "metadata": as_json(record.metadata),
    }


def _project(db: Db, path: str | None) -> str | None:
    if path is None:
        return None
    store_project(db, project_row(path))
    return project_id(db, path)
