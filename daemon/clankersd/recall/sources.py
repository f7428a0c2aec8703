"""Sources of recall: memories, recent sessions, and passages of earlier sessions that match a prompt."""

import json
import math
from dataclasses import dataclass
from functools import partial

from clankers_protocol.errors import RpcError
from clankers_protocol.search import Filter
from clankersd import clock
from clankersd.capture.continuation import strip_continuation_orders
from clankersd.db import Db
from clankersd.index.tokenize import query_words
from clankersd.memories.filters import memory_visibility
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes
from clankersd.memories.scoring import MEMORY_COLUMNS, MEMORY_JOIN, MemoryChunkRow, ScoreWeights, weigh_memory
from clankersd.memories.similarity import is_near_duplicate
from clankersd.memories.store import CONFIDENT, CURRENT, SALIENCE
from clankersd.projects import find_project_id
from clankersd.recall.block import Item, format_day, shorten
from clankersd.recall.skip import why_trivial
from clankersd.search.engine import POOL_SIZE, Page, SearchEngine, SearchPlan
from clankersd.search.filters import NO_MEMORIES, Criteria
from clankersd.search.ranking import Candidate
from clankersd.search.rows import RowQuery
from clankersd.search.snippets import count_matching_stems, excerpt

MAX_SESSIONS = 5
MAX_STRONGEST_MEMORIES = 10
MAX_MATCHING_MEMORIES = 5
MAX_PASSAGES = 5
MAX_EXAMINED = 20
"""Sessions, matching memories and passages that are examined, each, for those that are worth recalling."""

MAX_QUERY_CHARACTERS = 2_000
MAX_PINNED_CHARACTERS = 400
MAX_PROMPT_CHARACTERS = 160
MAX_OUTCOME_CHARACTERS = 500
MAX_PROMPTS = 5
"""Prompts of a session that are examined for one that says something."""

MAX_TEXT_CHARACTERS = 300
MAX_TITLE_CHARACTERS = 80
SHORT_ID_CHARACTERS = 16
MIN_SCORE_SHARE = 0.3
"""Share of the best passage's score that a passage must reach."""

MIN_SHARED_WORDS = 3
"""Words that a text must share with a long prompt; with a short one, half of the prompt's words."""

MEMORIES, SESSIONS, PASSAGES = "Memories", "Recent sessions in this project", "Related to this prompt"

_STRONGEST = f"""
    SELECT memories.id, content, summary, category, pinned FROM memories
    WHERE {CURRENT} AND ({IN_SCOPE} OR (:of_user AND pinned = 1 AND memories.scope LIKE 'user:%')) AND {CONFIDENT}
      AND (pinned = 1 OR :strongest)
    ORDER BY pinned DESC, {SALIENCE} * (0.5 + importance) DESC, memories.id DESC LIMIT :limit
"""
_RECENT_SESSIONS = f"""
    SELECT id, title, substr(summary, 1, 2000) AS summary, created_at,
        (SELECT json_group_array(text) FROM (
            SELECT substr(user_prompt, 1, 2000) AS text WHERE user_prompt <> '' UNION ALL SELECT * FROM (
                SELECT substr(text_content, 1, 2000) FROM messages
                WHERE session_id = sessions.id AND role = 'user' AND text_content <> ''
                ORDER BY created_at, messages.id LIMIT {MAX_PROMPTS})
        )) AS prompts_json,
        (SELECT substr(text_content, 1, 2000) FROM messages
         WHERE session_id = sessions.id AND role = 'assistant' AND text_content <> ''
         ORDER BY created_at DESC, messages.id DESC LIMIT 1) AS answer,
        EXISTS (SELECT 1 FROM tools WHERE session_id = sessions.id) AS has_tools
    FROM sessions WHERE project_id = :project AND id <> :session AND metadata ->> '$.parentId' IS NULL
    ORDER BY created_at DESC LIMIT :limit
"""
_MATCH_COLUMNS = f"""
    {MEMORY_COLUMNS}, substr(memories.content, 1, 2000) AS memory_content,
    substr(memories.summary, 1, 2000) AS memory_summary, memories.category AS memory_category,
    files.path, sessions.title AS session_title
"""
_MATCH_JOINS = f"""
    {MEMORY_JOIN}
    LEFT JOIN files ON files.id = chunks.file_id
    LEFT JOIN sessions ON sessions.id = chunks.session_id
"""


