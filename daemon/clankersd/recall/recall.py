"""Told at the start of a session and with a prompt: chosen, bounded, not repeated, and recorded."""

import json
from collections.abc import AsyncIterator, Callable
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
from clankersd.capture import opt_out
from clankersd.capture.harnesses import find_occasion
from clankersd.capture.harnesses.base import Occasion
from clankersd.db import Db
from clankersd.memories.update import note_recalled
from clankersd.recall.block import Block, Item
from clankersd.recall.skip import why_trivial
from clankersd.recall.sources import (
    project_of,
    query_of,
    recent_sessions,
    related,
    relevant_memories,
    scopes_of,
    strongest_memories,
)
from clankersd.search.limiter import takes_search_turn
from clankersd.wire.rpc import handles

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
_SUBAGENT = "SELECT metadata ->> '$.parentId' IS NOT NULL FROM sessions WHERE id = :session"
# A compaction is noted even when nothing is told, if there is anything that it made the harness forget.
_RECORD = """
    INSERT INTO injections (session_id, at, kind, trigger_event, characters, ids_json, text)
    SELECT :session, :at, :kind, :trigger, :characters, :ids, :text
    WHERE :characters > 0 OR EXISTS (SELECT 1 FROM injections WHERE session_id = :session)
"""
_INJECTIONS = """
    SELECT at, kind, characters, ids_json AS ids, text FROM injections
    WHERE session_id = :session AND characters > 0 ORDER BY id LIMIT :limit
"""


@dataclass(frozen=True)
class Asked:
    """Who is to be told: a session in a project (its id), what it was told before, and what this occasion is for it.

    A harness that has no event for it is told of the start with its first prompt.
    """

    session: str
    project: str | None
    scopes: list[str]
    told: frozenset[str]
    kinds: list[RecallKind]
    subagent: bool


@handles(RecallHook)
@takes_search_turn
async def recall_hook(daemon: "Daemon", request: RecallHook) -> HookOutput:
    at = find_occasion(request.harness, request.event)
    if at is None:
        return HookOutput()
    # Asked where writes are: the session itself may be on its way, on the same connection.
    asked = await daemon.store.write(lambda db: _asked(db, at))
    found = await _recall(daemon, at, asked)
    if found.text or at.trigger == "compact":
        await daemon.store.write(lambda db: _record(db, at, asked, found))
    return HookOutput(at.hook_output(found.text) if found.text else None)


@handles(RecallPreview)
@takes_search_turn
async def recall_preview(daemon: "Daemon", request: RecallPreview) -> Recall:
    at = Occasion(None, request.kind, request.session_id or "", request.project, request.query or "", request.kind)
    return await _recall(daemon, at, await daemon.store.read(lambda db: _asked(db, at)))


@handles(SessionInjections)
async def session_injections(daemon: "Daemon", request: SessionInjections) -> list[Injection]:
    def injections(db: Db) -> list[Injection]:
        rows = db.fetch(_INJECTIONS, {"session": request.session_id, "limit": request.limit})
        if not rows and not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": request.session_id}):
            raise NotFound(f"session not found: {request.session_id}")
        return [Injection(**row | {"ids": json.loads(row["ids"])}) for row in rows]

    return await daemon.store.read(injections)


def _record(db: Db, at: Occasion, asked: Asked, found: Recall) -> None:
    now = clock.now()
    row = {"kind": asked.kinds[0], "trigger": at.trigger, "characters": found.characters, "text": found.text}
    db.execute(_RECORD, row | {"session": at.session, "at": now, "ids": json.dumps(found.ids)})
    if asked.kinds == ["prompt"]:  # what every session is told at its start would only grow stronger by that
        note_recalled(db, at.session, found.ids, now)


