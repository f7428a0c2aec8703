"""`memory.add`: something new is stored, something known grows stronger, something that changed is superseded."""

from functools import partial
from typing import TYPE_CHECKING

from clankers_protocol.entities import ExtractedBy
from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Added, MemoryAdd
from clankersd import clock
from clankersd.capture.redaction import count_redactions, without_secrets
from clankersd.db import Db, Notification
from clankersd.index.index import Index
from clankersd.memories.classify import classify
from clankersd.memories.dedup import Match, Text, find_match
from clankersd.memories.drafts import Draft, draft, list_columns, store_row, text_columns
from clankersd.memories.entities import at_field
from clankersd.memories.salience import reinforced
from clankersd.memories.scopes import allowed, scope_to_write
from clankersd.memories.store import (
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
from clankersd.memories.supersede import supersede
from clankersd.projects import project_id as known_project
from clankersd.projects import project_row, store_project
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

REINFORCE = 0.1
SURER = 0.1
"""What hearing it again adds to a memory's confidence."""


@handles(MemoryAdd)
async def memory_add(daemon: "Daemon", request: MemoryAdd) -> Added:
    return await add_memory(daemon, request, f"agent:{request.agent}" if request.agent else "user")


async def add_memory(daemon: "Daemon", request: MemoryAdd, by: str = "user") -> Added:
    """Remember what is asked, once: also when two ask at the same time."""
    _check(request)
    request, secrets = await prepare(partial(without_secrets, request))
    drafted = await draft(daemon.index, request.content, compare=not request.force)

    def add(db: Db) -> Added:
        count_redactions(db, secrets, clock.now())
        added = _add(db, daemon.index, request, drafted, by)
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


def _check(request: MemoryAdd) -> None:
    now = clock.now()
    begins, ends = clock.moment(request.valid_from) or now, clock.moment(request.valid_until)
    if not request.content.strip():
        raise InvalidParams("invalid params: there is nothing in it to remember - at `$.content`")
    if ends is not None and ends < begins:
        raise InvalidParams("invalid params: it ends before it begins - at `$.validUntil`")
    expires = clock.moment(request.expires_at)
    if expires is not None and expires <= now:
        raise InvalidParams("invalid params: it has expired already - at `$.expiresAt`")


def _add(db: Db, index: Index, request: MemoryAdd, drafted: Draft, by: str) -> Added:
    now = clock.now()
    if request.session_id:
        require_session(db, request.session_id)
    row = _row(db, request, drafted.text, now)
    match = _match(db, index, request, row, drafted)
    if match and match.how == "same":
        return _known(db, match, request, by, now, drafted.note)
    store_row(db, row, drafted.prepared)
    note(db, row["id"], "created", by, at=now)
    if request.session_id:
        link_session(db, request.session_id, row["id"], "created", now)
    if match:
        supersede(db, match.row, row, by=by, reason=match.why, at=now, extracted_by=_said_by(request, by))
    memory = to_memory(get(db, row["id"], now), now)
    return Added(memory, "superseded" if match else "created", match.row["id"] if match else None, drafted.note)


def _said_by(request: MemoryAdd, by: str) -> ExtractedBy:
    """Who says that an older memory no longer holds: agents and extraction are language models."""
    if not request.supersedes:
        return "system"
    return "user" if by == "user" else "llm"


def _match(db: Db, index: Index, request: MemoryAdd, row: Row, drafted: Draft) -> Match | None:
    """What the new memory repeats or replaces."""
    if request.supersedes:
        with at_field("supersedes"):
            old = find(db, request.supersedes, allowed(db, request))
        return Match(old, "nearly", "it is no longer true")
    if request.force:
        return None
    return find_match(db, drafted.text, row["scope"], row["category"], row["created_at"], drafted.vector, index.live)


def _known(db: Db, match: Match, request: MemoryAdd, by: str, now: int, problem: str | None) -> Added:
    """What is said again is remembered better, and believed more."""
    row = match.row
    values: Row = {
        "salience": reinforced(strength(row).base(now), REINFORCE),
        "salience_at": now,
        "access_count": row["access_count"] + 1,
        "last_accessed": now,
        "confidence": min(1.0, row["confidence"] + SURER),
        "archived_at": None,
    }
    change(db, row["id"], values)
    note(db, row["id"], "reinforced", by, f"added again: {match.why}", at=now)
    if request.session_id:
        link_session(db, request.session_id, row["id"], "reinforced", now)
    return Added(to_memory(get(db, row["id"], now), now), "duplicate", note=problem)


def _row(db: Db, request: MemoryAdd, text: Text, now: int) -> Row:
    project = own_project(db, request.project)
    category = request.category or "other"
    return {
        "id": clock.new_id(),
        "project_id": project,
        "summary": request.summary,
        "sector": request.sector or classify(request.content, category),
        "tier": request.tier or ("project" if project else "global"),
        "category": category,
        "scope": scope_to_write(request, request.scope, project),
        "importance": request.importance,
        "confidence": request.confidence,
        "salience": 1.0,
        "salience_at": now,
        "access_count": 0,
        "last_accessed": now,
        "pinned": request.pinned,
        "created_at": now,
        "updated_at": now,
        "valid_from": clock.moment(request.valid_from) or now,
        "valid_until": clock.moment(request.valid_until),
        "expires_at": clock.moment(request.expires_at),
        "archived_at": None,
        "is_deleted": 0,
        "deleted_at": None,
        "source_session_id": request.session_id,
        "source_message_id": request.message_id,
        "metadata": as_json(request.metadata),
        **text_columns(text),
        **list_columns(request.content, request.tags, request.concepts, request.files),
    }


def own_project(db: Db, given: str | None) -> str | None:
    """The id of the project that a new memory is of; one that was never heard of is made."""
    if given is None:
        return None
    if not given.startswith("/") and known_project(db, given) is None:
        raise InvalidParams(f"invalid params: there is no project {given}: give a path - at `$.project`")
    if known_project(db, given) is None:
        store_project(db, project_row(given))
    return known_project(db, given)
