"""Ranking: scores of turns, fusion, speakers, recency and diversity."""

import math
import random
from dataclasses import fields
from itertools import count
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.db.engine import HEADER, OCCURRENCES_PER_CHUNK
from clankersd.index.tokenize import MAX_QUERY_CHARS, WORD
from clankersd.search import diversity as diversity_module
from clankersd.search import near_duplicates
from clankersd.search import speakers as speakers_module
from clankersd.search.diversity import diversify
from clankersd.search.keyword_matches import KeywordMatches, Places
from clankersd.search.near_duplicates import collapse_near_duplicates
from clankersd.search.phrases import find_phrase, phrases_of, raise_phrases
from clankersd.search.ranking import (
    ASSISTANT_FACTOR,
    LONG_TOKENS,
    SHORT_TOKENS,
    Candidate,
    apply_recency,
    assistant_factor,
    best_per_group,
    collapse_duplicates,
    fusion_weight,
    rank,
)
from clankersd.search.rows import ChunkRow
from clankersd.search.speakers import SPEAKER_WEIGHT, Speakers, find_speakers, possible_names, without_names
from clankersd.search.term_index import Postings, Spelling, Term, TermMatches
from clankersd.search.turn_scoring import (
    FADE_TOKENS,
    OPENING_OFFSETS,
    WEIGHTS_AFTER,
    WEIGHTS_BEFORE,
    score_turns,
    score_turns_without_numpy,
)

DAY = 86_400_000


def term(word: str = "word", frequency: int = 1, chunks: int = 1000) -> Term:
    return Term(word, (Spelling(word, word),), frequency, chunks)


Place = tuple[int, str | None, int | None, int]
"""A chunk, its session, its turn and its token count."""

Found = tuple[Place, int]
"""An occurrence: the place of its chunk, and its offset."""

ALL = 1000

FAR = 200


def occurrence(
    chunk: int, turn: int | None, session: str | None = "s", tokens: int = 40, offset: int = FAR
) -> Found:  # fmt: skip
    return (chunk, session, turn, tokens), offset


def matches(*found: tuple[Term, list[Found]]) -> KeywordMatches:
    """A chunk has one session, turn and length, whatever word stands in it."""
    by_chunk = {place[0]: place for _, occurrences in reversed(found) for place, _ in reversed(occurrences)}
    placed = sorted(by_chunk.values(), key=lambda place: place[0])
    places = Places()
    places.add(
        [place[0] for place in placed],
        [place[1] or "" for place in placed],
        [-1 if place[2] is None else place[2] for place in placed],
        [place[3] for place in placed],
    )
    by_term = [(one, sorted(place[0] * OCCURRENCES_PER_CHUNK + at for place, at in given)) for one, given in found]
    return KeywordMatches([TermMatches(one, Postings.of(given)) for one, given in by_term if given], places)


def scores(*found: tuple[Term, list[Found]]) -> dict[Any, float]:
    """By turn, or by chunk where there is no turn."""
    scored = score_turns(matches(*found), ALL)
    assert scored is not None
    by_key = scored.scores_at(scored.ranked)
    by_key = {key: by_key[key] for key in scored.ranked}
    assert list(by_key.values()) == sorted(scored.scores, reverse=True)
    turns = scored.turns_of(scored.ranked)
    return {turns.get(key, -key): score for key, score in by_key.items()}


def test_turn_scores_of_no_occurrences_are_none() -> None:
    assert score_turns(KeywordMatches(), ALL) is None


_occurrences = st.builds(
    occurrence,
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(0, 8)),
    st.sampled_from([None, "s", "t"]),
    st.sampled_from([1, 40, 400]),
    st.sampled_from([0, 3, 7, 30, 31, 4095, HEADER]),
)


@given(st.lists(st.lists(_occurrences, max_size=20), max_size=3))
def test_turn_scores_are_the_same_without_numpy(found: list[list[Found]]) -> None:
    given = [(term(f"word{number}", frequency=number + 1), places) for number, places in enumerate(found)]
    words = matches(*given)
    theirs = score_turns(words, ALL)
    if theirs is None:
        assert not words.places.chunks
        return
    ours = score_turns_without_numpy(words, ALL)
    assert ours.keys == theirs.keys.tolist()
    assert sorted(ours.ranked) == sorted(theirs.ranked) == ours.keys
    assert ours.scores == pytest.approx(theirs.scores)
    assert (ours.matched_keys, ours.chunks) == (theirs.matched_keys.tolist(), theirs.chunks.tolist())


