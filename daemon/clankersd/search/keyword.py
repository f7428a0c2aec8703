"""The keyword half: where each word of the query stands, the rarest words first, so that no question is expensive."""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import anyio
import apsw

from clankersd.db import Db, Store
from clankersd.index.tokenize import query_words
from clankersd.search.filters import Eligible

MOST_TERMS = 12
MOST_ROWS = 3_000
"""How many places are looked at in all: tens of thousands would hold the connection too long."""

SLICE_SECONDS = 0.003
"""For how long the words of one query may hold the connection before others get their turn."""

MOST_REMEMBERED = 20_000
WORTH_REMEMBERING = 200
"""A rarer word is counted anew each time, in no time: it may have just been stored."""

_TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2"])
# CROSS JOIN, here and elsewhere: it keeps the order, and the order is what makes it fast.
_FIELDS = "chunks.id, {column}, chunks.session_id, chunks.turn, chunks.tokens"
_PLACES = f"""
    SELECT {_FIELDS.format(column="chunks_instances.col")}
    FROM chunks_instances CROSS JOIN chunks {{index}} ON chunks.id = chunks_instances.doc
    WHERE chunks_instances.term = :stem AND {{condition}}
"""
_NEWEST = f"""
    SELECT {_FIELDS.format(column="'text'")}
    FROM chunks_fts CROSS JOIN chunks ON chunks.id = chunks_fts.rowid
    WHERE chunks_fts MATCH :word AND {{condition}} ORDER BY chunks_fts.rowid DESC LIMIT :most
"""

Place = tuple[int, str, str | None, int | None, int]
"""A chunk in which a word stands, in which column, and the chunk's session, turn and length in words."""


@dataclass(frozen=True)
class Term:
    """A word of the query as the index knows it."""

    word: str
    stem: str
    frequency: int
    chunks: int

    @property
    def rarity(self) -> float:
        """Its inverse document frequency: what finding it tells."""
        return max(math.log((self.chunks - self.frequency + 0.5) / (self.frequency + 0.5)), 1e-6)


@dataclass
class Keywords:
    """Where the words stand; `note` when something was left out."""

    places: list[tuple[Term, list[Place]]] = field(default_factory=list)
    stems: set[str] = field(default_factory=set)
    note: str | None = None

    left: int = MOST_ROWS

    @property
    def size(self) -> int:
        """How many places there are in all."""
        return sum(len(places) for _, places in self.places)

    def has_room_for(self, term: Term) -> bool:
        """Terms come rarest first: those for which there is no room would cost the most and tell the least."""
        return not self.places or term.frequency <= self.left

    def add(self, term: Term, places: list[Place]) -> None:
        if term.frequency > MOST_ROWS:
            self.note = f"of {term.frequency:,} matches of {term.word!r} only the newest {MOST_ROWS:,} were ranked"
        self.places.append((term, places))
        self.left -= term.frequency


async def find_words(
    store: Store, query: str, names: set[str], frequencies: "Frequencies", eligible: Eligible, deadline: float
) -> Keywords:
    """Where the query's rarest words stand among what is eligible, within the deadline. `names` are left out."""
    found = Keywords()
    terms: deque[Term] = deque()

    begun = False

    def look_up(db: Db) -> None:
        """As much as others will not notice; a trip to the connection's thread for each word would cost more.

        Run a second time, after it was interrupted, it goes on where it was.
        """
        nonlocal begun
        if not begun:
            known = _terms(db, query_words(query), names, frequencies)
            found.stems.update(term.stem for term in known)
            terms.extend(known[:MOST_TERMS])
            begun = True
        until = time.monotonic() + SLICE_SECONDS
        while terms and found.has_room_for(terms[0]) and time.monotonic() < until:
            found.add(terms[0], _look_up(db, terms[0], eligible))
            terms.popleft()

    while not begun or (terms and found.has_room_for(terms[0])):
        seconds = deadline - anyio.current_time()
        if seconds <= 0:
            found.note = "time ran out before all words were looked up"
            break
        await store.read(look_up, seconds)
    return found


class Frequencies:
    """In how many chunks a word stands, remembered until many more chunks are there: counting walks through them."""

    def __init__(self, vocabulary: str = "chunks_vocabulary") -> None:
        self._sql = f"SELECT doc FROM {vocabulary} WHERE term = :stem"
        self._known: dict[str, int] = {}
        self._asked_at = 0

    def of(self, db: Db, stem: str, chunks: int) -> int:
        """How many chunks hold the stem, of about `chunks`."""
        if abs(chunks - self._asked_at) > max(100, self._asked_at // 50) or len(self._known) > MOST_REMEMBERED:
            self._known, self._asked_at = {}, chunks
        known = self._known.get(stem, 0)
        if known < WORTH_REMEMBERING:
            known = db.value(self._sql, {"stem": stem}) or 0
            self._known[stem] = known
        return known


def _terms(db: Db, words: list[str], names: set[str], frequencies: Frequencies) -> list[Term]:
    """The words that stand anywhere, rarest first; names only when there is nothing else."""
    tokenize = db.raw.fts5_tokenizer(_TOKENIZER[0], _TOKENIZER[1])
    chunks = db.value("SELECT max(id) FROM chunks") or 0
    terms: dict[str, Term] = {}
    for word in [word for word in words if word not in names] or words:
        for stem in _stems(tokenize, word):
            if frequency := frequencies.of(db, stem, chunks):
                terms.setdefault(stem, Term(word, stem, frequency, max(chunks, frequency)))
    return sorted(terms.values(), key=lambda term: term.frequency)


def stems_of(db: Db, text: str, most: int) -> dict[str, str]:
    """The first different words of a text, each with its stem."""
    tokenize = db.raw.fts5_tokenizer(_TOKENIZER[0], _TOKENIZER[1])
    found: dict[str, str] = {}
    for word in query_words(text)[:most]:
        for stem in _stems(tokenize, word):
            found.setdefault(word, stem)
    return found


def _stems(tokenize: Any, word: str) -> list[str]:
    return [token[2] for token in tokenize(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None)]


def _look_up(db: Db, term: Term, eligible: Eligible) -> list[Place]:
    if term.frequency <= MOST_ROWS:
        # The planner would go by the id, to the rows with their texts.
        index = "" if eligible.narrow else "INDEXED BY idx_chunks_place"
        sql = _PLACES.format(index=index, condition=eligible.condition)
        return db.tuples(sql, eligible.params | {"stem": term.stem})
    params = eligible.params | {"word": f'"{term.word}"', "most": MOST_ROWS}
    return db.tuples(_NEWEST.format(condition=eligible.condition), params)
