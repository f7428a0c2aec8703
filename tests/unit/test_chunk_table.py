"""The table of chunks in memory: it follows the database, and finds the neighbours of a turn."""

from collections.abc import Iterator
from typing import Any

import apsw
import numpy as np
import pytest

from clankersd.db import Db, sqlite_engine
from clankersd.search import chunk_table
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.column_ranking import rank_columns
from clankersd.search.phrases import PhraseMatches, raise_phrases
from clankersd.search.ranking import rank
from clankersd.search.speakers import Speakers
from clankersd.search.turn_scoring import FADE_TOKENS, SIMILARITY_WEIGHTS, smooth_similarities

SCHEMA = """
    CREATE TABLE chunks (
        id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, turn INTEGER, tokens INTEGER DEFAULT 10,
        project INTEGER, chunking INTEGER DEFAULT 1, source TEXT DEFAULT 'sessions', role TEXT DEFAULT 'user',
        position INTEGER DEFAULT 0, created_at INTEGER DEFAULT 5
    );
"""
CHUNKING = 1
ADA = frozenset({"ada"})


@pytest.fixture
def db() -> Iterator[Db]:
    connection = apsw.Connection(":memory:")
    connection.execute(SCHEMA)
    yield Db(connection)
    connection.close()


@pytest.fixture
def table(db: Db) -> ChunkTable:
    table = ChunkTable()
    table.on_database_opened(db)
    return table


def add(db: Db, chunk: int, turn: int | None, session: str | None = "s", **columns: Any) -> None:
    values = {"id": chunk, "session_id": session, "turn": turn} | columns
    db.execute(f"INSERT INTO chunks ({', '.join(values)}) VALUES ({', '.join(f':{name}' for name in values)})", values)


def first_chunk(table: ChunkTable, turn: int, session: str = "s") -> int:
    key = table.sessions.by_text[session] * chunk_table.TURNS_PER_SESSION + turn
    return int(table.chunks_at(np.array([key]), CHUNKING)[0])


def test_table_follows_chunks_that_are_added_changed_and_deleted(db: Db, table: ChunkTable) -> None:
    add(db, 3, 1, project=7)
    add(db, 4, None, None, source="documents", role=None)
    assert table.catch_up(db)
    row = table.rows([3, 4, 5])
    assert list(row) == [3, 4]
    assert (row[3].session_id, row[3].turn, row[3].role, row[3].source) == ("s", 1, "user", "sessions")
    assert (row[4].session_id, row[4].turn, row[4].role, row[4].source) == (None, None, None, "documents")
    db.execute("UPDATE chunks SET project = 8, role = 'assistant', created_at = 6 WHERE id = 3")
    db.execute("DELETE FROM chunks WHERE id = 4")
    add(db, 5, 2)
    assert table.catch_up(db)
    row = table.rows([3, 4, 5])
    assert (list(row), row[3].role, row[3].created_at) == ([3, 5], "assistant", 6)
    assert table.columns is not None
    assert table.columns.projects[3] == 8


def test_table_finds_the_first_chunk_of_a_turn_that_still_exists(
    db: Db, table: ChunkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_table, "MAX_NEW_TURNS", 2)
    add(db, 1, 1, chunking=2)
    add(db, 2, 1)
    add(db, 3, 1)
    table.catch_up(db)
    assert first_chunk(table, 1) == 2
    db.execute("DELETE FROM chunks WHERE id IN (2, 3)")
    table.catch_up(db)
    assert first_chunk(table, 1) == 0
    for chunk in (4, 5):
        add(db, chunk, 1)  # a message that is sent again in full keeps its turn
        table.catch_up(db)
        assert first_chunk(table, 1) == 4
    assert first_chunk(table, 2) == 0


