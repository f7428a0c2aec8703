"""`search`: both halves side by side, fused and ranked, with an honest account of what is missing."""

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from clankers_protocol.errors import DeadlineExceeded, InvalidParams, RpcError, StorageUnavailable
from clankers_protocol.search import Hit, Mode, Ref, Search, SearchResult
from clankersd import clock
from clankersd.clock import to_ms
from clankersd.db import Db
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.memories.scopes import allowed_scopes, scopes_without_project
from clankersd.memories.scoring import ScoreWeights, score_components, score_factor
from clankersd.memories.store import AS_OF, CURRENT, STATE
from clankersd.search.filters import Eligible, Visible, eligible
from clankersd.search.graph import join, reach
from clankersd.search.keyword import Frequencies, Keywords, find_words
from clankersd.search.limiter import takes_search_turn
from clankersd.search.ranking import Candidate, diversify, named, rank, recency, without_names, without_siblings
from clankersd.search.snippets import snippet
from clankersd.search.turn_scoring import Scored, score_words
from clankersd.search.vector import Meaning, compare, find_meaning, in_thread_if, replace_missing
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

POOL = 100
"""Candidates of each half that are fused, and so the most that can be paged through."""

MOST_ROUNDS = 4
SCORE_AT_ONCE = 2_000
"""Places. Scoring more of them is left to a thread; fewer are done sooner than a thread is reached."""

_ROWS = f"""
    SELECT chunks.id, chunks.chunk_id, chunks.source, chunks.text, chunks.created_at, chunks.session_id, chunks.turn,
           chunks.tokens, chunks.message_id, chunks.tool_id, chunks.skill_id, chunks.role,
           chunks.start_line, chunks.end_line, files.path, sessions.title AS session_title,
           coalesce(sessions.project_path, projects.path) AS project_path,
           chunks.memory_id, memories.salience, memories.salience_at, memories.sector, memories.importance,
           memories.access_count, memories.last_accessed, memories.pinned,
           iif(chunks.memory_id IS NULL, NULL, {STATE}) AS state,
           chunks.document_chunk_id, own.parent_id, own.document_id, documents.title AS document_title,
           documents.source AS document_source, parent.content AS parent_text,
           coalesce(parent.start_line, own.start_line) AS document_start_line,
           coalesce(parent.end_line, own.end_line) AS document_end_line
    FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value
    LEFT JOIN sessions ON sessions.id = chunks.session_id
    LEFT JOIN files ON files.id = chunks.file_id
    LEFT JOIN memories ON memories.id = chunks.memory_id
    LEFT JOIN document_chunks AS own ON own.id = chunks.document_chunk_id
    LEFT JOIN document_chunks AS parent ON parent.id = own.parent_id
    LEFT JOIN documents ON documents.id = own.document_id
    LEFT JOIN projects ON projects.id = coalesce(files.project_id, memories.project_id, documents.project_id)
    WHERE {{condition}}
"""
_AT_TURNS = """
    SELECT chunks.session_id, chunks.turn, min(chunks.id)
    FROM json_each(:turns) CROSS JOIN chunks
      ON chunks.session_id = json_each.value ->> 0 AND chunks.turn = json_each.value ->> 1
    WHERE {condition} GROUP BY 1, 2
"""
_REF = (
    "session_id", "session_title", "message_id", "tool_id", "skill_id", "role", "path", "memory_id", "project_path",
    "document_id", "document_title", "document_source",
)  # fmt: skip

_frequencies = Frequencies()


@dataclass
class Asked:
    """A search under way."""

    request: Search
    allowed: Eligible
    names: set[str]
    deadline: float
    words: Keywords = field(default_factory=Keywords)
    meaning: Meaning = field(default_factory=Meaning)


@handles(Search)
@takes_search_turn
async def search(daemon: "Daemon", request: Search) -> SearchResult:
    started = time.perf_counter()
    offset = page_offset(request)
    asked, candidates = await _search(daemon, request)
    more = len(candidates) > offset + request.limit
    return SearchResult(
        hits=[_hit(asked, candidate) for candidate in candidates[offset : offset + request.limit]],
        mode=mode_of(asked),
        pending=await daemon.queue.count_pending(daemon.index.live),
        degraded=degraded(daemon, asked),
        took_ms=round((time.perf_counter() - started) * 1000, 2),
        cursor=encode_cursor(offset + request.limit, fingerprint(request)) if more else None,
    )


