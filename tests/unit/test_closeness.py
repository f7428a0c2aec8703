"""Closeness of a hit to its query."""

from clankersd.search.closeness import Closeness, is_weak, measure, word_weight


def test_rare_words_weigh_more_and_unknown_ones_most() -> None:
    assert word_weight(0, 1000) > word_weight(1, 1000) > word_weight(500, 1000) > 0


def test_coverage_is_the_weighted_share_of_the_words() -> None:
    weights = {"login": 3.0, "cooki": 1.0}
    assert measure("The login fails", weights, None).coverage == 0.75
    assert measure("Cookies are gone", weights, None).coverage == 0.25
    assert measure("anything", {}, 0.3) == Closeness(0.0, 0.3)


def test_a_text_is_close_by_its_words_or_by_words_and_vector_together() -> None:
    assert Closeness(0.5).is_close
    assert Closeness(0.3, 0.35).is_close
    assert Closeness(0.0, 0.65).is_close
    assert not Closeness(0.3, 0.2).is_close
    assert not Closeness(0.4, -0.9).is_close


def test_search_is_weak_if_it_has_hits_and_none_is_close() -> None:
    assert is_weak([Closeness(0.1, 0.2), Closeness(0.0)])
    assert not is_weak([Closeness(0.1), Closeness(0.9)])
    assert not is_weak([])


def test_measuring_stops_at_the_first_close_hit() -> None:
    hits = iter([Closeness(0.9), Closeness(0.0)])
    assert not is_weak(hits)
    assert next(hits) == Closeness(0.0)