def test_table_is_read_again_after_more_changes_than_are_logged(
    db: Db, table: ChunkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = sqlite_engine._LOG_CHANGED_CHUNKS.replace("100000", "2")
    monkeypatch.setattr(sqlite_engine, "_LOG_CHANGED_CHUNKS", shorter)
    db.execute("DROP TABLE temp.changed_chunks")
    table.on_database_opened(db)
    for chunk in range(1, 9):
        add(db, chunk, chunk)
    table.catch_up(db)
    db.execute("DELETE FROM chunks WHERE id < 6")
    table.catch_up(db)
    assert list(table.rows([*range(1, 9)])) == [6, 7, 8]
    monkeypatch.setattr(chunk_table, "MAX_CHUNKS_READ_INLINE", 1)
    db.execute("DELETE FROM chunks WHERE id < 8")
    for chunk in (9, 10):
        add(db, chunk, chunk)
    assert not table.catch_up(db), "a search waits until all chunks are read again"


def test_many_changes_are_read_in_steps_of_which_none_is_lost(
    db: Db, table: ChunkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that took too long was interrupted before it had followed any change, and so was every later one."""
    monkeypatch.setattr(chunk_table, "CHANGES_PER_READ", 2)
    monkeypatch.setattr(chunk_table, "MAX_CHANGES_READ_INLINE", 4)
    monkeypatch.setattr(chunk_table, "_CHANGES", chunk_table._CHANGES.replace("LIMIT 1000", "LIMIT 2"))
    for chunk in range(1, 9):
        add(db, chunk, chunk)
    table.catch_up(db)
    db.execute("DELETE FROM chunks WHERE id < 8")
    assert not table.catch_up(db), "a search waits until all changes are read"
    assert table.is_behind
    assert list(table.rows([*range(1, 9)])) == [5, 6, 7, 8]
    assert not table.catch_up(Db(snapshot_of(db))), "what is unread cannot be read on a snapshot"
    while table.extend(db):
        pass
    assert table.catch_up(db)
    assert list(table.rows([*range(1, 9)])) == [8]


def snapshot_of(db: Db) -> apsw.Connection:
    """A connection to the same data, without the log of changes."""
    other = apsw.Connection(":memory:")
    other.deserialize("main", db.raw.serialize("main"))
    return other


def test_table_with_another_database_forgets_the_first(db: Db, table: ChunkTable) -> None:
    add(db, 1, 1)
    table.catch_up(db)
    other = apsw.Connection(":memory:")
    other.execute(SCHEMA)
    table.on_database_opened(Db(other))
    add(Db(other), 1, 4, "t")
    table.catch_up(Db(other))
    assert table.rows([1])[1].session_id == "t"


def test_table_with_too_many_new_chunks_asks_for_time(
    db: Db, table: ChunkTable, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(chunk_table, "MAX_CHUNKS_READ_INLINE", 3)
    for chunk in range(1, 6):
        add(db, chunk, chunk)
    assert not table.catch_up(db)
    assert not table.is_loaded
    while table.extend(db):
        pass
    assert table.is_loaded


def test_table_that_was_loaded_is_behind_after_too_many_new_chunks(
    db: Db, table: ChunkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a large import nothing read the new chunks: searches stayed slow until the daemon was started again."""
    monkeypatch.setattr(chunk_table, "MAX_CHUNKS_READ_INLINE", 3)
    add(db, 1, 1)
    assert table.catch_up(db)
    assert not table.is_behind
    for chunk in range(2, 6):
        add(db, chunk, chunk)
    assert not table.catch_up(db)
    assert table.is_behind
    while table.extend(db):
        pass
    assert not table.is_behind
    assert table.catch_up(db)
    assert list(table.rows([*range(1, 6)])) == [1, 2, 3, 4, 5]


def test_table_reads_new_chunks_behind_many_deleted_ones(
    db: Db, table: ChunkTable, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Deleted chunks were counted as new ones, which were too many to be read, and never became fewer."""
    monkeypatch.setattr(chunk_table, "MAX_CHUNKS_READ_INLINE", 3)
    add(db, 1, 1)
    assert table.catch_up(db)
    for chunk in range(2, 20):
        add(db, chunk, chunk)
    db.execute("DELETE FROM chunks WHERE id BETWEEN 2 AND 18")
    assert table.catch_up(db)
    assert list(table.rows([*range(1, 20)])) == [1, 19]


# --- Similarity


def smoothed(
    table: ChunkTable, db: Db, chunk: int, similarities: dict[int, float]
) -> tuple[dict[int, float], set[int]]:
    table.catch_up(db)

    def compare(chunks: Any) -> Any:
        return np.array([similarities.get(one, np.nan) for one in chunks.tolist()])

    [average], [has_neighbour] = smooth_similarities(table, CHUNKING, np.array([chunk]), compare)
    return {} if np.isnan(average) else {chunk: float(average)}, {chunk} if has_neighbour else set()


def test_similarity_is_averaged_with_the_neighbours(db: Db, table: ChunkTable) -> None:
    for chunk, turn in ((11, 1), (12, 2), (13, 3), (14, 4)):
        add(db, chunk, turn)
    found, in_conversation = smoothed(table, db, 13, {11: 0.9, 12: 0.1, 14: 0.7, 13: 0.5})
    assert in_conversation == {13}
    one, two = SIMILARITY_WEIGHTS
    assert found[13] == pytest.approx((0.5 + one * (0.1 + 0.7) + two * 0.9) / (1 + 2 * one + two))


def test_similarity_ignores_neighbours_without_a_vector_and_discounts_long_ones(db: Db, table: ChunkTable) -> None:
    add(db, 12, 2, tokens=10 * FADE_TOKENS)
    add(db, 13, 3)
    add(db, 14, 4)
    found, _ = smoothed(table, db, 13, {12: 1.0, 13: 0.5})
    weight = SIMILARITY_WEIGHTS[0] / 10
    assert found[13] == pytest.approx((0.5 + weight) / (1 + weight))


def test_similarity_of_a_chunk_without_a_turn_stays_the_same(db: Db, table: ChunkTable) -> None:
    add(db, 1, None)
    add(db, 2, 1)
    assert smoothed(table, db, 1, {1: 0.5, 2: 1.0}) == ({1: 0.5}, set())


# --- Ranking


@pytest.mark.parametrize("has_phrases", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_ranking_by_columns_equals_that_of_rows(db: Db, table: ChunkTable, seed: int, has_phrases: bool) -> None:
    chance = np.random.default_rng(seed)
    for chunk in range(1, 61):
        role = str(chance.choice(["user", "assistant", "tool", "Ada"])) if seed else "tool"
        position, tokens, created_at = map(int, chance.integers((0, 1, 0), (2, 250, 3)))
        turn = int(chance.integers(20)) if chance.random() < 0.8 else None
        add(db, chunk, turn, role=role, position=position, tokens=tokens, created_at=created_at)
    table.catch_up(db)
    chunks = np.sort(chance.choice(np.arange(1, 61), 40, replace=False))
    keywords = np.where(chance.random(40) < 0.6, chance.random(40).round(1), 0.0)
    similarities = np.where(chance.random(40) < 0.6, chance.random(40).round(1), np.nan)
    assert table.columns is not None
    keys = table.columns.keys(chunks)
    matches = np.isin(keys, keys[keywords > 0.5])  # the others have a keyword score by their neighbours
    for weight, speakers in ((0.5, Speakers()), (0.0, Speakers(ADA)), (1.0, Speakers(ADA, range(1, 61, 7)))):
        known = zip(chunks.tolist(), keywords.tolist(), similarities.tolist(), strict=True)
        scores: dict[int, float] = {}
        similar: dict[int, float] = {}
        for chunk, keyword, similarity in known:
            scores |= {chunk: keyword} if keyword else {}
            similar |= {chunk: similarity} if similarity == similarity else {}
        matching = set(chunks[matches].tolist())
        expected = rank(table.rows(chunks.tolist()), scores, matching, similar, weight, speakers)
        expected.sort(key=lambda candidate: candidate.sort_key)
        ranking = rank_columns(table, chunks, keywords, matches, similarities, similarities, weight, speakers)
        if has_phrases:
            exact = dict.fromkeys(chunks[::5].tolist(), 1.0) | dict.fromkeys(chunks[::7].tolist(), 0.5)
            raise_phrases(exact, expected)
            expected.sort(key=lambda candidate: candidate.sort_key)
            ranking = ranking.with_phrases(PhraseMatches(exact))
        found = ranking.candidates(0, 10) + ranking.candidates(10)
        assert [one.row for one in found] == [one.row for one in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score)
            assert one.components == pytest.approx(other.components)
            assert one.is_keyword_match == other.is_keyword_match
            assert one.cosine == similar.get(one.row.id)
