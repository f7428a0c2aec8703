"""Compact in-memory copy of vectors, searched in a worker thread if there are many."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clankersd.db.commit_priority import yield_core
from clankersd.embedders.base import Vector
from clankersd.index.fixed_point import (
    HIGH_UNIT,
    ROUNDING_ERROR,
    FixedPointQuery,
    query_to_fixed_point,
    to_fixed_point,
)
from clankersd.index.vector_block import (
    ROWS_PER_BLOCK,
    BlockRows,
    Tests,
    VectorBlock,
    fitting_rows,
    mapped_zeros,
    split_by_block,
)
from clankersd.index.vector_store import LabelledVector, ScoredChunks

MAX_ERRORS = 4
MAX_CANDIDATES = 4096
"""Candidates whose score is within this many standard errors of the last wanted one are compared by all bytes, so that
none of the nearest is missed, up to this many more than wanted: near-duplicates may be thousands."""

MAX_RANKED_DIRECTLY = 256
"""Up to this many eligible vectors are compared by all bytes at once."""

MAX_COPIED_BYTES, COPIED_BYTES_PER_VECTOR = 1 << 20, 62
"""Memory for a copy of few vectors as floats: this much, and for each vector of the store no more than this."""

GROUPS = 1024
"""Groups of a block's scores whose best ones give a lower bound: the best of some rows are not above those of all."""

IDS_PER_PAGE = 1 << 16


@dataclass(frozen=True)
class LabelSet:
    """Labels that a search accepts: a predicate on the label, and project numbers (None for all)."""

    fits: Callable[[str], bool]
    projects: frozenset[int] | None = None


Selection = tuple[int, Tests]
"""Identity of a selection: the mirror's version and the tests."""


class _Copy:
    """Vectors of few selected rows as floats, for further searches with the same selection."""

    def __init__(self, selection: Selection, parts: list[BlockRows]) -> None:
        import numpy as np

        self.selection, self.parts = selection, parts
        self.vectors = np.concatenate([block.vectors(rows) for block, rows in parts])
        self.ids = np.concatenate([block.ids[rows] for block, rows in parts])

    def nearest(self, query: Vector, k: int) -> ScoredChunks:
        """Return the `k` nearest of the copied vectors."""
        import numpy as np

        similarities, ids = np.vecdot(self.vectors, query), self.ids
        if len(ids) > k:
            places = (similarities >= np.partition(similarities, -k)[-k]).nonzero()[0]
            similarities, ids = similarities.take(places), ids.take(places)
        return _best(similarities, ids, k)


@dataclass(frozen=True)
class EligibleRows:
    """Rows that a search may find, by block, and perhaps a copy of their vectors."""

    parts: list[BlockRows]
    copied: _Copy | None = None

    def __len__(self) -> int:
        return sum([len(rows) for _, rows in self.parts])


