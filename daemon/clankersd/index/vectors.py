"""Vectors: stored in vec0, and in a large index searched in a compact in-memory copy, in a worker thread."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from clankersd.db import Db
from clankersd.embedders.base import Vector
from clankersd.index.generations import Generation

OVERSAMPLING = 32
"""Candidates ranked exactly per wanted result. Half as many found 98 % of the ten nearest and 92 % of the hundred
nearest of 40,000 real paragraphs; ranking the candidates takes less than half the time of comparing all vectors."""

MIN_OVERSAMPLING = 4
MAX_RANKED = 6_400
"""Above this many candidates the oversampling shrinks: what is missed are the last of very many results."""

VECTORS_PER_READ = 2_000
INITIAL_ROWS = 1024

ScoredChunks = list[tuple[int, float]]
"""Chunk ids with their similarity, most similar first."""

LabelledVector = tuple[int, bytes, str, int]
"""A chunk's id, its vector, its label and the number of its project, which is 0 for none."""

LABEL = "chunks.source || coalesce(' ' || chunks.scope, '')"
"""SQL for a chunk's label: its source and, for a memory, its scope, which most searches filter by."""

PROJECT = "coalesce(chunks.project, 0)"
"""SQL for the number of a chunk's project."""

_LOG_MOVED_CHUNKS = """
    CREATE TABLE IF NOT EXISTS temp.moved_chunks (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        chunk    INTEGER NOT NULL UNIQUE
    );
    CREATE TEMP TRIGGER IF NOT EXISTS moved_chunks_au AFTER UPDATE OF project ON main.chunks BEGIN
        DELETE FROM moved_chunks WHERE chunk = NEW.id;
        INSERT INTO moved_chunks (chunk) VALUES (NEW.id);
    END;
"""
_MOVED_CHUNKS = f"""
    SELECT chunks.id, {PROJECT}, moved.position
    FROM temp.moved_chunks AS moved CROSS JOIN chunks ON chunks.id = moved.chunk
    WHERE moved.position > :after ORDER BY moved.position
"""


@dataclass(frozen=True)
class LabelSet:
    """Labels that a search accepts: a predicate on the label, and project numbers (None for all)."""

    fits: Callable[[str], bool]
    projects: frozenset[int] | None = None


def insert(db: Db, generation: Generation, rows: list[tuple[int, bytes]]) -> None:
    """Store vectors of chunks that still exist."""
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
    """Count the chunks that have a vector."""
    if generation.identity.dims is None:
        return 0
    return int(db.value(f"SELECT count(*) FROM {generation.vector_table}_rowids"))


def nearest(
    db: Db, generation: Generation, query: bytes, k: int, eligible: str, params: dict[str, Any]
) -> ScoredChunks:
    """Return the `k` nearest of the eligible chunks, by brute force in vec0: for small sets."""
    sql = (
        f"SELECT rowid, distance FROM {generation.vector_table} "
        f"WHERE embedding MATCH :query AND k = :k AND rowid IN ({eligible}) ORDER BY distance"
    )
    rows = db.fetch(sql, params | {"query": query, "k": k})
    return [(row["rowid"], 1.0 - row["distance"]) for row in rows]


def read_vectors(db: Db, generation: Generation, chunks: list[int]) -> list[bytes]:
    """Return the stored vectors of those of the chunks that have one."""
    sql = f"""
        SELECT vectors.embedding FROM json_each(:ids) CROSS JOIN {generation.vector_table} AS vectors
          ON vectors.rowid = json_each.value
    """
    return [row[0] for row in db.tuples(sql, {"ids": json.dumps(chunks)})]


def label_of(source: str, scope: str | None) -> str:
    """Return the label of a chunk of this source and scope."""
    return f"{source} {scope}" if scope else source


