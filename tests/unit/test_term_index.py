"""Occurrences of terms: what the cache returns equals what the index says."""

from collections.abc import Iterator
from typing import Any

import apsw
import pytest

from clankersd.db import Db, sqlite_engine
from clankersd.db.engine import HEADER, OCCURRENCES_PER_CHUNK, OFFSETS
from clankersd.search import term_index
from clankersd.search.term_index import Spelling, TermFrequencies, TermOccurrences

ALPHA = Spelling("alpha", "alpha")
FREQUENT = term_index.MIN_CACHED_FREQUENCY
SCHEMA = """
    CREATE VIRTUAL TABLE chunks_fts USING fts5 (text, header, extra, tokenize = 'porter unicode61');
    CREATE VIRTUAL TABLE chunks_instances USING fts5vocab (chunks_fts, instance);
    CREATE VIRTUAL TABLE chunks_vocabulary USING fts5vocab (chunks_fts, row);
"""


@pytest.fixture
def db() -> Iterator[Db]:
    connection = apsw.Connection(":memory:")
    connection.execute(SCHEMA)
    yield Db(connection)
    connection.close()


def add(db: Db, chunk: int, text: str, header: str = "", extra: str = "") -> None:
    params = {"id": chunk, "text": text, "header": header, "extra": extra}
    db.execute("INSERT INTO chunks_fts (rowid, text, header, extra) VALUES (:id, :text, :header, :extra)", params)


def read(occurrences: TermOccurrences, db: Db, last: int, frequency: int = FREQUENT) -> set[int]:
    found = None
    while found is None:
        found = occurrences.read(db, ALPHA, frequency, last)
    return {int(one) for one in found.occurrences}


def test_occurrences_have_the_chunk_the_column_and_the_offset(db: Db) -> None:
    add(db, 7, "beta alpha", header="alpha", extra="alpha")
    base = 7 * OCCURRENCES_PER_CHUNK
    assert read(TermOccurrences(), db, 7) == {base + 1, base + HEADER + OFFSETS - 1, base + OFFSETS - 1}


def test_occurrences_of_a_cached_term_include_chunks_added_since(db: Db) -> None:
    cached = TermOccurrences()
    add(db, 1, "alpha beta alpha")
    assert read(cached, db, 1) == {OCCURRENCES_PER_CHUNK, OCCURRENCES_PER_CHUNK + 2}
    add(db, 2, "beta")
    add(db, 3, "beta Alphas", header="alpha", extra="alpha")
    assert read(cached, db, 3) == read(TermOccurrences(), db, 3)


def test_occurrences_are_those_of_the_chunks_that_the_search_knows(db: Db) -> None:
    cached = TermOccurrences()
    add(db, 1, "alpha")
    add(db, 2, "alpha")
    read(cached, db, 2)
    assert read(cached, db, 1) == {OCCURRENCES_PER_CHUNK}


def test_occurrences_are_read_again_when_many_chunks_were_added(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term_index, "MAX_ADDED_CHUNKS", 1)
    cached = TermOccurrences()
    add(db, 1, "alpha")
    read(cached, db, 1)
    for chunk in range(2, 6):
        add(db, chunk, "beta alpha")
    assert read(cached, db, 5) == read(TermOccurrences(), db, 5)


