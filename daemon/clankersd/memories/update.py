"""Changing memories: corrections, salience, deletion and restoring. Every change adds an entry to the memory's log."""

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from clankers_protocol.errors import Conflict, InvalidParams
from clankers_protocol.memories import Memory, Scoped
from clankers_protocol.memory_changes import (
    Changed,
    MemoryBulkDelete,
    MemoryDeemphasize,
    MemoryDelete,
    MemoryPin,
    MemoryPromote,
    MemoryPurge,
    MemoryReinforce,
    MemoryRestore,
    MemoryTouch,
    MemoryUpdate,
)
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.index.backlog import add_to_backlog, rechunk
from clankersd.index.vector_store import label_of
from clankersd.memories.filters import is_narrowed, query_condition, selection_conditions
from clankersd.memories.prepared import (
    PreparedMemory,
    index_memory,
    link_entities,
    list_columns,
    prepare_memory,
    text_columns,
)
from clankersd.memories.salience import deemphasized, reinforced
from clankersd.memories.scopes import allowed_scopes, scope_to_write
from clankersd.memories.store import (
    CURRENT,
    Columns,
    MemoryRow,
    find_memory,
    get_memory,
    link_session,
    log_change,
    require_session,
    salience_of,
    to_json,
    to_memory,
    update_columns,
)
from clankersd.memories.supersession import close_replaced_supersessions, take_back_supersession
from clankersd.redaction.engine import count_redactions, without_secrets
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_PLAIN_COLUMNS = ("summary", "sector", "tier", "category", "importance", "confidence")
_TIME_COLUMNS = ("valid_from", "valid_until", "expires_at")
_CLEARABLE_COLUMNS = {
    "summary": "summary",
    "validUntil": "valid_until",
    "expiresAt": "expires_at",
    "metadata": "metadata",
}
_RECALLED = """
    SELECT id FROM memories WHERE id IN (SELECT value FROM json_each(:ids))
      AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = :session)
"""


@handles(MemoryUpdate)
async def memory_update(daemon: "Daemon", request: MemoryUpdate) -> Memory:
    if request.content is not None and not request.content.strip():
        raise InvalidParams("invalid params: the content is empty - at `$.content`")
    request, secrets = await prepare(partial(without_secrets, request))
    prepared = await prepare_memory(daemon.index, request.content, compare=False) if request.content else None

    def update(db: Db) -> Memory:
        now = clock.now()
        count_redactions(db, secrets, now)
        if request.session_id:
            require_session(db, request.session_id)
        row = _find_undeleted(db, request, request.id, now)
        _apply_corrections(db, row, request, prepared, now)
        if request.session_id:
            link_session(db, request.session_id, row.id, "updated", now)
        return to_memory(get_memory(db, row.id, now), now)

    memory = await daemon.store.write(update)
    if prepared is None:
        await rechunk(daemon.index, [("memory", memory.id)])
    daemon.index.wake()
    return memory


def _apply_corrections(
    db: Db, row: MemoryRow, request: MemoryUpdate, prepared: PreparedMemory | None, now: int
) -> None:
    values = _corrected_columns(row, request, prepared)
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    if not changed:
        return
    valid_from = changed.get("valid_from", row.valid_from)
    valid_until = changed.get("valid_until", row.valid_until)
    if valid_until is not None and valid_until < valid_from:
        raise InvalidParams("invalid params: it ends before it begins - at `$.validUntil`")
    if changed.keys() & {"importance", "sector"}:  # they set the rate of decay from now on, not of the past
        changed |= {"salience": salience_of(row).decayed(now), "salience_at": now}
    before = {name: getattr(row, name) for name in changed}
    update_columns(db, row.id, changed | {"updated_at": now})
    log_change(db, row.id, "updated", _author(request), request.reason, before, now)
    db.after_commit(Notification("memory", "updated", row.id))
    if changed.keys() & {"content", "summary", "tags_json", "concepts_json", "files_json"}:
        updated = get_memory(db, row.id, now)
        if prepared:
            index_memory(db, updated, prepared.chunks)
        else:  # the handler chunks it after the commit; the backlog does if the daemon dies before
            add_to_backlog(db, "memory", row.id)
        link_entities(db, updated)


