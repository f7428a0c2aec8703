"""Ranking: what neighbours tell, who is named, how old it is, and how alike."""

import math
from dataclasses import fields
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.search.keyword import KeywordMatches, Occurrence, Term
from clankersd.search.ranking import (
    ASSISTANT_FACTOR,
    SPEAKER_WEIGHT,
    Candidate,
    apply_recency,
    diversify,
    named_speakers,
    rank,
    without_names,
)
from clankersd.search.rows import ChunkRow
from clankersd.search.turn_scoring import (
    FADE_TOKENS,
    SIMILARITY_WEIGHTS,
    WEIGHTS_AFTER,
    WEIGHTS_BEFORE,
    score_turns,
    score_turns_without_numpy,
    smooth_similarities,
)

DAY = 86_400_000


def term(word: str = "word", frequency: int = 1, chunks: int = 1000) -> Term:
    return Term(word, word, frequency, chunks)


def place(
    chunk: int, turn: int | None, session: str | None = "s", tokens: int = 40, column: str = "text"
) -> Occurrence:
    return chunk, column, session, turn, tokens


def scores(*found: tuple[Term, list[Occurrence]], average: float = 50) -> dict[Any, float]:
    """By turn, or by chunk where there is no turn."""
    scored = score_turns(KeywordMatches(list(found)), average)
    assert scored is not None
    keys = [scored.turn_of(key) or -key for key in scored.keys.tolist()]
    assert scored.scores.tolist() == sorted(scored.scores.tolist(), reverse=True)
    return dict(zip(keys, scored.scores.tolist(), strict=True))


def test_no_words_are_no_scores() -> None:
    assert score_turns(KeywordMatches(), 50) is None
    assert score_turns(KeywordMatches([(term(), [])]), 50) is None
    assert score_turns_without_numpy(KeywordMatches([(term(), [])]), 50) is None


_places = st.builds(
    place,
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(0, 8)),
    st.sampled_from([None, "s", "t"]),
    st.sampled_from([1, 40, 400]),
    st.sampled_from(["text", "header"]),
)


@given(st.lists(st.lists(_places, max_size=20), max_size=3), st.sampled_from([10.0, 90.0]))
def test_scores_without_numpy_are_the_same(found: list[list[Occurrence]], average: float) -> None:
    # A chunk has one session, turn and length, whatever word stands in it.
    facts: dict[int, Occurrence] = {}
    words = KeywordMatches()
    for number, places in enumerate(found):
        alike = [(one[0], one[1], *facts.setdefault(one[0], one)[2:]) for one in places]
        words.occurrences.append((term(f"word{number}", frequency=number + 1), alike))
    ours, theirs = score_turns_without_numpy(words, average), score_turns(words, average)
    assert (ours is None) == (theirs is None)
    if ours is None or theirs is None:
        return
    by_key = dict(zip(ours.keys.tolist(), ours.scores.tolist(), strict=True))
    assert by_key == pytest.approx(dict(zip(theirs.keys.tolist(), theirs.scores.tolist(), strict=True)))
    assert (ours.chunk_by_key, ours.sessions) == (theirs.chunk_by_key, theirs.sessions)


def test_a_match_tells_of_its_neighbours_less_the_farther_and_more_after_than_before() -> None:
    found = scores((term(), [place(1, 10)]))
    own = found["s", 10]
    assert set(found) == {("s", turn) for turn in range(7, 14)}
    for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
        assert found["s", 10 + distance] == pytest.approx(own * before)  # the match came before this turn
        assert found["s", 10 - distance] == pytest.approx(own * after)
    assert own > found["s", 11] > found["s", 12] > found["s", 13]
    assert found["s", 11] > found["s", 9]


def test_a_turn_before_the_first_is_none() -> None:
    assert min(turn for _, turn in scores((term(), [place(1, 1)]))) >= 0


def test_nothing_crosses_from_one_session_to_another() -> None:
    found = scores((term(), [place(1, 5, "a"), place(2, 6, "b")]))
    assert found["a", 6] < found["b", 6]
    assert {session for session, _ in found} == {"a", "b"}


def test_a_long_neighbour_fades() -> None:
    short = scores((term(), [place(1, 10, tokens=FADE_TOKENS)]), average=4 * FADE_TOKENS)
    long = scores((term(), [place(1, 10, tokens=4 * FADE_TOKENS)]), average=4 * FADE_TOKENS)
    assert short["s", 10] == pytest.approx(long["s", 10])  # as matches they are alike
    assert long["s", 11] == pytest.approx(short["s", 11] / 4)