async def _recall(daemon: "Daemon", at: Occasion, asked: Asked) -> Recall:
    """What is told on this occasion, or why nothing is."""
    if refusal := _refusal(daemon, at, asked):
        return _nothing(refusal)
    most = MINIMAL_CHARACTERS if daemon.config.recall == "minimal" else MOST_CHARACTERS
    block = Block(min(daemon.config.recall_characters, most))
    reasons: list[str] = []
    with anyio.move_on_after(daemon.config.recall_seconds * OWN_SHARE) as scope:
        for kind in asked.kinds:
            choose, otherwise = _CHOICES[kind]
            if pointless := _pointless(daemon, at, kind):
                reasons.append(pointless)
                continue
            reasons.append(otherwise)
            async for items in choose(daemon, asked, at.prompt):
                reasons += _fill(block, items, asked.told)
    if scope.cancelled_caught:
        reasons.append("it took too long: see the setting `recall_seconds`")
    return Recall(block.text, block.ids, len(block.text)) if block.ids else _nothing(reasons[-1])


def _refusal(daemon: "Daemon", at: Occasion, asked: Asked) -> str | None:
    if daemon.config.recall == "off":
        return "recall is off: see the setting `recall`"
    if at.project and opt_out.is_opted_out(at.project):
        return f"the project wants no part in it: there is a {opt_out.MARKER}"
    return "it is a subagent's session: its agent knows what to tell it" if asked.subagent else None


def _nothing(reason: str) -> Recall:
    return Recall("", [], 0, reason)


def _fill(block: Block, items: list[Item], told: frozenset[str]) -> list[str]:
    """Take in what is new, the most important first; tells when nothing is."""
    new = [item for item in items if item.id not in told]
    for item in new:
        block.add(item)
    return ["everything that would be told was told already in this session"] if items and not new else []


def _asked(db: Db, at: Occasion) -> Asked:
    project = project_of(db, at.session, at.project)
    told = [] if at.trigger == "compact" else db.tuples(_TOLD, {"session": at.session})
    begun = at.trigger != "compact" and db.value(_BEGUN, {"session": at.session})
    return Asked(
        session=at.session,
        project=project,
        scopes=scopes_of(at.harness, project),
        told=frozenset(row[0] for row in told),
        kinds=["start", "prompt"] if at.starts_with_prompt and not begun else [at.kind],
        subagent=bool(db.value(_SUBAGENT, {"session": at.session})),
    )


def _pointless(daemon: "Daemon", at: Occasion, kind: RecallKind) -> str | None:
    """Why nothing is looked for; None when it is worth it."""
    if kind == "start":
        return None
    if daemon.config.recall == "minimal":
        return "prompts get nothing: see the setting `recall`"
    trivial = why_trivial(query_of(at.prompt))
    return f"nothing to look for in the prompt: {trivial}" if trivial else None


async def _at_start(daemon: "Daemon", asked: Asked, _: str) -> AsyncIterator[list[Item]]:
    """Pinned memories, recent sessions, strong memories: in this order, as long as there is room."""
    minimal = daemon.config.recall == "minimal"

    def known(db: Db) -> list[Item]:
        memories = strongest_memories(db, asked.scopes, pinned_only=minimal)
        pinned = [item for item in memories if item.about.startswith("pinned")]
        sessions = recent_sessions(db, asked.project, asked.session, titles_only=minimal)
        return [*pinned, *sessions, *(item for item in memories if item not in pinned)]

    yield await daemon.store.read(known)


async def _with_prompt(daemon: "Daemon", asked: Asked, prompt: str) -> AsyncIterator[list[Item]]:
    """Memories that fit the prompt, then passages of earlier sessions: when time runs out, what was found by then."""
    query = query_of(prompt)
    yield await relevant_memories(daemon, query, asked.scopes)
    yield await related(daemon, query, asked.project, asked.session)


Choice = Callable[["Daemon", Asked, str], AsyncIterator[list[Item]]]

_CHOICES: dict[RecallKind, tuple[Choice, str]] = {
    "start": (_at_start, "nothing is known of this project yet"),
    "prompt": (_with_prompt, "nothing that fits the prompt was found"),
}
