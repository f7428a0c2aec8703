"""Chunking strategies: no text is lost, no chunk is too long, and splits are where a reader would make them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.documents.chunkers import (
    Piece,
    Span,
    chunk_markdown,
    chunk_parent_child,
    chunk_recursive,
    chunk_semantic,
    split_sentences,
)
from clankersd.documents.code import chunk_code
from clankersd.index.chunker import QUARTERS_PER_TOKEN, size_of

WORDS = st.sampled_from(
    ["word", "e.g.", "3.14", "Dr.", "end.", "Why?", "你好。", "再见！", "\n", "\n\n", "# Title\n", "```\n"]
)
TEXTS = st.lists(WORDS | st.text(max_size=40), max_size=120).map(" ".join)


def texts(text: str, spans: list[Span]) -> list[str]:
    return [text[span.start : span.end] for span in spans]


@given(TEXTS, st.integers(8, 60), st.integers(0, 20))
def test_chunks_respect_the_limit_and_cover_every_character(text: str, tokens: int, overlap: int) -> None:
    for chunk in (chunk_recursive, chunk_markdown):
        spans = chunk(text, tokens, overlap)
        held: set[int] = set()
        for span in spans:
            assert size_of(text[span.start : span.end]) <= tokens * QUARTERS_PER_TOKEN
            assert text[span.start : span.end].strip()
            held.update(range(span.start, span.end))
        assert all(text[at].isspace() for at in set(range(len(text))) - held)


@given(TEXTS, st.integers(8, 40))
def test_child_chunks_lie_in_their_parent_and_cover_it(text: str, tokens: int) -> None:
    for parent in chunk_parent_child(text, tokens * 3, tokens, 2):
        assert size_of(text[parent.start : parent.end]) <= tokens * 3 * QUARTERS_PER_TOKEN
        assert parent.children
        held: set[int] = set()
        for child in parent.children:
            assert parent.start <= child.start < child.end <= parent.end
            assert size_of(text[child.start : child.end]) <= tokens * QUARTERS_PER_TOKEN
            held.update(range(child.start, child.end))
        assert all(text[at].isspace() for at in set(range(parent.start, parent.end)) - held)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Smith came. He left.", ["Dr. Smith came.", "He left."]),
        ("It costs 3.14 dollars. Cheap!", ["It costs 3.14 dollars.", "Cheap!"]),
        ("Use tools, e.g. awk. Or not?", ["Use tools, e.g. awk.", "Or not?"]),
        ("J. R. Tolkien wrote. We read.", ["J. R. Tolkien wrote.", "We read."]),
        ("你好。再见！好的", ["你好。", "再见！", "好的"]),
        ("one\ntwo\n\nthree", ["one", "two", "three"]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_expects(text: str, sentences: list[str]) -> None:
    assert [text[one.start : one.end].strip() for one in split_sentences(text, 0, len(text), 100)] == sentences


def test_paragraph_that_fits_into_the_next_chunk_is_not_split() -> None:
    first, second = "Alpha beta gamma. " * 6, "Delta epsilon zeta. " * 6
    text = f"{first.strip()}\n\n{second.strip()}"
    assert texts(text, chunk_recursive(text, 50, 0)) == [first.strip(), second.strip()]


def test_overlapping_chunks_share_complete_sentences() -> None:
    text = " ".join(f"Sentence number {number} is here." for number in range(40))
    shared = texts(text, chunk_recursive(text, 40, 10))
    assert all(after.split(". ")[0] in before for before, after in pairwise(shared))
    apart = texts(text, chunk_recursive(text, 40, 0))
    assert not any(after.split(". ")[0] in before for before, after in pairwise(apart))


def test_word_longer_than_a_chunk_is_split() -> None:
    assert all(len(part) <= 40 for part in texts("x" * 1000, chunk_recursive("x" * 1000, 10, 5)))


def test_markdown_sections_become_chunks_with_their_heading() -> None:
    body = "Some words that say something about it, at length. " * 3
    text = f"# Guide\n\n## Install\n\n{body}\n```\n# not a heading\n```\n\n## Use\n\n{body}"
    spans = chunk_markdown(text, 100, 0)
    assert [span.metadata["section_path"] for span in spans] == ["Guide > Install", "Guide > Use"]
    assert texts(text, spans)[0].startswith("# Guide\n\n## Install")
    assert "# not a heading" in texts(text, spans)[0]
    assert texts(text, spans)[1].startswith("## Use")


def test_markdown_section_that_is_too_long_is_split_and_every_chunk_has_its_heading() -> None:
    text = "# Long\n\n" + "A sentence of some words. " * 100
    spans = chunk_markdown(text, 50, 0)
    assert len(spans) > 10
    assert {span.metadata["section_heading"] for span in spans} == {"Long"}


def test_semantic_chunks_split_between_the_least_similar_sentences() -> None:
    text = "Cats purr. Cats nap. Stocks rose. Stocks fell."
    sentences = split_sentences(text, 0, len(text), 100)
    assert texts(text, chunk_semantic(text, sentences, [0.9, 0.1, 0.8], 100)) == [
        "Cats purr. Cats nap.",
        "Stocks rose. Stocks fell.",
    ]
    assert texts(text, chunk_semantic(text, sentences, [0.9, 0.1, 0.8], 3)) == [
        "Cats purr.",
        "Cats nap.",
        "Stocks rose.",
        "Stocks fell.",
    ]
    assert chunk_semantic(text, [], [], 100) == []
    assert texts(text, chunk_semantic(text, [Piece(0, len(text), 20, False)], [], 100)) == [text]


PYTHON = '''"""Doc."""
import os


@decorated
def first(a: int) -> int:
    """Ünïcode before offsets: 你好."""
    return a + 1


class Second:
    """A class."""

    def method(self) -> None:
        print("one")

    def other(self) -> None:
        print("two")
'''


def test_code_is_split_at_definitions() -> None:
    spans = chunk_code(PYTHON, "python", 40)
    assert [span.metadata.get("symbol") for span in spans] == ["first", "Second"]
    assert all(span.metadata["language"] == "python" for span in spans)
    chunk = next(text for text in texts(PYTHON, spans) if "def first" in text)
    assert chunk.endswith("return a + 1")


@pytest.mark.parametrize(
    ("language", "source", "name"),
    [
        ("javascript", "export function go(a) {\n  return a;\n}\n", "go"),
        ("typescript", "export interface Thing {\n  a: number;\n}\n", "Thing"),
        ("tsx", "function App() {\n  return <p>hi</p>;\n}\n", "App"),
        ("go", "package main\n\nfunc Run() int {\n\treturn 1\n}\n", "Run"),
        ("rust", "pub fn run() -> u8 {\n    1\n}\n", "run"),
        ("java", "class Main {\n  void go() {}\n}\n", "Main"),
        ("ruby", "def go\n  1\nend\n", "go"),
        ("bash", "go() {\n  echo 1\n}\n", "go"),
        ("cpp", "class Box {\n  int a;\n};\n", "Box"),
        ("c", "struct box {\n  int a;\n};\n", "box"),
    ],
)
def test_code_languages_all_have_a_grammar(language: str, source: str, name: str) -> None:
    spans = chunk_code(source, language, 200)
    assert "".join(texts(source, spans)).strip() == source.strip()
    assert spans[0].metadata == {"language": language, "symbol": name}


@given(st.text(max_size=300), st.integers(8, 40))
def test_code_chunker_splits_text_that_is_not_code(text: str, tokens: int) -> None:
    source = f"def f():\n    return 1\n{text}"
    spans = chunk_code(source, "python", tokens)
    held = {at for span in spans for at in range(span.start, span.end)}
    assert all(source[at].isspace() for at in set(range(len(source))) - held)
    assert all(size_of(source[span.start : span.end]) <= tokens * QUARTERS_PER_TOKEN for span in spans)