def _corrected_columns(row: MemoryRow, request: MemoryUpdate, prepared: PreparedMemory | None) -> Columns:
    values: Columns = {}
    for name in _PLAIN_COLUMNS:
        if (value := getattr(request, name)) is not None:
            values[name] = value
    for name in _TIME_COLUMNS:
        if (time := clock.to_ms(getattr(request, name))) is not None:
            values[name] = time
    for name in request.clear:
        values[_CLEARABLE_COLUMNS[name]] = None
    if request.metadata is not None:
        values["metadata"] = to_json(request.metadata)
    content = row.content
    concepts = request.concepts
    if prepared:  # without concepts in the request, those of the new text are found
        values |= text_columns(prepared.text)
        content = prepared.text.content
    elif concepts is None:
        concepts = json.loads(row.concepts_json)
    tags = request.tags if request.tags is not None else json.loads(row.tags_json)
    files = request.files if request.files is not None else json.loads(row.files_json)
    return values | list_columns(content, tags, concepts, files)


@handles(MemoryDelete)
async def memory_delete(daemon: "Daemon", request: MemoryDelete) -> Changed:
    request, secrets = await prepare(partial(without_secrets, request))

    def delete(db: Db) -> Changed:
        now = clock.now()
        count_redactions(db, secrets, now)
        row = find_memory(db, request.id, allowed_scopes(db, request), now)
        if row.is_deleted:
            return Changed(0, [])
        delete_memory(db, row.id, _author(request), request.reason, now)
        db.after_commit(Notification("memory", "deleted", row.id))
        return Changed(1, [row.id])

    return await daemon.store.write(delete)


def delete_memory(db: Db, memory_id: str, by: str, reason: str | None, now: int) -> None:
    """Mark a memory as deleted and remove it from the index; it can be restored."""
    update_columns(db, memory_id, {"is_deleted": 1, "deleted_at": now, "updated_at": now})
    db.execute("DELETE FROM chunks WHERE memory_id = :id", {"id": memory_id})
    log_change(db, memory_id, "deleted", by, reason, at=now)


@handles(MemoryRestore)
async def memory_restore(daemon: "Daemon", request: MemoryRestore) -> Memory:
    def restore(db: Db) -> Memory:
        now = clock.now()
        row = find_memory(db, request.id, allowed_scopes(db, request), now)
        if row.is_deleted or row.state == "superseded":
            # The same text may have been added again since.
            sql = f"SELECT id FROM memories WHERE content_hash = :hash AND scope = :scope AND {CURRENT}"
            if duplicate := db.value(sql, {"hash": row.content_hash, "scope": row.scope, "now": now}):
                raise Conflict(f"memory {duplicate} has the same text: {row.id} stays {row.state}", {"id": duplicate})
        if row.state == "superseded":
            take_back_supersession(db, row, by=_author(request), at=now)
            db.after_commit(Notification("memory", "restored", row.id))
            return to_memory(get_memory(db, row.id, now), now)
        if row.is_deleted:
            update_columns(db, row.id, {"is_deleted": 0, "deleted_at": None})
            close_replaced_supersessions(db, row.id, now)
            add_to_backlog(db, "memory", row.id)
        elif row.archived_at is None:
            return to_memory(row, now)
        # It decays from now on, like a new memory, or the next maintenance would archive it again.
        decay: Columns = {"salience": 1.0, "salience_at": now}
        before = {name: getattr(row, name) for name in decay}
        update_columns(db, row.id, decay | {"archived_at": None, "updated_at": now})
        log_change(db, row.id, "restored", _author(request), before=before, at=now)
        db.after_commit(Notification("memory", "restored", row.id))
        return to_memory(get_memory(db, row.id, now), now)

    memory = await daemon.store.write(restore)
    await rechunk(daemon.index, [("memory", memory.id)])
    daemon.index.wake()
    return memory


