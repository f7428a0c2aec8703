"""In-memory copy of the vectors, compared with brute force."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clankersd.index.mirror import MAX_CANDIDATES, MAX_RANKED_DIRECTLY, LabelSet, Mirror
from clankersd.index.vector_store import LabelledVector, ScoredChunks

DIMS = 64


def random_vectors(count: int, dims: int = DIMS, seed: int = 0) -> Any:
    """Points in a space of few real dimensions, of length 1: as embeddings are, and unlike noise."""
    space = np.random.default_rng(42).normal(size=(24, dims))
    chance = np.random.default_rng(seed)
    points = chance.normal(size=(count, 24)) @ space + chance.normal(size=(count, dims))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def rows(vectors: Any, first: int = 1) -> list[LabelledVector]:
    return [(first + number, vector.tobytes(), "sessions", 0) for number, vector in enumerate(vectors)]


def filled(vectors: Any) -> Mirror:
    mirror = Mirror(1, vectors.shape[1])
    for start in range(0, len(vectors), 700):  # over several growths
        mirror.add(rows(vectors[start : start + 700], start + 1))
    return mirror


def brute_force(vectors: Any, query: Any, k: int, eligible: set[int] | None = None) -> list[int]:
    """The ids, from 1 on, of the nearest."""
    similarity = vectors @ query
    order = [int(place) + 1 for place in np.argsort(-similarity, kind="stable")]
    return [one for one in order if eligible is None or one in eligible][:k]


def ids(found: ScoredChunks) -> list[int]:
    return [chunk for chunk, _ in found]


@pytest.mark.parametrize("count", [MAX_RANKED_DIRECTLY, MAX_RANKED_DIRECTLY + 1])
def test_nearest_of_few_vectors_is_exact(count: int) -> None:
    vectors = random_vectors(count)
    mirror = filled(vectors)
    for query in random_vectors(20, seed=1):
        assert ids(mirror.nearest(query, 10, None)) == brute_force(vectors, query, 10)


def use_blocks_of(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    for module in ("mirror", "vector_block"):
        monkeypatch.setattr(f"clankersd.index.{module}.ROWS_PER_BLOCK", rows)


def test_nearest_of_many_vectors_finds_all() -> None:
    vectors = random_vectors(40_000, 256)
    mirror = filled(vectors)
    for query in random_vectors(20, 256, seed=1):
        assert {*ids(mirror.nearest(query, 10, None))} == {*brute_force(vectors, query, 10)}


@pytest.mark.parametrize("k", [10, 700])
def test_nearest_in_several_blocks_are_those_in_one(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """The last wanted one of the first block is no bound for the others if that block has fewer than are wanted."""
    vectors = random_vectors(3000)
    queries = random_vectors(10, seed=1)
    in_one = [filled(vectors).nearest(query, k, None) for query in queries]
    use_blocks_of(monkeypatch, 512)
    mirror = filled(vectors)
    assert [mirror.nearest(query, k, None) for query in queries] == in_one
    few = sorted({*range(1, 3001)} - {*range(3, 3001, 3)})
    for query in queries:
        assert ids(mirror.nearest(query, k, few)) == ids(filled(vectors).nearest(query, k, few))
    mirror.discard(few)
    found = ids(mirror.nearest(queries[0], k, None))
    assert found == ids(mirror.nearest(queries[0], k, range(3, 3001, 3)))
    assert not {*few} & {*found}


def test_nearest_of_many_near_duplicates_are_the_nearest() -> None:
    chance = np.random.default_rng(3)
    vectors = random_vectors(1, 256) + chance.normal(size=(3000, 256)).astype(np.float32) * 1e-4
    vectors = np.concatenate((vectors, random_vectors(3000, 256, seed=5)))
    query = vectors[7] + random_vectors(1, 256, seed=6)[0] / 2
    exact = np.sort(vectors @ query)[::-1]
    found = [similarity for _, similarity in filled(vectors).nearest(query, 10, None)]
    assert found == pytest.approx(exact[:10].tolist(), abs=2e-5)


@pytest.mark.parametrize("count", [MAX_RANKED_DIRECTLY, MAX_CANDIDATES, MAX_CANDIDATES + 1_000])
def test_nearest_of_equal_vectors_are_in_the_order_in_which_they_were_added(count: int) -> None:
    vectors = np.repeat(random_vectors(1), count, axis=0)
    found = ids(filled(vectors).nearest(vectors[0], 10, None))
    assert found == sorted(found)
    if count <= MAX_CANDIDATES:
        assert found == [*range(1, 11)]


def test_comparison_gives_up_its_core_between_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks_of(monkeypatch, 256)
    yields = []
    monkeypatch.setattr("clankersd.index.mirror.yield_core", lambda: yields.append(1))
    filled(random_vectors(1024)).nearest(random_vectors(1)[0], 10, None)
    assert len(yields) == 1024 // 256


def test_nearest_returns_all_eligible_chunks_if_more_are_wanted() -> None:
    vectors = random_vectors(MAX_RANKED_DIRECTLY + 100)
    query = random_vectors(1, seed=1)[0]
    found = ids(filled(vectors).nearest(query, 2 * len(vectors), None))
    assert sorted(found) == [*range(1, len(vectors) + 1)]


def test_nearest_without_kernels_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = filled(random_vectors(5000))
    query = random_vectors(1, seed=1)[0]
    found = mirror.nearest(query, 10, None)
    monkeypatch.setattr("clankersd.index.fixed_point.load_kernels", lambda: None)
    assert mirror.nearest(query, 10, None) == found


def test_similarities_are_cosines_most_similar_first() -> None:
    vectors = random_vectors(5000)
    found = filled(vectors).nearest(vectors[123], 10, None)
    assert found[0][0] == 124
    assert found[0][1] == pytest.approx(1.0, abs=1e-4)
    for chunk, similarity in found:
        assert similarity == pytest.approx(float(vectors[chunk - 1] @ vectors[123]), abs=1e-4)
    assert [similarity for _, similarity in found] == sorted((s for _, s in found), reverse=True)


def test_nearest_among_few_eligible_is_exact_in_any_index() -> None:
    vectors = random_vectors(5000)
    mirror = filled(vectors)
    eligible = {*range(1, 5001, 17)}
    for query in random_vectors(10, seed=2):
        assert ids(mirror.nearest(query, 10, sorted(eligible))) == brute_force(vectors, query, 10, eligible)


def test_nearest_among_many_eligible_finds_all_and_no_others() -> None:
    vectors = random_vectors(5000)
    mirror = filled(vectors)
    eligible = {*range(1, 5001, 2)}
    for query in random_vectors(20, seed=2):
        assert ids(mirror.nearest(query, 10, sorted(eligible))) == brute_force(vectors, query, 10, eligible)


def test_missing_chunk_is_not_eligible() -> None:
    mirror = filled(random_vectors(10))
    assert ids(mirror.nearest(random_vectors(1)[0], 10, [3, 99])) == [3]
    assert mirror.nearest(random_vectors(1)[0], 10, []) == []


def test_empty_mirror_finds_nothing() -> None:
    mirror = Mirror(1, DIMS)
    mirror.add([])
    assert mirror.nearest(random_vectors(1)[0], 10, None) == []
    assert np.isnan(mirror.compare([random_vectors(1)[0]], np.array([1, 2]))).all()


@pytest.mark.parametrize("count", [100, 5000])
def test_discarded_chunk_is_not_found(count: int) -> None:
    vectors = random_vectors(count)
    mirror = filled(vectors)
    query = vectors[0]
    best = ids(mirror.nearest(query, 5, None))
    mirror.discard(best)
    assert not {*best} & {*ids(mirror.nearest(query, 20, None))}
    assert not {*best} & {*ids(mirror.nearest(query, 20, [*range(1, count + 1)]))}
    assert np.isnan(mirror.compare([query], np.array(best))).all()
    mirror.discard([*best, 999_999])  # once more, and one that never was


@pytest.mark.parametrize("count", [100, 5000])
def test_chunk_added_again_is_replaced(count: int) -> None:
    vectors = random_vectors(count)
    mirror = filled(vectors)
    mirror.add([(1, (-vectors[0]).tobytes(), "sessions", 0)])
    assert 1 not in ids(mirror.nearest(vectors[0], 20, None))
    found = mirror.nearest(-vectors[0], 20, None)
    assert ids(found).count(1) == 1
    assert found[0][0] == 1


def test_keep_only_removes_all_other_chunks() -> None:
    vectors = random_vectors(5000)
    mirror = filled(vectors)
    mirror.discard([5])
    mirror.keep_only([3, 5, 7, 9_999], mirror.size)
    assert sorted(ids(mirror.nearest(vectors[0], 10, None))) == [3, 7]


def test_keep_only_leaves_chunks_that_were_added_since_the_others_were_listed() -> None:
    vectors = random_vectors(10)
    mirror = filled(vectors[:8])
    mirror.add(rows(vectors[8:], 9))
    mirror.keep_only([3], 8)
    assert sorted(ids(mirror.nearest(vectors[0], 10, None))) == [3, 9, 10]


def test_label_of_a_chunk_that_changed_before_its_vector_was_added_is_used() -> None:
    vectors = random_vectors(2)
    mirror = filled(vectors[:0])
    mirror.relabel([0, 1], "memories global")
    mirror.add([(0, vectors[0].tobytes(), "memories project:old", 0)])
    found = mirror.nearest(vectors[0], 10, None, [LabelSet("memories global".__eq__)])
    assert ids(found) == [0]


def test_move_that_another_search_has_read_since_is_not_undone() -> None:
    vectors = random_vectors(1)
    mirror = filled(vectors)
    mirror.move([(1, 3, 9)])
    mirror.move([(1, 2, 5)])
    in_project = [LabelSet(lambda _: True, frozenset({3}))]
    assert ids(mirror.nearest(vectors[0], 10, None, in_project)) == [1]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_mirror_takes_memory_for_its_vectors_only() -> None:
    """A block for 65,536 vectors was cleared, and so resident, if its memory had been used before."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    np.empty(31 << 20, np.int8)  # freed at once: from now on, malloc reuses memory of up to this size
    unused, behind_it = np.empty(30 << 20, np.int8), np.empty(1 << 20, np.int8)
    del unused
    vectors = random_vectors(1000, 256)
    before = resident_bytes()
    mirror = filled(vectors)
    assert resident_bytes() - before < 10_000 * mirror.size
    del behind_it  # without it, the freed memory would have gone back to the system


