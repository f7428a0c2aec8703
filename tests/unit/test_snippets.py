"""Snippets: the densest part of a text, with matches between « and »."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.search.snippets import SNIPPET_CHARACTERS, count_matching_stems, excerpt, snippet

MARKS = re.compile("[«»]")
SLACK = 4  # an ellipsis and its space at either end


@pytest.mark.parametrize(
    ("text", "stems", "shown"),
    [
        ("Fix the parser now", {"parser"}, "Fix the «parser» now"),
        ("a Parser and parsers", {"parser"}, "a «Parser» and «parsers»"),
        ("the flaky test", {"flaki"}, "the «flaky» test"),
        ("running, runs, ran", {"run"}, "«running», «runs», ran"),
        ("rerun is not run", {"run"}, "rerun is not «run»"),
        ("runtimeenvironment", {"run"}, "runtimeenvironment"),
        ("今日は東京都に行く", {"東京"}, "今日は«東京»都に行く"),
        ("東京 and Tokyo", {"東京", "tokyo"}, "«東京» and «Tokyo»"),
        ("über Größe", {"größe"}, "über «Größe»"),
        ("c++ (a.b) [x]*", {"b"}, "c++ (a.«b») [x]*"),
        ("one\n  two\tthree", {"two"}, "one «two» three"),
        ("nothing here", {"absent"}, "nothing here"),
        ("nothing asked", set(), "nothing asked"),
        ("", {"x"}, ""),
        ("the function parse_vat_number fails", {"vat", "number"}, "the function parse_«vat»_«number» fails"),
        ("RetryBudgetManager leaks", {"retri", "manag"}, "«Retry»Budget«Manager» leaks"),
        ("RetryBudgetManager leaks", {"retrybudgetmanag", "retri"}, "«RetryBudgetManager» leaks"),
        ("an HTTPServer, an httpServers", {"http", "server"}, "an «HTTP»«Server», an «http»«Servers»"),
        ("base64DecodeFile", {"decod", "file"}, "base64«Decode»«File»"),
        ("RUNNING and Runner", {"run"}, "«RUNNING» and «Runner»"),
        ("9f3ab27c1de and DEADBEEF", {"ab", "beef"}, "9f3ab27c1de and DEADBEEF"),
        ("the RunTestSuite", {"run"}, "the «Run»TestSuite"),
        ("データベース接続", {"デー", "ータ", "タベ", "ベー", "ース"}, "«データベース»接続"),
        ("데이터베이스 연결이 끊어졌습니다", {"연결", "결이"}, "데이터베이스 «연결이» 끊어졌습니다"),
        ("API키를 확인", {"api", "키를"}, "«API»«키를» 확인"),
        ("Ο ΛΌΓΟΣ και ο λόγος", {"λόγοσ"}, "Ο «ΛΌΓΟΣ» και ο «λόγος»"),
        ("ёлка и елка", {"ёлка"}, "«ёлка» и елка"),
        ("İSTANBUL Straße", {"istanbul", "straße"}, "«İSTANBUL» «Straße»"),
    ],
)
def test_snippet_marks_matches(text: str, stems: set[str], shown: str) -> None:
    assert snippet(text, stems) == shown


def test_snippet_for_a_stem_of_one_letter_marks_that_word_alone() -> None:
    assert snippet("what did I say in it", {"i"}) == "what did «I» say in it"


def test_snippet_ignores_accents() -> None:
    """The index knows words without their accents, so the stem has none."""
    assert snippet("un café noir", {"cafe"}) == "un «café» noir"


@pytest.mark.parametrize(
    ("text", "stem"), [("résumé", "resum"), ("thất", "that"), ("Königsbrücke", "konigsbruck"), ("σφάλμα", "σφάλμα")]
)
def test_snippet_marks_decomposed_words(text: str, stem: str) -> None:
    """macOS writes a letter and its accent as two characters."""
    decomposed = unicodedata.normalize("NFD", f"un {text} noir")
    assert snippet(decomposed, {stem}) == f"un «{text}» noir"
    assert count_matching_stems(decomposed, {stem}) == 1


def test_snippet_shows_the_densest_part_of_a_long_text() -> None:
    text = "needle " + "hay " * 500 + "needle in a needle with a needle " + "hay " * 500
    shown = snippet(text, {"needl"})
    assert shown.count("«needle»") == 3
    assert shown.startswith("… ")
    assert shown.endswith(" …")


def test_snippet_shows_a_match_at_the_very_end() -> None:
    shown = snippet("hay " * 500 + "needle", {"needl"})
    assert shown.endswith("«needle»")
    assert shown.startswith("… ")


def test_snippet_without_a_match_begins_with_the_text() -> None:
    shown = snippet("hay " * 500, {"needl"})
    assert shown.startswith("hay ")
    assert shown.endswith(" …")


def test_snippet_is_cut_between_words() -> None:
    text = " ".join(f"word{number:04}" for number in range(500))
    shown = snippet(text, {"word0250"})
    assert "«word0250»" in shown
    assert all(re.fullmatch(r"word\d{4}", MARKS.sub("", word)) for word in shown.split() if word != "…")


@given(
    st.one_of(
        st.text(max_size=2000),
        st.lists(
            st.sampled_from(["alpha", "Alpha_betaAlpha", "beta", "漢字", "🐢", "é", "İ", "\n", "a" * 500]), max_size=300
        ).map(" ".join),
    ),
    st.sets(st.sampled_from(["alpha", "beta", "漢", "漢字", "i", "a", "é", "x.y", "🐢"])),
)
def test_snippet_is_short_balanced_and_made_of_its_text(text: str, stems: set[str]) -> None:
    text = MARKS.sub("", text)
    shown = snippet(text, stems)
    bare = MARKS.sub("", shown)
    assert len(bare) <= SNIPPET_CHARACTERS + SLACK
    assert "\n" not in shown
    assert re.fullmatch("[^«»]*(«[^«»]+»[^«»]*)*", shown)  # balanced, not nested, never empty
    kept = bare.removeprefix("… ") if not text.lstrip().startswith("…") else bare
    kept = kept.removesuffix(" …") if not text.rstrip().endswith("…") else kept
    assert kept in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "stems", "count"),
    [
        ("rounding, rounded and rounds", {"round", "invoic"}, 1),
        ("The invoice is rounded", {"round", "invoic"}, 2),
        ("登录页面", {"登录", "录页", "页面"}, 3),
        ("결제 모듈에서 반올림 오류", {"결제", "반올", "올림", "오류"}, 4),
        ("parse_vat_number", {"pars", "vat", "number"}, 3),
        ("class RetryBudgetManager:", {"retri", "budget", "manag"}, 3),
        ("Größe über alles", {"grosse", "größe", "uber"}, 2),
        ("nothing in common", {"absent"}, 0),
        ("nothing in common", set(), 0),
    ],
)
def test_matching_stems_are_counted_once_each(text: str, stems: set[str], count: int) -> None:
    assert count_matching_stems(text, stems) == count


def test_excerpt_without_marks_is_the_marked_one_without_marks() -> None:
    shown = excerpt("one  two\nthree " * 60, {"two"})
    assert shown.plain == MARKS.sub("", shown.marked)
    assert "«two»" in shown.marked


def test_excerpt_of_another_length_contains_the_densest_matches() -> None:
    log = "12:01:11 INFO worker started with the default profile and waits for jobs\n" * 9
    text = f"Look at this:\n{log}FATAL brontosaurus lease expired, shutting down"
    shown = excerpt(text, {"brontosauru", "leas", "expir"}, 150)
    assert shown.marked.endswith("FATAL «brontosaurus» «lease» «expired», shutting down")
    assert len(shown.plain) <= 150 + SLACK


def test_excerpt_prefers_heavy_words_and_different_ones() -> None:
    text = "an error error error error " + "hay " * 200 + "a zorblax error " + "hay " * 200 + "the worker error"
    assert "«zorblax» «error»" in excerpt(text, {"error", "zorblax"}, 100).marked
    weights = {"error": 1.0, "worker": 2.0, "zorblax": 3.0}
    assert "«zorblax»" in excerpt(text, {"error", "worker", "zorblax"}, 100, weights).marked
    assert "«worker»" in excerpt(text, {"error", "worker", "zorblax"}, 100, weights | {"worker": 4.0}).marked


def test_excerpt_keeps_a_match_at_its_end() -> None:
    text = "hay " * 100 + "first " + "x" * 87 + " second " + "hay " * 100
    assert excerpt(text, {"first", "second"}, 125).marked.count("«") == 2