def test_a_neighbours_word_does_not_add_to_ones_own_but_another_word_does() -> None:
    twice = scores((term("a"), [place(1, 10), place(2, 11)]))
    once = scores((term("a"), [place(1, 10)]))
    assert twice["s", 10] == pytest.approx(once["s", 10])
    both = scores((term("a"), [place(1, 10)]), (term("b"), [place(2, 11)]))
    assert both["s", 10] > once["s", 10]


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    found = scores((term("rare", 2), [place(1, 10, "a")]), (term("common", 300), [place(2, 10, "b")]))
    assert found["a", 10] > found["b", 10] > 0


def test_a_word_in_more_than_half_of_all_chunks_still_counts() -> None:
    assert scores((term("everywhere", 999), [place(1, 10)]))["s", 10] > 0


def test_more_often_is_better_and_longer_is_worse() -> None:
    often = scores((term(), [place(1, 10, "a"), place(1, 10, "a"), place(2, 10, "b")]))
    assert often["a", 10] > often["b", 10]
    long = scores((term(), [place(1, 10, "a", tokens=400), place(2, 10, "b", tokens=60)]))
    assert long["a", 10] < long["b", 10]


def test_a_word_in_the_header_counts_for_its_chunk_alone() -> None:
    found = scores((term("may"), [place(1, 10, column="header")]))
    assert {turn for (_, turn), score in found.items() if score > 0} == {10}


def test_a_chunk_without_a_turn_stands_for_itself() -> None:
    found = scores((term(), [place(7, None, None), place(8, None, "s")]))
    assert set(found) == {7, 8}


def test_of_a_long_messages_chunks_the_best_stands_for_its_turn() -> None:
    scored = score_turns(KeywordMatches([(term(), [place(4, 3), place(5, 3), place(5, 3), place(6, 3)])]), 50)
    assert scored is not None
    [chunk] = scored.chunk_by_key.values()
    assert chunk == 5


# --- Similarity


def test_similarity_is_averaged_with_the_neighbours() -> None:
    near = {("s", 1): (11, 10), ("s", 2): (12, 10), ("s", 4): (14, 10)}
    found = smooth_similarities({13: 0.5}, {13: ("s", 3)}, near, {11: 0.9, 12: 0.1, 14: 0.7, 13: 0.5})
    one, two = SIMILARITY_WEIGHTS
    assert found[13] == pytest.approx((0.5 + one * (0.1 + 0.7) + two * 0.9) / (1 + 2 * one + two))


def test_a_long_neighbour_tells_less_and_one_without_a_vector_nothing() -> None:
    near = {("s", 2): (12, 10 * FADE_TOKENS), ("s", 4): (14, 10)}
    found = smooth_similarities({13: 0.5}, {13: ("s", 3)}, near, {12: 1.0, 13: 0.5})
    weight = SIMILARITY_WEIGHTS[0] / 10
    assert found[13] == pytest.approx((0.5 + weight) / (1 + weight))


def test_a_chunk_without_a_turn_keeps_its_similarity() -> None:
    assert smooth_similarities({1: 0.5}, {}, {("s", 1): (2, 10)}, {1: 0.5, 2: 1.0}) == {1: 0.5}


# --- Fusion


def row(number: int = 1, role: str | None = "user", text: str = "text", created_at: int = 0) -> ChunkRow:
    values: dict[str, Any] = dict.fromkeys(column.name for column in fields(ChunkRow))
    return ChunkRow(**values | {"id": number, "role": role, "text": text, "created_at": created_at})


def ranked(
    words: dict[int, float],
    similar: dict[int, float],
    weight: float,
    names: set[str] = frozenset(),  # type: ignore[assignment]
    **roles: str,
) -> dict[int, Candidate[ChunkRow]]:
    rows = {chunk: row(chunk, roles.get(f"c{chunk}", "user")) for chunk in {*words, *similar}}
    return {one.row.id: one for one in rank(rows, words, similar, weight, set(names))}


def test_both_halves_are_scaled_and_weighed() -> None:
    found = ranked({1: 4.0, 2: 1.0}, {1: 0.2, 2: 0.6, 3: 0.4}, 0.5)
    assert found[1].score == pytest.approx(0.5)
    assert found[2].score == pytest.approx(0.5 * 0.25 + 0.5)
    assert found[3].score == pytest.approx(0.5 * 0.5)
    assert found[1].components == pytest.approx({"keyword": 1.0, "vector": 0.0})
    assert [found[chunk].is_keyword_match for chunk in (1, 2, 3)] == [True, True, False]


def test_without_a_weight_only_words_count() -> None:
    found = ranked({1: 4.0, 2: 1.0}, {2: 1.0}, 0.0)
    assert (found[1].score, found[2].score) == pytest.approx((1.0, 0.25))
    assert "vector" not in found[1].components


def test_the_only_one_similar_is_the_best_not_the_worst() -> None:
    assert ranked({}, {1: 0.8}, 1.0)[1].score == pytest.approx(1.0)


