"""Vectors: stored in vec0, and searched in a compact in-memory copy, in a worker thread if there are many."""

import importlib
import itertools
import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from clankersd.db import Db
from clankersd.db.commit_priority import yield_core
from clankersd.db.engine import CHUNK_TEXT, AddedVectors
from clankersd.embedders.base import Vector
from clankersd.index.generations import Generation

ROUNDING_ERROR = 0.29
"""Standard deviation of what rounding to a whole number leaves out."""

MAX_ERRORS = 4
MAX_CANDIDATES = 4096
"""Candidates whose score is within this many standard errors of the last wanted one are compared by all bytes, so that
none of the nearest is missed, up to this many more than wanted: near-duplicates may be thousands."""

MAX_SAMPLES, MAX_SAMPLE_TOKENS = 4, 200
"""Number and length of the texts whose stored vectors are compared with those of a fallback embedder."""

MAX_RANKED_DIRECTLY = 256
"""Up to this many eligible vectors are compared by all bytes at once."""

VECTORS_PER_READ = 1_000
"""As many as a read of a few milliseconds takes: a longer one is interrupted and begins again on a snapshot."""

ROWS_PER_BLOCK = 1 << 16
"""The kernel compares the vectors of one block in less than a millisecond. Between two, other threads may run."""

SAMPLED_ROWS = 16_384
"""Rows of a block whose scores give a first lower bound: the best of some rows are not above the best of all."""

IDS_PER_PAGE = 1 << 16
MAX_FIXED_POINT = 127 * 256 + 127
"""Largest number of 16 bits whose high byte, rounded to the nearest, fits into 8 bits."""

ScoredChunks = list[tuple[int, float]]
"""Chunk ids with their similarity, most similar first."""

FixedPoint = tuple[Any, Any]
"""Vectors as 16-bit numbers: an array of scales, and an array of two matrices, of the high and of the low bytes."""

LabelledVector = tuple[int, bytes, str, int]
"""A chunk's id, its vector, its label and the number of its project, which is 0 for none."""

LABEL = "chunks.source || coalesce(' ' || chunks.scope, '')"
"""SQL for a chunk's label: its source and, for a memory, its scope, which most searches filter by."""

PROJECT = "coalesce(chunks.project, 0)"
"""SQL for the number of a chunk's project."""

_MOVED_CHUNKS = f"""
    SELECT chunks.id, {PROJECT}, moved.position
    FROM moved_chunks AS moved CROSS JOIN chunks ON chunks.id = moved.chunk
    WHERE moved.position > :after ORDER BY moved.position
"""


@dataclass(frozen=True)
class LabelSet:
    """Labels that a search accepts: a predicate on the label, and project numbers (None for all)."""

    fits: Callable[[str], bool]
    projects: frozenset[int] | None = None


def insert(db: Db, generation: Generation, rows: list[tuple[int, bytes]]) -> None:
    """Store vectors of chunks that still exist."""
    sql = "SELECT chunks.id FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value"
    existing = {row[0] for row in db.tuples(sql, {"ids": json.dumps([chunk for chunk, _ in rows])})} if rows else ()
    for chunk, embedding in rows:
        if chunk in existing:
            db.engine.insert_vector(db, generation.vector_table, chunk, embedding)


def remove(db: Db, generation: Generation, chunks: list[int]) -> None:
    """Remove the vectors of these chunks."""
    for chunk in chunks:
        db.engine.delete_vector(db, generation.vector_table, chunk)


def count(db: Db, generation: Generation) -> int:
    """Count the chunks that have a vector."""
    if generation.identity.dims is None:
        return 0
    return int(db.value(f"SELECT count(*) FROM {generation.vector_table}_rowids"))


def nearest(
    db: Db, generation: Generation, query: bytes, k: int, eligible: str, params: dict[str, Any]
) -> ScoredChunks:
    """Return the `k` nearest of the eligible chunks, by the vectors in the database."""
    return db.engine.nearest(db, generation.vector_table, query, k, eligible, params)


def read_vectors(db: Db, generation: Generation, chunks: list[int]) -> list[bytes]:
    """Return the stored vectors of those of the chunks that have one."""
    sql = f"""
        SELECT vectors.embedding FROM json_each(:ids) CROSS JOIN {generation.vector_table} AS vectors
          ON vectors.rowid = json_each.value
    """
    return [row[0] for row in db.tuples(sql, {"ids": json.dumps(chunks)})]