def test_turn_scores_spread_to_neighbours_less_the_farther_and_more_to_later_turns() -> None:
    found = scores((term(), [occurrence(1, 10)]))
    own = found["s", 10]
    assert set(found) == {("s", turn) for turn in range(7, 14)}
    for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
        assert found["s", 10 + distance] == pytest.approx(own * before)  # the match came before this turn
        assert found["s", 10 - distance] == pytest.approx(own * after)
    assert own > found["s", 11] > found["s", 12] > found["s", 13]
    assert found["s", 11] > found["s", 9]


def test_turn_scores_have_no_turn_before_the_first() -> None:
    assert min(turn for _, turn in scores((term(), [occurrence(1, 1)]))) >= 0


def test_turn_scores_do_not_spread_to_another_session() -> None:
    found = scores((term(), [occurrence(1, 5, "a"), occurrence(2, 6, "b")]))
    assert found["a", 6] < found["b", 6]
    assert {session for session, _ in found} == {"a", "b"}


def test_turn_scores_from_a_long_neighbour_fade() -> None:
    found = scores((term(), [occurrence(1, 10, tokens=4 * FADE_TOKENS)]))
    assert found["s", 11] == pytest.approx(found["s", 10] * WEIGHTS_BEFORE[0] / 4)


def test_turn_scores_add_up_over_terms_but_not_over_neighbours_with_the_same_term() -> None:
    found = scores(
        (term("a"), [occurrence(1, 10), occurrence(2, 11), occurrence(3, 10, "t")]),
        (term("b"), [occurrence(4, 11, "t")]),
    )
    assert found["s", 10] == pytest.approx(found["s", 11])  # the neighbour's match adds nothing
    assert found["t", 10] > found["s", 10]


def test_turn_scores_of_a_rare_term_are_higher() -> None:
    found = scores((term("rare", 2), [occurrence(1, 10, "a")]), (term("common", 300), [occurrence(2, 10, "b")]))
    assert found["a", 10] > found["b", 10] > 0


def test_turn_scores_of_a_generic_word_are_lower() -> None:
    found = scores((term("conversation"), [occurrence(1, 10, "a")]), (term("login"), [occurrence(2, 10, "b")]))
    assert found["a", 10] < found["b", 10]


def test_turn_scores_of_a_term_in_nearly_every_chunk_are_positive() -> None:
    assert scores((term("everywhere", 999), [occurrence(1, 10)]))["s", 10] > 0


def test_turn_scores_rise_with_occurrences_and_fall_with_length() -> None:
    often = scores((term(), [occurrence(1, 10, "a"), occurrence(1, 10, "a"), occurrence(2, 10, "b")]))
    assert often["a", 10] > often["b", 10]
    long = scores((term(), [occurrence(1, 10, "a", tokens=400), occurrence(2, 10, "b", tokens=60)]))
    assert long["a", 10] < long["b", 10]


def test_turn_scores_rise_if_the_text_begins_with_the_term() -> None:
    found = scores((term(), [occurrence(1, 10, "a", offset=OPENING_OFFSETS - 1), occurrence(2, 10, "b")]))
    assert found["a", 10] > found["b", 10]


def test_turn_scores_rise_if_words_stand_together_as_in_the_query() -> None:
    found = scores(
        (term("disk"), [occurrence(1, 10, "a", offset=50), occurrence(2, 10, "b", offset=50)]),
        (term("full"), [occurrence(1, 10, "a", offset=51), occurrence(2, 10, "b", offset=90)]),
    )
    assert found["a", 10] > found["b", 10]


def test_turn_scores_of_a_header_do_not_spread() -> None:
    found = scores((term("may"), [occurrence(1, 10, offset=HEADER)]))
    assert {turn for (_, turn), score in found.items() if score > 0} == {10}


def test_turn_scores_of_chunks_without_a_turn_are_their_own() -> None:
    found = scores((term(), [occurrence(7, None, None), occurrence(8, None, "s")]))
    assert set(found) == {7, 8}