@dataclass(frozen=True)
class RecentSession:
    """An earlier session of a project: what was asked first, and what came of it."""

    id: str
    title: str | None
    summary: str | None
    created_at: int
    prompts_json: str
    answer: str | None
    has_tools: int

    @property
    def prompt(self) -> str | None:
        """The first prompt that says something; None if there is none."""
        prompts: list[str] = json.loads(self.prompts_json)
        return next((prompt for prompt in prompts if why_trivial(prompt) is None), None)

    @property
    def outcome(self) -> str:
        """The summary, or else the last answer."""
        return strip_continuation_orders(self.summary or self.answer or "").strip()

    @property
    def is_trivial(self) -> bool:
        """Was nothing asked that is worth telling, and nothing done?"""
        if self.summary or self.prompt or self.has_tools:
            return False
        was_asked = json.loads(self.prompts_json) != []
        return was_asked or not (self.title or self.answer)


@dataclass(slots=True)
class MatchRow(MemoryChunkRow):
    """A chunk that matches a prompt, with its memory, or the file or session it is from."""

    memory_content: str | None
    memory_summary: str | None
    memory_category: str | None
    path: str | None
    session_title: str | None


def resolve_project(db: Db, session: str, project: str | None) -> str | None:
    """Return the id of the project that a session belongs to, else of the given one."""
    known = db.value("SELECT project_id FROM sessions WHERE id = :id", {"id": session})
    return known or (find_project_id(db, project) if project else None)


def recall_scopes(harness: str | None, project: str | None) -> list[str]:
    """Return the scopes whose memories may be recalled: the global one, the harness's and the project's."""
    scopes = ["global"]
    if harness:
        scopes.append(f"agent:{harness}")
    if project:
        scopes.append(f"project:{project}")
    return scopes


def prompt_query(prompt: str) -> str:
    """Return the text to search for: the prompt, or both ends of a long one."""
    if len(prompt) <= MAX_QUERY_CHARACTERS:
        return prompt
    half = MAX_QUERY_CHARACTERS // 2
    return f"{prompt[:half]} {prompt[-half:]}"


def recent_sessions(db: Db, project: str | None, session: str, *, titles_only: bool) -> list[Item]:
    """Return the project's last sessions, newest first: what was asked, and what came of it."""
    rows = db.fetch(_RECENT_SESSIONS, {"project": project, "session": session, "limit": MAX_EXAMINED})
    sessions = [RecentSession(**row) for row in rows]
    return [_session_item(one, titles_only) for one in sessions if not one.is_trivial][:MAX_SESSIONS]