def read_samples(db: Db, generation: Generation) -> list[tuple[str, Vector]]:
    """Return the newest texts of the generation that are short and have a vector, with their vectors."""
    import numpy as np

    sql = f"""
        SELECT id, {CHUNK_TEXT} FROM chunks WHERE chunking = :chunking AND tokens <= {MAX_SAMPLE_TOKENS}
        AND NOT EXISTS (SELECT 1 FROM index_queue WHERE generation = :generation AND chunk = chunks.id)
        ORDER BY id DESC LIMIT {MAX_SAMPLES}
    """
    rows = db.tuples(sql, {"chunking": generation.chunking.number, "generation": generation.id})
    samples = []
    for chunk, text in rows:
        samples += [(text, np.frombuffer(blob, "<f4")) for blob in read_vectors(db, generation, [chunk])]
    return samples


def label_of(source: str, scope: str | None) -> str:
    """Return the label of a chunk of this source and scope."""
    return f"{source} {scope}" if scope else source


def read_slice(db: Db, generation: Generation, after: int) -> list[LabelledVector]:
    """Read the next vectors after the chunk `after`, in the order of their chunks.

    Each vector is looked up by its id: vec0 scans the whole table for a range of them.
    """
    table = generation.vector_table
    sql = f"""
        SELECT vectors.rowid, vectors.embedding, {LABEL}, {PROJECT}
        FROM {table}_rowids AS listed
        CROSS JOIN {table} AS vectors ON vectors.rowid = listed.rowid
        CROSS JOIN chunks ON chunks.id = listed.rowid
        WHERE listed.rowid > :after ORDER BY listed.rowid LIMIT :limit
    """
    return db.tuples(sql, {"after": after, "limit": VECTORS_PER_READ})


def read_added_vectors(
    db: Db, generation: Generation, after: int
) -> tuple[AddedVectors | None, list[LabelledVector]]:  # fmt: skip
    """Return the vectors that other daemons have stored since the log's position `after`."""
    table = generation.vector_table
    added = db.engine.added_vectors(db, table, after)
    if added is None or not added.chunks:
        return added, []
    sql = f"""
        SELECT vectors.rowid, vectors.embedding, {LABEL}, {PROJECT}
        FROM json_each(:ids) CROSS JOIN {table} AS vectors ON vectors.rowid = json_each.value
        CROSS JOIN chunks ON chunks.id = vectors.rowid
    """
    return added, db.tuples(sql, {"ids": json.dumps(added.chunks)})


def read_moved_chunks(db: Db, after: int) -> list[tuple[int, int, int]]:
    """Return the chunks that have moved since the log's position `after`: id, project and position of each.

    A snapshot connection has no log; the next search reads it.
    """
    if not db.engine.has_moved_chunks(db):
        return []
    return db.tuples(_MOVED_CHUNKS, {"after": after})


class _Block:
    """ROWS_PER_BLOCK vectors in fixed point: a vector is `scale * (256 * high + low)`, and what is stored with each."""

    def __init__(self, dims: int) -> None:
        import numpy as np

        self.planes = _mapped_zeros(np.int8, 2, ROWS_PER_BLOCK, dims)
        self.high = self.planes[0]
        self.scales = _mapped_zeros(np.float32, ROWS_PER_BLOCK)
        self.ids = _mapped_zeros(np.int32, ROWS_PER_BLOCK)
        self.labels = _mapped_zeros(np.int32, ROWS_PER_BLOCK)
        self.projects = _mapped_zeros(np.int32, ROWS_PER_BLOCK)
        self.alive = _mapped_zeros(np.bool_, ROWS_PER_BLOCK)

    def similarities(self, queries: FixedPoint, rows: Any) -> Any:
        """Return the similarity of each of these rows to each query; NaN for one that was removed."""
        import numpy as np

        scales, planes = queries
        vectors = self.planes.take(rows, axis=1)
        products = _dot(planes.reshape(-1, planes.shape[2]), vectors.reshape(-1, vectors.shape[2]))
        products = products.reshape(2, len(scales), 2, len(rows))
        similarities = products[0, :, 0] * 256 + products[1, :, 0] + products[0, :, 1]
        similarities = similarities * 256 + products[1, :, 1]
        similarities *= self.scales[rows] * scales[:, None]
        is_alive = self.alive[rows]
        if not is_alive.all():
            similarities[:, ~is_alive] = np.nan
        return similarities


BlockRows = tuple[int, _Block, Any]
"""Rows of a block: the number of its first row, the block, and an array of the rows in it."""