async def best_hits(daemon: "Daemon", request: Search) -> list[Hit]:
    """The hits of a search, without an account of it."""
    asked, candidates = await _search(daemon, request)
    return [_hit(asked, candidate) for candidate in candidates[: request.limit]]


async def _search(daemon: "Daemon", request: Search) -> tuple[Asked, list[Candidate]]:
    asked = ask(daemon, request, await _visible(daemon, request))
    return asked, await find(daemon, asked)


def ask(daemon: "Daemon", request: Search, visible: Visible, quicker: str | None = None) -> Asked:
    """A search ready to be made; `quicker` is a better query for the chunks that may be found, where one is known."""
    live = daemon.index.live
    return Asked(
        request,
        eligible(request, live.chunking.number if live else 0, visible, quicker),
        named(request.query, daemon.index.speakers),
        anyio.current_time() + daemon.config.search_seconds,
    )


async def find(daemon: "Daemon", asked: Asked) -> list[Candidate]:
    """Everything that fits, best first."""
    await _ask_both(daemon, asked)
    return await _rank(daemon, asked)


async def _visible(daemon: "Daemon", request: Search) -> Visible:
    """The memories that the request may find."""
    if request.scopes is None and request.project:
        permitted = await daemon.store.read(lambda db: allowed_scopes(db, request))
    else:
        permitted = scopes_without_project(request)
    as_of = to_ms(request.as_of)
    return Visible(permitted, AS_OF if as_of else CURRENT, {"as_of": as_of, "now": clock.now()})


async def _ask_both(daemon: "Daemon", asked: Asked) -> None:
    """Both halves at the same time; each may come back empty with its reason."""
    failures: list[RpcError] = []  # out of a task group they would come wrapped

    async def words() -> None:
        try:
            asked.words = await find_words(
                daemon.store, asked.request.query, asked.names, _frequencies, asked.allowed, asked.deadline
            )
        except DeadlineExceeded:
            asked.words.note = "time ran out before all words were looked up"
        except StorageUnavailable as error:
            failures.append(error)

    async def meaning() -> None:
        query = without_names(asked.request.query, asked.names)
        with anyio.CancelScope(deadline=asked.deadline) as scope:
            try:
                asked.meaning = await find_meaning(daemon, query, asked.allowed, POOL)
            except (StorageUnavailable, DeadlineExceeded) as error:
                failures.append(error)
        if scope.cancelled_caught:
            asked.meaning = Meaning(problem="time ran out before meanings were compared")

    async with anyio.create_task_group() as tasks:
        if asked.request.mode != "vector":
            tasks.start_soon(words)
        if asked.request.mode != "keyword":
            tasks.start_soon(meaning)
    if failures:
        raise failures[0]


async def _rank(daemon: "Daemon", asked: Asked) -> list[Candidate]:
    """Everything that was found, best first."""
    average = await daemon.index.average_tokens()
    scored = await in_thread_if(asked.words.size > SCORE_AT_ONCE, score_words, asked.words, average)
    words = await _chunks_of(daemon, scored, asked.allowed) if scored else {}
    rows = await _fetch_both(daemon, asked, words)
    similar = await compare(daemon, asked.meaning, rows)
    found = rank(rows, words, similar, _weight(daemon, asked), asked.names)
    if asked.request.half_life_days:
        recency(found, clock.now(), asked.request.half_life_days)
    _weigh_memories(found, ScoreWeights.of(daemon.config), asked.allowed.params["now"])
    found.sort(key=_order)
    if asked.request.graph:
        found = await _widen(daemon, asked, found)
    found = [one for one in found if one.by_words or one.score >= asked.request.min_score]
    found = without_siblings(sorted(found, key=_order))
    return diversify(found, asked.request.diversity) if asked.request.diversity else found


def _order(one: Candidate) -> tuple[float, int, int]:
    return -one.score, -one.row["created_at"], one.chunk


async def _widen(daemon: "Daemon", asked: Asked, found: list[Candidate]) -> list[Candidate]:
    """With what lies near the best of it in the graph of documents."""
    assert asked.request.graph
    ways = await reach(daemon, asked.request.graph, asked.allowed, found)
    missing = ways.keys() - {one.chunk for one in found}
    return join(found, ways, await _fetch(daemon, list(missing), asked.allowed) if missing else {})


