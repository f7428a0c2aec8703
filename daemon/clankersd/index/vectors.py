"""Vectors: durable in vec0, and above a size searched in a compact copy in memory, in a thread."""

from collections.abc import Callable, Iterable
from typing import Any

from clankersd.db import Db
from clankersd.embedders.base import Vector
from clankersd.index.generations import Generation

OVERSAMPLING = 32
"""How many times as many as are wanted are ranked exactly. Half of that found 98 % of the ten nearest and 92 % of the
hundred nearest of 40,000 real paragraphs; it takes less than half the time of comparing all."""
MIN_OVERSAMPLING = 4
MAX_RANKED = 6_400
"""Of very many that are wanted, fewer times as many are ranked: it is the last of them that are missed."""
VECTORS_PER_READ = 2_000

ScoredChunks = list[tuple[int, float]]
"""Chunks and how similar they are, most similar first."""

LabelFilter = Callable[[str], bool]
"""Whether chunks with this label may be found."""


def insert(db: Db, generation: Generation, rows: list[tuple[int, bytes]]) -> None:
    """Store vectors of chunks that are still there."""
    for chunk, embedding in rows:
        if db.value("SELECT 1 FROM chunks WHERE id = :id", {"id": chunk}):
            params = {"id": chunk, "embedding": embedding}
            db.execute(f"DELETE FROM {generation.vector_table} WHERE rowid = :id", params)
            db.execute(f"INSERT INTO {generation.vector_table} (rowid, embedding) VALUES (:id, :embedding)", params)


def remove(db: Db, generation: Generation, chunks: list[int]) -> None:
    """Remove the vectors of these chunks."""
    for chunk in chunks:
        db.execute(f"DELETE FROM {generation.vector_table} WHERE rowid = :id", {"id": chunk})


def count(db: Db, generation: Generation) -> int:
    """How many chunks have their vector."""
    if generation.identity.dims is None:
        return 0
    return int(db.value(f"SELECT count(*) FROM {generation.vector_table}_rowids"))


def nearest(
    db: Db, generation: Generation, query: bytes, k: int, eligible: str, params: dict[str, Any]
) -> ScoredChunks:
    """The `k` nearest of the eligible chunks, by brute force in vec0: for small sets."""
    sql = (
        f"SELECT rowid, distance FROM {generation.vector_table} "
        f"WHERE embedding MATCH :query AND k = :k AND rowid IN ({eligible}) ORDER BY distance"
    )
    rows = db.fetch(sql, params | {"query": query, "k": k})
    return [(row["rowid"], 1.0 - row["distance"]) for row in rows]


LabelledVector = tuple[int, bytes, str]
"""A chunk, its vector, and its source with, for a memory, its scope: what most searches are narrowed by."""

LABEL = "chunks.source || coalesce(' ' || chunks.scope, '')"


def label_of(source: str, scope: str | None) -> str:
    """What LABEL is for a chunk of this source and scope."""
    return f"{source} {scope}" if scope else source


def read_slice(db: Db, generation: Generation, after: int) -> list[LabelledVector]:
    """Some vectors, in the order of their chunks."""
    ids = db.fetch(
        f"SELECT rowid AS id FROM {generation.vector_table}_rowids WHERE rowid > :after ORDER BY rowid LIMIT :limit",
        {"after": after, "limit": VECTORS_PER_READ},
    )
    if not ids:
        return []
    sql = f"""
        SELECT vectors.rowid, vectors.embedding, {LABEL}
        FROM {generation.vector_table} AS vectors CROSS JOIN chunks ON chunks.id = vectors.rowid
        WHERE vectors.rowid BETWEEN :first AND :last
    """
    return db.tuples(sql, {"first": ids[0]["id"], "last": ids[-1]["id"]})


