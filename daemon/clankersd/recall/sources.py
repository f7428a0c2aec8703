"""Sources of recall: memories, recent sessions, and passages of earlier sessions that match a prompt."""

import json
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from clankers_protocol.errors import RpcError
from clankers_protocol.recall import RecallCandidate
from clankers_protocol.search import Filter
from clankersd import clock
from clankersd.capture.continuation import strip_continuation_orders
from clankersd.db import Db
from clankersd.memories.filters import memory_visibility
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes
from clankersd.memories.scoring import MEMORY_COLUMNS, MEMORY_JOIN, MemoryChunkRow, ScoreWeights, weigh_memory
from clankersd.memories.similarity import is_near_duplicate
from clankersd.memories.store import CONFIDENT, CURRENT, SALIENCE
from clankersd.projects import find_project_id
from clankersd.recall.block import Item, format_day, shorten
from clankersd.recall.gate import Verdict, judge_memories, judge_passages
from clankersd.recall.skip import names_no_subject, why_trivial
from clankersd.search.engine import SearchEngine
from clankersd.search.filters import NO_MEMORIES, Criteria
from clankersd.search.near_duplicates import collapse_near_duplicates
from clankersd.search.plan import POOL_SIZE, Page, SearchOutcome, SearchPlan
from clankersd.search.ranking import collapse_duplicates
from clankersd.search.rows import RowQuery
from clankersd.search.snippets import excerpt

MAX_SESSIONS = 5
MAX_STRONGEST_MEMORIES = 10
MAX_MATCHING_MEMORIES = 5
MAX_PASSAGES = 8
MAX_EXAMINED = 20
"""Sessions, matching memories and passages that are examined, each, for those that are worth recalling."""

MAX_COMPARED = 4 * MAX_EXAMINED
"""Passages among which near-duplicates are looked for, so that as many different ones can be examined."""

MAX_QUERY_CHARACTERS = 2_000
MAX_PINNED_CHARACTERS = 400
MAX_PROMPT_CHARACTERS = 160
MAX_RESULT_CHARACTERS = 500
MAX_EXTRACT_CHARACTERS = 600
MAX_PROMPTS = 5
"""Prompts of a session that are examined for one that says something."""

MAX_TEXT_CHARACTERS = 300
MAX_TITLE_CHARACTERS = 80
SHORT_ID_CHARACTERS = 16
MAX_PASSAGE_CHARACTERS = 150
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
        EXISTS (SELECT 1 FROM tools WHERE session_id = sessions.id) AS has_tools,
        EXISTS (SELECT 1 FROM compaction_events WHERE session_id = sessions.id) AS has_compactions,
        (SELECT extracted_summaries.summary FROM extracted_summaries WHERE session_id = sessions.id) AS extract
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

log = structlog.get_logger(component="recall")