def read_slice(db: Db, generation: Generation, after: int) -> list[LabelledVector]:
    """Read the next vectors after the chunk `after`, in the order of their chunks."""
    ids = db.fetch(
        f"SELECT rowid AS id FROM {generation.vector_table}_rowids WHERE rowid > :after ORDER BY rowid LIMIT :limit",
        {"after": after, "limit": VECTORS_PER_READ},
    )
    if not ids:
        return []
    sql = f"""
        SELECT vectors.rowid, vectors.embedding, {LABEL}, {PROJECT}
        FROM {generation.vector_table} AS vectors CROSS JOIN chunks ON chunks.id = vectors.rowid
        WHERE vectors.rowid BETWEEN :first AND :last
    """
    return db.tuples(sql, {"first": ids[0]["id"], "last": ids[-1]["id"]})


def log_moved_chunks(db: Db) -> None:
    """Have the connection log the chunks that move to another project: the copy in memory has to follow."""
    db.execute(_LOG_MOVED_CHUNKS)


def read_moved_chunks(db: Db, after: int) -> list[tuple[int, int, int]]:
    """Return the chunks that have moved since the log's position `after`: id, project and position of each.

    A snapshot connection has no log; the next search reads it.
    """
    if not db.value("SELECT 1 FROM sqlite_temp_master WHERE name = 'moved_chunks'"):
        return []
    return db.tuples(_MOVED_CHUNKS, {"after": after})


