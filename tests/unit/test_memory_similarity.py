"""Text similarity: near-duplicates and texts that only look similar; classification of texts by keywords."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.memories import similarity
from clankersd.memories.classify import classify, find_concepts
from clankersd.memories.similarity import (
    content_hash,
    differs_in_substance,
    distance,
    is_near_duplicate,
    max_distance,
    overlap,
    probes,
    quarters,
    replaces_words,
    simhash,
)

WORDS = st.text(string.ascii_lowercase, min_size=2, max_size=9)
HASHES = st.integers(0, 2**64 - 1)


def hashed(text: str) -> int:
    value = simhash(text)
    assert value is not None
    return value


@given(st.text(min_size=1))
def test_hashes_ignore_surrounding_spaces(text: str) -> None:
    one, other = simhash(text), simhash(f"  {text}\n")
    assert one == other
    assert content_hash(text) == content_hash(f" {text} ")
    if one is not None:
        assert is_near_duplicate(text, text)


@given(HASHES, HASHES, HASHES)
def test_distance_is_a_metric(one: int, two: int, three: int) -> None:
    assert distance(one, two) == distance(two, one)
    assert (distance(one, two) == 0) == (one == two)
    assert distance(one, three) <= distance(one, two) + distance(two, three)
    assert 0 <= distance(one, two) <= 64


@given(HASHES, st.sets(st.integers(0, 63), max_size=5))
def test_probes_cover_every_hash_within_the_distance(value: int, flipped: set[int]) -> None:
    other = value
    for bit in flipped:
        other ^= 1 << bit
    max_bits = 3 if len(flipped) <= 3 else 5
    pairs = zip(quarters(value), quarters(other), strict=True)
    assert any(theirs in set(probes(mine, max_bits)) for mine, theirs in pairs)


@given(st.lists(WORDS, min_size=30, max_size=60, unique=True), WORDS, st.integers(0, 29))
def test_distance_is_smaller_for_one_changed_word_than_for_another_text(words: list[str], other: str, at: int) -> None:
    changed = [*words[:at], other, *words[at + 1 :]]
    unrelated = [word[::-1] + "zq" for word in words]
    text = hashed(" ".join(words))
    assert distance(text, hashed(" ".join(changed))) < distance(text, hashed(" ".join(unrelated)))


@given(st.lists(WORDS, min_size=20, max_size=40, unique=True))
def test_distance_of_unrelated_texts_is_large(words: list[str]) -> None:
    assert distance(hashed(" ".join(words)), hashed(" ".join(word[::-1] + "zq" for word in words))) > 5


@given(st.text(alphabet=" \t\n.,;:!?-…—()[]{}'\"«»#*/\\+=<>|~^`$%&@", max_size=50))
def test_simhash_of_a_text_without_words_is_none(text: str) -> None:
    assert simhash(text) is None
    assert not is_near_duplicate(text, text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("部署前必须运行测试", "提交前必须更新文档"),
        ("CI ok", "🎉"),
        ("Тесты запускаются через pytest", "Сборка запускается через make"),
        ("データベースは毎晩再起動する", "サーバーは毎朝再起動する"),
    ],
)
def test_simhash_distinguishes_texts_in_other_scripts(one: str, other: str) -> None:
    assert simhash(one) != simhash(other)
    assert not is_near_duplicate(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Use port 8080 for dev", "Use port 9090 for dev"),
        (
            "The staging database listens on port 5432 and is restarted every night at two by cron",
            "The staging database listens on port 5433 and is restarted every night at two by cron",
        ),
        ("Run the migrations before each deploy of it", "Never run the migrations before each deploy of it"),
        ("You do use the shared cache in tests of ours", "You don't use the shared cache in tests of ours"),
        ("The api calls the worker", "The worker calls the api"),
    ],
)  # fmt: skip
def test_differs_in_substance_notices_numbers_negations_and_order(one: str, other: str) -> None:
    assert differs_in_substance(one, other)
    assert not is_near_duplicate(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Deploy with `make deploy`.", "deploy with   make deploy"),
        (
            "The auth module is in src/auth and uses JWT tokens for every service we run in production",
            "The auth module is in src/auth, and it uses JWT tokens for every service we run in production",
        ),
    ],
)
def test_near_duplicates_may_differ_in_few_words(one: str, other: str) -> None:
    assert is_near_duplicate(one, other)
    assert overlap(one, other) == overlap(other, one)


def test_max_distance_grows_with_the_length() -> None:
    assert [max_distance(length) for length in (10, 49, 50, 199, 200, 499, 500, 10_000)] == [2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize(
    ("text", "sector"),
    [
        ("Prefers tabs and hates trailing whitespace", "emotional"),
        ("We decided to keep SQLite because it needs no server", "reflective"),
        ("Yesterday the user asked about the login flow", "episodic"),
        ("Run `make deploy`, then restart the worker", "procedural"),
        ("The service listens on a socket", "semantic"),
        ("xyzzy", "semantic"),
    ],
)
def test_classify_finds_the_sector_by_keywords(text: str, sector: str) -> None:
    assert classify(text) == sector


def test_classify_prefers_the_category_to_the_text() -> None:
    assert classify("Prefers tabs", "decision") == "reflective"


def test_find_concepts_returns_names_in_the_text() -> None:
    text = "Call `retry_all` in src/net/http.py; SessionStore and max_retries matter, `x` does not"
    assert find_concepts(text) == ["retry_all", "src/net/http.py", "SessionStore", "max_retries"]


@given(st.text(max_size=200))
def test_simhash_is_the_same_without_numpy(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "numpy_if_available", lambda: None)
        plain = similarity.simhash(text)
    assert plain == similarity.simhash(text)


LONG = (
    "The on-call rotation of the payments team changes every week on Tuesday at nine in the morning, and whoever takes "
    "over reads the notes of the last incident, checks the dashboards and confirms the hand-over before lunch"
)


@pytest.mark.parametrize(("word", "other"), [("Tuesday", "Thursday"), ("payments", "shipping"), ("lunch", "dinner")])
def test_text_with_another_word_is_no_duplicate(word: str, other: str) -> None:
    assert replaces_words(LONG, LONG.replace(word, other))
    assert not is_near_duplicate(LONG, LONG.replace(word, other))


@pytest.mark.parametrize(
    ("words", "others"),
    [("notes", "note"), ("checks", "checked"), ("before lunch", ""), ("in the morning", "of a morning")],
)
def test_text_with_another_form_or_without_some_words_is_a_duplicate(words: str, others: str) -> None:
    assert is_near_duplicate(LONG, LONG.replace(words, others))