class Mirror:
    """In-memory copy of one generation's vectors, 16 bits per dimension: the high bytes find candidates, all rank them.

    It is changed on the event loop and searched in worker threads: rows are only ever added behind those that a search
    sees, and a removed row is marked, not moved. Blocks are never copied, however many vectors there are; the vectors
    of few selected rows are, and the copy is used until anything changes.
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
        self._blocks: list[VectorBlock] = []
        self._pages: dict[int, Any] = {}
        """Row + 1 of each chunk id, 0 for none, in arrays of IDS_PER_PAGE: a dictionary takes 100 bytes a chunk."""
        self._label_numbers: dict[str, int] = {}
        self._moved_before_added: dict[int, int] = {}  # projects by chunk id
        self._relabelled_before_added: dict[int, str] = {}
        self._version = 0
        """Number of changes; counted after each, so that what a thread has copied during one is not used later."""
        self._last_selection: Selection | None = None
        """Selection of few rows of the last search: they are copied for the second one."""
        self._copy: _Copy | None = None

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
                self._blocks.append(VectorBlock(self._dims))
            part, vectors = vectors[: ROWS_PER_BLOCK - start], vectors[ROWS_PER_BLOCK - start :]
            block, rows = self._blocks[-1], slice(start, start + len(part))
            matrix = np.frombuffer(b"".join(vector[1] for vector in part), np.float32).reshape(len(part), -1)
            block.store(rows, to_fixed_point(matrix))
            block.ids[rows] = [vector[0] for vector in part]
            moved, relabelled = self._moved_before_added, self._relabelled_before_added
            labels = [relabelled.pop(vector[0], vector[2]) if relabelled else vector[2] for vector in part]
            block.labels[rows] = [self._label_number(label) for label in labels]
            block.projects[rows] = [moved.pop(vector[0], vector[3]) if moved else vector[3] for vector in part]
            block.alive[rows] = True
            for row, vector in enumerate(part, self._size + 1):
                page = vector[0] // IDS_PER_PAGE
                if page not in self._pages:
                    self._pages[page] = mapped_zeros(np.int32, IDS_PER_PAGE)
                self._pages[page][vector[0] % IDS_PER_PAGE] = row
            self._scale_sum += float(block.scales[rows].sum())
            self._size += len(part)
            self._version += 1

    def discard(self, ids: Iterable[int]) -> None:
        """Remove deleted chunks."""
        for block, rows in self._parts(self._rows_of(ids)):
            block.remove(rows)
            self._version += 1

    def relabel(self, ids: Iterable[int], label: str) -> None:
        """Change the label of chunks whose scope changed, also of those that are read and will be added."""
        import numpy as np

        ids = list(ids)
        is_missing = self._find_rows(np.array(ids, np.int64)) < 0
        self._relabelled_before_added |= {ids[place]: label for place in np.flatnonzero(is_missing)}
        for block, rows in self._parts(self._rows_of(ids)):
            block.labels[rows] = self._label_number(label)
            self._version += 1

    def move(self, moved: list[tuple[int, int, int]]) -> None:
        """Change the project of chunks as `read_moved_chunks` returns them.

        Searches read the log at the same time: what another one has read since then is newer.
        """
        moves_seen = self.moves_seen
        for chunk, project, position in moved:
            if position <= moves_seen:
                continue
            self.moves_seen = max(self.moves_seen, position)
            page = self._pages.get(chunk // IDS_PER_PAGE)
            row = 0 if page is None else int(page[chunk % IDS_PER_PAGE])
            if row:
                self._blocks[(row - 1) // ROWS_PER_BLOCK].projects[(row - 1) % ROWS_PER_BLOCK] = project
                self._version += 1
            else:
                self._moved_before_added[chunk] = project

    def keep_only(self, ids: Iterable[int], size: int) -> None:
        """Remove every chunk that is not among these, of those that were added when the mirror had this size."""
        import numpy as np

        rows = np.append(self._rows_of(ids), np.arange(size, self._size))
        for number, block in enumerate(self._blocks):
            own = rows[rows // ROWS_PER_BLOCK == number] % ROWS_PER_BLOCK
            alive = np.zeros_like(block.alive)
            alive[own] = block.alive[own]
            block.has_removed, block.alive = True, alive
            self._version += 1

    def nearest(
        self, query: Vector, k: int, eligible: Iterable[int] | None, labels: Sequence[LabelSet] = ()
    ) -> ScoredChunks:
        """Return the `k` nearest of the eligible chunks, or if that is None, of those in one of the label sets.

        Without label sets every chunk is eligible. Runs in a worker thread if there are many.
        """
        return self.nearest_rows(query, k, self.eligible(eligible, labels))

    def nearest_rows(self, query: Vector, k: int, rows: EligibleRows) -> ScoredChunks:
        """Return the `k` nearest of the chunks in these rows."""
        if rows.copied is not None and rows.copied.selection[0] == self._version:
            return rows.copied.nearest(query, k)
        fixed, parts = query_to_fixed_point(query), rows.parts
        if len(rows) > MAX_RANKED_DIRECTLY:
            parts = _candidates(fixed, k, parts, self._scale_sum / self._size)
        return _rank(fixed, parts, k)

    def compare(self, queries: "Sequence[Vector]", ids: Any) -> Any:
        """Return the similarity of each of these chunks, an array, to each query, by row; NaN for no vector."""
        import numpy as np

        fixed, rows = [query_to_fixed_point(query) for query in queries], self._find_rows(ids)
        similarities = np.full((len(queries), len(rows)), np.nan)
        for block, places, own in self._by_block(rows):
            for number, query in enumerate(fixed):
                similarities[number, places] = block.similarities(query, own)
        return similarities

    def eligible(self, eligible: Iterable[int] | None, labels: Sequence[LabelSet] = ()) -> EligibleRows:
        """Return the eligible rows, as `nearest_rows` takes them."""
        if eligible is None:
            return self._labelled(labels)
        size = self._size
        rows = self._rows_of(eligible)
        parts = [(block, own[block.alive[own]]) for block, own in self._parts(rows[rows < size])]
        return EligibleRows([part for part in parts if len(part[1])])

    def _labelled(self, labels: Sequence[LabelSet]) -> EligibleRows:
        """Return the rows in one of the label sets; the second time in a row, few are copied."""
        version, size, names = self._version, self._size, list(self._label_numbers)
        tests = tuple([(tuple([one.fits(name) for name in names]), one.projects) for one in labels])
        selection, copied = (version, tests), self._copy
        if copied is not None and copied.selection == selection:
            return EligibleRows(copied.parts, copied)
        parts = []
        for start, block in zip(range(0, size, ROWS_PER_BLOCK), self._blocks, strict=False):
            rows = fitting_rows(block, min(size - start, ROWS_PER_BLOCK), tests)
            if len(rows):
                parts.append((block, rows))
        eligible = EligibleRows(parts)
        if 0 < len(eligible) * self._dims * 4 <= min(MAX_COPIED_BYTES, size * COPIED_BYTES_PER_VECTOR):
            if self._last_selection == selection:
                copied = self._copy = _Copy(selection, parts)
                eligible = EligibleRows(parts, copied)
            self._last_selection = selection
        return eligible

    def _parts(self, rows: Any) -> list[BlockRows]:
        """Return ordered rows by block."""
        return [(self._blocks[number], own) for number, own in split_by_block(rows)]

    def _by_block(self, rows: Any) -> Iterator[tuple[VectorBlock, Any, Any]]:
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


def _candidates(query: FixedPointQuery, k: int, parts: list[BlockRows], mean_scale: float) -> list[BlockRows]:
    """Return the rows among which are the `k` nearest, by their high bytes."""
    # The error of a score is that of the roundings of both vectors.
    error = ROUNDING_ERROR * 256 * math.hypot(query.scale, mean_scale) / (HIGH_UNIT * query.scale)
    margin, worst, found, best = MAX_ERRORS * error, -math.inf, [], []
    for block, rows in parts:
        yield_core()
        scores = block.scores(query, rows)
        if worst == -math.inf and len(scores) >= k:
            worst = _lower_bound(scores, k) - margin
        places = (scores > worst).nonzero()[0]
        found.append((block, rows.take(places)))
        best.append(scores.take(places))
        if len(places) > 2 * k:
            worst = max(worst, _lower_bound(best[-1], k) - margin)
    if len(found) > 1 or len(best[0]) > MAX_CANDIDATES + k:
        return _best_candidates(found, best, k, margin)
    return found


def _best_candidates(found: list[BlockRows], scores: list[Any], k: int, margin: float) -> list[BlockRows]:
    """Return those candidates of all blocks whose scores are within a margin of the last wanted one."""
    import numpy as np

    joined = np.concatenate(scores)
    if len(joined) > k:
        are_kept = joined > np.partition(joined, -k)[-k] - margin
        if np.count_nonzero(are_kept) > MAX_CANDIDATES + k:
            are_kept[:] = False
            are_kept[np.argpartition(joined, -MAX_CANDIDATES - k)[-MAX_CANDIDATES - k :]] = True
        ends = np.cumsum([len(one) for one in scores])[:-1]
        kept = zip(found, np.split(are_kept, ends), strict=True)
        found = [(block, rows[own]) for (block, rows), own in kept]
    return [part for part in found if len(part[1])]


def _lower_bound(scores: Any, k: int) -> float:
    """Return a score that at least `k` reach: the best ones of groups of rows are fewer to compare than all."""
    import numpy as np

    groups = max(GROUPS, 8 * k)
    per_group = len(scores) // groups
    if per_group > 1:
        scores = np.maximum.reduce(scores[: per_group * groups].reshape(per_group, groups))
    return float(np.partition(scores, -k)[-k])


def _rank(query: FixedPointQuery, parts: list[BlockRows], k: int) -> ScoredChunks:
    """Return the `k` most similar chunks of these rows, best first; of equal ones the first row first."""
    if not parts:
        return []
    similarities = _joined([block.similarities(query, rows) for block, rows in parts])
    return _best(similarities, _joined([block.ids.take(rows) for block, rows in parts]), k)


def _best(similarities: Any, ids: Any, k: int) -> ScoredChunks:
    """Return the `k` largest similarities and their ids, best first, and none that is NaN."""
    order = (-similarities).argsort(kind="stable")[:k]
    similarities = similarities.take(order)
    if len(order) and similarities[-1] != similarities[-1]:  # NaN comes last
        similarities = similarities[similarities == similarities]
    return list(zip(ids.take(order).tolist(), similarities.tolist(), strict=False))


def _joined(arrays: list[Any]) -> Any:
    import numpy as np

    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