def test_mirror_without_memory_for_a_block_raises_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        Mirror(1, 1 << 44).add(rows(random_vectors(1)))


def test_dimensions_need_not_fill_a_register() -> None:
    vectors = random_vectors(3000, 100)
    mirror = filled(vectors)
    assert mirror.nearest(vectors[77], 1, None)[0][0] == 78


def test_search_runs_while_vectors_are_added_and_removed() -> None:
    vectors = random_vectors(30_000)
    mirror = filled(vectors[:2000])
    faults: list[BaseException] = []
    over = threading.Event()

    def search() -> None:
        try:
            while not over.is_set():
                found = mirror.nearest(vectors[0], 10, None)
                assert found[0][0] == 1
                # A chunk that is discarded after it was chosen is left out.
                assert len(found) == len({*ids(found)}) <= 10
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=search)
    thread.start()
    for start in range(2000, 30_000, 100):
        mirror.add(rows(vectors[start : start + 100], start + 1))
        mirror.discard(range(start - 50, start))
    over.set()
    thread.join()
    assert not faults


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "keep"]), st.integers(0, 30), st.integers(0, 30))))
def test_mirror_after_any_changes_equals_a_dictionary(changes: list[tuple[str, int, int]]) -> None:
    mirror, model = Mirror(1, 8), dict[int, Any]()
    for seed, (what, first, last) in enumerate(changes):
        if what == "add":
            vectors = random_vectors(max(0, last - first), 8, seed)
            mirror.add(rows(vectors, first))
            model |= dict(zip(range(first, last), vectors, strict=False))
        elif what == "discard":
            mirror.discard(range(first, last))
            model = {one: vector for one, vector in model.items() if not first <= one < last}
        else:
            mirror.keep_only(range(first, last), mirror.size)
            model = {one: vector for one, vector in model.items() if first <= one < last}
    query = random_vectors(1, 8, 99)[0]
    found = dict(mirror.nearest(query, 100, None))
    assert found.keys() == model.keys()
    for one, vector in model.items():
        assert found[one] == pytest.approx(float(vector @ query), abs=5e-3)