def test_turn_scores_represent_a_long_message_by_its_best_chunk() -> None:
    one, other = term("one"), term("other")
    words = matches((one, [occurrence(4, 3), occurrence(5, 3)]), (other, [occurrence(5, 3), occurrence(6, 3)]))
    scored = score_turns(words, ALL)
    assert scored is not None
    assert scored.chunks.tolist() == [5]


# --- Fusion


def row(number: int = 1, role: str | None = "user", text: str = "text", created_at: int = 0) -> ChunkRow:
    values: dict[str, Any] = dict.fromkeys(column.name for column in fields(ChunkRow))
    known = {"id": number, "role": role, "text": text, "created_at": created_at, "position": 0, "tokens": 10}
    return ChunkRow(**values | known)


def ranked(
    words: dict[int, float],
    similar: dict[int, float],
    weight: float,
    names: set[str] = frozenset(),  # type: ignore[assignment]
    **roles: str,
) -> dict[int, Candidate[ChunkRow]]:
    rows = {chunk: row(chunk, roles.get(f"c{chunk}", "user")) for chunk in {*words, *similar}}
    return {one.row.id: one for one in rank(rows, words, words.keys(), similar, weight, Speakers(frozenset(names)))}


def test_rank_scales_and_weighs_keyword_and_vector_scores() -> None:
    found = ranked({1: 4.0, 2: 1.0}, {1: 0.2, 2: 0.6, 3: 0.4}, 0.5)
    assert found[1].score == pytest.approx(0.5)
    assert found[2].score == pytest.approx(0.5 * 0.25 + 0.5)
    assert found[3].score == pytest.approx(0.5 * 0.5)
    assert found[1].components == pytest.approx({"keyword": 1.0, "vector": 0.0})
    assert [found[chunk].is_keyword_match for chunk in (1, 2, 3)] == [True, True, False]


def test_rank_judges_a_text_without_a_vector_by_its_words() -> None:
    found = ranked({1: 4.0, 2: 1.0}, {2: 0.6, 3: 0.4}, 0.5)
    assert found[1].score == pytest.approx(1.0)
    assert found[1].components == {"keyword": 1.0}
    assert found[2].score == pytest.approx(0.5 * 0.25 + 0.5)


def test_rank_without_a_vector_weight_uses_keyword_scores_alone() -> None:
    found = ranked({1: 4.0, 2: 1.0}, {2: 1.0}, 0.0)
    assert (found[1].score, found[2].score) == pytest.approx((1.0, 0.25))
    assert "vector" not in found[1].components


def test_rank_gives_a_single_similar_chunk_the_full_score() -> None:
    assert ranked({}, {1: 0.8}, 1.0)[1].score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("tokens", "position", "factor"),
    [
        (5, 0, 1.0),
        (SHORT_TOKENS, 0, 1.0),
        (LONG_TOKENS, 0, ASSISTANT_FACTOR),
        (2 * LONG_TOKENS, 0, ASSISTANT_FACTOR),
        (5, 3, ASSISTANT_FACTOR),  # the last chunk of a long message
    ],
)
def test_rank_lowers_long_texts_of_the_assistant(tokens: int, position: int, factor: float) -> None:
    answer = row(1, "assistant")
    answer.tokens, answer.position = tokens, position
    assert assistant_factor(answer) == pytest.approx(factor)
    [candidate] = rank({1: answer}, {1: 1.0}, {1}, {}, 0.0, Speakers())
    assert candidate.score == pytest.approx(factor)


def test_rank_returns_a_message_once_by_the_chunk_that_matches_best() -> None:
    rows = {chunk: row(chunk) for chunk in (1, 2, 3)}
    rows[1].session_id = rows[2].session_id = "s"
    rows[1].turn = rows[2].turn = 3
    found = rank(rows, {1: 4.0}, {1}, {1: 0.5, 2: 0.6, 3: 0.4}, 0.5, Speakers())
    assert {one.row.id: one.score for one in found} == pytest.approx({1: 0.5 + 0.5, 3: 0.0})


