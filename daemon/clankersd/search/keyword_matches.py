"""Matches of a query's terms, and the places of the best chunks with any of them."""

from dataclasses import dataclass, field
from typing import Any

from clankersd.index.tokenize import query_words
from clankersd.search.term_index import TermMatches


@dataclass
class Places:
    """Places of chunks in conversations, as columns in the order of the chunks: thousands of rows would take longer.

    Sessions are numbered from 1 on: `session_numbers` and `session_ids` translate. A chunk outside a conversation has
    the session 0 or the turn -1. The columns are arrays of numpy if they come from memory, else lists.
    """

    chunks: Any = field(default_factory=list)
    sessions: Any = field(default_factory=list)
    turns: Any = field(default_factory=list)
    tokens: Any = field(default_factory=list)
    session_numbers: dict[str, int] = field(default_factory=dict)
    session_ids: list[str] = field(default_factory=lambda: [""])

    def add(self, chunks: list[int], sessions: list[str], turns: list[int], tokens: list[int]) -> None:
        """Add columns of the database; an empty session is none."""
        for session in sessions:
            if session and session not in self.session_numbers:
                self.session_numbers[session] = len(self.session_ids)
                self.session_ids.append(session)
        self.chunks += chunks
        self.sessions += [self.session_numbers.get(session, 0) for session in sessions]
        self.turns += turns
        self.tokens += tokens


@dataclass
class KeywordMatches:
    """Matches by term, in the order of the query, and the places of the best chunks with any of them.

    `weights` has every stem of the query, known or not; `rare_names` those that hardly any chunk contains. `limits`
    state what was left out because there is so much; `problem` is the reason why the search is incomplete otherwise.
    """

    terms: list[TermMatches] = field(default_factory=list)
    places: Places = field(default_factory=Places)
    stems: set[str] = field(default_factory=set)
    weights: dict[str, float] = field(default_factory=dict)
    rare_names: set[str] = field(default_factory=set)
    limits: list[str] = field(default_factory=list)
    problem: str | None = None

    def indexed_coverage(self, chunk: int) -> float:
        """Return the weighted share of the query's words by which the index finds a chunk, be it in the header."""
        found = 0.0
        for one in self.terms:
            if one.postings.find([chunk]):
                found += max(self.weights.get(spelling.stem, 0.0) for spelling in one.term.spellings)
        total = sum(self.weights.values())
        return min(1.0, found / total) if total else 0.0

    def chunks_with_phrase(self, phrase: str, chunks: Any) -> Any:
        """Return those of the chunks, an array or a list, that can have a phrase of the query word for word, in order.

        Its first and last word may be parts of words in the text; all others occur as they are.
        """
        words = set(query_words(phrase))
        for one in [one for one in self.terms if one.term.word in words][1:-1]:
            chunks = one.postings.find(chunks)
        return chunks

    def chunks_with_words(self, phrase: str, chunks: list[int]) -> list[int]:
        """Return those of the chunks that have every word of a phrase of the query, in order."""
        words = set(query_words(phrase))
        for one in [one for one in self.terms if one.term.word in words]:
            chunks = one.postings.find(chunks)
        return chunks