@handles(MemoryPurge)
async def memory_purge(daemon: "Daemon", request: MemoryPurge) -> Changed:
    def purge(db: Db) -> Changed:
        row = find_memory(db, request.id, allowed_scopes(db, request))
        db.execute("DELETE FROM memories WHERE id = :id", {"id": row.id})
        db.after_commit(Notification("memory", "purged", row.id))
        return Changed(1, [row.id])

    return await daemon.store.write(purge)


@handles(MemoryBulkDelete)
async def memory_bulk_delete(daemon: "Daemon", request: MemoryBulkDelete) -> Changed:
    if not is_narrowed(request):
        raise InvalidParams("invalid params: say which memories: by a scope, a sector, a time … - at `$`")

    def delete(db: Db) -> Changed:
        now = clock.now()
        conditions, params = selection_conditions(db, request, now)
        if request.query is not None:
            conditions.append(query_condition(request.query, params))
        if not request.purge:
            conditions.append("memories.is_deleted = 0")
        rows = db.fetch(f"SELECT id FROM memories WHERE {' AND '.join(conditions)} ORDER BY created_at, id", params)
        ids = [row["id"] for row in rows]
        if not request.dry_run:
            for memory_id in ids:
                if request.purge:
                    db.execute("DELETE FROM memories WHERE id = :id", {"id": memory_id})
                else:
                    delete_memory(db, memory_id, _author(request), "bulk deletion", now)
                db.after_commit(Notification("memory", "purged" if request.purge else "deleted", memory_id))
        return Changed(len(ids), ids)

    if request.dry_run:
        return await daemon.store.read(delete)
    return await daemon.store.write(delete)


@handles(MemoryReinforce)
async def memory_reinforce(daemon: "Daemon", request: MemoryReinforce) -> Memory:
    def reinforce(db: Db, row: MemoryRow, now: int) -> Columns:
        if request.session_id:
            require_session(db, request.session_id)
            link_session(db, request.session_id, row.id, "reinforced", now)
        return {
            "salience": reinforced(salience_of(row).decayed(now), request.amount),
            "access_count": row.access_count + 1,
            "last_accessed": now,
        }

    return await _change_salience(daemon, request, request.id, "reinforced", reinforce)


@handles(MemoryDeemphasize)
async def memory_deemphasize(daemon: "Daemon", request: MemoryDeemphasize) -> Memory:
    def deemphasize(db: Db, row: MemoryRow, now: int) -> Columns:
        return {"salience": deemphasized(salience_of(row).decayed(now), request.amount)}

    return await _change_salience(daemon, request, request.id, "deemphasized", deemphasize)


@handles(MemoryPin)
async def memory_pin(daemon: "Daemon", request: MemoryPin) -> Memory:
    def pin(db: Db, row: MemoryRow, now: int) -> Columns:
        return {"salience": salience_of(row).decayed(now), "pinned": int(request.pinned)}

    return await _change_salience(daemon, request, request.id, "pinned" if request.pinned else "unpinned", pin)


async def _change_salience(
    daemon: "Daemon",
    request: Scoped[Any],
    id_or_prefix: str,
    action: str,
    new_values: Callable[[Db, MemoryRow, int], Columns],
) -> Memory:
    """Store the salience that `new_values` computes from a memory's current one."""

    def strengthen(db: Db) -> Memory:
        now = clock.now()
        row = _find_undeleted(db, request, id_or_prefix, now)
        update_columns(db, row.id, new_values(db, row, now) | {"salience_at": now, "updated_at": now})
        before = {"salience": row.salience, "salience_at": row.salience_at, "pinned": row.pinned}
        log_change(db, row.id, action, _author(request), before=before, at=now)
        db.after_commit(Notification("memory", action, row.id))
        return to_memory(get_memory(db, row.id, now), now)

    return await daemon.store.write(strengthen)