def test_rank_does_not_scale_messages_by_tool_calls() -> None:
    found = ranked({1: 0.4, 2: 0.8}, {1: 0.5, 2: 0.9, 3: 0.1}, 0.5, c2="tool")
    assert found[1].components == {"keyword": 1.0, "vector": 1.0}
    assert found[2].score == 1.0 > found[1].score
    assert found[2].components["keyword"] == 1.0


def test_rank_of_tool_calls_alone_is_scaled_by_them() -> None:
    found = ranked({1: 0.4, 2: 0.8}, {1: 0.5, 2: 0.9}, 0.5, c1="tool", c2="tool")
    assert (found[2].components["keyword"], found[1].components["keyword"]) == (1.0, 0.5)


def test_rank_prefers_a_named_speaker() -> None:
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
def test_rank_scores_between_0_and_1(
    words: dict[int, float], similar: dict[int, float], weight: float, names: frozenset[str]
) -> None:
    for candidate in ranked(words, similar, weight, set(names)).values():
        assert 0 <= candidate.score <= 1 + 1e-9
        assert math.isfinite(candidate.score)


def test_fusion_weight_rises_with_the_agreement_of_keyword_search() -> None:
    similar = {1: 0.9, 2: 0.8}
    assert fusion_weight(0.4, 0.8, {1: 2.0, 2: 2.0}, similar, {1, 2}) == pytest.approx(0.8)
    assert fusion_weight(0.4, 0.8, {1: 2.0, 3: 2.0}, similar, {1, 2}) == pytest.approx(0.6)
    assert fusion_weight(0.4, 0.8, {3: 2.0}, similar, {1, 2}) == pytest.approx(0.4)


def test_fusion_weight_is_high_for_texts_outside_conversations_and_without_keyword_matches() -> None:
    assert fusion_weight(0.4, 0.8, {3: 2.0}, {1: 0.9}, set()) == pytest.approx(0.8)
    assert fusion_weight(0.4, 0.8, {}, {1: 0.9}, {1}) == pytest.approx(0.8)


def test_speakers_are_found_by_words_of_the_query_that_name_them() -> None:
    speakers = {"Ada Lovelace", "user", "assistant", "grace", "Alan"}
    found = find_speakers("what did ada's user say to GRACE?", speakers)
    assert found == {"Ada Lovelace": {"ada"}, "grace": {"grace"}}
    assert find_speakers("what did the user say", speakers) == {}


