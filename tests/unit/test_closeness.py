"""Closeness of a hit to its query."""

import os
from pathlib import Path

import pytest

from clankersd.embedders.static import TOKENIZER
from clankersd.search import common_words
from clankersd.search.closeness import (
    MIN_STRENGTH,
    Calibration,
    Closeness,
    is_rare_name,
    is_weak,
    language_baseline,
    measure,
    word_weight,
)


def test_rare_words_weigh_more_and_unknown_ones_most() -> None:
    assert word_weight(0, 1000) > word_weight(1, 1000) > word_weight(500, 1000) > 0


def test_texts_in_one_script_other_than_latin_are_alike_by_themselves() -> None:
    assert language_baseline("the café in Łódź") == 0
    assert language_baseline("Wie lange dauert die Fahrt mit dem Zug?") == 0.45
    assert language_baseline("数据库连接超时") == 0.55
    assert (
        0.15 < language_baseline("使用getUserToken函数") < language_baseline("使用函数") < language_baseline("σφάλμα")
    )


def test_coverage_is_the_weighted_share_of_the_words() -> None:
    weights = {"login": 3.0, "cooki": 1.0}
    assert measure("The login fails", weights, None).coverage == 0.75
    assert measure("Cookies are gone", weights, None).coverage == 0.25
    assert measure("anything", {}, 0.3) == Closeness(0.0, 0.3)


def test_strength_is_coverage_and_the_cosine_above_that_of_texts_taken_by_chance() -> None:
    calibration = Calibration(baseline=0.2)
    assert calibration.strength(Closeness(0.3, 0.2)) == pytest.approx(0.3)
    assert calibration.strength(Closeness(0.3, 0.1)) == pytest.approx(0.3)
    assert calibration.strength(Closeness(0.3, 0.6)) == pytest.approx(0.3 + 1.6 * 0.5)
    assert calibration.strength(Closeness(0.5)) == pytest.approx(0.65)


def test_search_is_weak_if_it_has_hits_and_none_is_close() -> None:
    assert is_weak([MIN_STRENGTH - 0.01, 0.0])
    assert not is_weak([0.1, MIN_STRENGTH])
    assert not is_weak([])


def test_measuring_stops_at_the_first_close_hit() -> None:
    strengths = iter([0.9, 0.0])
    assert not is_weak(strengths)
    assert next(strengths) == 0.0


def test_closer_text_of_another_project_counts_less_the_more_words_a_text_has() -> None:
    calibration = Calibration(baseline=0.2, elsewhere=0.6)
    assert calibration.penalty(0.6) == calibration.penalty(None) == 0.0
    full = calibration.penalty(0.2)
    assert full == pytest.approx(2.4 * 0.5)
    assert calibration.penalty(0.2, 0.6) == pytest.approx(full)
    assert calibration.penalty(0.2, 0.8) == pytest.approx(full / 2)
    assert calibration.penalty(0.2, 1.0) == 0.0


@pytest.mark.parametrize(
    ("word", "frequency", "chunk_count", "is_rare"),
    [
        ("zorblax", 1, 250, True),
        ("zorblax", 3, 750, True),
        ("zorblax", 3, 600, True),  # in a smaller store, every word is in few chunks, but this one is no common word
        ("zorblax", 1, 2, True),
        ("zorblax", 4, 20, False),
        ("column", 1, 250, True),
        ("column", 1, 200, False),
        ("column", 3, 600, False),
        ("zorblax", 5, 5_000, True),
        ("zorblax", 100, 100_000, True),
        ("test", 6, 5_000, False),
        ("absent", 0, 5_000, False),
        ("4711", 1, 5_000, False),
        ("ab", 1, 5_000, False),
        ("東京", 1, 5_000, False),
    ],
)
def test_name_is_rare_if_hardly_any_chunk_contains_it(
    word: str, frequency: int, chunk_count: int, is_rare: bool
) -> None:
    assert is_rare_name(word, word, frequency, chunk_count) == is_rare


@pytest.mark.parametrize(("word", "stem"), [("deployments", "deploy"), ("tests", "test"), ("structuring", "structur")])
def test_form_of_a_common_word_is_not_rare_in_a_small_store(word: str, stem: str) -> None:
    assert not is_rare_name(word, stem, 1, 50)


def test_no_word_is_rare_in_a_small_store_if_the_common_ones_are_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / TOKENIZER)
    monkeypatch.setattr(common_words, "FOLDER", tmp_path)
    common_words._load.cache_clear()
    assert not is_rare_name("zorblax", "zorblax", 1, 50)
    assert is_rare_name("zorblax", "zorblax", 1, 250)
    common_words._load.cache_clear()


def test_common_words_are_loaded_once_there_is_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    common_words._load.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(common_words, "LOADING_BYTES", 2**62)
        assert not is_rare_name("zorblax", "zorblax", 1, 50)
    assert is_rare_name("zorblax", "zorblax", 1, 50)
