"""Vectors in fixed point and their products, with and without SIMD kernels."""

from typing import Any

import numpy as np
import pytest

from clankersd.index import fixed_point
from clankersd.index.fixed_point import (
    CENTRE,
    HIGH_UNIT,
    dot,
    high_products,
    products,
    query_to_fixed_point,
    to_fixed_point,
    to_floats,
)

SIZES = [1, 2, 31, 64, 65, 100, 256, 384, 1024]


def random_vectors(count: int, dims: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, dims)).astype(np.float32)


def numbers(planes: Any) -> Any:
    return planes[0].astype(np.int64) * 256 + planes[1] - CENTRE


@pytest.fixture(params=[True, False], ids=["kernels", "numpy"])
def _with_and_without_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(fixed_point, "load_kernels", lambda: None)


@pytest.mark.usefixtures("_with_and_without_kernels")
@pytest.mark.parametrize("dims", SIZES)
def test_products_are_exact(dims: int) -> None:
    vectors, query = to_fixed_point(random_vectors(300, dims)), query_to_fixed_point(random_vectors(1, dims, 1)[0])
    exact = numbers(vectors.planes) @ numbers(query.bytes[:2])
    assert products(query, vectors.planes).tolist() == exact.tolist()


@pytest.mark.usefixtures("_with_and_without_kernels")
def test_product_of_the_largest_bytes_does_not_overflow() -> None:
    largest = np.full((2, 3072), 255, np.uint8)
    assert dot(largest[:1], largest).tolist() == [[255 * 255 * 3072] * 2]
    assert dot(largest, largest).tolist() == [[255 * 255 * 3072] * 2] * 2
    assert dot(largest, largest[:0]).shape == (2, 0)


@pytest.mark.usefixtures("_with_and_without_kernels")
@pytest.mark.parametrize("dims", [64, 256, 1024])
def test_products_of_high_bytes_err_as_little_as_their_rounding(dims: int) -> None:
    vectors, query = to_fixed_point(random_vectors(3000, dims)), query_to_fixed_point(random_vectors(1, dims, 1)[0])
    found = (high_products(query, vectors.planes[0]) - vectors.high_offsets) * HIGH_UNIT
    exact = numbers(vectors.planes) @ numbers(query.bytes[:2])
    lengths = np.hypot(np.linalg.norm(numbers(vectors.planes), axis=1), np.linalg.norm(numbers(query.bytes[:2])))
    errors = (found - exact) / (fixed_point.ROUNDING_ERROR * 256 * lengths)
    assert np.std(errors) == pytest.approx(1, abs=0.1)
    assert abs(np.mean(errors)) < 0.2


@pytest.mark.parametrize("dims", SIZES)
def test_vectors_and_queries_are_rounded_to_the_nearest(dims: int) -> None:
    matrix = random_vectors(50, dims)
    matrix[0] = 0
    vectors = to_fixed_point(matrix)
    errors = np.abs(to_floats(vectors.planes, vectors.scales) - matrix)
    assert (errors <= 0.51 * vectors.scales[:, None]).all()
    for row, vector in enumerate(matrix):
        query = query_to_fixed_point(vector)
        assert np.abs(numbers(query.bytes[:2]) - numbers(vectors.planes[:, row])).max() <= 1
        assert query.scale == pytest.approx(float(vectors.scales[row]))