def test_an_assistants_words_count_less_than_its_users() -> None:
    found = ranked({1: 1.0, 2: 1.0}, {}, 0.0, c2="assistant")
    assert found[2].score == pytest.approx(found[1].score * ASSISTANT_FACTOR)


def test_who_is_named_is_preferred() -> None:
    found = ranked({1: 1.0, 2: 1.0}, {}, 0.0, {"ada"}, c1="Ada Lovelace", c2="Grace")
    assert found[1].score == pytest.approx(1.0)
    assert found[2].score == pytest.approx(1 / (1 + SPEAKER_WEIGHT))
    assert found[1].components["speaker"] == 1.0


@given(
    st.dictionaries(st.integers(1, 30), st.floats(1e-6, 1e6)),
    st.dictionaries(st.integers(1, 30), st.floats(-1, 1)),
    st.floats(0, 1),
    st.sampled_from([frozenset(), frozenset({"ada"})]),
)
def test_every_score_is_between_0_and_1(
    words: dict[int, float], similar: dict[int, float], weight: float, names: frozenset[str]
) -> None:
    for candidate in ranked(words, similar, weight, set(names)).values():
        assert 0 <= candidate.score <= 1 + 1e-9
        assert math.isfinite(candidate.score)


def test_names_are_words_of_the_query_that_somebody_is_called() -> None:
    speakers = {"Ada Lovelace", "user", "assistant", "grace"}
    assert named_speakers("what did ada's user say to GRACE?", speakers) == {"ada", "grace"}
    assert named_speakers("what did the user say", speakers) == set()


def test_the_query_without_names_says_what_and_not_who() -> None:
    assert without_names("What did Ada's team ship?", {"ada"}) == "What did team ship?"
    assert without_names("Ada", {"ada"}) == "Ada"
    assert without_names("Adam's apple", {"ada"}) == "Adam's apple"
    assert without_names("plain", set()) == "plain"


# --- Age and likeness


def test_recency_halves_with_each_half_life() -> None:
    now = 1_000 * DAY
    ages = [0, 7, 14, 70]
    found = [Candidate(row(age, created_at=now - age * DAY), 0.8) for age in ages]
    apply_recency(found, now, 7)
    for candidate, age in zip(found, ages, strict=True):
        assert candidate.score == pytest.approx(0.8 * 0.5 ** (age / 7))
        assert candidate.components["recency"] == pytest.approx(0.5 ** (age / 7))


def test_what_is_dated_in_the_future_is_new_not_better() -> None:
    [future] = [Candidate(row(created_at=2 * DAY), 0.8)]
    apply_recency([future], DAY, 1)
    assert future.score == pytest.approx(0.8)


def candidates(*given: tuple[float, str]) -> list[Candidate[ChunkRow]]:
    numbers = count(1)
    return [Candidate(row(next(numbers), text=text), score) for score, text in given]


def test_diversity_puts_a_different_one_before_a_like_one() -> None:
    found = candidates((1.0, "red green blue"), (0.9, "red green blue"), (0.6, "cat dog"))
    assert [one.row.id for one in diversify(found, 0.0)] == [1, 2, 3]
    assert [one.row.id for one in diversify(found, 0.5)] == [1, 3, 2]


def test_each_next_one_is_the_best_by_maximal_marginal_relevance() -> None:
    found = candidates((0.9, "a b c d"), (0.8, "a b c x"), (0.7, "a y z w"), (0.65, "p q"), (0.1, "m"))
    wanted = brute_force_mmr(found, 0.4)
    assert [one.row.id for one in diversify(found, 0.4)] == wanted
    assert wanted != [1, 2, 3, 4, 5]


@given(st.lists(st.tuples(st.floats(0, 1), st.text("abc ", max_size=6)), max_size=8), st.floats(0, 1))
def test_diversity_loses_and_doubles_none(given: list[tuple[float, str]], diversity: float) -> None:
    found = candidates(*given)
    assert sorted(one.row.id for one in diversify(found, diversity)) == [one.row.id for one in found]


def brute_force_mmr(found: list[Candidate[ChunkRow]], diversity: float) -> list[int]:
    def likeness(one: Candidate[ChunkRow], other: Candidate[ChunkRow]) -> float:
        mine, theirs = set(one.row.text.split()), set(other.row.text.split())
        return len(mine & theirs) / len(mine | theirs)

    chosen: list[Candidate[ChunkRow]] = []
    while len(chosen) < len(found):
        left = [one for one in found if one not in chosen]
        chosen.append(
            max(
                left,
                key=lambda one: (
                    (1 - diversity) * one.score
                    - diversity * max((likeness(one, other) for other in chosen), default=0.0)
                ),
            )
        )
    return [one.row.id for one in chosen]
