"""The meaning half: the query's vector, and the vectors nearest to it."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from clankers_protocol.errors import Conflict, InvalidParams
from clankers_protocol.search import Embedding
from clankersd.db import Store
from clankersd.embedders.base import EmbedderUnavailable, ItemFailed, Vector
from clankersd.embedders.local import LocalEmbedder
from clankersd.embedders.memory_headroom import import_numpy
from clankersd.embedders.normalize import parse_embedding
from clankersd.index import vectors
from clankersd.index.vectors import Mirror, ScoredChunks
from clankersd.search.filters import Eligible
from clankersd.search.limiter import search_turn_paused
from clankersd.search.turn_scoring import SIMILAR_NEAR, Neighbours, smooth

if TYPE_CHECKING:
    from clankersd.app import Daemon

PENDING_SECONDS = 0.05
"""What a search gives the queue to finish what has just been stored."""

LOAD_AT_ONCE = 5_000
"""Up to so many vectors are brought into memory while the search waits; more of them meanwhile."""

SEARCH_AT_ONCE = 5_000
"""Vectors. More of them are compared in a thread."""

FEW = 1_000
"""So many eligible chunks are listed and compared. Where there are more, the nearest are looked at first."""

LOOK_FURTHER = (2, 32)
"""How many times as many as are wanted are looked at, before all that are eligible are listed after all."""

T = TypeVar("T")

_NEAR = """
    SELECT chunks.session_id, chunks.turn, min(chunks.id), chunks.tokens
    FROM json_each(:turns) CROSS JOIN chunks
      ON chunks.session_id = json_each.value ->> 0 AND chunks.turn = json_each.value ->> 1
    WHERE chunks.chunking = :chunking GROUP BY 1, 2
"""
_FITTING = """
    SELECT chunks.id FROM json_each(:near) CROSS JOIN chunks ON chunks.id = json_each.value WHERE {condition}