def _weigh_memories(found: list[Candidate], weights: ScoreWeights, now: int) -> None:
    for candidate in found:
        if candidate.row["memory_id"] is not None:
            parts = score_components(candidate.row, now)
            candidate.score *= score_factor(candidate.row, parts, weights)
            candidate.components |= parts


def _weight(daemon: "Daemon", asked: Asked) -> float:
    if asked.request.mode == "vector":
        return 1.0
    return daemon.index.embedder.weight if daemon.index.embedder and asked.meaning.found else 0.0


async def _chunks_of(daemon: "Daemon", scored: Scored, allowed: Eligible) -> dict[int, float]:
    """The best keys as chunks. A turn in which no word stands, only near which, is looked up."""
    best = list(zip(scored.keys[: 2 * POOL].tolist(), scored.scores[: 2 * POOL].tolist(), strict=True))
    turns = [scored.turn_of(key) for key, _ in best if key >= 0 and key not in scored.chunk_of]
    sql, params = _AT_TURNS.format(condition=allowed.condition), allowed.params | {"turns": json.dumps(turns)}
    at: dict[Any, int] = {}
    if turns:
        at = {(row[0], row[1]): row[2] for row in await daemon.store.read(lambda db: db.tuples(sql, params))}
    found: dict[int, float] = {}
    for key, score in best:
        chunk = scored.chunk_of.get(key) or at.get(scored.turn_of(key))
        if chunk is not None:
            found[chunk] = score
    return dict(list(found.items())[:POOL])


async def _fetch_both(daemon: "Daemon", asked: Asked, words: dict[int, float]) -> dict[int, dict[str, Any]]:
    """The rows of everything that was found. What is gone by now is searched for no more."""
    for _ in range(MOST_ROUNDS):
        rows = await _fetch(daemon, [*words, *(chunk for chunk, _ in asked.meaning.found)], asked.allowed)
        missing = {chunk for chunk, _ in asked.meaning.found if chunk not in rows}
        if not missing:
            break
        await replace_missing(daemon, asked.meaning, missing, asked.allowed, POOL)
    return rows


async def _fetch(daemon: "Daemon", ids: list[int], allowed: Eligible) -> dict[int, dict[str, Any]]:
    sql = _ROWS.format(condition=allowed.condition)
    params = allowed.params | {"ids": json.dumps(sorted(set(ids)))}

    def fetch(db: Db) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in db.fetch(sql, params)}

    return await daemon.store.read(fetch)


def _hit(asked: Asked, candidate: Candidate) -> Hit:
    row = candidate.row
    ref = Ref(**{name: row[name] for name in _REF})
    if row["path"]:
        ref.start_line, ref.end_line = row["start_line"], row["end_line"]
    elif row["document_id"]:
        ref.start_line, ref.end_line = row["document_start_line"], row["document_end_line"]
        ref.document_chunk_id = row["parent_id"] or row["document_chunk_id"]
        ref.matched_chunk_id = row["document_chunk_id"] if row["parent_id"] else None
    explained = {name: round(value, 6) for name, value in candidate.components.items()}
    return Hit(
        chunk_id=row["chunk_id"],
        source=row["source"],
        score=round(min(1.0, candidate.score), 6),
        text=row["parent_text"] or row["text"],
        snippet=snippet(row["text"], asked.words.stems),
        created_at=row["created_at"],
        ref=ref,
        components=explained if asked.request.explain else None,
        way=list(candidate.way) if candidate.way else None,
    )


def mode_of(asked: Asked) -> Mode:
    """How it was searched in the end."""
    if asked.request.mode != "hybrid":
        return asked.request.mode
    return "keyword" if asked.meaning.problem else "hybrid"


def degraded(daemon: "Daemon", asked: Asked) -> str | None:
    """What is missing from the answer, and why."""
    notes = [asked.words.note, asked.meaning.problem]
    if daemon.files.dirty:
        notes.append("files changed that are not indexed yet")
    return "; ".join(note for note in notes if note) or None


def fingerprint(request: msgspec.Struct) -> str:
    """What must not change from page to page."""
    asked = msgspec.structs.replace(request, cursor=None, limit=1, explain=False)
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()[:16]


def page_offset(request: Any) -> int:
    """Where the page begins that a cursor asks for."""
    if not request.cursor:
        return 0
    offset, asked = decode_cursor(request.cursor, int, str)
    if asked != fingerprint(request) or not 0 <= offset <= 2 * POOL:
        raise InvalidParams("invalid params: the cursor belongs to another search - at `$.cursor`")
    return int(offset)