class Mirror:
    """The vectors of one generation in memory: a bit per dimension to find candidates, halves to rank them.

    It is filled and thinned out on the event loop and searched in threads: rows are only ever added behind
    those a search sees, and a row that is gone is marked, not moved.
    """

    def __init__(self, generation: int, dims: int) -> None:
        import numpy as np

        self.generation = generation
        self.complete = False
        self._size = 0
        self._place: dict[int, int] = {}
        self._ids = np.zeros(1024, np.int64)
        self._alive = np.zeros(1024, np.bool_)
        self._labels = np.zeros(1024, np.int32)
        self._numbers: dict[str, int] = {}
        self._bits = np.zeros(
            ((dims + 63) // 64, 1024), np.uint64
        )  # a word of each vector lies beside that of the next
        self._halves = np.zeros((1024, dims), np.float16)

    @property
    def size(self) -> int:
        return self._size

    def add(self, rows: list[LabelledVector]) -> None:
        """Take in vectors; one that is there already is replaced."""
        import numpy as np

        if not rows:
            return
        ids = [chunk for chunk, _, _ in rows]
        matrix = np.frombuffer(b"".join(blob for _, blob, _ in rows), np.float32).reshape(len(rows), -1)
        self.discard(ids)
        self._grow(self._size + len(rows))
        place = slice(self._size, self._size + len(rows))
        self._ids[place] = ids
        self._halves[place] = matrix
        self._bits[:, place] = _signs(matrix, len(self._bits))
        self._labels[place] = [self._number(label) for _, _, label in rows]
        self._alive[place] = True
        self._place.update(zip(ids, range(self._size, self._size + len(rows)), strict=True))
        self._size += len(rows)

    def discard(self, ids: Iterable[int]) -> None:
        """Forget chunks that are gone."""
        rows = self._rows_of(ids)
        self._alive[rows] = False

    def relabel(self, ids: Iterable[int], label: str) -> None:
        """Chunks that got another scope."""
        self._labels[self._rows_of(ids)] = self._number(label)

    def keep_only(self, ids: Iterable[int]) -> None:
        """Forget every chunk that is not among these."""
        rows = self._rows_of(ids)
        alive = self._alive.copy()
        self._alive[:] = False
        self._alive[rows] = alive[rows]

    def nearest(
        self, query: Vector, k: int, eligible: Iterable[int] | None, fits: LabelFilter | None = None
    ) -> ScoredChunks:
        """The `k` nearest of the eligible chunks (all, when None), of those whose label fits. Runs in a thread."""
        import numpy as np

        size = self._size
        rows: Any
        if eligible is None:
            rows = np.flatnonzero(self._fitting(fits, size))
        else:
            rows = self._rows_of(eligible)
            rows = rows[self._alive[rows]]
        ranked = max(min(k * OVERSAMPLING, MAX_RANKED), k * MIN_OVERSAMPLING)
        if len(rows) > ranked * 2:
            rows = self._candidates(query, rows, size, ranked)
        similarity = self._halves[rows].astype(np.float32) @ query
        best = np.argsort(-similarity, kind="stable")[:k]
        return list(zip(self._ids[rows[best]].tolist(), similarity[best].tolist(), strict=True))

    def similarities(self, query: Vector, ids: Iterable[int]) -> dict[int, float]:
        """How similar the given chunks are, of those that have a vector."""
        import numpy as np

        rows = self._rows_of(ids)
        rows = rows[self._alive[rows]]
        similarity = self._halves[rows].astype(np.float32) @ query
        return dict(zip(self._ids[rows].tolist(), similarity.tolist(), strict=True))

    def _fitting(self, fits: "LabelFilter | None", size: int) -> Any:
        """For each row whether it is there and its label fits; a copy, since rows may go while they are counted."""
        import numpy as np

        alive = self._alive[:size].copy()
        numbers = dict(self._numbers)
        chosen = [number for label, number in numbers.items() if fits is None or fits(label)]
        if len(chosen) == len(numbers):
            return alive
        table = np.zeros(len(numbers), np.bool_)
        table[chosen] = True
        return alive & table[self._labels[:size]]

    def _number(self, label: str) -> int:
        return self._numbers.setdefault(label, len(self._numbers))

    def _rows_of(self, ids: Iterable[int]) -> Any:
        """The rows of the given chunks, of those that are here."""
        import numpy as np

        place = self._place
        return np.array([place[chunk] for chunk in ids if chunk in place], np.int64)

    def _candidates(self, query: Vector, rows: Any, size: int, most: int) -> Any:
        """The rows whose signs differ least from the query's: about `most` of them, and all that differ as little."""
        import numpy as np

        bits = self._bits
        distance = np.zeros(len(rows), np.uint16)
        for words, sign in zip(bits, _signs(query.reshape(1, -1), len(bits)), strict=True):
            distance += np.bitwise_count((words[:size] if len(rows) == size else words[rows]) ^ sign)
        enough = int(np.searchsorted(np.cumsum(np.bincount(distance)), most))
        return rows[np.flatnonzero(distance <= enough)]

    def _grow(self, needed: int) -> None:
        import numpy as np

        if needed <= len(self._ids):
            return
        length = max(needed, len(self._ids) * 2)
        for name in ("_ids", "_alive", "_labels", "_halves"):
            old = getattr(self, name)
            new = np.zeros((length, *old.shape[1:]), old.dtype)
            new[: self._size] = old[: self._size]
            setattr(self, name, new)
        bits = np.zeros((len(self._bits), length), np.uint64)
        bits[:, : self._size] = self._bits[:, : self._size]
        self._bits = bits


def _signs(matrix: Any, words: int) -> Any:
    """One bit for each dimension: the first words of all vectors, then the second ones, and so on."""
    import numpy as np

    packed = np.packbits(matrix > 0, axis=1)
    padded = np.zeros((len(matrix), words * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64).T