@handles(MemoryTouch)
async def memory_touch(daemon: "Daemon", request: MemoryTouch) -> Changed:
    def touch(db: Db) -> Changed:
        now, scopes = clock.now(), allowed_scopes(db, request)
        require_session(db, request.session_id)
        ids = [find_memory(db, id_or_prefix, scopes, now).id for id_or_prefix in dict.fromkeys(request.ids)]
        for memory_id in ids:
            link_session(db, request.session_id, memory_id, request.usage, now)
            if request.usage in ("recalled", "reinforced"):
                _count_access(db, memory_id, now)
        return Changed(len(ids), ids)

    return await daemon.store.write(touch)


def record_recall(db: Db, session_id: str, ids: list[str], now: int) -> None:
    """Record which memories were injected into a session, if the session is known; ignores ids that are no memories."""
    for row in db.fetch(_RECALLED, {"ids": json.dumps(ids), "session": session_id}):
        link_session(db, session_id, row["id"], "recalled", now)
        _count_access(db, row["id"], now)


def _count_access(db: Db, memory_id: str, now: int) -> None:
    sql = "UPDATE memories SET access_count = access_count + 1, last_accessed = :now WHERE id = :id"
    db.execute(sql, {"id": memory_id, "now": now})


@handles(MemoryPromote)
async def memory_promote(daemon: "Daemon", request: MemoryPromote) -> Memory:
    request, secrets = await prepare(partial(without_secrets, request))

    def promoted(db: Db) -> Memory:
        now = clock.now()
        count_redactions(db, secrets, now)
        row = _find_undeleted(db, request, request.id, now)
        scope = scope_to_write(db, request, request.scope, row.project_id) if request.scope else row.scope
        promote(db, row, request.tier, scope, _author(request), request.reason, now)
        db.after_commit(Notification("memory", "promoted", row.id))
        return to_memory(get_memory(db, row.id, now), now)

    memory = await daemon.store.write(promoted)
    sql = "SELECT id FROM chunks WHERE memory_id = :id"
    chunks = await daemon.store.read(lambda db: db.tuples(sql, {"id": memory.id}))
    if daemon.index.mirror is not None:  # the vectors in memory carry the scope too
        daemon.index.mirror.relabel([row[0] for row in chunks], label_of("memories", memory.scope))
    return memory


def promote(db: Db, row: MemoryRow, tier: str, scope: str, by: str, reason: str | None, now: int) -> None:
    """Move a memory to a wider tier and to a scope; raises Conflict for a narrower tier."""
    tiers = ("session", "project", "global")
    if tiers.index(tier) < tiers.index(row.tier):
        raise Conflict(f"memory {row.id} is in the tier {row.tier} already, which is wider")
    before = {"tier": row.tier, "scope": row.scope}
    if before == {"tier": tier, "scope": scope}:
        return
    update_columns(db, row.id, {"tier": tier, "scope": scope, "updated_at": now})
    db.execute("UPDATE chunks SET scope = :scope WHERE memory_id = :id", {"scope": scope, "id": row.id})
    log_change(db, row.id, "promoted", by, reason, before, now)


def _find_undeleted(db: Db, request: Scoped[Any], id_or_prefix: str, now: int) -> MemoryRow:
    """Return a memory that is not deleted; raises NotFound or Conflict."""
    row = find_memory(db, id_or_prefix, allowed_scopes(db, request), now)
    if row.is_deleted:
        raise Conflict(f"memory {row.id} is deleted: restore it first")
    return row


def _author(request: Scoped[Any]) -> str:
    """Return the author of a change as the log names it."""
    return f"agent:{request.agent}" if request.agent else "user"
