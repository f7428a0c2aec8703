"""Chunker: no character is lost, no chunk is too long, and line numbers are exact."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clankersd.index.chunker import CJK, QUARTERS_PER_TOKEN, chunk, has_cjk, size_of

letters = st.sampled_from("ab \n#`漢字é\u0301\U0001f469\u200d\U0001f4bb") | st.characters(codec="utf-8")
texts = st.text(letters, max_size=600)
limits = st.integers(8, 60)


@given(texts, limits, st.integers(0, 40))
@example("x" * 500, 8, 4)
@example("漢" * 100, 8, 7)
@example("a\r\nb\u2028c\x0bd\n" * 40, 8, 2)
def test_chunks_hold_every_character_in_order(text: str, tokens: int, overlap: int) -> None:
    covered = 0
    for piece in chunk(text, tokens, overlap):
        assert piece.start_offset <= covered, "a gap"
        assert piece.end_offset > covered, "no progress"
        assert text[piece.start_offset : piece.end_offset] == piece.text
        covered = piece.end_offset
    assert covered == (len(text) if text.strip() else 0)


@given(texts, limits, st.integers(0, 40))
def test_chunks_are_never_longer_than_the_limit(text: str, tokens: int, overlap: int) -> None:
    for piece in chunk(text, tokens, overlap):
        assert size_of(piece.text) <= tokens * QUARTERS_PER_TOKEN


@given(texts, limits, st.integers(0, 40))
def test_line_numbers_are_those_of_an_editor(text: str, tokens: int, overlap: int) -> None:
    for piece in chunk(text, tokens, overlap):
        assert piece.start_line == text.count("\n", 0, piece.start_offset) + 1
        assert piece.end_line == text.count("\n", 0, piece.end_offset - 1) + 1


@given(st.lists(st.text("abc def", min_size=1, max_size=30), min_size=1, max_size=200), st.integers(20, 60))
def test_chunks_end_at_line_ends(lines: list[str], tokens: int) -> None:
    text = "\n".join(lines)
    for piece in chunk(text, tokens, tokens // 5):
        assert piece.start_offset == 0 or text[piece.start_offset - 1] == "\n"
        assert piece.end_offset == len(text) or text[piece.end_offset - 1] == "\n"


def test_consecutive_chunks_overlap_by_whole_lines() -> None:
    text = "".join(f"line number {number}\n" for number in range(200))
    pieces = chunk(text, 100, 20)
    assert len(pieces) > 3
    for before, after in pairwise(pieces):
        shared = before.end_offset - after.start_offset
        assert 0 < shared <= 20 * QUARTERS_PER_TOKEN


def test_section_begins_a_chunk_when_the_previous_one_is_long_enough() -> None:
    text = "intro line\n" * 60 + "# Setup\n" + "setup line\n" * 60
    assert any(piece.text.startswith("# Setup") for piece in chunk(text, 250, 50))


def test_hash_inside_a_code_fence_is_no_heading() -> None:
    text = "code follows\n" * 50 + "```sh\n" + "# not a heading\nrun it\n" * 20 + "```\n" + "more\n" * 50
    assert not any(piece.text.startswith("# not") for piece in chunk(text, 250, 0))


def test_cjk_text_is_counted_by_character() -> None:
    assert len(chunk("漢" * 400, 400, 80)) == 1
    assert len(chunk("漢" * 401, 400, 80)) == 2
    assert len(chunk("a" * 1600, 400, 80)) == 1
    assert len(chunk("a" * 1601, 400, 80)) == 2


def test_long_line_is_split_after_a_word() -> None:
    pieces = chunk("word " * 1000, 100, 0)
    assert len(pieces) > 5
    assert all(piece.text.endswith(" ") for piece in pieces)


def test_accent_is_not_split_from_its_letter() -> None:
    pieces = chunk("e\u0301" * 1000, 50, 0)
    assert len(pieces) > 5
    assert not any(piece.text.startswith("\u0301") for piece in pieces)


@pytest.mark.parametrize("text", ["", " ", "\n\n\t"])
def test_blank_text_has_no_chunks(text: str) -> None:
    assert chunk(text, 400, 80) == []


def test_has_cjk_agrees_with_the_ranges_for_every_character() -> None:
    is_cjk = re.compile(f"[{CJK}]").match
    characters = map(chr, range(0x110000))
    wrong = [character for character in characters if has_cjk(f"é{character}") != bool(is_cjk(character))]
    assert wrong == []
