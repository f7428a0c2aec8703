"""Changing memories: corrections, strength, forgetting and bringing back. Every change leaves a line in the log."""

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
from clankersd.capture.redaction import count_redactions, without_secrets
from clankersd.db import Db, Notification
from clankersd.index.backlog import cut_later, recut
from clankersd.index.vectors import label_of
from clankersd.memories.drafts import Draft, draft, index_memory, list_columns, mention, text_columns
from clankersd.memories.filters import limits, selection, words
from clankersd.memories.salience import deemphasized, reinforced
from clankersd.memories.scopes import allowed, scope_to_write
from clankersd.memories.store import (
    CURRENT,
    Row,
    as_json,
    change,
    find,
    get,
    link_session,
    note,
    require_session,
    strength,
    to_memory,
)
from clankersd.memories.supersede import settle_restored
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_PLAIN = ("summary", "sector", "tier", "category", "importance", "confidence")
_TIMES = ("valid_from", "valid_until", "expires_at")
_CLEARED = {"summary": "summary", "validUntil": "valid_until", "expiresAt": "expires_at", "metadata": "metadata"}
_TOLD = """
    SELECT id, access_count FROM memories WHERE id IN (SELECT value FROM json_each(:ids))
      AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = :session)
"""


@handles(MemoryUpdate)
async def memory_update(daemon: "Daemon", request: MemoryUpdate) -> Memory:
    if request.content is not None and not request.content.strip():
        raise InvalidParams("invalid params: there is nothing in it to remember - at `$.content`")
    request, secrets = await prepare(partial(without_secrets, request))
    drafted = await draft(daemon.index, request.content, compare=False) if request.content else None

    def update(db: Db) -> Memory:
        now = clock.now()
        count_redactions(db, secrets, now)
        if request.session_id:
            require_session(db, request.session_id)
        row = _changeable(db, request, request.id, now)
        _correct(db, row, request, drafted, now)
        if request.session_id:
            link_session(db, request.session_id, row["id"], "updated", now)
        return to_memory(get(db, row["id"], now), now)

    memory = await daemon.store.write(update)
    if drafted is None:
        await recut(daemon.index, "memory", memory.id)
    daemon.index.wake()
    return memory


def _correct(db: Db, row: Row, request: MemoryUpdate, drafted: Draft | None, now: int) -> None:
    values = _corrections(row, request, drafted)
    changed = {name: value for name, value in values.items() if row[name] != value}
    if not changed:
        return
    begins, ends = (changed.get(name, row[name]) for name in ("valid_from", "valid_until"))
    if ends is not None and ends < begins:
        raise InvalidParams("invalid params: it ends before it begins - at `$.validUntil`")
    if changed.keys() & {"importance", "sector"}:  # what has faded so far has faded
        changed |= {"salience": strength(row).base(now), "salience_at": now}
    before = {name: row[name] for name in changed}
    change(db, row["id"], changed | {"updated_at": now})
    note(db, row["id"], "updated", _by(request), request.reason, before, now)
    db.after_commit(Notification("memory", "updated", row["id"]))
    if changed.keys() & {"content", "summary", "tags_json", "concepts_json", "files_json"}:
        _index_again(db, get(db, row["id"], now), drafted)


def _corrections(row: Row, request: MemoryUpdate, drafted: Draft | None) -> Row:
    values: Row = {name: value for name in _PLAIN if (value := getattr(request, name)) is not None}
    values |= {name: clock.moment(value) for name in _TIMES if (value := getattr(request, name)) is not None}
    values |= dict.fromkeys(_CLEARED[name] for name in request.clear)
    if request.metadata is not None:
        values["metadata"] = as_json(request.metadata)
    if drafted:
        values |= text_columns(drafted.text)
    content = drafted.text.content if drafted else row["content"]
    keep_concepts = request.concepts if request.concepts is not None or drafted else json.loads(row["concepts_json"])
    tags = request.tags if request.tags is not None else json.loads(row["tags_json"])
    files = request.files if request.files is not None else json.loads(row["files_json"])
    return values | list_columns(content, tags, keep_concepts, files)


def _index_again(db: Db, row: Row, drafted: Draft | None) -> None:
    if drafted:
        index_memory(db, row, drafted.prepared)
    else:
        cut_later(db, "memory", row["id"])  # and if we live, at once
    mention(db, row)


