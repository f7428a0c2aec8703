"""Finding whole things by their chunks: the messages or skills that fit best, each once."""

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio

from clankers_protocol.errors import InvalidParams
from clankers_protocol.search import Embedding, Mode, Search
from clankersd.db import Db
from clankersd.search.filters import Eligible
from clankersd.search.ranking import named
from clankersd.search.search import Asked, degraded, find, mode_of
from clankersd.search.snippets import snippet
from clankersd.search.vector import PENDING_SECONDS, given_vector, nearest_exactly

if TYPE_CHECKING:
    from clankersd.app import Daemon
    from clankersd.embedders.base import Vector

MOST = 4096
"""Chunks. More are not compared in one go."""

SEVERAL = 4
"""How many times as many chunks as owners are looked at: an owner may have more than one."""


@dataclass(frozen=True)
class Question:
    """What is sought: by a text, or by an embedding."""

    owner: Literal["message_id", "skill_id"]
    query: str | None
    embedding: Embedding | None
    mode: Mode
    limit: int


@dataclass(frozen=True)
class Best:
    """An owner, with the score of its best chunk and what that chunk shows."""

    id: str
    score: float
    snippet: str


@dataclass(frozen=True)
class Answer:
    """The best owners first, and how they were found."""

    best: list[Best]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float


async def find_owners(daemon: "Daemon", question: Question, allowed: Eligible) -> Answer:
    """The owners whose chunks fit best among what is allowed."""
    if (question.query is None) == (question.embedding is None):
        raise InvalidParams("invalid params: exactly one of query and embedding is needed - at `$.query`")
    started = time.perf_counter()
    if question.embedding is not None:
        vector = given_vector(daemon, question.embedding)
        best, mode, problem = await _by_vector(daemon, question, vector, allowed), "vector", daemon.index.vector_problem
    else:
        best, mode, problem = await _by_text(daemon, question, allowed)
    pending = await daemon.queue.count_pending(daemon.index.live)
    return Answer(best, mode, pending, problem, round((time.perf_counter() - started) * 1000, 2))  # type: ignore[arg-type]  # one of the three


def narrowed(allowed: Eligible, **conditions: tuple[str, Any]) -> Eligible:
    """Only what also meets these conditions, each with the value of the parameter it is named for; those without a
    value are left out."""
    given = {name: one for name, one in conditions.items() if one[1] is not None}
    tests = [allowed.condition, *(test for test, _ in given.values())]
    params = allowed.params | {name: value for name, (_, value) in given.items()}
    return Eligible(" AND ".join(tests), params, allowed.narrow or bool(given), allowed.fits)


async def _by_text(daemon: "Daemon", question: Question, allowed: Eligible) -> tuple[list[Best], Mode, str | None]:
    request = Search(query=question.query or "", mode=question.mode, limit=question.limit)
    names = named(request.query, daemon.index.speakers) if question.owner == "message_id" else set()
    asked = Asked(request, allowed, names, anyio.current_time() + daemon.config.search_seconds)
    best: dict[str, Best] = {}
    for candidate in await find(daemon, asked):
        owner = candidate.row[question.owner]
        text = snippet(candidate.row["text"], asked.words.stems)
        best.setdefault(owner, Best(owner, round(candidate.score, 6), text))
    return list(best.values())[: question.limit], mode_of(asked), degraded(daemon, asked)


async def _by_vector(daemon: "Daemon", question: Question, vector: "Vector", allowed: Eligible) -> list[Best]:
    """More and more chunks, until there are owners enough or no chunks left."""
    await daemon.queue.finish_pending(PENDING_SECONDS)
    most = question.limit * SEVERAL
    while True:
        found = await nearest_exactly(daemon, vector, allowed, most)
        best = await _owners_of(daemon, question.owner, found)
        if len(best) >= question.limit or len(found) < most or most == MOST:
            return best[: question.limit]
        most = min(most * SEVERAL, MOST)


async def _owners_of(daemon: "Daemon", column: str, found: list[tuple[int, float]]) -> list[Best]:
    sql = f"SELECT id, {column} AS owner, text FROM chunks WHERE id IN (SELECT value FROM json_each(:ids))"
    ids = {"ids": json.dumps([chunk for chunk, _ in found])}

    def fetch(db: Db) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in db.fetch(sql, ids)}

    rows = await daemon.store.read(fetch)
    best: dict[str, Best] = {}
    for chunk, score in found:
        if row := rows.get(chunk):
            best.setdefault(row["owner"], Best(row["owner"], round(score, 6), snippet(row["text"], set())))
    return list(best.values())