def _session_item(session: RecentSession, titles_only: bool) -> Item:
    date, title, prompt = format_day(session.created_at), session.title or "", session.prompt or ""
    if titles_only:
        text = title or prompt or session.outcome
        return Item(SESSIONS, session.id, date, text, MAX_TEXT_CHARACTERS // 3)
    if session.summary and title:
        label = f"{date} {title[:MAX_TITLE_CHARACTERS]}"
        return Item(SESSIONS, session.id, label, session.outcome, MAX_OUTCOME_CHARACTERS)
    if prompt and session.outcome:
        asked, outcome = " ".join(prompt.split()), " ".join(session.outcome.split())
        text = f"{shorten(asked, MAX_PROMPT_CHARACTERS)} → {outcome}"
        return Item(SESSIONS, session.id, f"{date} asked", text, MAX_PROMPT_CHARACTERS + MAX_OUTCOME_CHARACTERS)
    if prompt:
        return Item(SESSIONS, session.id, f"{date} asked", prompt, MAX_TEXT_CHARACTERS)
    label = f"{date} {title[:MAX_TITLE_CHARACTERS]}" if title and session.outcome else date
    return Item(SESSIONS, session.id, label, session.outcome or title, MAX_OUTCOME_CHARACTERS)


def strongest_memories(
    db: Db, scopes: list[str], *, pinned_only: bool, of_user: bool = True, limit: int = MAX_STRONGEST_MEMORIES
) -> list[Item]:
    """Return the pinned memories and, unless only they are wanted, the strongest others.

    With `of_user`, what is pinned in the scope of a user is told as well: it is about the person at the keyboard.
    """
    params = {"now": clock.now(), "strongest": not pinned_only, "of_user": of_user, "limit": 2 * limit}
    rows = db.fetch(_STRONGEST, AllowedScopes(tuple(scopes)).params | params)
    items = [_memory_item(row["id"], row["content"], row["summary"], row["category"], row["pinned"]) for row in rows]
    return _without_near_duplicates(items)[:limit]


def _without_near_duplicates(items: list[Item]) -> list[Item]:
    """Leave out items that say the same as one before them."""
    distinct: list[Item] = []
    for item in items:
        if not any(is_near_duplicate(item.text, other.text) for other in distinct):
            distinct.append(item)
    return distinct


def _memory_item(memory_id: str, content: str, summary: str | None, category: str, pinned: int) -> Item:
    if pinned:
        return Item(MEMORIES, memory_id, f"pinned {category}", content, MAX_PINNED_CHARACTERS)
    return Item(MEMORIES, memory_id, category, summary or content, MAX_TEXT_CHARACTERS)


async def matching_items(
    engine: SearchEngine,
    weights: ScoreWeights,
    query: str,
    scopes: list[str],
    project: str | None,
    session: str,
    max_memories: int = MAX_MATCHING_MEMORIES,
) -> tuple[list[Item], str | None]:
    """Search once for memories and for passages that match a prompt: memories first, each kind best first.

    Passages come from the project's other sessions and from its memory files. Also return what could not be searched.
    """
    now = clock.now()
    visibility = memory_visibility(AllowedScopes(tuple(scopes)), f"{CURRENT} AND {CONFIDENT}", {"now": now})
    chunk_filter = engine.build_filter(Criteria(sources=["memories"]), visibility)
    if project is not None:
        other_sessions = [Filter("session", "ne", session)] if session else []
        passages = Criteria(sources=["sessions", "memory"], project=project, filters=other_sessions)
        of_texts = engine.build_filter(passages, NO_MEMORIES).restrict("chunks.session_title_id IS NULL")
        chunk_filter = chunk_filter.union(of_texts)
    plan = SearchPlan(
        query=query,
        filter=chunk_filter,
        rows=RowQuery(MatchRow, _MATCH_COLUMNS, _MATCH_JOINS, {"now": now}),
        page=Page(4 * POOL_SIZE),
        pool_size=2 * POOL_SIZE,  # so that neither kind crowds out the other
        adjust_score=partial(weigh_memory, weights=weights, now=now),
        group_of=lambda row: row.memory_id,
    )
    try:
        outcome = await engine.run(plan)
    except RpcError as error:  # a failing search must not fail a prompt
        return [], error.message
    # Scores only compare hits of one search, so the number of shared words decides what is relevant at all.
    min_shared = min(MIN_SHARED_WORDS, math.ceil(len(query_words(query)) / 2))
    memory_matches = [one for one in outcome.candidates if one.row.memory_id is not None]
    passage_matches = [one for one in outcome.candidates if one.row.memory_id is None]
    examined = memory_matches[: max(MAX_EXAMINED, max_memories)]
    memories = _without_near_duplicates(_memory_items(examined, outcome.stems, min_shared))[:max_memories]
    texts = _passage_items(passage_matches[:MAX_EXAMINED], outcome.stems, min_shared)
    return memories + texts, outcome.degraded


def _memory_items(matches: list[Candidate[MatchRow]], stems: frozenset[str], min_shared: int) -> list[Item]:
    items: list[Item] = []
    for candidate in matches:
        row = candidate.row
        if count_matching_stems(excerpt(row.text, stems).plain, stems) >= min_shared:
            content, category = row.memory_content or "", row.memory_category or ""
            items.append(_memory_item(str(row.memory_id), content, row.memory_summary, category, row.pinned))
    return items


def _passage_items(matches: list[Candidate[MatchRow]], stems: frozenset[str], min_shared: int) -> list[Item]:
    items: list[Item] = []
    seen: set[str] = set()
    for candidate in matches:
        row = candidate.row
        if candidate.score < MIN_SCORE_SHARE * matches[0].score or row.text in seen:
            continue  # weak, or repeated in many sessions
        shown = excerpt(row.text, stems).plain
        if count_matching_stems(shown, stems) >= min_shared:
            seen.add(row.text)
            origin = row.path
            if origin is None:
                origin = f"{row.role or 'message'} in {(row.session_title or 'a session')[:MAX_TITLE_CHARACTERS]}"
            item_id = row.message_id or row.chunk_id[:SHORT_ID_CHARACTERS]
            label = f"{format_day(row.created_at)} {origin}"
            items.append(Item(PASSAGES, item_id, label, shown, MAX_TEXT_CHARACTERS))
    return items[:MAX_PASSAGES]