def test_nearest_returns_rows_with_a_fitting_label_only() -> None:
    import numpy as np

    chance = np.random.default_rng(8)
    some = chance.normal(size=(300, 32)).astype(np.float32)
    mirror = Mirror(1, 32)
    labels = ["sessions", "memories global", "memories agent:a"]
    mirror.add([(number, vector.tobytes(), labels[number % 3], number % 5) for number, vector in enumerate(some)])
    is_global = LabelSet(lambda label: label.endswith("global"))
    found = ids(mirror.nearest(some[1], 300, None, [is_global]))
    assert set(found) == {number for number in range(300) if number % 3 == 1}
    mirror.relabel([1], "memories agent:a")
    assert 1 not in ids(mirror.nearest(some[1], 300, None, [is_global]))
    in_project = LabelSet(lambda label: label == "sessions", frozenset({2}))
    found = ids(mirror.nearest(some[1], 300, None, [is_global, in_project]))
    expected = {number for number in range(300) if number % 3 == 1 or (number % 3 == 0 and number % 5 == 2)} - {1}
    assert set(found) == expected


def test_moved_chunk_is_found_in_its_new_project_only() -> None:
    vectors = random_vectors(20)
    mirror = filled(vectors[:10])
    everything = LabelSet(lambda label: True, frozenset({7}))
    mirror.move([(3, 7, 1), (15, 7, 2)])  # the second one has no vector yet
    assert ids(mirror.nearest(vectors[2], 20, None, [everything])) == [3]
    mirror.add(rows(vectors[10:], 11))
    assert set(ids(mirror.nearest(vectors[2], 20, None, [everything]))) == {3, 15}
    mirror.move([(3, 0, 3)])
    assert ids(mirror.nearest(vectors[2], 20, None, [everything])) == [15]
    assert mirror.moves_seen == 3