class Mirror:
    """In-memory copy of one generation's vectors: one bit per dimension to find candidates, float16 to rank them.

    It is changed on the event loop and searched in worker threads: rows are only ever added behind those that a search
    sees, and a removed row is marked, not moved.
    """

    def __init__(self, generation: int, dims: int) -> None:
        import numpy as np

        self.generation = generation
        self.complete = False
        self.moves_seen = 0
        """Position up to which the log of moved chunks has been read."""
        self._size = 0
        self._rows: dict[int, int] = {}  # by chunk id
        self._ids = np.zeros(INITIAL_ROWS, np.int64)
        self._alive = np.zeros(INITIAL_ROWS, np.bool_)
        self._labels = np.zeros(INITIAL_ROWS, np.int32)
        self._label_numbers: dict[str, int] = {}
        self._projects = np.zeros(INITIAL_ROWS, np.int32)
        self._moved_before_added: dict[int, int] = {}  # projects by chunk id
        # Word by word, so that the same word of all vectors is contiguous.
        self._bits = np.zeros(((dims + 63) // 64, INITIAL_ROWS), np.uint64)
        self._halves = np.zeros((INITIAL_ROWS, dims), np.float16)

    @property
    def size(self) -> int:
        return self._size

    def add(self, vectors: list[LabelledVector]) -> None:
        """Add vectors; one of a chunk that is present already replaces it."""
        import numpy as np

        if not vectors:
            return
        ids = [vector[0] for vector in vectors]
        matrix = np.frombuffer(b"".join(vector[1] for vector in vectors), np.float32).reshape(len(vectors), -1)
        self.discard(ids)
        end = self._size + len(vectors)
        self._grow(end)
        rows = slice(self._size, end)
        self._ids[rows] = ids
        self._halves[rows] = matrix
        self._bits[:, rows] = _sign_bits(matrix, len(self._bits))
        self._labels[rows] = [self._label_number(vector[2]) for vector in vectors]
        moved = self._moved_before_added
        self._projects[rows] = [moved.pop(vector[0], vector[3]) if moved else vector[3] for vector in vectors]
        self._alive[rows] = True
        self._rows.update(zip(ids, range(self._size, end), strict=True))
        self._size = end

    def discard(self, ids: Iterable[int]) -> None:
        """Remove deleted chunks."""
        self._alive[self._rows_of(ids)] = False

    def relabel(self, ids: Iterable[int], label: str) -> None:
        """Change the label of chunks whose scope changed."""
        self._labels[self._rows_of(ids)] = self._label_number(label)

    def move(self, moved: list[tuple[int, int, int]]) -> None:
        """Change the project of chunks as `read_moved_chunks` returns them."""
        for chunk, project, position in moved:
            row = self._rows.get(chunk)
            if row is None:
                self._moved_before_added[chunk] = project
            else:
                self._projects[row] = project
            self.moves_seen = max(self.moves_seen, position)

    def keep_only(self, ids: Iterable[int]) -> None:
        """Remove every chunk that is not among these."""
        rows = self._rows_of(ids)
        alive = self._alive.copy()
        self._alive[:] = False
        self._alive[rows] = alive[rows]

    def nearest(
        self, query: Vector, k: int, eligible: Iterable[int] | None, labels: Sequence[LabelSet] = ()
    ) -> ScoredChunks:
        """Return the `k` nearest of the eligible chunks, or if that is None, of those in one of the label sets.

        Without label sets every chunk is eligible. Runs in a worker thread.
        """
        import numpy as np

        size = self._size
        rows: Any
        if eligible is None:
            rows = np.flatnonzero(self._fitting(labels, size))
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
        """Return the similarity of each of these chunks that has a vector."""
        import numpy as np

        rows = self._rows_of(ids)
        rows = rows[self._alive[rows]]
        similarity = self._halves[rows].astype(np.float32) @ query
        return dict(zip(self._ids[rows].tolist(), similarity.tolist(), strict=True))

    def _fitting(self, labels: Sequence[LabelSet], size: int) -> Any:
        """Return a mask of the existing rows whose labels fit; a copy, since rows may be removed during the search."""
        import numpy as np

        alive = self._alive[:size].copy()
        if not labels:
            return alive
        numbers = dict(self._label_numbers)
        fitting = np.zeros(size, np.bool_)
        for one in labels:
            chosen = [number for label, number in numbers.items() if one.fits(label)]
            if len(chosen) == len(numbers) and one.projects is None:
                return alive
            is_chosen = np.zeros(len(numbers), np.bool_)
            is_chosen[chosen] = True
            mask = is_chosen[self._labels[:size]]
            if one.projects is not None:
                mask &= np.isin(self._projects[:size], list(one.projects))
            fitting |= mask
        return alive & fitting

    def _label_number(self, label: str) -> int:
        return self._label_numbers.setdefault(label, len(self._label_numbers))

    def _rows_of(self, ids: Iterable[int]) -> Any:
        """Return the rows of those of the chunks that are present."""
        import numpy as np

        rows = self._rows
        return np.array([rows[chunk] for chunk in ids if chunk in rows], np.int64)

    def _candidates(self, query: Vector, rows: Any, size: int, count: int) -> Any:
        """Return the rows whose sign bits differ least from the query's: about `count`, and all that tie with them."""
        import numpy as np

        bits = self._bits
        distance = np.zeros(len(rows), np.uint16)
        for words, sign in zip(bits, _sign_bits(query.reshape(1, -1), len(bits)), strict=True):
            distance += np.bitwise_count((words[:size] if len(rows) == size else words[rows]) ^ sign)
        max_distance = int(np.searchsorted(np.cumsum(np.bincount(distance)), count))
        return rows[np.flatnonzero(distance <= max_distance)]

    def _grow(self, needed: int) -> None:
        import numpy as np

        if needed <= len(self._ids):
            return
        length = max(needed, len(self._ids) * 2)
        for name in ("_ids", "_alive", "_labels", "_projects", "_halves"):
            old = getattr(self, name)
            new = np.zeros((length, *old.shape[1:]), old.dtype)
            new[: self._size] = old[: self._size]
            setattr(self, name, new)
        bits = np.zeros((len(self._bits), length), np.uint64)
        bits[:, : self._size] = self._bits[:, : self._size]
        self._bits = bits


def _sign_bits(matrix: Any, words: int) -> Any:
    """Pack the signs of all dimensions into words: the first word of every vector, then the second, and so on."""
    import numpy as np

    packed = np.packbits(matrix > 0, axis=1)
    padded = np.zeros((len(matrix), words * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64).T