def test_occurrences_of_a_very_frequent_term_are_read_in_ranges_without_offsets(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(term_index, "MAX_CHUNKS_PER_SLICE", 2)
    very_frequent = term_index.MAX_LOCATED_FREQUENCY + 1
    for chunk in range(1, 8):
        add(db, chunk, "alpha alpha")
    cached = TermOccurrences()
    assert cached.read(db, ALPHA, very_frequent, 7) is None
    expected = {chunk * OCCURRENCES_PER_CHUNK + OFFSETS - 1 for chunk in range(1, 8)}
    assert read(cached, db, 7, very_frequent) == expected
    add(db, 8, "alpha")
    assert read(cached, db, 7, very_frequent) == expected
    assert read(cached, db, 8, very_frequent) == expected | {8 * OCCURRENCES_PER_CHUNK + OFFSETS - 1}
    assert cached._bytes == 8 * 4  # chunk ids of 32 bits and nothing else


def test_more_frequent_terms_are_read_in_shorter_ranges(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term_index, "MATCHES_PER_SLICE", 4 * term_index.MAX_LOCATED_FREQUENCY)
    for chunk in range(1, 9):
        add(db, chunk, "alpha")

    def count_reads(frequency: int) -> int:
        cached = TermOccurrences()
        return next(number for number in range(1, 9) if cached.read(db, ALPHA, frequency, 8) is not None)

    assert count_reads(term_index.MAX_LOCATED_FREQUENCY + 1) == 1
    assert count_reads(8 * term_index.MAX_LOCATED_FREQUENCY) == 2
    assert count_reads(32 * term_index.MAX_LOCATED_FREQUENCY) == 8


def test_cache_of_occurrences_drops_the_least_recently_used_term(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term_index, "MAX_CACHED_BYTES", 28)
    monkeypatch.setattr(term_index, "MAX_CACHED_BYTES_PER_CHUNK", 0)
    add(db, 1, "alpha beta gamma")
    cached = TermOccurrences()
    for word in ("alpha", "beta", "alpha", "gamma"):
        cached.read(db, Spelling(word, word), FREQUENT, 1)
    assert list(cached._cached) == ["alpha", "gamma"]
    assert cached._bytes == 28


def test_cache_of_occurrences_grows_with_the_index(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term_index, "MAX_CACHED_BYTES", 28)
    for chunk in range(1, 4):
        add(db, chunk, "alpha beta gamma")
    cached = TermOccurrences()
    for word in ("alpha", "beta", "gamma"):
        cached.read(db, Spelling(word, word), FREQUENT, 3)
    assert list(cached._cached) == ["alpha", "beta", "gamma"]


def test_frequency_of_a_rare_term_is_counted_each_time(db: Db) -> None:
    frequencies = TermFrequencies()
    add(db, 1, "alpha")
    assert frequencies.get(db, ALPHA, 1, 1) == 1
    add(db, 2, "alpha")
    assert frequencies.get(db, ALPHA, 1, 2) == 2


def test_frequency_is_counted_again_after_as_many_chunks_were_deleted_as_added(db: Db) -> None:
    frequencies = TermFrequencies()
    for chunk in range(1, FREQUENT + 1):
        add(db, chunk, "alpha")
    assert frequencies.get(db, ALPHA, FREQUENT, FREQUENT) == FREQUENT
    db.execute("DELETE FROM chunks_fts")
    assert frequencies.get(db, ALPHA, FREQUENT, FREQUENT + 100) == FREQUENT, "it is not cached"
    assert frequencies.get(db, ALPHA, FREQUENT, 3 * FREQUENT) == 0


@pytest.mark.parametrize("texts_between", [0, 1, 3])
def test_frequency_of_a_very_frequent_term_is_estimated(
    db: Db, monkeypatch: pytest.MonkeyPatch, texts_between: int
) -> None:  # fmt: skip
    for name, value in {"COUNTED_TEXTS": 10, "MAX_EXACT_COUNT": 30, "MIN_ESTIMATE": 45}.items():
        monkeypatch.setattr(sqlite_engine, name, value)
    for chunk in range(200):
        add(db, chunk + 1, "beta" if chunk % (texts_between + 1) else "Alphas")
    exact = -(-200 // (texts_between + 1))
    assert db.engine.count_texts(db, "chunks_fts", "alpha") == pytest.approx(exact, rel=0.1)
    for count in (30, 5):  # exact again
        db.execute("DELETE FROM chunks_fts WHERE rowid > :last", {"last": count * (texts_between + 1)})
        assert db.engine.count_texts(db, "chunks_fts", "alpha") == count


def test_occurrences_that_were_read_before_all_were_dropped_are_not_cached_after_it(db: Db) -> None:
    cached = TermOccurrences()

    class Meanwhile(Db):
        """A connection on which words change while a term is read."""

        def value(self, sql: str, params: Any = None) -> Any:
            found = super().value(sql, params or {})
            cached.clear()
            return found

    add(db, 1, "alpha")
    assert read(cached, Meanwhile(db.raw), 1) == {OCCURRENCES_PER_CHUNK}
    add(db, 2, "alpha")
    db.execute("DELETE FROM chunks_fts WHERE rowid = 1")
    assert read(cached, db, 2) == {2 * OCCURRENCES_PER_CHUNK}


@pytest.mark.parametrize("frequency", [FREQUENT, term_index.MAX_LOCATED_FREQUENCY + 1])
def test_chunks_that_are_stored_during_a_search_are_cached_once(db: Db, frequency: int) -> None:
    for chunk in range(1, 5):
        add(db, chunk, "alpha")
    cached = TermOccurrences()
    assert read(cached, db, 2, frequency) == {
        one for one in read(TermOccurrences(), db, 4, frequency) if one < 3 * OCCURRENCES_PER_CHUNK
    }
    add(db, 5, "alpha")
    assert read(cached, db, 4, frequency) == {
        one for one in read(TermOccurrences(), db, 5, frequency) if one < 5 * OCCURRENCES_PER_CHUNK
    }
    found = cached.read(db, ALPHA, frequency, 5)
    assert found is not None
    assert found.chunks.tolist() == [1, 2, 3, 4, 5]