class Mirror:
    """In-memory copy of one generation's vectors, 16 bits per dimension: the high bytes find candidates, all rank them.

    It is changed on the event loop and searched in worker threads: rows are only ever added behind those that a search
    sees, and a removed row is marked, not moved. Blocks are never copied, however many vectors there are.
    """

    def __init__(self, generation: int, dims: int) -> None:
        self.generation = generation
        self.complete = False
        self.added_seen = 0
        """Position up to which the log of vectors of other daemons has been read."""
        self.moves_seen = 0
        """Position up to which the log of moved chunks has been read."""
        self._dims = dims
        self._size = 0
        self._scale_sum = 0.0
        self._blocks: list[_Block] = []
        self._pages: dict[int, Any] = {}
        """Row + 1 of each chunk id, 0 for none, in arrays of IDS_PER_PAGE: a dictionary takes 100 bytes a chunk."""
        self._label_numbers: dict[str, int] = {}
        self._moved_before_added: dict[int, int] = {}  # projects by chunk id

    @property
    def size(self) -> int:
        return self._size

    def add(self, vectors: list[LabelledVector]) -> None:
        """Add vectors; one of a chunk that is present already replaces it."""
        import numpy as np

        self.discard([vector[0] for vector in vectors])
        while vectors:
            start = self._size % ROWS_PER_BLOCK
            if start == 0:
                self._blocks.append(_Block(self._dims))
            part, vectors = vectors[: ROWS_PER_BLOCK - start], vectors[ROWS_PER_BLOCK - start :]
            block, rows = self._blocks[-1], slice(start, start + len(part))
            matrix = np.frombuffer(b"".join(vector[1] for vector in part), np.float32).reshape(len(part), -1)
            block.scales[rows], block.planes[:, rows] = _fixed_point(matrix)
            block.ids[rows] = [vector[0] for vector in part]
            block.labels[rows] = [self._label_number(vector[2]) for vector in part]
            moved = self._moved_before_added
            block.projects[rows] = [moved.pop(vector[0], vector[3]) if moved else vector[3] for vector in part]
            block.alive[rows] = True
            for row, vector in enumerate(part, self._size + 1):
                page = vector[0] // IDS_PER_PAGE
                if page not in self._pages:
                    self._pages[page] = _mapped_zeros(np.int32, IDS_PER_PAGE)
                self._pages[page][vector[0] % IDS_PER_PAGE] = row
            self._scale_sum += float(block.scales[rows].sum())
            self._size += len(part)

    def discard(self, ids: Iterable[int]) -> None:
        """Remove deleted chunks."""
        for number, rows in _split_by_block(self._rows_of(ids)):
            self._blocks[number].alive[rows] = False

    def relabel(self, ids: Iterable[int], label: str) -> None:
        """Change the label of chunks whose scope changed."""
        for number, rows in _split_by_block(self._rows_of(ids)):
            self._blocks[number].labels[rows] = self._label_number(label)

    def move(self, moved: list[tuple[int, int, int]]) -> None:
        """Change the project of chunks as `read_moved_chunks` returns them."""
        for chunk, project, position in moved:
            self.moves_seen = max(self.moves_seen, position)
            page = self._pages.get(chunk // IDS_PER_PAGE)
            row = 0 if page is None else int(page[chunk % IDS_PER_PAGE])
            if row:
                self._blocks[(row - 1) // ROWS_PER_BLOCK].projects[(row - 1) % ROWS_PER_BLOCK] = project
            else:
                self._moved_before_added[chunk] = project

    def keep_only(self, ids: Iterable[int]) -> None:
        """Remove every chunk that is not among these."""
        import numpy as np

        rows = self._rows_of(ids)
        for number, block in enumerate(self._blocks):
            own = rows[rows // ROWS_PER_BLOCK == number] % ROWS_PER_BLOCK
            alive = np.zeros_like(block.alive)
            alive[own] = block.alive[own]
            block.alive = alive

    def nearest(
        self, query: Vector, k: int, eligible: Iterable[int] | None, labels: Sequence[LabelSet] = ()
    ) -> ScoredChunks:
        """Return the `k` nearest of the eligible chunks, or if that is None, of those in one of the label sets.

        Without label sets every chunk is eligible. Runs in a worker thread if there are many.
        """
        return self.nearest_rows(query, k, self.eligible(eligible, labels))

    def nearest_rows(self, query: Vector, k: int, parts: list[BlockRows]) -> ScoredChunks:
        """Return the `k` nearest of the chunks in these rows."""
        import numpy as np

        fixed = _fixed_point(query[None])
        if sum(len(rows) for _, _, rows in parts) <= MAX_RANKED_DIRECTLY:
            rows = np.concatenate([np.zeros(0, np.int64), *(start + rows for start, _, rows in parts)])
            return self._rank(fixed, rows, k)
        scale, (high, _) = fixed
        # Scores are cosines divided by the weight of two high bytes; the error of a score is that of both roundings.
        error = ROUNDING_ERROR * 256 * math.hypot(scale[0], self._scale_sum / self._size) / (65536 * scale[0])
        best_rows, best_scores, worst = np.zeros(0, np.int64), np.zeros(0, np.float32), -np.inf
        for start, block, rows in parts:
            yield_core()
            if rows[-1] == len(rows) - 1:  # all rows so far: they need not be copied
                scores = _dot(high, block.high[: len(rows)])[0]
                scores *= block.scales[: len(rows)]
            else:
                scores = _dot(high, block.high.take(rows, axis=0))[0]
                scores *= block.scales[rows]
            if worst == -np.inf and len(scores) >= k:
                sample = scores[:: max(1, len(scores) // max(SAMPLED_ROWS, k))]
                worst = np.partition(sample, -k)[-k] - MAX_ERRORS * error
            better = np.flatnonzero(scores > worst)
            best_rows = np.concatenate((best_rows, start + rows[better]))
            best_scores = np.concatenate((best_scores, scores[better]))
            if len(best_scores) > 2 * k:
                worst = np.partition(best_scores, -k)[-k] - MAX_ERRORS * error
                kept = np.flatnonzero(best_scores > worst)
                if len(kept) > MAX_CANDIDATES + k:
                    kept = np.sort(np.argpartition(best_scores, -MAX_CANDIDATES - k)[-MAX_CANDIDATES - k :])
                best_rows, best_scores = best_rows[kept], best_scores[kept]
        return self._rank(fixed, best_rows, k)

    def similarities(self, query: Vector, ids: Iterable[int]) -> dict[int, float]:
        """Return the similarity of each of these chunks that has a vector."""
        return dict(self._rank(_fixed_point(query[None]), self._rows_of(ids)))

    def compare(self, queries: "Sequence[Vector]", ids: Any) -> Any:
        """Return the similarity of each of these chunks, an array, to each query, by row; NaN for no vector."""
        import numpy as np

        fixed, rows = _fixed_point(np.stack(queries)), self._find_rows(ids)
        similarities = np.full((len(queries), len(rows)), np.nan)
        for block, places, own in self._by_block(rows):
            similarities[:, places] = block.similarities(fixed, own)
        return similarities

    def eligible(self, eligible: Iterable[int] | None, labels: Sequence[LabelSet]) -> list[BlockRows]:
        """Return the eligible rows by block, as `nearest` takes them."""
        import numpy as np

        size, parts = self._size, []
        if eligible is not None:
            rows = self._rows_of(eligible)
            for number, own in _split_by_block(rows[rows < size]):
                block = self._blocks[number]
                own = own[block.alive[own]]
                if len(own):
                    parts.append((number * ROWS_PER_BLOCK, block, own))
            return parts
        names = list(self._label_numbers)
        tests = [(np.array([one.fits(name) for name in names], np.bool_), one.projects) for one in labels]
        for number, block in enumerate(self._blocks[: -(-size // ROWS_PER_BLOCK)]):
            start = number * ROWS_PER_BLOCK
            rows = _fitting(block, min(size - start, ROWS_PER_BLOCK), tests)
            if len(rows):
                parts.append((start, block, rows))
        return parts

    def _rank(self, query: FixedPoint, rows: Any, k: int | None = None) -> ScoredChunks:
        """Return the `k` most similar chunks of these rows, best first; of equal ones the first row first."""
        import numpy as np

        similarities, ids = np.empty(len(rows), np.float32), np.empty(len(rows), np.int32)
        for block, places, own in self._by_block(rows):
            similarities[places], ids[places] = block.similarities(query, own)[0], block.ids[own]
        count = np.count_nonzero(similarities == similarities)
        order = np.argsort(-similarities, kind="stable")[:count][:k]  # NaN comes last
        return list(zip(ids[order].tolist(), similarities[order].tolist(), strict=True))

    def _by_block(self, rows: Any) -> Iterator[tuple[_Block, Any, Any]]:
        """Yield each block that has some of the rows, their places in the array, and their rows in the block."""
        import numpy as np

        if len(self._blocks) == 1 and len(rows) and rows.min() >= 0:
            yield self._blocks[0], slice(None), rows
            return
        numbers = rows // ROWS_PER_BLOCK
        for number, block in enumerate(self._blocks):
            places = np.flatnonzero(numbers == number)
            if len(places):
                yield block, places, rows[places] - number * ROWS_PER_BLOCK

    def _label_number(self, label: str) -> int:
        return self._label_numbers.setdefault(label, len(self._label_numbers))

    def _rows_of(self, ids: Iterable[int]) -> Any:
        """Return the rows of those of the chunks that are present, in order."""
        import numpy as np

        rows = np.unique(self._find_rows(np.fromiter(ids, np.int64)))
        return rows[rows >= 0]

    def _find_rows(self, ids: Any) -> Any:
        """Return the row of each of the chunks, an array; -1 for one that is not present."""
        import numpy as np

        rows = np.full(len(ids), -1)
        pages = ids // IDS_PER_PAGE
        for number, page in list(self._pages.items()):  # vectors may be added during the search
            places = np.flatnonzero(pages == number)
            rows[places] = page[ids[places] % IDS_PER_PAGE] - 1
        return rows


def _split_by_block(rows: Any) -> Iterator[tuple[int, Any]]:
    """Split ordered rows into those of each block: the number of the block, and the rows within it."""
    import numpy as np

    if not len(rows):
        return
    numbers = rows // ROWS_PER_BLOCK
    starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
    for start, end in itertools.pairwise([*starts, len(rows)]):
        number = int(numbers[start])
        yield number, rows[start:end] - number * ROWS_PER_BLOCK


def _fitting(block: _Block, used: int, tests: list[tuple[Any, frozenset[int] | None]]) -> Any:
    """Return the first `used` rows that are present and pass a test, or any of these rows if there is no test.

    A row passes if its label is among those marked, and its project among the given ones.
    """
    import numpy as np

    if not tests or any(projects is None and is_chosen.all() for is_chosen, projects in tests):
        alive = block.alive[:used].copy()  # rows may be removed meanwhile
        return _row_numbers()[:used] if alive.all() else np.flatnonzero(alive)
    passing = []
    for is_chosen, projects in tests:
        if not is_chosen.any():
            continue
        rows = _of_projects(block, used, projects)
        rows = rows[block.alive[rows]]
        if not is_chosen.all():
            # A label that was added after the tests were made belongs to rows that this search does not see.
            rows = rows[np.append(is_chosen, False)[np.minimum(block.labels[rows], len(is_chosen))]]
        passing.append(rows)
    if len(passing) == 1:
        return passing[0]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *passing]))


def _of_projects(block: _Block, used: int, projects: frozenset[int] | None) -> Any:
    """Return those of the first `used` rows that are of one of the projects, None for all."""
    import numpy as np

    if projects is None:
        return _row_numbers()[:used]
    if len(projects) == 1:
        return np.flatnonzero(block.projects[:used] == next(iter(projects)))
    return np.flatnonzero(np.isin(block.projects[:used], list(projects)))


@cache
def _row_numbers() -> Any:
    """Return the numbers of all rows of a block, an array that nobody may change."""
    import numpy as np

    numbers = np.arange(ROWS_PER_BLOCK)
    numbers.flags.writeable = False
    return numbers


def _mapped_zeros(dtype: Any, *shape: int) -> Any:
    """Return an array of zeros that takes memory only for the pages that are written to.

    `np.zeros` may reuse freed memory and clear all of it, so that a block of few vectors takes 33 MB.
    """
    import numpy as np

    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error}") from error
    return np.frombuffer(memory, dtype).reshape(shape)


def _fixed_point(matrix: Any) -> FixedPoint:
    """Convert vectors to fixed point: scales, and the high and low bytes of each number."""
    import numpy as np

    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-30) / MAX_FIXED_POINT
    fixed = np.rint(matrix / scales[:, None]).astype(np.int16)
    planes = np.empty((2, *fixed.shape), np.int8)
    planes[0] = (fixed + 128) >> 8
    planes[1] = fixed.astype(np.int8)  # what remains of the number is its low byte, with a sign
    return scales, planes


def _dot(queries: Any, vectors: Any) -> Any:
    """Multiply every query by every vector, both of 8 bits, as 32-bit floats: exact up to 1,024 dimensions."""
    import numpy as np

    kernels = load_kernels()
    if kernels is None:
        return queries.astype(np.float32) @ vectors.astype(np.float32).T
    if not len(vectors):
        return np.zeros((len(queries), 0), np.float32)
    if len(queries) == 1:
        return np.asarray(kernels.inner(queries, vectors, out_dtype="f32"))[None]
    return np.asarray(kernels.cdist(queries, vectors, "inner", out_dtype="f32"))


@cache
def load_kernels() -> Any:
    """Return the library of SIMD kernels; without it numpy gives the same results, several times slower."""
    try:
        return importlib.import_module("simsimd")
    except Exception:  # missing, or built for another processor
        return None
