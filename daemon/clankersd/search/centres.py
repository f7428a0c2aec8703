"""Centres: the mean vector of the chunks that pass a filter, from which similarities are measured."""

from typing import Any

import anyio

from clankersd.db import Store
from clankersd.embedders.base import Vector
from clankersd.index import vector_store
from clankersd.index.index import Index
from clankersd.search.filters import ChunkFilter
from clankersd.search.nearest import fetch_ids

CENTRE_SAMPLE = 256
MIN_CENTRE_SAMPLE = 50
"""Vectors whose mean is the centre of a scope; of fewer the mean would say more about them than about the scope."""

MAX_CENTRE_CANDIDATES = 20_000
CENTRE_TTL_SECONDS = 60.0
MAX_CENTRES = 100


class Centres:
    """Mean vectors of samples, cached for a minute."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index
        self._means: dict[tuple[Any, ...], tuple[float, Vector | None, int]] = {}

    def clear(self) -> None:
        """Forget all vectors."""
        self._means.clear()

    async def find(self, chunk_filter: ChunkFilter) -> Vector | None:
        """Return the mean vector of the chunks that pass the filter, from a sample; None if they are few."""
        mean, count = await self._mean(chunk_filter)
        return mean if count >= MIN_CENTRE_SAMPLE else None

    async def mean_cosine(self, chunk_filter: ChunkFilter) -> float:
        """Return the mean cosine of two different chunks that pass the filter, however few they are; 0 if it is one."""
        mean, count = await self._mean(chunk_filter)
        return 0.0 if mean is None or count < 2 else (count * float(mean @ mean) - 1) / (count - 1)

    async def _mean(self, chunk_filter: ChunkFilter) -> tuple[Vector | None, int]:
        """Return the mean vector of a sample of the chunks that pass the filter, and the size of the sample, cached."""
        live = self._index.live
        assert live is not None
        params = frozenset(one for one in chunk_filter.params.items() if one[0] != "now")  # or no key occurs twice
        key = live.id, chunk_filter.ids, params
        now = anyio.current_time()
        if key in self._means and self._means[key][0] > now:
            return self._means[key][1:]
        listed = await fetch_ids(self._store, f"{chunk_filter.ids} LIMIT {MAX_CENTRE_CANDIDATES}", chunk_filter.params)
        sample = listed[:: max(1, len(listed) // CENTRE_SAMPLE)]
        blobs = await self._store.read_for_search(lambda db: vector_store.read_vectors(db, live, sample))
        mean = None
        if blobs:
            import numpy as np

            mean = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1).mean(axis=0)
        if len(self._means) >= MAX_CENTRES:
            self._means.clear()
        self._means[key] = now + CENTRE_TTL_SECONDS, mean, len(blobs)
        return mean, len(blobs)


def from_centre(query: Vector, centre: Vector, similarities: Vector, to_centre: Vector) -> Vector:
    """Return the cosines of vectors to a query after the centre was subtracted from all of them.

    `similarities` and `to_centre` are their inner products with the query and with the centre; all have length 1.
    """
    import numpy as np

    square, of_query = float(centre @ centre), float(query @ centre)
    length = max(1 - 2 * of_query + square, 1e-6) ** 0.5
    lengths = np.maximum(1 - 2 * to_centre + square, 1e-6) ** 0.5
    return (similarities - to_centre - of_query + square) / (length * lengths)  # type: ignore[no-any-return]