"""
_STILL_THERE = "SELECT id FROM chunks WHERE id IN (SELECT value FROM json_each(:ids))"


@dataclass
class Meaning:
    """Chunks by similarity, most similar first; `problem` says why there are none."""

    found: ScoredChunks = field(default_factory=list)
    vector: Vector | None = None
    problem: str | None = None
    hidden: set[int] = field(default_factory=set)


async def find_meaning(daemon: "Daemon", query: str, eligible: Eligible, pool: int) -> Meaning:
    """The eligible chunks nearest to the query in meaning."""
    index = daemon.index
    if problem := index.vector_problem:
        return Meaning(problem=f"not searched by meaning: {problem}")
    await daemon.queue.finish_pending(PENDING_SECONDS)
    assert index.embedder
    try:
        if isinstance(index.embedder, LocalEmbedder):
            vector = await index.embedder.embed_query(query)
        else:  # a service may take long, and nobody else should wait for it
            async with search_turn_paused(daemon):
                vector = await index.embedder.embed_query(query)
    except EmbedderUnavailable as error:
        return Meaning(problem=f"not searched by meaning: {error.reason}")
    except ItemFailed:
        return Meaning()  # a query without a meaning: punctuation, say
    if problem := index.vector_problem:  # its first vector may have told that it is another model
        return Meaning(problem=f"not searched by meaning: {problem}")
    try:
        return Meaning(await _nearest(daemon, vector, eligible, pool), vector)
    except MemoryError as error:
        return Meaning(problem=f"not searched by meaning: too little memory: {error}")


def given_vector(daemon: "Daemon", embedding: Embedding, where: str = "$.embedding") -> Vector:
    """An embedding that somebody else made, checked against the index and scaled to length 1."""
    live = daemon.index.live
    if live is None or live.identity.dims is None or daemon.store.vec.version is None:
        raise Conflict(f"the index has no vectors: {daemon.index.vector_problem or 'none was made yet'}")
    try:
        import_numpy()
    except (ImportError, MemoryError) as error:
        raise Conflict(f"vectors cannot be compared: numpy is unavailable: {error}") from error
    found = parse_embedding(embedding)
    if isinstance(found, ItemFailed):
        raise InvalidParams(f"invalid params: {found.reason} - at `{where}`")
    if len(found) != live.identity.dims:
        wrong = f"an embedding of {len(found)} numbers, where those of the index have {live.identity.dims}"
        raise InvalidParams(f"invalid params: {wrong} - at `{where}`")
    return found


async def nearest_exactly(daemon: "Daemon", vector: Vector, eligible: Eligible, k: int) -> ScoredChunks:
    """The `k` nearest of the eligible chunks and their cosines, by the vectors as they are stored."""
    live, mirror = daemon.index.live, daemon.index.mirror
    if live is None or live.identity.dims is None:
        return []
    blob = vector.astype("<f4").tobytes()
    if mirror is None or not mirror.complete:
        await _load_mirror(daemon)
        return await daemon.store.read(lambda db: vectors.nearest(db, live, blob, k, eligible.ids, eligible.params))
    ids = await _ids(daemon.store, eligible.ids, eligible.params)
    # In memory they are rounded: some more than asked for are compared again as they are on the disk.
    rough = await in_thread_if(len(ids) > SEARCH_AT_ONCE, mirror.similarities, vector, ids)
    likely = sorted(rough, key=rough.__getitem__, reverse=True)[: 2 * k + 32]
    among = {"likely": json.dumps(likely)}
    chosen = "SELECT value FROM json_each(:likely)"
    return await daemon.store.read(lambda db: vectors.nearest(db, live, blob, k, chosen, among))


async def compare(daemon: "Daemon", meaning: Meaning, rows: dict[int, dict[str, Any]]) -> dict[int, float]:
    """How similar each of the rows is to the query, with what its neighbours in the conversation contribute."""
    mirror, live = daemon.index.mirror, daemon.index.live
    if meaning.vector is None or mirror is None or not mirror.complete or live is None:
        return dict(meaning.found)
    turns = {chunk: (row["session_id"], row["turn"]) for chunk, row in rows.items() if row["turn"] is not None}
    near = await _neighbours(daemon, set(turns.values()), live.chunking.number)
    wanted = [*rows, *(chunk for chunk, _ in near.values())]
    similar = mirror.similarities(meaning.vector, wanted)
    own = {chunk: similar[chunk] for chunk in rows if chunk in similar}
    return smooth(own, turns, near, similar)


async def _neighbours(daemon: "Daemon", turns: set[tuple[str, int]], chunking: int) -> Neighbours:
    reach = range(-len(SIMILAR_NEAR), len(SIMILAR_NEAR) + 1)
    around = sorted({(session, turn + step) for session, turn in turns for step in reach if step})
    params = {"turns": json.dumps(around), "chunking": chunking}
    rows = await daemon.store.read(lambda db: db.tuples(_NEAR, params))
    return {(session, turn): (chunk, tokens) for session, turn, chunk, tokens in rows}


async def _nearest(daemon: "Daemon", vector: Vector, eligible: Eligible, pool: int) -> ScoredChunks:
    index = daemon.index
    live = index.live
    if live is None or live.identity.dims is None:
        return []
    await _load_mirror(daemon)
    if index.mirror is not None and index.mirror.complete:
        return await nearest_in_memory(daemon.store, index.mirror, vector, eligible, pool)
    blob = vector.astype("<f4").tobytes()
    return await daemon.store.read(lambda db: vectors.nearest(db, live, blob, pool, eligible.ids, eligible.params))


async def _load_mirror(daemon: "Daemon") -> None:
    """Bring the vectors into memory: few of them now, many meanwhile."""
    index = daemon.index
    if index.mirror is None and index.vector_count <= LOAD_AT_ONCE:
        await index.load_mirror()
    elif index.mirror is None:
        daemon.background(index.load_mirror)


async def nearest_in_memory(
    store: Store, mirror: Mirror, vector: Vector, eligible: Eligible, pool: int
) -> ScoredChunks:
    """The nearest of the eligible chunks: of few by comparing them all, of many by asking of the nearest whether they
    are eligible."""

    def nearest(k: int, chunks: list[int] | None) -> Awaitable[ScoredChunks]:
        return in_thread_if(mirror.size > SEARCH_AT_ONCE, mirror.nearest, vector, k, chunks, eligible.fits)

    if not eligible.narrow:
        return await nearest(pool, None)
    few = await _ids(store, f"{eligible.ids} LIMIT {FEW + 1}", eligible.params)
    if len(few) <= FEW:
        return await nearest(pool, few)
    for times in LOOK_FURTHER:
        near = await nearest(pool * times, None)
        params = eligible.params | {"near": json.dumps([chunk for chunk, _ in near])}
        fitting = set(await _ids(store, _FITTING.format(condition=eligible.condition), params))
        found = [(chunk, similar) for chunk, similar in near if chunk in fitting]
        if len(found) >= pool or len(near) < pool * times:
            return found[:pool]
    return await nearest(pool, await _ids(store, eligible.ids, eligible.params))


async def _ids(store: Store, sql: str, params: dict[str, Any]) -> list[int]:
    return [row[0] for row in await store.read(lambda db: db.tuples(sql, params))]


async def replace_missing(daemon: "Daemon", meaning: Meaning, missing: set[int], eligible: Eligible, pool: int) -> None:
    """Search again for others in the place of chunks that are deleted by now, or are memories that hold no more.

    The deleted are forgotten for good; the others only make the search look further."""
    mirror = daemon.index.mirror
    if mirror is None or meaning.vector is None:
        meaning.found = [(chunk, score) for chunk, score in meaning.found if chunk not in missing]
        return
    hidden = await daemon.store.read(lambda db: db.tuples(_STILL_THERE, {"ids": json.dumps(sorted(missing))}))
    gone = missing - {row[0] for row in hidden}
    mirror.discard(gone)
    if len(gone) * 2 > len(meaning.found):  # much was deleted at once: see what is left
        everything = await daemon.store.read(lambda db: db.tuples("SELECT id FROM chunks"))
        mirror.keep_only([row[0] for row in everything])
    meaning.hidden |= missing - gone
    found = await _nearest(daemon, meaning.vector, eligible, pool + 2 * len(meaning.hidden))
    meaning.found = [(chunk, score) for chunk, score in found if chunk not in meaning.hidden][:pool]


async def in_thread_if(large: bool, work: Callable[..., T], *arguments: Any) -> T:
    """The result of `work`, from a thread when there is much of it: reaching one costs a millisecond."""
    return await anyio.to_thread.run_sync(work, *arguments) if large else work(*arguments)