@handles(MemoryDelete)
async def memory_delete(daemon: "Daemon", request: MemoryDelete) -> Changed:
    request, secrets = await prepare(partial(without_secrets, request))

    def delete(db: Db) -> Changed:
        now = clock.now()
        count_redactions(db, secrets, now)
        row = find(db, request.id, allowed(db, request), now)
        if row["is_deleted"]:
            return Changed(0, [])
        forget(db, row["id"], _by(request), request.reason, now)
        db.after_commit(Notification("memory", "deleted", row["id"]))
        return Changed(1, [row["id"]])

    return await daemon.store.write(delete)


def forget(db: Db, memory_id: str, by: str, reason: str | None, now: int) -> None:
    """Let a memory be found no more; it can be restored."""
    change(db, memory_id, {"is_deleted": 1, "deleted_at": now, "updated_at": now})
    db.execute("DELETE FROM chunks WHERE memory_id = :id", {"id": memory_id})
    note(db, memory_id, "deleted", by, reason, at=now)


@handles(MemoryRestore)
async def memory_restore(daemon: "Daemon", request: MemoryRestore) -> Memory:
    def restore(db: Db) -> Memory:
        now = clock.now()
        row = find(db, request.id, allowed(db, request), now)
        if row["is_deleted"]:
            _refuse_twin(db, row, now)
            change(db, row["id"], {"is_deleted": 0, "deleted_at": None})
            settle_restored(db, row["id"], now)
            cut_later(db, "memory", row["id"])
        elif row["archived_at"] is None:
            return to_memory(row, now)
        change(db, row["id"], {"archived_at": None, "updated_at": now})
        note(db, row["id"], "restored", _by(request), at=now)
        db.after_commit(Notification("memory", "restored", row["id"]))
        return to_memory(get(db, row["id"], now), now)

    memory = await daemon.store.write(restore)
    await recut(daemon.index, "memory", memory.id)
    daemon.index.wake()
    return memory


def _refuse_twin(db: Db, row: Row, now: int) -> None:
    """What was said again after it was forgotten is not wanted twice."""
    sql = f"SELECT id FROM memories WHERE content_hash = :hash AND scope = :scope AND {CURRENT}"
    if twin := db.value(sql, {"hash": row["content_hash"], "scope": row["scope"], "now": now}):
        raise Conflict(f"memory {twin} says the same: {row['id']} stays forgotten", {"id": twin})


@handles(MemoryPurge)
async def memory_purge(daemon: "Daemon", request: MemoryPurge) -> Changed:
    def purge(db: Db) -> Changed:
        row = find(db, request.id, allowed(db, request))
        db.execute("DELETE FROM memories WHERE id = :id", {"id": row["id"]})
        db.after_commit(Notification("memory", "purged", row["id"]))
        return Changed(1, [row["id"]])

    return await daemon.store.write(purge)


@handles(MemoryBulkDelete)
async def memory_bulk_delete(daemon: "Daemon", request: MemoryBulkDelete) -> Changed:
    if not limits(request):
        raise InvalidParams("invalid params: say which memories: by a scope, a sector, a time … - at `$`")

    def delete(db: Db) -> Changed:
        now = clock.now()
        ids = _selected(db, request, now)
        for memory_id in [] if request.dry_run else ids:
            if request.purge:
                db.execute("DELETE FROM memories WHERE id = :id", {"id": memory_id})
            else:
                forget(db, memory_id, _by(request), "one of many", now)
            db.after_commit(Notification("memory", "purged" if request.purge else "deleted", memory_id))
        return Changed(len(ids), ids)

    if request.dry_run:
        return await daemon.store.read(delete)
    return await daemon.store.write(delete)


def _selected(db: Db, request: MemoryBulkDelete, now: int) -> list[str]:
    conditions, params = selection(db, request, now)
    if request.query is not None:
        conditions.append(words(request.query, params))
    if not request.purge:
        conditions.append("memories.is_deleted = 0")
    rows = db.fetch(f"SELECT id FROM memories WHERE {' AND '.join(conditions)} ORDER BY created_at, id", params)
    return [row["id"] for row in rows]


@handles(MemoryReinforce)
async def memory_reinforce(daemon: "Daemon", request: MemoryReinforce) -> Memory:
    def reinforce(db: Db, row: Row, now: int) -> Row:
        if request.session_id:
            require_session(db, request.session_id)
            link_session(db, request.session_id, row["id"], "reinforced", now)
        return {
            "salience": reinforced(strength(row).base(now), request.amount),
            "access_count": row["access_count"] + 1,
            "last_accessed": now,
        }

    return await _strengthen(daemon, request, request.id, "reinforced", reinforce)


@handles(MemoryDeemphasize)
async def memory_deemphasize(daemon: "Daemon", request: MemoryDeemphasize) -> Memory:
    def weaken(db: Db, row: Row, now: int) -> Row:
        return {"salience": deemphasized(strength(row).base(now), request.amount)}

    return await _strengthen(daemon, request, request.id, "deemphasized", weaken)


