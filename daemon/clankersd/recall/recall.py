"""Told at the start of a session and with a prompt: chosen, bounded, not repeated, and recorded."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from clankers_protocol.errors import NotFound
from clankers_protocol.recall import (
    HookOutput,
    Injection,
    Recall,
    RecallHook,
    RecallKind,
    RecallPreview,
    SessionInjections,
)
from clankersd import clock
from clankersd.db import Db
from clankersd.recall.block import Block, Item
from clankersd.recall.harnesses import Occasion, occasion
from clankersd.recall.known import (
    project_of,
    query_of,
    recent_sessions,
    related,
    relevant_memories,
    scopes_of,
    strongest_memories,
)
from clankersd.recall.trivial import why_trivial
from clankersd.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MOST_CHARACTERS = 9_000
"""Harnesses take 10,000, and put what is longer into a file."""

MINIMAL_CHARACTERS = 800
OWN_SHARE = 0.8
"""Of `recall_seconds`; the rest is the hook's own, so that what is recorded was in time to be told."""

# After a compaction the harness has dropped what it was told before.
_TOLD = """
    SELECT DISTINCT ids.value FROM injections, json_each(injections.ids_json) AS ids
    WHERE session_id = :session AND injections.id >= coalesce(
        (SELECT max(id) FROM injections WHERE session_id = :session AND trigger_event = 'compact'), 0)
"""
_BEGUN = "SELECT 1 FROM injections WHERE session_id = :session AND kind = 'start'"
_RECORD = """
    INSERT INTO injections (session_id, at, kind, trigger_event, characters, ids_json, text)
    VALUES (:session, :at, :kind, :trigger, :characters, :ids, :text)
"""
_INJECTIONS = """
    SELECT at, kind, characters, ids_json AS ids, text FROM injections
    WHERE session_id = :session AND characters > 0 ORDER BY id LIMIT :limit
"""


@dataclass(frozen=True)
class Asked:
    """Who is to be told: a session in a project (its id), and what it was told before."""

    session: str
    project: str | None
    scopes: list[str]
    told: frozenset[str]


@handles(RecallHook)
async def recall_hook(daemon: "Daemon", request: RecallHook) -> HookOutput:
    at = occasion(request.harness, request.event)
    if at is None:
        return HookOutput()
    kinds = await daemon.store.read(lambda db: _kinds(db, at))
    found = await _recall(daemon, at, kinds)
    if found.text or at.trigger == "compact":
        await daemon.store.write(lambda db: _record(db, at, kinds[0], found))
    return HookOutput(at.told_as(found.text) if found.text else None)


@handles(RecallPreview)
async def recall_preview(daemon: "Daemon", request: RecallPreview) -> Recall:
    at = Occasion(None, request.kind, request.session_id or "", request.project, request.query or "", request.kind)
    return await _recall(daemon, at, [request.kind])


@handles(SessionInjections)
async def session_injections(daemon: "Daemon", request: SessionInjections) -> list[Injection]:
    def injections(db: Db) -> list[Injection]:
        rows = db.fetch(_INJECTIONS, {"session": request.session_id, "limit": request.limit})
        if not rows and not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": request.session_id}):
            raise NotFound(f"session not found: {request.session_id}")
        return [Injection(**row | {"ids": json.loads(row["ids"])}) for row in rows]

    return await daemon.store.read(injections)


def _kinds(db: Db, at: Occasion) -> list[RecallKind]:
    """What this occasion is: a harness that has no event for it is told of the start with its first prompt."""
    begun = at.trigger != "compact" and db.value(_BEGUN, {"session": at.session})
    return ["start", "prompt"] if at.starts_with_prompt and not begun else [at.kind]


def _record(db: Db, at: Occasion, kind: RecallKind, found: Recall) -> None:
    row = {"kind": kind, "trigger": at.trigger, "characters": found.characters, "text": found.text}
    db.execute(_RECORD, row | {"session": at.session, "at": clock.now(), "ids": json.dumps(found.ids)})


async def _recall(daemon: "Daemon", at: Occasion, kinds: list[RecallKind]) -> Recall:
    """What is told on this occasion, or why nothing is."""
    mode = daemon.config.recall
    if mode == "off":
        return _nothing("recall is off: see the setting `recall`")
    asked = await daemon.store.read(lambda db: _asked(db, at))
    block = Block(min(daemon.config.recall_characters, MINIMAL_CHARACTERS if mode == "minimal" else MOST_CHARACTERS))
    reasons: list[str] = []
    with anyio.move_on_after(daemon.config.recall_seconds * OWN_SHARE) as scope:
        for kind in kinds:
            choose = _CHOICES[kind]
            items, reason = await choose(daemon, at, asked)
            reasons.append(_fill(block, items, asked.told) or reason)
    if scope.cancelled_caught:
        reasons.append("it took too long: see the setting `recall_seconds`")
    return Recall(block.text, block.ids, len(block.text)) if block.ids else _nothing(reasons[-1])


def _nothing(reason: str) -> Recall:
    return Recall("", [], 0, reason)


def _fill(block: Block, items: list[Item], told: frozenset[str]) -> str:
    """Take in what is new, the most important first; tells why there was nothing, when there was something."""
    new = [item for item in items if item.id not in told]
    for item in new:
        block.add(item)
    return "everything that would be told was told already in this session" if items and not new else ""


def _asked(db: Db, at: Occasion) -> Asked:
    project = project_of(db, at.session, at.project)
    told = [] if at.trigger == "compact" else db.tuples(_TOLD, {"session": at.session})
    return Asked(at.session, project, scopes_of(at.harness, project), frozenset(row[0] for row in told))


Choice = Callable[["Daemon", Occasion, Asked], Awaitable[tuple[list[Item], str]]]


async def _at_start(daemon: "Daemon", at: Occasion, asked: Asked) -> tuple[list[Item], str]:
    """Pinned memories, recent sessions, strong memories: in this order, as long as there is room."""
    minimal = daemon.config.recall == "minimal"

    def known(db: Db) -> list[Item]:
        memories = strongest_memories(db, asked.scopes, pinned_only=minimal)
        pinned = [item for item in memories if item.about.startswith("pinned")]
        sessions = recent_sessions(db, asked.project, asked.session, titles_only=minimal)
        return [*pinned, *sessions, *(item for item in memories if item not in pinned)]

    return await daemon.store.read(known), "nothing is known of this project yet"


async def _with_prompt(daemon: "Daemon", at: Occasion, asked: Asked) -> tuple[list[Item], str]:
    """Memories and passages of earlier sessions that fit the prompt."""
    if daemon.config.recall == "minimal":
        return [], "prompts get nothing: see the setting `recall`"
    if trivial := why_trivial(at.prompt):
        return [], f"nothing to look for in the prompt: {trivial}"
    query = query_of(at.prompt)
    memories = await relevant_memories(daemon, query, asked.scopes)
    passages = await related(daemon, query, asked.project, asked.session)
    return [*memories, *passages], "nothing that fits the prompt was found"


_CHOICES: dict[RecallKind, Choice] = {"start": _at_start, "prompt": _with_prompt}
