"""The keyword half: one FTS5 query a term, the rarest terms first, so that no question becomes expensive."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import apsw

from clankersd.db import Db, Store
from clankersd.index.words import Term, query_terms
from clankersd.search.filters import Eligible

MOST_TERMS = 12
MOST_ROWS = 8_000
"""How many matches are ranked in all: tens of thousands would hold the connection too long."""

TEXT, HEADER, EXTRA = 1.0, 0.5, 0.5
"""What a match in each column of chunks_fts is worth."""

_TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2"])
_MATCHES = """
    SELECT chunks.id, -bm25(chunks_fts, {text}, {header}, {extra}), chunks.session_id, chunks.turn
    FROM chunks_fts JOIN chunks ON chunks.id = chunks_fts.rowid
    WHERE chunks_fts MATCH :term AND {condition} ORDER BY chunks_fts.rowid DESC LIMIT :most
"""


@dataclass(frozen=True)
class Matches:
    """Where one term stands: chunk, score, session and turn of each match."""

    term: str
    rows: list[tuple[int, float, str | None, int | None]]


@dataclass
class Keywords:
    """The answer of the keyword half, term by term; `note` when something was left out."""

    matches: list[Matches] = field(default_factory=list)
    stems: set[str] = field(default_factory=set)
    note: str | None = None


async def find_words(store: Store, query: str, eligible: Eligible, deadline: float) -> Keywords:
    """The matches of the query's rarest words among what is eligible, within the deadline."""
    chosen = await store.read(lambda db: _choose(db, query_terms(query)))
    found = Keywords(stems={stem for _, stem, _ in chosen})
    left = MOST_ROWS
    for term, _, frequency in chosen[:MOST_TERMS]:
        seconds = deadline - anyio.current_time()
        if seconds <= 0:
            found.note = "time ran out before all words were looked up"
            break
        if left <= 0 or (found.matches and frequency > left):
            break  # the words left are the commonest: they would cost the most and tell the least
        rows = await store.read(lambda db, term=term, left=left: _look_up(db, term, eligible, left), seconds)  # type: ignore[misc]
        found.matches.append(Matches(term.match, rows))
        if frequency > MOST_ROWS and len(rows) == left:
            found.note = f"of the {frequency:,} matches of {term.match} only the newest {left:,} were ranked"
        left -= frequency
    return found


def _choose(db: Db, terms: list[Term]) -> list[tuple[Term, str, int]]:
    """The terms that stand anywhere, each with its stem and in how many chunks, rarest first."""
    tokenize = db.raw.fts5_tokenizer(_TOKENIZER[0], _TOKENIZER[1])
    chosen: dict[str, tuple[Term, str, int]] = {}
    for term in terms:
        for stem in _stems(tokenize, term.match.strip('"')):
            frequency = db.value("SELECT doc FROM chunks_vocabulary WHERE term = :stem", {"stem": stem})
            if frequency:
                chosen.setdefault(stem, (term, stem, frequency))
    return sorted(chosen.values(), key=lambda choice: choice[2])


def _stems(tokenize: Any, text: str) -> Iterator[str]:
    for token in tokenize(text.encode(), apsw.FTS5_TOKENIZE_QUERY, None):
        yield token[2]


def _look_up(db: Db, term: Term, eligible: Eligible, most: int) -> list[tuple[int, float, str | None, int | None]]:
    sql = _MATCHES.format(text=TEXT, header=HEADER, extra=EXTRA, condition=eligible.condition)
    return db.tuples(sql, eligible.params | {"term": term.match, "most": most})  # type: ignore[return-value]