def test_speakers_are_looked_for_with_one_reading_of_a_long_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query was read again for each speaker: one of a megabyte held the daemon for half a minute."""
    read = []

    class Counted:
        def findall(self, text: str) -> list[str]:
            read.append(len(text))
            return WORD.findall(text)

    monkeypatch.setattr(speakers_module, "WORD", Counted())
    speakers = {f"speaker{number}" for number in range(1_000)}
    long = f"speaker7 said {'word ' * 200_000} to speaker8"
    assert find_speakers(long, speakers) == {"speaker7": {"speaker7"}, "speaker8": {"speaker8"}}
    assert 0 < sum(read) < 2 * MAX_QUERY_CHARS + sum(map(len, speakers))
    assert without_names(long, {"speaker7"}) == long


def test_possible_names_are_written_with_a_capital() -> None:
    assert possible_names("What did Ada tell Grace Hopper about her compiler?") == ["ada", "grace", "hopper"]
    assert possible_names("why does the export drop a row") == []
    assert len(possible_names("Traceback: " + " ".join(f"Error{number}" for number in range(500)))) == 4


def test_query_without_names_stays_readable() -> None:
    assert without_names("What did Ada's team ship?", {"ada"}) == "What did team ship?"
    assert without_names("Ada", {"ada"}) == "Ada"
    assert without_names("Adam's apple", {"ada"}) == "Adam's apple"
    assert without_names("plain", set()) == "plain"


# --- Recency, diversity and groups


def test_texts_with_the_whole_query_are_raised() -> None:
    found = candidates((0.4, "It says Connection   refused by\nbroker, again"), (0.6, "broker refused by connection"))
    for one in found:
        one.components["keyword"] = 0.9
    [phrase] = phrases_of(" Connection  refused by broker!")
    texts = {one.row.id: one.row.text for one in found}
    raise_phrases(dict.fromkeys(find_phrase(phrase, texts), 1.0), found)
    assert [round(one.score, 3) for one in found] == [0.7, 0.3]
    assert found[0].components["phrase"] == 1.0
    assert phrases_of("refused by") == {}  # two words are often next to each other


def test_length_of_an_assistants_text_does_not_count_against_a_phrase() -> None:
    found = candidates(
        (0.3, "call parse_config first"), (0.4, "npm run build: parse_config"), (0.8, "parse the config")
    )
    found[0].row.role, found[0].components["role"] = "assistant", 0.6
    found[1].row.role, found[1].components["role"] = "tool", 0.6
    raise_phrases({found[0].row.id: 1.0, found[1].row.id: 0.5}, found)
    assert [round(one.score, 3) for one in found] == [0.75, 0.517, 0.4]
    assert [one.components.get("role") for one in found] == [1.0, 0.8, None]


@pytest.mark.parametrize(
    ("query", "phrase"),
    [
        ("why do I get `ECONNREFUSED 127.0.0.1:5432`?", "econnrefused 127.0.0.1:5432"),
        ('who wrote "Permission  denied" in the log', "permission denied"),
        ("what does 'no such table: users' mean", "no such table: users"),
        ("“disk quota exceeded” on the runner", "disk quota exceeded"),
        ("where is `parse_config` called", "parse_config"),
        ("`foo bar`, or rather `no space left on device`", "no space left on device"),
        ("error `E1102`", "e1102"),
        ("is `ENOSPC` fatal", "enospc"),
        ("where is `getUser` used", "getuser"),
    ],
)
def test_quotation_in_a_query_is_a_phrase(query: str, phrase: str) -> None:
    assert phrase in phrases_of(query)
    assert len(phrases_of(query)) <= 2


@pytest.mark.parametrize(
    "query", ["the `parser` fails", "don't use Ada's editor", 'an "x" here', "a `b", "so-called 'Parser'"]
)
def test_single_plain_word_in_quotation_marks_is_no_phrase(query: str) -> None:
    assert phrases_of(query) in ({}, {query.lower().strip("'"): 1.0})


@pytest.mark.parametrize(
    ("query", "phrase", "weight"),
    [
        ("parse_config", "parse_config", 1.0),
        ("feature/login-page", "feature/login-page", 1.0),
        ("X-Request-Id", "x-request-id", 1.0),
        ("why does parse_config fail?", "parse_config", 0.5),
        ("where is std::move used", "std::move", 0.5),
        ("is there a getUserToken here", "getusertoken", 0.5),
        ("what does --no-verify do", "--no-verify", 0.5),
        ("who calls close(), and when", "close()", 0.5),
        ("error E0277 in src/app/main.py:42", "src/app/main.py:42", 0.5),
        ("since version 2.14.3 it hangs", "2.14.3", 0.5),
    ],
)
def test_name_in_a_short_query_is_a_phrase(query: str, phrase: str, weight: float) -> None:
    assert phrases_of(query).get(phrase) == weight


@pytest.mark.parametrize(
    "query",
    [
        "follow-up",
        "GitHub and/or JavaScript",
        "e.g. the client/server split",
        "well-known end-to-end tests, 3:30pm",
        "it is 5.5 km",
    ],
)
def test_prose_has_no_names(query: str) -> None:
    words = query.lower()
    assert set(phrases_of(query)) <= {words, words.strip(".")}


def test_phrases_of_a_long_query_are_found_in_the_part_that_is_searched_for() -> None:
    assert phrases_of(f"{'word ' * 100_000} and `no such ocelot`") == {"no such ocelot": 1.0}


def test_recency_halves_a_score_with_each_half_life() -> None:
    now = 1_000 * DAY
    ages = [0, 7, 14, 70]
    found = [Candidate(row(age, created_at=now - age * DAY), 0.8) for age in ages]
    apply_recency(found, now, 7)
    for candidate, age in zip(found, ages, strict=True):
        assert candidate.score == pytest.approx(0.8 * 0.5 ** (age / 7))
        assert candidate.components["recency"] == pytest.approx(0.5 ** (age / 7))


def test_recency_does_not_raise_the_score_of_a_future_date() -> None:
    [future] = [Candidate(row(created_at=2 * DAY), 0.8)]
    apply_recency([future], DAY, 1)
    assert future.score == pytest.approx(0.8)


def candidates(*given: tuple[float, str]) -> list[Candidate[ChunkRow]]:
    numbers = count(1)
    return [Candidate(row(next(numbers), text=text), score) for score, text in given]


def test_diversity_puts_a_different_text_before_a_near_duplicate() -> None:
    found = candidates((1.0, "red green blue"), (0.9, "red green blue"), (0.6, "cat dog"))
    assert [one.row.id for one in diversify(found, 0.0, 3)] == [1, 2, 3]
    assert [one.row.id for one in diversify(found, 0.5, 3)] == [1, 3, 2]


def test_diversity_orders_by_maximal_marginal_relevance() -> None:
    found = candidates((0.9, "a b c d"), (0.8, "a b c x"), (0.7, "a y z w"), (0.65, "p q"), (0.1, "m"))
    wanted = brute_force_mmr(found, 0.4)
    assert [one.row.id for one in diversify(found, 0.4, 5)] == wanted
    assert wanted != [1, 2, 3, 4, 5]


def test_diversity_of_a_page_compares_only_as_many_as_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compared each of the candidates with each: with a pool of 1,000 candidates the daemon stood for seconds."""
    chance = random.Random(5)
    texts = [(chance.random(), " ".join(chance.choices("abcdefghij", k=4))) for _ in range(300)]
    expected = [one.row.id for one in diversify(candidates(*texts), 0.5, 300)]
    concatenate, compared = numpy.concatenate, 0

    def counting(arrays: Any) -> Any:
        nonlocal compared
        compared += 1
        return concatenate(arrays)

    monkeypatch.setattr(numpy, "concatenate", counting)
    page = [one.row.id for one in diversify(candidates(*texts), 0.5, 20)]
    assert compared == 20
    assert page[:20] == expected[:20]
    assert sorted(page) == sorted(expected)
    assert page[20:] == sorted(page[20:])