@dataclass(frozen=True)
class RecentSession:
    """An earlier session of a project: its first prompts and its result."""

    id: str
    title: str | None
    summary: str | None
    created_at: int
    prompts_json: str
    answer: str | None
    has_tools: int
    has_compactions: int
    extract: str | None

    @property
    def prompt(self) -> str | None:
        """The first prompt that says something; None if there is none."""
        prompts: list[str] = json.loads(self.prompts_json)
        return next((prompt for prompt in prompts if why_trivial(prompt) is None), None)

    @property
    def result(self) -> str:
        """The summary, or else the last answer."""
        return strip_continuation_orders(self.summary or self.answer or "").strip()

    @property
    def is_trivial(self) -> bool:
        """Return whether the session has neither a prompt worth recalling nor a result."""
        if self.summary or self.extract or self.prompt or self.has_tools:
            return False
        was_asked = json.loads(self.prompts_json) != []
        return was_asked or not self.answer

    def to_item(self, titles_only: bool) -> Item:
        """Return the session as a line of the block: its title alone, or its prompt and result."""
        date, title, prompt = format_day(self.created_at), self.title or "", self.prompt or ""
        if titles_only:
            text = title or prompt or self.result
            return Item(SESSIONS, self.id, date, text, MAX_TEXT_CHARACTERS // 3)
        # The summary of a compaction tells of the part before it; one that a client gave tells of the self.
        if self.extract and (self.has_compactions or not self.summary):
            return Item(SESSIONS, self.id, date, self.extract, MAX_EXTRACT_CHARACTERS)
        if self.summary and title:
            label = f"{date} {title[:MAX_TITLE_CHARACTERS]}"
            return Item(SESSIONS, self.id, label, self.result, MAX_RESULT_CHARACTERS)
        if prompt and self.result:
            asked, result = " ".join(prompt.split()), " ".join(self.result.split())
            text = f"{shorten(asked, MAX_PROMPT_CHARACTERS)} → {result}"
            return Item(SESSIONS, self.id, f"{date} asked", text, MAX_PROMPT_CHARACTERS + MAX_RESULT_CHARACTERS)
        if prompt:
            return Item(SESSIONS, self.id, f"{date} asked", prompt, MAX_TEXT_CHARACTERS)
        label = f"{date} {title[:MAX_TITLE_CHARACTERS]}" if title and self.result else date
        return Item(SESSIONS, self.id, label, self.result or title, MAX_RESULT_CHARACTERS)


@dataclass(slots=True)
class MatchRow(MemoryChunkRow):
    """A chunk that matches a prompt, with its memory, or the file or session it is from."""

    memory_content: str | None
    memory_summary: str | None
    memory_category: str | None
    path: str | None
    session_title: str | None

    def to_memory(self) -> Item:
        """Return the memory that the chunk is of as a line of the block."""
        content, category = self.memory_content or "", self.memory_category or ""
        return _memory_item(str(self.memory_id), content, self.memory_summary, category, self.pinned)

    def to_passage(self, outcome: "SearchOutcome[MatchRow]", duplicates: int) -> Item:
        """Return the chunk as a line of the block: where it is from, how many are like it, and an excerpt."""
        origin = self.path
        if origin is None:
            origin = f"{self.role or 'message'} in {(self.session_title or 'a session')[:MAX_TITLE_CHARACTERS]}"
        others = f" and {duplicates} like it" if duplicates else ""
        label = f"{format_day(self.created_at)} {origin}{others}"
        # The excerpt is as long as what is shown of it: the matches may be at its end.
        shown = excerpt(self.text, outcome.stems, MAX_PASSAGE_CHARACTERS - 2 * len("… "), outcome.weights)
        return Item(PASSAGES, _passage_id(self), label, shown.plain, MAX_PASSAGE_CHARACTERS)


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
    """Return the text to search for: the prompt, or both ends of a long one, since a prompt does not wait."""
    if len(prompt) <= MAX_QUERY_CHARACTERS:
        return prompt
    half = MAX_QUERY_CHARACTERS // 2
    return f"{prompt[:half]} {prompt[-half:]}"


def _describe_shortened(prompt: str) -> str | None:
    if len(prompt) <= MAX_QUERY_CHARACTERS:
        return None
    half = MAX_QUERY_CHARACTERS // 2
    return f"of {len(prompt):,} characters of the prompt the first and last {half:,} were searched for"


def recent_sessions(db: Db, project: str | None, session: str, *, titles_only: bool) -> list[Item]:
    """Return the project's last sessions, newest first, each with its prompt and result."""
    rows = db.fetch(_RECENT_SESSIONS, {"project": project, "session": session, "limit": MAX_EXAMINED})
    sessions = [RecentSession(**row) for row in rows]
    return [one.to_item(titles_only) for one in sessions if not one.is_trivial][:MAX_SESSIONS]


def strongest_memories(
    db: Db, scopes: list[str], *, pinned_only: bool, of_user: bool = True, limit: int = MAX_STRONGEST_MEMORIES
) -> list[Item]:
    """Return the pinned memories and, unless only they are wanted, the strongest others.

    With `of_user`, memories pinned in the scope of a user are included: they are about the person at the keyboard.
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
        return Item(MEMORIES, memory_id, f"pinned {category}", content, MAX_PINNED_CHARACTERS, is_pinned=True)
    return Item(MEMORIES, memory_id, category, summary or content, MAX_TEXT_CHARACTERS)


@dataclass(frozen=True)
class PromptMatches:
    """Matches of a prompt: the items to recall, and every candidate with its verdict.

    `questions` are the passages among the items that are messages of the user, and `calls` the tool calls that passages
    are of, by the id of the passage. `degraded` states what the search lacks and why; with `has_failed` it has no
    result at all.
    """

    items: list[Item] = field(default_factory=list)
    considered: list[RecallCandidate] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    degraded: str | None = None
    has_failed: bool = False


async def matching_items(
    engine: SearchEngine,
    weights: ScoreWeights,
    prompt: str,
    scopes: list[str],
    project: str | None,
    session: str,
    max_memories: int = MAX_MATCHING_MEMORIES,
) -> PromptMatches:
    """Search once for memories and for passages that match a prompt: memories first, each kind best first.

    Passages come from the project's other sessions and from its memory files.
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
        query=prompt_query(prompt),
        filter=chunk_filter,
        rows=RowQuery(MatchRow, _MATCH_COLUMNS, _MATCH_JOINS, {"now": now}),
        page=Page(4 * POOL_SIZE),
        compare_elsewhere=project is not None,
        reports_limits=False,
        adjust_score=partial(weigh_memory, weights=weights, now=now),
        group_of=lambda row: row.memory_id,
    )
    try:
        outcome = await engine.run(plan)
    except RpcError as error:  # a failing search must not fail a prompt
        log.warning("recall search failed", problem=error.message)
        return PromptMatches(degraded=f"the search failed: {error.message}", has_failed=True)
    memory_matches = [one for one in outcome.candidates if one.row.memory_id is not None]
    passage_matches = [one for one in outcome.candidates if one.row.memory_id is None and not _is_routine(one.row)]
    memories = judge_memories(outcome, memory_matches[: max(MAX_EXAMINED, max_memories)])  # type: ignore[arg-type]
    distinct = collapse_near_duplicates(collapse_duplicates(passage_matches[:MAX_COMPARED]), MAX_EXAMINED)
    texts = _limit_passages(judge_passages(outcome, distinct[:MAX_EXAMINED]))  # type: ignore[arg-type]
    chosen = [one for one in texts if one.chosen]
    chosen_texts = [_row_of(one) for one in chosen]
    memory_items = _without_near_duplicates([_row_of(one).to_memory() for one in memories if one.chosen])
    return PromptMatches(
        items=memory_items[:max_memories]
        + [_row_of(one).to_passage(outcome, one.candidate.duplicates) for one in chosen],
        considered=[_considered(one) for one in memories + texts],
        questions=[row.message_id for row in chosen_texts if row.message_id and row.role == "user"],
        calls={_passage_id(row): row.tool_id for row in chosen_texts if row.tool_id},
        degraded="; ".join(note for note in (_describe_shortened(prompt), outcome.degraded) if note) or None,
    )


