"""Recall at the start of a session and with a prompt: selected, bounded, not repeated, and recorded."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
import msgspec

from clankers_protocol.errors import Conflict, NotFound, RpcError
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
from clankersd.config import Config
from clankersd.db import Db, Store
from clankersd.memories.scoring import ScoreWeights
from clankersd.memories.update import record_recall
from clankersd.recall.answers import Answer, find_answers
from clankersd.recall.block import Block, Item
from clankersd.recall.ledger import with_texts
from clankersd.recall.skip import names_no_subject, why_trivial
from clankersd.recall.sources import (
    PromptMatches,
    matching_items,
    prompt_query,
    recall_scopes,
    recent_sessions,
    resolve_project,
    strongest_memories,
)
from clankersd.search.engine import SearchEngine
from clankersd.search.limiter import takes_search_slot
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_CHARACTERS = 9_000
"""Harnesses accept 10,000 characters and put a longer text into a file."""

MAX_MINIMAL_CHARACTERS = 800
SEARCH_SHARE = 0.8
"""Share of `recall_seconds` for the search. The hook needs the rest, so that what is recorded also arrives in time."""

ANSWER_SHARE = 0.05
"""Share of `recall_seconds` for the answers to what was found, beside what the search has left."""

# A compaction makes the harness drop what was recalled before it.
_LAST_COMPACTION = """
    coalesce((SELECT max(id) FROM injections WHERE session_id = :session AND trigger_event = 'compact'), 0)
"""
_RECALLED = f"""
    SELECT DISTINCT ids.value FROM injections, json_each(injections.ids_json) AS ids
    WHERE session_id = :session AND injections.id >= {_LAST_COMPACTION}
"""
_HAS_STARTED = f"""
    SELECT 1 FROM injections WHERE session_id = :session AND kind = 'start' AND characters > 0
                               AND id >= {_LAST_COMPACTION}
    UNION ALL SELECT 1 FROM sessions WHERE id = :session AND metadata ->> '$.startedBy' = 'fork'
"""
_IS_SUBAGENT = "SELECT metadata ->> '$.parentId' IS NOT NULL FROM sessions WHERE id = :session"
# A compaction is recorded even if nothing is injected, provided that there is an injection for it to make void.
_RECORD = """
    INSERT INTO injections (session_id, at, kind, trigger_event, characters, ids_json, text, considered_json)
    SELECT :session, :at, :kind, :trigger, :characters, :ids, :text, :considered
    WHERE :characters > 0 OR EXISTS (SELECT 1 FROM injections WHERE session_id = :session)
"""
_INJECTIONS = """
    SELECT at, kind, characters, ids_json AS ids, text FROM injections
    WHERE session_id = :session AND characters > 0 ORDER BY id LIMIT :limit
