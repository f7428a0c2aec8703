"""Fixed point: vectors as numbers of 16 bits in two planes of bytes, and their products by SIMD kernels.

A vector is `scale * (256 * high + low - CENTRE)`. Its bytes have no sign, since kernels need fewer steps for those. A
product of two vectors is the product of their bytes, less an offset of each, times both scales.
"""

import importlib
from functools import cache
from typing import Any, NamedTuple

LARGEST = 127 * 256 + 127
CENTRE = 32768
"""Largest number, and what is added to each number so that none is negative."""

CENTRE_OF_HIGH = 127.5
"""Subtracted from a high byte, so that 256 times the rest is nearest to the number on average."""

ROUNDING_ERROR = 0.29
"""Standard deviation of what a high byte leaves out, in units of its last bit."""

HIGH_UNIT = 65536
"""Product of two high bytes of 1, in units of the products of whole numbers."""

ROWS_PER_PRODUCT = 1 << 13
"""Vectors that numpy converts at once where there are no kernels."""


class FixedPoint(NamedTuple):
    """Vectors in fixed point."""

    planes: Any
    """Two matrices of bytes, the high and the low ones, with a row for each vector."""
    scales: Any
    high_offsets: Any
    """Subtracted from products of high bytes, for each vector; the offset of the query is subtracted too."""


class FixedPointQuery(NamedTuple):
    """One vector in fixed point, by which others are multiplied."""

    bytes: Any
    """Matrix of three rows: high bytes, low bytes, and ones, whose products are the sums of the others' bytes."""
    scale: float
    high_offset: float
    offset: float


def to_fixed_point(matrix: Any) -> FixedPoint:
    """Convert vectors, the rows of a matrix."""
    import numpy as np

    dims = matrix.shape[1]
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-30) / LARGEST
    planes = np.empty((2, *matrix.shape), np.uint8)
    _split(matrix / scales[:, None], planes)
    sums = dot(np.ones((1, dims), np.uint8), planes[0])[0]
    return FixedPoint(planes, scales, _high_offset(sums, dims))


def query_to_fixed_point(vector: Any) -> FixedPointQuery:
    """Convert one vector."""
    import numpy as np

    dims = len(vector)
    scale = max(float(np.maximum.reduce(np.abs(vector))), 1e-30) / LARGEST
    planes = np.empty((3, dims), np.uint8)
    _split(vector * (1 / scale), planes)
    planes[2] = 1
    high, low = dot(planes[2:], planes[:2])[0].tolist()
    return FixedPointQuery(planes, scale, _high_offset(high, dims), (256 * high + low - CENTRE * dims) * CENTRE)


def to_floats(planes: Any, scales: Any) -> Any:
    """Convert vectors back, into the rows of a matrix."""
    import numpy as np

    matrix = planes[0] * np.float32(256)
    matrix += planes[1]
    matrix -= np.float32(CENTRE)
    matrix *= scales[:, None].astype(np.float32)
    return matrix


def _split(numbers: Any, planes: Any) -> None:
    """Round numbers, and store their high and their low bytes."""
    import numpy as np

    whole = (numbers + np.float32(CENTRE + 0.5)).astype("<u2").view(np.uint8)
    planes[0], planes[1] = whole[..., 1::2], whole[..., ::2]


def _high_offset(sum_of_high: Any, dims: int) -> Any:
    return sum_of_high * CENTRE_OF_HIGH - CENTRE_OF_HIGH**2 * dims / 2


def products(query: FixedPointQuery, planes: Any) -> Any:
    """Multiply a query by each vector of these planes; the results are exact, and lack both scales."""
    by_bytes = dot(query.bytes, planes.reshape(-1, planes.shape[2]))
    return _weights() @ by_bytes.reshape(6, -1) - query.offset


@cache
def _weights() -> Any:
    """Return the weights of the products of a query's three rows with high and with low bytes, in that order."""
    import numpy as np

    return np.array([HIGH_UNIT, 256, 256, 1, -256 * CENTRE, -CENTRE], np.float64)


def dot(queries: Any, vectors: Any) -> Any:
    """Multiply every query by every vector, both of bytes: exact, as 64-bit floats."""
    import numpy as np

    kernels = load_kernels()
    if kernels is None:
        return _dot_by_numpy(queries, vectors, np.float64)
    if not len(vectors):
        return np.zeros((len(queries), 0))
    return np.asarray(kernels.cdist(queries, vectors, "inner"))


def high_products(query: FixedPointQuery, high: Any) -> Any:
    """Multiply the high bytes of a query by those of vectors; the results, 32-bit floats, have the vectors' offsets."""
    import numpy as np

    kernels, high_of_query = load_kernels(), query.bytes[:1]
    if kernels is None:
        found = _dot_by_numpy(high_of_query, high, np.float32)[0]
    else:
        found = np.asarray(kernels.inner(high_of_query, high, out_dtype="f32")).reshape(-1)
    found -= np.float32(query.high_offset)
    return found


def _dot_by_numpy(queries: Any, vectors: Any, dtype: Any) -> Any:
    import numpy as np

    found, converted = np.empty((len(queries), len(vectors)), dtype), queries.astype(dtype)
    for first in range(0, len(vectors), ROWS_PER_PRODUCT):
        rows = slice(first, first + ROWS_PER_PRODUCT)
        found[:, rows] = converted @ vectors[rows].astype(dtype).T
    return found


@cache
def load_kernels() -> Any:
    """Return the library of SIMD kernels; without it numpy gives the same results, several times slower."""
    try:
        return importlib.import_module("simsimd")
    except Exception:  # missing, or built for another processor
        return None
