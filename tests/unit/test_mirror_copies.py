"""Copies of few selected vectors in memory: a second search makes one, and none is used after a change."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clankersd.index.mirror import COPIED_BYTES_PER_VECTOR, MAX_COPIED_BYTES, LabelSet, Mirror

DIMS, COUNT, PROJECTS = 64, 5000, 10
K = 20
LABELS = ["sessions", "memories global"]
IN_PROJECT = [LabelSet(lambda label: True, frozenset({3}))]
SESSIONS = [LabelSet(lambda label: label == "sessions", frozenset({3}))]


def random_vectors(count: int, seed: int = 0, dims: int = DIMS) -> Any:
    points = np.random.default_rng(seed).normal(size=(count, dims))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def filled(vectors: Any) -> Mirror:
    mirror = Mirror(1, vectors.shape[1])
    places = enumerate(vectors)
    mirror.add([(place, one.tobytes(), LABELS[place // PROJECTS % 2], place % PROJECTS) for place, one in places])
    return mirror


VECTORS = random_vectors(COUNT)
QUERY = random_vectors(1, seed=1)[0]


def search(mirror: Mirror, labels: list[LabelSet]) -> list[int]:
    """The nearest, found three times: without a copy, as one is made, and by it."""
    found = [[chunk for chunk, _ in mirror.nearest(QUERY, K, None, labels)] for _ in range(3)]
    assert found[0] == found[1] == found[2]
    return found[0]


def expected(chunks: Any) -> list[int]:
    return sorted(chunks, key=lambda chunk: -float(VECTORS[chunk] @ QUERY))[:K]


def is_copied(mirror: Mirror, labels: list[LabelSet]) -> bool:
    return mirror.eligible(None, labels).copied is not None


def test_copy_finds_what_is_found_without_it() -> None:
    mirror = filled(VECTORS)
    plain = mirror.nearest(QUERY, K, None, IN_PROJECT)
    assert search(mirror, IN_PROJECT) == expected(range(3, COUNT, PROJECTS))
    assert is_copied(mirror, IN_PROJECT)
    copied = mirror.nearest(QUERY, K, None, IN_PROJECT)
    assert [similarity for _, similarity in copied] == pytest.approx([one for _, one in plain], abs=1e-5)
    everything = mirror.nearest(QUERY, 2 * COUNT, None, IN_PROJECT)
    assert sorted(chunk for chunk, _ in everything) == [*range(3, COUNT, PROJECTS)]


def test_copy_is_of_one_selection() -> None:
    mirror = filled(VECTORS)
    search(mirror, IN_PROJECT)
    other = [LabelSet(lambda label: True, frozenset({4}))]
    assert not is_copied(mirror, other)
    assert search(mirror, other) == expected(range(4, COUNT, PROJECTS))
    assert search(mirror, SESSIONS) == expected(range(3, COUNT, 2 * PROJECTS))


def test_copy_of_equal_vectors_has_the_order_in_which_they_were_added() -> None:
    mirror = filled(np.repeat(VECTORS[:1], COUNT, axis=0))
    assert search(mirror, IN_PROJECT) == [*range(3, COUNT, PROJECTS)][:K]


def test_changes_are_found_after_a_copy_was_made() -> None:
    mirror, present = filled(VECTORS[: COUNT - 100]), {*range(3, COUNT - 100, PROJECTS)}
    best = search(mirror, IN_PROJECT)
    mirror.discard(best[:3])
    present -= {*best[:3]}
    assert search(mirror, IN_PROJECT) == expected(present)
    mirror.add([(chunk, VECTORS[chunk].tobytes(), LABELS[0], 3) for chunk in range(COUNT - 100, COUNT)])
    present |= {*range(COUNT - 100, COUNT)}
    assert search(mirror, IN_PROJECT) == expected(present)
    mirror.move([(best[4], 5, 1)])
    present -= {best[4]}
    assert search(mirror, IN_PROJECT) == expected(present)
    sessions = {chunk for chunk in present if chunk >= COUNT - 100 or chunk // PROJECTS % 2 == 0}
    assert search(mirror, SESSIONS) == expected(sessions)
    last = expected(sessions)[-1]
    mirror.relabel([last], LABELS[1])
    assert search(mirror, SESSIONS) == expected(sessions - {last})
    mirror.keep_only(expected(present)[:7], mirror.size)
    assert search(mirror, IN_PROJECT) == expected(present)[:7]


def test_chunk_is_replaced_in_a_copy() -> None:
    mirror = filled(VECTORS)
    best = search(mirror, IN_PROJECT)[0]
    mirror.add([(best, (-VECTORS[best]).tobytes(), LABELS[0], 3)])
    assert best not in search(mirror, IN_PROJECT)


def test_chunk_that_is_discarded_after_its_copy_was_chosen_is_not_found() -> None:
    mirror = filled(VECTORS)
    best = search(mirror, IN_PROJECT)
    chosen = mirror.eligible(None, IN_PROJECT)
    assert chosen.copied is not None
    mirror.discard(best[:1])
    found = [chunk for chunk, _ in mirror.nearest_rows(QUERY, K, chosen)]
    assert found[:-1] == best[1:]


def test_large_selection_is_not_copied() -> None:
    mirror = filled(VECTORS)
    half = [LabelSet(lambda label: True, frozenset(range(PROJECTS // 2)))]
    search(mirror, half)
    assert not is_copied(mirror, half)
    assert COUNT // 2 * DIMS * 4 > COUNT * COPIED_BYTES_PER_VECTOR
    many = filled(random_vectors(60_000, dims=DIMS))
    search(many, IN_PROJECT)
    assert not is_copied(many, IN_PROJECT)
    assert 60_000 // PROJECTS * DIMS * 4 > MAX_COPIED_BYTES


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "move", "relabel"]), st.integers(0, 400)), max_size=12))
def test_copies_after_any_changes_equal_a_dictionary(changes: list[tuple[str, int]]) -> None:
    mirror, model = filled(VECTORS[:2000]), {}
    for chunk in range(2000):
        model[chunk] = (LABELS[chunk // PROJECTS % 2], chunk % PROJECTS)
    for position, (what, number) in enumerate(changes):
        chunks = [10 * number + 3, 10 * number + 4]
        known = [chunk for chunk in chunks if chunk in model]
        if what == "add":
            mirror.add([(chunk, VECTORS[chunk].tobytes(), LABELS[0], 3) for chunk in chunks])
            model |= dict.fromkeys(chunks, (LABELS[0], 3))
        elif what == "discard":
            mirror.discard(chunks)
            model = {chunk: one for chunk, one in model.items() if chunk not in chunks}
        elif what == "move":
            mirror.move([(chunk, 3, position) for chunk in known])
            model |= {chunk: (model[chunk][0], 3) for chunk in known}
        else:
            mirror.relabel(chunks, LABELS[1])
            model |= {chunk: (LABELS[1], model[chunk][1]) for chunk in known}
        in_project = {chunk for chunk, (_, project) in model.items() if project == 3}
        assert search(mirror, IN_PROJECT) == expected(in_project)
        assert search(mirror, SESSIONS) == expected({chunk for chunk in in_project if model[chunk][0] == LABELS[0]})


def test_copy_made_during_a_change_is_not_used_after_it() -> None:
    mirror, present = filled(VECTORS[:2000]), {*range(3, 2000, PROJECTS)}
    faults: list[BaseException] = []
    over = threading.Event()

    def keep_searching() -> None:
        try:
            while not over.is_set():
                found = mirror.nearest(QUERY, K, None, IN_PROJECT)
                assert len(found) == len({chunk for chunk, _ in found}) <= K  # fewer if one is removed meanwhile
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=keep_searching) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for first in range(2000, COUNT, 50):
            mirror.add([(one, VECTORS[one].tobytes(), LABELS[0], one % PROJECTS) for one in range(first, first + 50)])
            present |= {*range(first + 3, first + 50, PROJECTS)}
            gone = expected(present)[:2]
            mirror.discard(gone)
            present -= {*gone}
            assert search(mirror, IN_PROJECT) == expected(present)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not faults
