"""`memory.add`: store a new memory, reinforce one that says the same, or supersede one that it updates."""

from functools import partial
from typing import TYPE_CHECKING

from clankers_protocol.entities import ExtractedBy
from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Added, MemoryAdd
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.index.generations import Generation
from clankersd.memories.classify import classify
from clankersd.memories.dedup import HashedText, Match, find_match
from clankersd.memories.entities import at_field
from clankersd.memories.prepared import PreparedMemory, insert_memory, list_columns, prepare_memory, text_columns
from clankersd.memories.salience import reinforced
from clankersd.memories.scopes import allowed_scopes, scope_to_write
from clankersd.memories.store import (
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
from clankersd.memories.supersession import supersede
from clankersd.projects import resolve_project
from clankersd.redaction.engine import count_redactions, without_secrets
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

REINFORCEMENT = 0.1
"""Amount by which adding a memory again raises its salience."""

CONFIDENCE_STEP = 0.1
"""Amount by which adding a memory again raises its confidence."""


@handles(MemoryAdd)
async def memory_add(daemon: "Daemon", request: MemoryAdd) -> Added:
    return await add_memory(daemon, request, f"agent:{request.agent}" if request.agent else "user")


async def add_memory(daemon: "Daemon", request: MemoryAdd, by: str = "user") -> Added:
    """Add a memory unless it is known. Check and insert are one transaction, so concurrent calls store it once."""
    now = clock.now()
    if not request.content.strip():
        raise InvalidParams("invalid params: the content is empty - at `$.content`")
    valid_from, valid_until = clock.to_ms(request.valid_from) or now, clock.to_ms(request.valid_until)
    if valid_until is not None and valid_until < valid_from:
        raise InvalidParams("invalid params: it ends before it begins - at `$.validUntil`")
    expires = clock.to_ms(request.expires_at)
    if expires is not None and expires <= now:
        raise InvalidParams("invalid params: it has expired already - at `$.expiresAt`")
    request, secrets = await prepare(partial(without_secrets, request))
    prepared = await prepare_memory(daemon.index, request.content, compare=not request.force)

    def add(db: Db) -> Added:
        count_redactions(db, secrets, clock.now())
        added = _add(db, daemon.index.live, request, prepared, by)
        db.after_commit(Notification("memory", added.outcome, added.memory.id))
        if added.replaced:
            db.after_commit(Notification("memory", "replaced", added.replaced))
        return added

    added = await daemon.store.write(add)
    if secrets:
        kinds = "secrets were taken out: " + ", ".join(sorted(secrets))
        added.note = f"{added.note}; {kinds}" if added.note else kinds
    daemon.index.wake()
    return added


def _add(db: Db, live: Generation | None, request: MemoryAdd, prepared: PreparedMemory, by: str) -> Added:
    now = clock.now()
    if request.session_id:
        require_session(db, request.session_id)
    row = _new_row(db, request, prepared.text, now)
    match: Match | None = None
    if request.supersedes:
        with at_field("supersedes"):
            old = find_memory(db, request.supersedes, allowed_scopes(db, request))
        match = Match(old, "nearly", "it is no longer true")
    elif not request.force:
        match = find_match(db, prepared.text, row.scope, row.category, row.created_at, prepared.vector, live)
    if match and match.kind == "same":
        return _reinforce(db, match, request, by, now, prepared.note)
    insert_memory(db, row, prepared.chunks)
    log_change(db, row.id, "created", by, at=now)
    if request.session_id:
        link_session(db, request.session_id, row.id, "created", now)
    if match:
        extracted_by: ExtractedBy = "system"
        if request.supersedes:  # agents and extraction are language models
            extracted_by = "user" if by == "user" else "llm"
        supersede(db, match.row, row, by=by, reason=match.reason, at=now, extracted_by=extracted_by)
    memory = to_memory(get_memory(db, row.id, now), now)
    return Added(memory, "superseded" if match else "created", match.row.id if match else None, prepared.note)


def _reinforce(db: Db, match: Match, request: MemoryAdd, by: str, now: int, problem: str | None) -> Added:
    """Raise the salience and the confidence of a memory that was added again."""
    row = match.row
    values = {
        "salience": reinforced(salience_of(row).decayed(now), REINFORCEMENT),
        "salience_at": now,
        "access_count": row.access_count + 1,
        "last_accessed": now,
        "confidence": min(1.0, row.confidence + CONFIDENCE_STEP),
        "archived_at": None,
    }
    update_columns(db, row.id, values)
    log_change(db, row.id, "reinforced", by, f"added again: {match.reason}", at=now)
    if request.session_id:
        link_session(db, request.session_id, row.id, "reinforced", now)
    return Added(to_memory(get_memory(db, row.id, now), now), "duplicate", note=problem)


def _new_row(db: Db, request: MemoryAdd, text: HashedText, now: int) -> MemoryRow:
    project = resolve_project(db, request.project)
    scope = scope_to_write(db, request, request.scope, project)
    if project is None and scope.startswith("project:"):
        project = scope.removeprefix("project:")
    category = request.category or "other"
    return MemoryRow(
        id=clock.new_id(),
        project_id=project,
        summary=request.summary,
        sector=request.sector or classify(request.content, category),
        tier=request.tier or ("project" if project else "global"),
        category=category,
        scope=scope,
        importance=request.importance,
        confidence=request.confidence,
        salience=1.0,
        salience_at=now,
        access_count=0,
        last_accessed=now,
        pinned=request.pinned,
        created_at=now,
        updated_at=now,
        valid_from=clock.to_ms(request.valid_from) or now,
        valid_until=clock.to_ms(request.valid_until),
        expires_at=clock.to_ms(request.expires_at),
        archived_at=None,
        is_deleted=0,
        deleted_at=None,
        source_session_id=request.session_id,
        source_message_id=request.message_id,
        metadata=None if request.metadata is None else to_json(request.metadata),
        **text_columns(text),
        **list_columns(request.content, request.tags, request.concepts, request.files),
    )
