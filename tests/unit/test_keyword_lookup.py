"""Lookup of a query's terms: the eligible chunks, whether their places are in memory or in the database."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import anyio
import apsw
import numpy
import pytest

from clankersd.db import Db, Store
from clankersd.search import chunk_selection, chunk_table, eligible_chunks, keyword, term_index
from clankersd.search.chunk_selection import rarest_matches
from clankersd.search.filters import NO_MEMORIES, ChunkFilter, Criteria, build_filter
from clankersd.search.keyword import KeywordLookup
from clankersd.search.keyword_matches import KeywordMatches
from clankersd.search.term_index import Postings, Term, TermIndex, TermMatches

SCHEMA = """
    CREATE TABLE projects (id TEXT, number INTEGER);
    INSERT INTO projects VALUES ('one', 1), ('two', 2);
    CREATE TABLE chunks (
        id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT DEFAULT 's', turn INTEGER, tokens INTEGER DEFAULT 10,
        project INTEGER, chunking INTEGER DEFAULT 1, source TEXT DEFAULT 'sessions', role TEXT DEFAULT 'user',
        position INTEGER DEFAULT 0, created_at INTEGER DEFAULT 5, memory_id TEXT, scope TEXT, text TEXT,
        message_id TEXT, start_offset INTEGER, end_offset INTEGER
    );
    CREATE TABLE messages (id TEXT, text_content TEXT);
    CREATE INDEX idx_chunks_memory ON chunks (memory_id) WHERE memory_id IS NOT NULL;
    CREATE VIRTUAL TABLE chunks_fts USING fts5 (text, header, extra, tokenize = 'porter unicode61');
    CREATE VIRTUAL TABLE chunks_instances USING fts5vocab (chunks_fts, instance);
    CREATE VIRTUAL TABLE chunks_vocabulary USING fts5vocab (chunks_fts, row);
"""


@pytest.fixture
def db() -> Iterator[Db]:
    connection = apsw.Connection(":memory:")
    connection.execute(SCHEMA)
    db = Db(connection)
    texts = ["alpha beta", "alpha", "beta gamma", "alpha gamma", "delta", "alpha delta"]
    for chunk, text in enumerate(texts, 1):
        params = {"id": chunk, "turn": chunk, "project": 1 + chunk % 2, "text": text}
        db.execute("INSERT INTO chunks (id, turn, project, text) VALUES (:id, :turn, :project, :text)", params)
        db.execute("INSERT INTO chunks_fts (rowid, text) VALUES (:id, :text)", params)
    yield db
    connection.close()


def look_up(db: Db, query: str, chunk_filter: ChunkFilter) -> KeywordMatches:
    index = TermIndex()
    index.chunks.on_database_opened(db)
    lookup = KeywordLookup(query, index, chunk_filter)
    while not lookup.is_done:
        lookup.run_slice(db)
    return lookup.matches


def everything() -> ChunkFilter:
    return build_filter(Criteria(), 1, NO_MEMORIES)


def of_project() -> ChunkFilter:
    return build_filter(Criteria(project="two"), 1, NO_MEMORIES)


@pytest.mark.parametrize("make_filter", [everything, of_project])
def test_lookup_finds_the_same_in_memory_and_in_the_database(
    db: Db, make_filter: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(make_filter)
    chunk_filter = make_filter()
    in_memory = look_up(db, "alpha gamma", chunk_filter)
    monkeypatch.setattr(chunk_table, "MAX_CHUNKS_READ_INLINE", -1)
    in_database = look_up(db, "alpha gamma", chunk_filter)
    expected = [1, 2, 3, 4, 6] if make_filter is everything else [1, 3]
    assert in_memory.places.chunks.tolist() == in_database.places.chunks == expected
    for column in ("turns", "tokens", "sessions"):
        assert getattr(in_memory.places, column).tolist() == getattr(in_database.places, column)
    assert [one.term for one in in_memory.terms] == [one.term for one in in_database.terms]
    if make_filter is of_project:
        assert [(one.term.frequency, one.term.chunk_count) for one in in_memory.terms] == [(1, 3), (1, 3)]


def test_lookup_of_more_matches_than_are_scored_says_so_and_scores_the_rarest(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    assert look_up(db, "alpha gamma", everything()).limits == []
    monkeypatch.setattr(chunk_selection, "MAX_SCORED_CHUNKS", 3)
    found = look_up(db, "alpha gamma", everything())
    assert found.places.chunks.tolist() == [3, 4, 6], "both words, the rarer word, and the newest of the rest"
    assert found.limits == ["of at least 5 chunks with a word of the query the best 3 were ranked"]
    for module in (chunk_selection, term_index, chunk_table):
        monkeypatch.setattr(module, "numpy_if_available", lambda: None)
    assert look_up(db, "alpha gamma", everything()).limits == found.limits


def test_lookup_goes_on_until_enough_words_occur_in_the_scope(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that are rare in the store and absent from the project took the places of those that occur in it."""
    monkeypatch.setattr(keyword, "MAX_TERMS", 2)
    texts = ["zeta", "eta", "theta"]  # of project one only
    for chunk, text in enumerate(texts, 7):
        db.execute("INSERT INTO chunks (id, project, text) VALUES (:id, 1, :text)", {"id": chunk, "text": text})
        db.execute("INSERT INTO chunks_fts (rowid, text) VALUES (:id, :text)", {"id": chunk, "text": text})
    found = look_up(db, "zeta eta theta alpha beta gamma", of_project())
    assert [one.term.word for one in found.terms] == ["beta", "gamma"]
    assert found.limits == ["of 6 words the 5 rarest of the store were looked up"]
    found = look_up(db, "zeta eta theta alpha beta gamma", everything())
    assert [one.term.word for one in found.terms] == ["zeta", "eta"]
    assert found.limits == ["of 6 words the 2 rarest were looked up"]
    monkeypatch.setattr(keyword, "MAX_LOOKUPS", 3)
    found = look_up(db, "zeta eta theta alpha beta gamma", of_project())
    assert (found.terms, found.limits) == ([], ["of 6 words the 3 rarest of the store were looked up"])