"""


@dataclass(frozen=True)
class Target:
    """The session to recall for: its project (an id), the scopes it may see, and the ids already recalled in it.

    `kinds` is usually the kind of the occasion. A harness without an event at the start of a session gets "start" and
    "prompt" together with the first prompt.
    """

    session: str
    project: str | None
    scopes: list[str]
    recalled_ids: frozenset[str]
    kinds: list[RecallKind]
    is_subagent: bool


@handles(RecallHook)
@takes_search_slot
async def recall_hook(daemon: "Daemon", request: RecallHook) -> HookOutput:
    at = find_occasion(request.harness, request.event)
    if at is None:
        return HookOutput()

    def find_target(db: Db) -> Target:
        try:
            return _target(db, at)
        except (NotFound, Conflict):  # the name means no project, and a hook has nobody to show an error to
            return _target(db, replace(at, project=None))

    # Read in the order of writes: the event that creates the session may precede this call on the same connection.
    target = await daemon.store.write(find_target)
    recall = _nothing("the harness ignores the answer")
    if at.is_answered:
        recall = await _recall(daemon.config, daemon.store, daemon.search_engine, at, target)
        if "prompt" in target.kinds:
            daemon.recall_log.add_silent(at.session, recall)
    if recall.text or at.trigger == "compact":
        await daemon.store.write(lambda db: _record(db, at, target, recall))
        daemon.recall_log.notice_injection()
    return HookOutput(at.hook_output(recall.text) if recall.text else None)


@handles(RecallPreview)
@takes_search_slot
async def recall_preview(daemon: "Daemon", request: RecallPreview) -> Recall:
    session = request.session_id or ""
    at = Occasion(request.harness, request.kind, session, request.project, request.query or "", request.kind)

    def find_target(db: Db) -> Target:
        harness = at.harness or db.value("SELECT source FROM sessions WHERE id = :id", {"id": session})
        return _target(db, replace(at, harness=harness))

    target = await daemon.store.read(find_target)
    recall = await _recall(daemon.config, daemon.store, daemon.search_engine, at, target)
    recall.considered = await daemon.store.read(lambda db: with_texts(db, recall.considered))
    return recall


@handles(SessionInjections)
async def session_injections(daemon: "Daemon", request: SessionInjections) -> list[Injection]:
    def injections(db: Db) -> list[Injection]:
        rows = db.fetch(_INJECTIONS, {"session": request.session_id, "limit": request.limit})
        if not rows and not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": request.session_id}):
            raise NotFound(f"session not found: {request.session_id}")
        return [Injection(**row | {"ids": json.loads(row["ids"])}) for row in rows]

    return await daemon.store.read(injections)


def _target(db: Db, at: Occasion) -> Target:
    session = {"session": at.session}
    project = resolve_project(db, at.session, at.project)
    recalled_ids: frozenset[str] = frozenset()
    has_started = False
    if at.trigger != "compact":
        recalled_ids = frozenset(row[0] for row in db.tuples(_RECALLED, session))
        has_started = bool(db.value(_HAS_STARTED, session))
    return Target(
        session=at.session,
        project=project,
        scopes=recall_scopes(at.harness, project),
        recalled_ids=recalled_ids,
        kinds=["start", "prompt"] if at.starts_with_prompt and not has_started else [at.kind],
        is_subagent=bool(db.value(_IS_SUBAGENT, session)),
    )


def _record(db: Db, at: Occasion, target: Target, recall: Recall) -> None:
    now = clock.now()
    injection = {
        "session": at.session,
        "at": now,
        "kind": target.kinds[0],
        "trigger": at.trigger,
        "characters": recall.characters,
        "ids": json.dumps(recall.ids),
        "text": recall.text,
        "considered": msgspec.json.encode(recall.considered).decode() if recall.considered else None,
    }
    db.execute(_RECORD, injection)
    # The strongest memories are recalled at every start: reinforcing them there would only make them stronger.
    if target.kinds == ["prompt"]:
        record_recall(db, at.session, recall.ids, now)


async def _recall(config: Config, store: Store, engine: SearchEngine, at: Occasion, target: Target) -> Recall:
    """Build the block for an occasion, or state why there is none."""
    if config.recall == "off":
        return _nothing("recall is off: see the setting `recall`")
    if at.project and opt_out.is_opted_out(at.project):
        return _nothing(f"the project opted out: it has a {opt_out.MARKER} file")
    if target.is_subagent:
        return _nothing("the session belongs to a subagent, which its agent instructs")
    matches = PromptMatches()
    new_items: list[Item] = []
    reason, degraded = "", None
    with anyio.move_on_after(config.recall_seconds * SEARCH_SHARE) as scope:
        for kind in target.kinds:
            if kind == "start":
                items, reason = await _start_items(config, store, target)
            else:
                matches, reason = await _match_prompt(config, engine, target, at.prompt)
                items, degraded = matches.items, matches.degraded
            not_recalled = [item for item in items if item.id not in target.recalled_ids]
            if items and not not_recalled:
                reason = "everything relevant was already recalled in this session"
            new_items += not_recalled
    if matches.has_failed:
        reason = degraded or ""
    elif degraded:
        reason = f"{reason}, but the search was incomplete: {degraded}"
    if scope.cancelled_caught:
        reason = degraded = "the search took too long: see the setting `recall_seconds`"
    answers, problem = await _find_answers(
        store, matches, target, scope.deadline + config.recall_seconds * ANSWER_SHARE
    )
    if problem:
        degraded = f"{degraded}; {problem}" if degraded else problem
    block, beside_questions = fill_block(max_block_characters(config), new_items, answers)
    offered = {item.id for item in matches.items}
    for candidate in matches.considered:
        if candidate.chosen and candidate.id not in block.ids:
            candidate.chosen, candidate.why = False, "no room in the block"
            if candidate.id in target.recalled_ids:
                candidate.why = "already injected in this session"
            elif candidate.id in beside_questions:
                candidate.why = "injected with its question"
            elif candidate.id not in offered:
                candidate.why = "like a better one, or above the limit"
    return Recall(
        text=block.text,
        ids=block.ids,
        characters=len(block.text),
        reason=None if block.ids else reason,
        considered=matches.considered,
        degraded=degraded,
    )


def max_block_characters(config: Config) -> int:
    """Return how long a block may be."""
    limit = MAX_MINIMAL_CHARACTERS if config.recall == "minimal" else MAX_CHARACTERS
    return min(config.recall_characters, limit)


def fill_block(
    max_characters: int, items: list[Item], answers: dict[str, Answer]
) -> tuple[Block, set[str]]:  # fmt: skip
    """Fill a block with items and their answers; return it and the ids of the items that only stand beside others.

    An answer that is an item itself is injected as such. If there is no room for it, it is injected with its question.
    """
    item_ids = {item.id for item in items}
    beside = {asked for asked, answer in answers.items() if answer.message_id not in item_ids}
    while True:
        block = Block(max_characters)
        with_question = {answers[asked].message_id for asked in beside} & item_ids
        for item in items:
            if item.id not in with_question:
                block.add(replace(item, answer=answers[item.id].text) if item.id in beside else item)
        left_out = [
            item.id
            for item in items
            if item.id in answers
            and item.id not in beside
            and item.id in block.ids
            and answers[item.id].message_id not in block.ids
        ]
        if not left_out:
            return block, with_question
        beside.add(left_out[0])  # one after another: the first one keeps its room


def _nothing(reason: str) -> Recall:
    return Recall("", [], 0, reason)


async def _start_items(config: Config, store: Store, target: Target) -> tuple[list[Item], str]:
    """Return pinned memories, recent sessions and strong memories, in this order; and the reason if there are none."""
    is_minimal = config.recall == "minimal"

    def fetch(db: Db) -> list[Item]:
        memories = strongest_memories(db, target.scopes, pinned_only=is_minimal)
        pinned = [item for item in memories if item.is_pinned]
        sessions = recent_sessions(db, target.project, target.session, titles_only=is_minimal)
        return [*pinned, *sessions, *(item for item in memories if item not in pinned)]

    return await store.read(fetch), "nothing is known about this project yet"


async def _match_prompt(
    config: Config, engine: SearchEngine, target: Target, prompt: str
) -> tuple[PromptMatches, str]:  # fmt: skip
    """Return memories and passages that match the prompt; and the reason if there are none."""
    if config.recall == "minimal":
        return PromptMatches(), "nothing is recalled with prompts: see the setting `recall`"
    if trivial := why_trivial(prompt_query(prompt)):
        return PromptMatches(), f"nothing to search for in the prompt: {trivial}"
    project, reason = target.project, "nothing relevant to the prompt was found"
    if names_no_subject(prompt):
        project, reason = None, "the prompt names no subject, so that only memories were searched: none is close to it"
    weights = ScoreWeights.of(config)
    return await matching_items(engine, weights, prompt, target.scopes, project, target.session), reason


async def _find_answers(
    store: Store, matches: PromptMatches, target: Target, deadline: float
) -> tuple[dict[str, Answer], str | None]:
    """Return the answers to passages that are questions or failed calls, and why they could not be read.

    They have a deadline of their own: without them, the passages are recalled all the same.
    """
    questions = [one for one in matches.questions if one not in target.recalled_ids]
    calls = {passage: call for passage, call in matches.calls.items() if passage not in target.recalled_ids}
    if not questions and not calls:
        return {}, None
    with anyio.CancelScope(deadline=deadline):
        try:
            answers = await store.read(lambda db: find_answers(db, questions, calls))
        except RpcError as error:
            return {}, f"answers are missing: {error.message}"
        return {asked: one for asked, one in answers.items() if one.message_id not in target.recalled_ids}, None
    return {}, "answers are missing: reading them took too long"