@given(st.lists(st.tuples(st.floats(0, 1), st.text("abc ", max_size=6)), max_size=8), st.floats(0, 1))
def test_diversity_is_the_same_without_numpy(given: list[tuple[float, str]], diversity: float) -> None:
    expected = [(one.row.id, one.components) for one in diversify(candidates(*given), diversity, 5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diversity_module, "numpy_if_available", lambda: None)
        assert [(one.row.id, one.components) for one in diversify(candidates(*given), diversity, 5)] == expected


@given(st.lists(st.tuples(st.floats(0, 1), st.text("abc ", max_size=6)), max_size=8), st.floats(0, 1))
def test_diversity_returns_every_candidate_once(given: list[tuple[float, str]], diversity: float) -> None:
    found = candidates(*given)
    assert sorted(one.row.id for one in diversify(found, diversity, 5)) == [one.row.id for one in found]


def test_best_per_group_returns_the_first_of_each_group_and_all_without_a_group() -> None:
    found = [Candidate(row(number, role=role)) for number, role in enumerate(["a", None, "b", "a", None, "b"])]
    assert [one.row.id for one in best_per_group(found, lambda row: row.role)] == [0, 1, 2, 4]


def test_messages_with_the_same_text_are_one_hit_and_memories_stay() -> None:
    found = candidates((1.0, "run the  Tests"), (0.9, "run the tests"), (0.8, "other"), (0.7, "run the tests"))
    for one in found:
        one.row.source = "sessions"
    found[3].row.source = "memories"
    assert [(one.row.id, one.duplicates) for one in collapse_duplicates(found)] == [(1, 1), (3, 0), (4, 0)]


def messages(*texts: str) -> list[Candidate[ChunkRow]]:
    found = candidates(*((1.0, text) for text in texts))
    for one in found:
        one.row.source = "sessions"
    return found


PROSE = "the export closes its writer before the buffer is flushed so the last row of an odd number of rows is lost"


def test_near_duplicates_are_one_hit_with_a_count() -> None:
    found = messages(PROSE, f"{PROSE} again", "something else entirely", f"Please note: {PROSE}.")
    assert [(one.row.id, one.duplicates) for one in collapse_near_duplicates(found, 10)] == [(1, 2), (3, 0)]


def test_near_duplicates_keep_the_counts_of_what_they_replace() -> None:
    found = messages(PROSE, f"{PROSE} again", f"{PROSE} again")
    [one] = collapse_near_duplicates(collapse_duplicates(found), 10)
    assert one.duplicates == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("serve the dashboard of the staging system on 8080", "serve the dashboard of the staging system on 9090"),
        ("we deploy the shop on fridays after the standup", "we do not deploy the shop on fridays after the standup"),
        ("the cat sat on the mat", "the dog lay on the rug"),
        (PROSE, f"{PROSE} {PROSE.upper()}"),
    ],
)  # fmt: skip
def test_texts_that_differ_in_substance_or_length_are_no_near_duplicates(one: str, other: str) -> None:
    assert len(collapse_near_duplicates(messages(one, other), 10)) == 2