def test_lookup_with_a_filter_that_passes_too_many_chunks_to_list_says_so(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(eligible_chunks, "MAX_LISTED_CHUNKS", 2)
    found = look_up(db, "alpha gamma", of_project().restrict("chunks.turn > 0"))
    assert found.limits == ["more than 2 chunks pass the filter, so that words were looked up in the whole store"]
    assert list(found.places.chunks) == [1, 3]


def test_rarity_in_the_whole_store_counts_the_chunks_that_exist(db: Db) -> None:
    """The highest id was taken for their number, which after a mass deletion made frequent words rare."""
    db.execute("INSERT INTO chunks (id, project, text) VALUES (5000, 1, 'alpha')")
    db.execute("INSERT INTO chunks_fts (rowid, text) VALUES (5000, 'alpha')")
    [alpha] = look_up(db, "alpha", everything()).terms
    assert (alpha.term.frequency, alpha.term.chunk_count) == (5, 7)


@pytest.mark.parametrize("seed", range(20))
def test_frequent_terms_that_are_looked_up_in_contenders_only_choose_the_same_chunks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, size = numpy.random.default_rng(seed), 5_000
    shares = [*chance.uniform(0.0, 0.05, 3), *chance.uniform(0.05, 1.0, 4)]
    terms = []
    for share in shares:
        chunks = numpy.flatnonzero(chance.random(size) < share).astype(numpy.int32)
        terms.append(TermMatches(Term("word", (), len(chunks), size), Postings(chunks)))
    terms = [one for one in terms if len(one.chunks)]
    monkeypatch.setattr(chunk_selection, "MAX_SCORED_CHUNKS", 200)
    everything, count = rarest_matches(terms, size)
    monkeypatch.setattr(chunk_selection, "MIN_SKIPPED_FREQUENCY", 0)
    chosen, at_least = rarest_matches(terms, size)
    assert chosen.tolist() == everything.tolist()
    assert len(chosen) < at_least <= count


@pytest.mark.parametrize("count", range(1, 12))
def test_lookup_that_is_interrupted_anywhere_and_run_again_finds_every_word(
    db: Db, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that takes long is interrupted and run again on a snapshot."""
    expected = look_up(db, "alpha beta gamma", everything())
    index = TermIndex()
    index.chunks.on_database_opened(db)
    lookup = KeywordLookup("alpha beta gamma", index, everything())
    reads, run = 0, Db.value

    def interrupt_once(self: Db, *arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == count:
            raise apsw.InterruptError
        return run(self, *arguments)

    monkeypatch.setattr(Db, "value", interrupt_once)
    monkeypatch.setattr(keyword, "SLICE_SECONDS", 60.0)  # only the interrupt ends a slice, however busy the machine is
    with contextlib.suppress(apsw.InterruptError):
        lookup.run_slice(db)
    while not lookup.is_done:
        lookup.run_slice(db)
    assert [one.term for one in lookup.matches.terms] == [one.term for one in expected.terms]
    assert lookup.matches.places.chunks.tolist() == expected.places.chunks.tolist()
    assert lookup.matches.stems == expected.stems


def count_slices(db: Db, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(keyword, "SLICE_SECONDS", 60.0)
    monkeypatch.setattr(keyword, "BRIEF_SLICE_SECONDS", 1e-9)
    index = TermIndex()
    index.chunks.on_database_opened(db)
    lookup = KeywordLookup("alpha beta gamma", index, everything())
    slices = 0
    while not lookup.is_done:
        lookup.run_slice(db)
        slices += 1
    assert lookup.matches.places.chunks.tolist() == [1, 2, 3, 4, 6]
    return slices


def test_a_slice_ends_early_while_a_commit_waits(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_slices(db, monkeypatch) == 1
    db.waiting_commits = ["a commit"]
    # The eligible chunks, three words, the order of their terms, three lookups, the best chunks and their places.
    assert count_slices(db, monkeypatch) == 10


class _StoreOf:
    """Runs reads on a database, in the thread of the event loop."""

    def __init__(self, db: Db) -> None:
        self._db = db

    async def read_for_search(self, query: Callable[[Db], Any], seconds: float) -> Any:
        return query(self._db)


def test_the_best_of_many_matches_are_chosen_beside_the_connection(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events wait for the connection's thread, so nothing that needs no database runs there for long."""
    monkeypatch.setattr(keyword, "MAX_CHOSEN_IN_SLICE", 2)
    threads = []

    def choose(terms: list[TermMatches], last: int) -> tuple[Any, int]:
        threads.append(threading.current_thread())
        return rarest_matches(terms, last)

    monkeypatch.setattr(keyword, "rarest_matches", choose)
    index = TermIndex()
    index.chunks.on_database_opened(db)

    async def run(query: str) -> list[int]:
        lookup = KeywordLookup(query, index, everything())
        read_done = anyio.Event()
        await lookup.run(cast(Store, _StoreOf(db)), anyio.current_time() + 60, lambda _db: None, read_done)
        assert read_done.is_set()
        chunks: list[int] = lookup.matches.places.chunks.tolist()
        return chunks

    assert anyio.run(run, "alpha gamma") == [1, 2, 3, 4, 6]
    assert anyio.run(run, "beta") == [1, 3]
    of_many, of_few = threads
    assert of_many is not threading.main_thread()
    assert of_few is threading.main_thread()


def add_chat(db: Db, *texts: str) -> None:
    """Add messages of the project "one" after all others."""
    for text in texts:
        params = {"id": db.value("SELECT max(id) + 1 FROM chunks"), "text": text}
        db.execute("INSERT INTO chunks (id, turn, project, text) VALUES (:id, :id, 1, :text)", params)
        db.execute("INSERT INTO chunks_fts (rowid, text) VALUES (:id, :text)", params)


def prefixes(db: Db, chunk_filter: ChunkFilter, *words: str) -> dict[str, int]:
    index = TermIndex()
    index.chunks.on_database_opened(db)
    found = KeywordLookup("", index, chunk_filter).find_prefixes(db, words)
    return {word: len(chunks) for word, chunks in found.items()}


def test_names_that_messages_begin_with_are_prefixes(db: Db) -> None:
    add_chat(db, *["Ada: I moved to Turin", "Grace: how is Turin, Ada?"] * 30)
    assert prefixes(db, everything(), "ada", "grace", "turin", "nobody") == {"ada": 30, "grace": 30}


def test_a_word_is_a_prefix_in_its_own_scope_only(db: Db) -> None:
    add_chat(db, *["Ada: I moved to Turin", "Grace: how is Turin?"] * 30)
    assert prefixes(db, of_project(), "ada") == {}
    only_first = build_filter(Criteria(project="one"), 1, NO_MEMORIES)
    assert prefixes(db, only_first, "ada") == {"ada": 30}


def test_a_word_that_is_mostly_in_the_middle_is_no_prefix(db: Db) -> None:
    add_chat(db, *["Fix the login", "the fix is stored", "a fix for the login"] * 30)
    assert prefixes(db, everything(), "fix") == {}


@pytest.mark.parametrize(
    "text",
    ["Add a retry to the loop", "Add, please, a retry", "add(loop): a retry", "Add::retry is slow", "Add://retry"],
)
def test_a_first_word_without_a_colon_is_no_prefix(db: Db, text: str) -> None:
    """Prompts begin with imperatives, and a query with one names no speaker."""
    add_chat(db, *[text, "Grace: some other text"] * 30)
    assert prefixes(db, everything(), "add", "grace") == {"grace": 30}


@pytest.mark.parametrize(
    "text", ["Ada Lovelace: hello", "**Ada:** hello", "**Ada**: hello", "ada: hello", "Adas: hi", "Ada:\nhello", "Ada:"]
)
def test_a_first_word_with_a_colon_is_a_prefix(db: Db, text: str) -> None:
    add_chat(db, *[text, "Grace: some other text"] * 30)
    assert prefixes(db, everything(), "ada") == {"ada": 30}


def test_a_prefix_may_begin_a_few_messages_without_a_colon(db: Db) -> None:
    add_chat(db, *["Ada: hello", "some other text"] * 30, "Ada, hello")
    assert prefixes(db, everything(), "ada") == {"ada": 31}
    add_chat(db, *["Ada, hello"] * 30)
    assert prefixes(db, everything(), "ada") == {}


def test_a_word_that_nearly_all_messages_begin_with_is_no_prefix(db: Db) -> None:
    add_chat(db, *["Ada: hello"] * 300)
    assert prefixes(db, everything(), "ada") == {}


def test_text_outside_a_conversation_has_no_prefix(db: Db) -> None:
    add_chat(db, *["TypeError: x is not a function", "some text"] * 30)
    db.execute("UPDATE chunks SET turn = NULL")
    assert prefixes(db, everything(), "typeerror") == {}