def _is_routine(row: MatchRow) -> bool:
    """Return whether a message is routine of any session, such as "run the tests again"."""
    return row.message_id is not None and names_no_subject(row.text)


def _limit_passages(verdicts: list[Verdict]) -> list[Verdict]:
    """Drop passages above the limit."""
    limited: list[Verdict] = []
    count = 0
    for verdict in verdicts:
        if verdict.chosen and count == MAX_PASSAGES:
            verdict = replace(verdict, chosen=False, why=f"there are {MAX_PASSAGES} better ones")
        count += verdict.chosen
        limited.append(verdict)
    return limited


def _considered(verdict: Verdict) -> RecallCandidate:
    row, cosine = verdict.candidate.row, verdict.closeness.cosine
    return RecallCandidate(
        id=row.memory_id or _passage_id(row),
        kind="memory" if row.memory_id else "passage",
        chosen=verdict.chosen,
        why=verdict.why,
        strength=round(verdict.strength, 3),
        needed=round(verdict.needed, 3),
        coverage=round(verdict.closeness.coverage, 3),
        cosine=None if cosine is None else round(cosine, 3),
        duplicates=verdict.candidate.duplicates,
    )


def _row_of(verdict: Verdict) -> MatchRow:
    row = verdict.candidate.row
    assert isinstance(row, MatchRow)
    return row


def _passage_id(row: MemoryChunkRow) -> str:
    return row.message_id or row.chunk_id[:SHORT_ID_CHARACTERS]