@handles(MemoryPin)
async def memory_pin(daemon: "Daemon", request: MemoryPin) -> Memory:
    def pin(db: Db, row: Row, now: int) -> Row:
        return {"salience": strength(row).base(now), "pinned": int(request.pinned)}

    return await _strengthen(daemon, request, request.id, "pinned" if request.pinned else "unpinned", pin)


async def _strengthen(
    daemon: "Daemon", request: Scoped[Any], given: str, action: str, values: Callable[[Db, Row, int], Row]
) -> Memory:
    """Change how strong a memory is, from what it is now."""

    def strengthen(db: Db) -> Memory:
        now = clock.now()
        row = _changeable(db, request, given, now)
        change(db, row["id"], values(db, row, now) | {"salience_at": now, "updated_at": now})
        before = {name: row[name] for name in ("salience", "salience_at", "pinned")}
        note(db, row["id"], action, _by(request), before=before, at=now)
        db.after_commit(Notification("memory", action, row["id"]))
        return to_memory(get(db, row["id"], now), now)

    return await daemon.store.write(strengthen)


@handles(MemoryTouch)
async def memory_touch(daemon: "Daemon", request: MemoryTouch) -> Changed:
    def touch(db: Db) -> Changed:
        now, permitted = clock.now(), allowed(db, request)
        require_session(db, request.session_id)
        rows = [find(db, given, permitted, now) for given in dict.fromkeys(request.ids)]
        for row in rows:
            link_session(db, request.session_id, row["id"], request.usage, now)
            if request.usage in ("recalled", "reinforced"):
                _count_access(db, row, now)
        return Changed(len(rows), [row["id"] for row in rows])

    return await daemon.store.write(touch)


def note_recalled(db: Db, session_id: str, ids: list[str], now: int) -> None:
    """Record that a session, if it is known, was told of these memories; other ids are nothing to us."""
    for row in db.fetch(_TOLD, {"ids": json.dumps(ids), "session": session_id}):
        link_session(db, session_id, row["id"], "recalled", now)
        _count_access(db, row, now)


def _count_access(db: Db, row: Row, now: int) -> None:
    change(db, row["id"], {"access_count": row["access_count"] + 1, "last_accessed": now})


@handles(MemoryPromote)
async def memory_promote(daemon: "Daemon", request: MemoryPromote) -> Memory:
    request, secrets = await prepare(partial(without_secrets, request))

    def promoted(db: Db) -> Memory:
        now = clock.now()
        count_redactions(db, secrets, now)
        row = _changeable(db, request, request.id, now)
        scope = scope_to_write(request, request.scope, row["project_id"]) if request.scope else row["scope"]
        promote(db, row, request.tier, scope, _by(request), request.reason, now)
        db.after_commit(Notification("memory", "promoted", row["id"]))
        return to_memory(get(db, row["id"], now), now)

    memory = await daemon.store.write(promoted)
    await _relabel(daemon, memory)
    return memory


def promote(db: Db, row: Row, tier: str, scope: str, by: str, reason: str | None, now: int) -> None:
    """Give a memory a wider tier, and a scope."""
    wider = ("session", "project", "global")
    if wider.index(tier) < wider.index(row["tier"]):
        raise Conflict(f"memory {row['id']} is of the tier {row['tier']} already, which is wider")
    before = {"tier": row["tier"], "scope": row["scope"]}
    if before == {"tier": tier, "scope": scope}:
        return
    change(db, row["id"], {"tier": tier, "scope": scope, "updated_at": now})
    db.execute("UPDATE chunks SET scope = :scope WHERE memory_id = :id", {"scope": scope, "id": row["id"]})
    note(db, row["id"], "promoted", by, reason, before, now)


async def _relabel(daemon: "Daemon", memory: Memory) -> None:
    """Let the vectors in memory know of a new scope."""
    rows = await daemon.store.read(
        lambda db: db.tuples("SELECT id FROM chunks WHERE memory_id = :id", {"id": memory.id})
    )
    if daemon.index.mirror is not None:
        daemon.index.mirror.relabel([row[0] for row in rows], label_of("memories", memory.scope))


def _changeable(db: Db, request: Scoped[Any], given: str, now: int) -> Row:
    """A memory that is not forgotten."""
    row = find(db, given, allowed(db, request), now)
    if row["is_deleted"]:
        raise Conflict(f"memory {row['id']} is forgotten: restore it first")
    return row


def _by(request: Scoped[Any]) -> str:
    return f"agent:{request.agent}" if request.agent else "user"
