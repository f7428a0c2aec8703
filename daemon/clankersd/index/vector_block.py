"""Vectors of a mirror in fixed point, in blocks of equal size, and the choice of rows in them."""

import itertools
import math
import mmap
from collections.abc import Iterator
from functools import cache
from typing import Any

from clankersd.index.fixed_point import FixedPoint, FixedPointQuery, high_products, products, to_floats

ROWS_PER_BLOCK = 1 << 16
"""The kernel compares the vectors of one block in less than a millisecond. Between two, other threads may run."""


class VectorBlock:
    """ROWS_PER_BLOCK vectors in fixed point, and what is stored with each."""

    def __init__(self, dims: int) -> None:
        import numpy as np

        self.planes = mapped_zeros(np.uint8, 2, ROWS_PER_BLOCK, dims)
        self.high = self.planes[0]
        self.scales = mapped_zeros(np.float32, ROWS_PER_BLOCK)
        self.high_offsets = mapped_zeros(np.float32, ROWS_PER_BLOCK)
        self.ids = mapped_zeros(np.int32, ROWS_PER_BLOCK)
        self.labels = mapped_zeros(np.int32, ROWS_PER_BLOCK)
        self.projects = mapped_zeros(np.int32, ROWS_PER_BLOCK)
        self.alive = mapped_zeros(np.bool_, ROWS_PER_BLOCK)
        self.has_removed = False
        """True if rows were removed; set before they are marked."""

    def store(self, rows: slice, vectors: FixedPoint) -> None:
        """Store vectors in these rows."""
        self.planes[:, rows] = vectors.planes
        self.scales[rows], self.high_offsets[rows] = vectors.scales, vectors.high_offsets

    def remove(self, rows: Any) -> None:
        """Mark rows as removed."""
        self.has_removed = True
        self.alive[rows] = False

    def scores(self, query: FixedPointQuery, rows: Any) -> Any:
        """Return the similarity of each of these rows by the high bytes, in units of `query.scale * HIGH_UNIT`."""
        count = len(rows)
        if rows[-1] == count - 1:  # all rows so far: they need not be copied
            high, offsets, scales = self.high[:count], self.high_offsets[:count], self.scales[:count]
        else:
            high, offsets, scales = self.high.take(rows, axis=0), self.high_offsets.take(rows), self.scales.take(rows)
        scores = high_products(query, high)
        scores -= offsets
        scores *= scales
        return scores

    def similarities(self, query: FixedPointQuery, rows: Any) -> Any:
        """Return the similarity of each of these rows; NaN for one that was removed."""
        import numpy as np

        similarities = products(query, self.planes.take(rows, axis=1))
        similarities *= self.scales.take(rows)
        similarities *= query.scale
        if self.has_removed:
            similarities[~self.alive.take(rows)] = np.nan
        return similarities

    def vectors(self, rows: Any) -> Any:
        """Return the vectors of these rows as floats."""
        return to_floats(self.planes.take(rows, axis=1), self.scales.take(rows))


BlockRows = tuple[VectorBlock, Any]
"""A block, and an array of rows in it."""

Tests = tuple[tuple[tuple[bool, ...], frozenset[int] | None], ...]
"""Labels accepted by each label set, and its projects."""


def split_by_block(rows: Any) -> Iterator[tuple[int, Any]]:
    """Split ordered rows into those of each block: the number of the block, and the rows within it."""
    import numpy as np

    if not len(rows):
        return
    numbers = rows // ROWS_PER_BLOCK
    starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
    for start, end in itertools.pairwise([*starts, len(rows)]):
        number = int(numbers[start])
        yield number, rows[start:end] - number * ROWS_PER_BLOCK


def fitting_rows(block: VectorBlock, used: int, tests: Tests) -> Any:
    """Return the first `used` rows that are present and pass a test, or any of these rows if there is no test.

    A row passes if its label is among those marked, and its project among the given ones.
    """
    import numpy as np

    passing = []
    for is_chosen, projects in tests or (((True,), None),):
        if any(is_chosen):
            rows = _present_rows(block, used, projects)
            if not all(is_chosen):
                # A label that was added after the tests were made belongs to rows that this search does not see.
                rows = rows[np.array([*is_chosen, False])[np.minimum(block.labels.take(rows), len(is_chosen))]]
            passing.append(rows)
    if len(passing) == 1:
        return passing[0]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *passing]))


def _present_rows(block: VectorBlock, used: int, projects: frozenset[int] | None) -> Any:
    """Return those of the first `used` rows that are present, and of one of the projects (None for all)."""
    import numpy as np

    if projects is None:
        if not block.has_removed:
            return _row_numbers(ROWS_PER_BLOCK)[:used]
        return block.alive[:used].copy().nonzero()[0]  # rows may be removed meanwhile
    if len(projects) == 1:
        rows = (block.projects[:used] == next(iter(projects))).nonzero()[0]
    else:
        rows = np.isin(block.projects[:used], list(projects)).nonzero()[0]
    return rows[block.alive.take(rows)] if block.has_removed else rows


@cache
def _row_numbers(count: int) -> Any:
    """Return the numbers of all rows of a block, an array that nobody may change."""
    import numpy as np

    numbers = np.arange(count)
    numbers.flags.writeable = False
    return numbers


def mapped_zeros(dtype: Any, *shape: int) -> Any:
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