def test_long_texts_with_another_number_are_near_duplicates() -> None:
    code = " ".join(f"name{number}" for number in range(60))
    assert len(collapse_near_duplicates(messages(f"{code} line 7", f"{code} line 8"), 10)) == 1


@pytest.mark.parametrize("length", [600, 1_150, 5_000])
def test_different_questions_after_the_same_paste_are_no_near_duplicates(length: int) -> None:
    code = "\n".join(f"    total += rows[{number}].price * rows[{number}].count" for number in range(200))[:length]
    one, other = f"{code}\nWhy does it round the sum?", f"{code}\nCan it be written with sunflower and marigold?"
    assert len(collapse_near_duplicates(messages(one, other), 10)) == 2
    assert len(collapse_near_duplicates(messages(one, f"{one} Thanks."), 10)) == 1


def test_near_duplicates_of_another_role_or_of_memories_stay() -> None:
    found = messages(PROSE, f"{PROSE} again", f"{PROSE} indeed")
    found[1].row.role = "assistant"
    found[2].row.source = "memories"
    assert len(collapse_near_duplicates(found, 10)) == 3


def test_near_duplicates_of_one_page_are_those_of_a_longer_list() -> None:
    chance = random.Random(3)
    colours = ["red", "green", "blue", "cyan", "teal", "pink", "grey"]
    texts = [" ".join(chance.choices(colours, k=9)) for _ in range(200)]
    distinct = [one.row.id for one in collapse_near_duplicates(messages(*texts), 200)]
    for wanted in (1, 5, 20):
        assert [one.row.id for one in collapse_near_duplicates(messages(*texts), wanted)][:wanted] == distinct[:wanted]


def test_near_duplicates_of_many_texts_compare_few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of texts of similar length was compared: two million pairs on a late page of a large pool."""
    chance = random.Random(7)
    vocabulary = [f"{chr(97 + n % 26)}{'x' * (n % 9)}{n}" for n in range(3_000)]
    texts = [" ".join(chance.choices(vocabulary, k=40)) for _ in range(500)]
    texts += [f"{text} again" for text in texts[:50]]
    compare, pairs = near_duplicates._share_most_words, 0

    def counting(one: set[str], other: set[str]) -> bool:
        nonlocal pairs
        pairs += 1
        return compare(one, other)

    monkeypatch.setattr(near_duplicates, "_share_most_words", counting)
    assert len(collapse_near_duplicates(messages(*texts), len(texts))) == 500
    assert pairs < len(texts) ** 2 / 2 / 10


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=9).map(" ".join), max_size=12), st.sampled_from([0, 64]))
def test_near_duplicates_are_those_of_comparing_every_pair(texts: list[str], max_pairwise: int) -> None:
    distinct: list[str] = []
    for text in texts:
        others = [one for one in distinct if 0.8 * max(len(one), len(text)) <= min(len(one), len(text))]
        if not any(near_duplicates._begin_alike(set(one.split()), set(text.split())) for one in others):
            distinct.append(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "MAX_PAIRWISE", max_pairwise)
        assert [one.row.text for one in collapse_near_duplicates(messages(*texts), len(texts))] == distinct


def brute_force_mmr(found: list[Candidate[ChunkRow]], diversity: float) -> list[int]:
    def similarity(one: Candidate[ChunkRow], other: Candidate[ChunkRow]) -> float:
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
                    - diversity * max((similarity(one, other) for other in chosen), default=0.0)
                ),
            )
        )
    return [one.row.id for one in chosen]
