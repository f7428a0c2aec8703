"""Ranking by columns: the scores of `rank`, computed for all candidates at once from the table of chunks in memory.

Candidates are made only of those that are looked at: of some three hundred, a page shows ten.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from clankersd.search.chunk_table import ChunkTable
from clankersd.search.phrases import PHRASE_WEIGHT, PhraseMatches
from clankersd.search.ranking import (
    ASSISTANT_FACTOR,
    LONG_TOKENS,
    SHORT_TOKENS,
    TOOL_FACTOR,
    Candidate,
)
from clankersd.search.rows import RankingRow
from clankersd.search.speakers import SPEAKER_WEIGHT, Speakers


@dataclass(frozen=True)
class ColumnRanking:
    """Ranked chunks, best first, with their scores and the components of these, as arrays.

    There are no vector components if vectors have no weight, no speaker components if the query names nobody, and no
    phrase components if no text has it word for word. A role, a phrase or a cosine is NaN where there is none.
    `has_term` tells which messages have a term of the query themselves: a keyword score may come from a neighbour.
    """

    table: ChunkTable
    chunks: Any
    scores: Any
    keywords: Any
    has_term: Any
    vectors: Any
    speakers: Any
    roles: Any
    cosines: Any
    phrases: Any = None

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def has_memories(self) -> bool:
        return bool(self.table.of_source(self.chunks, "memories").any())

    def keyword_matches(self) -> Any:
        """Return the chunks of messages that have a term of the query, best first, as an array."""
        return self.chunks[self.has_term]

    def with_phrases(self, phrases: PhraseMatches) -> "ColumnRanking":
        """Return the ranking with raised scores of the chunks that have a phrase of the query, as `raise_phrases`."""
        import numpy as np

        is_exact = np.isin(self.chunks, np.array(sorted(phrases.weights), np.int64))
        columns = self.table.columns
        assert columns is not None
        # The length of an assistant's text does not count against it: the phrase is not in it by chance.
        has_factor = is_exact & ~np.isnan(self.roles)
        is_tool = columns.roles[self.chunks] == self.table.roles.by_text.get("tool", -1)
        factors: Any = np.where(has_factor, np.where(is_tool, TOOL_FACTOR, 1.0), self.roles)
        scores = np.where(has_factor, np.minimum(1.0, self.scores * factors / self.roles), self.scores)
        weights = np.array([phrases.weights.get(chunk, 0.0) for chunk in self.chunks.tolist()])
        scores = (scores + PHRASE_WEIGHT * weights) / (1 + PHRASE_WEIGHT)
        order = _best_first(self.table, self.chunks, scores)
        chunks = [phrases.shown.get(chunk, chunk) for chunk in self.chunks[order].tolist()]
        return replace(
            self,
            chunks=np.array(chunks, np.int64),
            scores=scores[order],
            keywords=self.keywords[order],
            has_term=self.has_term[order],
            vectors=None if self.vectors is None else self.vectors[order],
            speakers=None if self.speakers is None else self.speakers[order],
            roles=factors[order],
            cosines=self.cosines[order],
            phrases=np.where(is_exact, weights, np.nan)[order],
        )

    def candidates(self, start: int, end: int | None = None) -> list[Candidate[RankingRow]]:
        """Return the candidates in this range of ranks; a chunk that was deleted in the meantime is left out."""
        own = slice(start, end)
        rows = self.table.rows(self.chunks[own].tolist())
        columns = [self.scores, self.keywords, self.vectors, self.speakers, self.roles, self.phrases, self.cosines]
        found = []
        for chunk, is_match, score, keyword, vector, speaker, role, phrase, cosine in zip(
            self.chunks[own].tolist(),
            self.has_term[own].tolist(),
            *(_listed(column, len(self.chunks[own]), own) for column in columns),
            strict=True,
        ):
            named = {"keyword": keyword, "vector": vector, "speaker": speaker, "role": role, "phrase": phrase}
            components = {name: value for name, value in named.items() if value is not None}
            if chunk in rows:
                found.append(Candidate(rows[chunk], score, is_match, components, cosine=cosine))
        return found


def _listed(column: Any, count: int, own: slice) -> list[Any]:
    """Return part of a column as a list, with None for NaN and for a column that there is not."""
    if column is None:
        return [None] * count
    return [None if value != value else value for value in column[own].tolist()]


def rank_columns(
    table: ChunkTable,
    chunks: Any,
    keywords: Any,
    has_term: Any,
    similarities: Any,
    cosines: Any,
    vector_weight: float,
    speakers: Speakers,
) -> ColumnRanking:
    """Rank chunks by their keyword scores (0 for none) and similarities (NaN for none), as `rank` does."""
    import numpy as np

    columns = table.columns
    assert columns is not None
    role_names = table.roles.texts
    roles, is_known = columns.roles[chunks], ~np.isnan(similarities)
    is_scaling = roles != table.roles.by_text.get("tool", -1)
    if not is_scaling.any():
        is_scaling[:] = True
    best = keywords[is_scaling].max(initial=0.0) or keywords.max(initial=0.0) or 1.0
    known = similarities[is_scaling & is_known]
    known = known if len(known) else similarities[is_known]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    scaled = np.clip((similarities - low) * (1 / (high - low)), 0, 1) if high > low else 1.0
    # A text without a vector, such as one that was just stored, is judged by its words alone.
    vectors = np.where(is_known, scaled, np.minimum(1.0, keywords / best))
    keyword_weight = (1 - vector_weight) / best
    scores = keyword_weight * keywords + vector_weight * vectors
    # Of the chunks of a message, the best one represents it, with the best score of each kind.
    keys = columns.keys(chunks)
    order = np.lexsort((chunks, -scores, keys))
    starts = np.flatnonzero(np.append(True, keys[order][1:] != keys[order][:-1])[: len(order)])
    keywords, has_term, vectors, is_known = (
        np.maximum.reduceat(one[order], starts) if len(order) else one
        for one in (keywords, has_term, vectors, is_known)
    )
    chosen = order[starts]
    chunks, roles, cosines = chunks[chosen], roles[chosen], cosines[chosen]
    scores = keyword_weight * keywords + vector_weight * vectors if vector_weight else keyword_weight * keywords
    speaker = None
    if speakers.names:
        speaker = np.array([speakers.are_named_in(name) for name in role_names], np.float64)[roles]
        speaker = np.maximum(speaker, np.isin(chunks, speakers.prefixed))
        scores = (scores + SPEAKER_WEIGHT * speaker) / (1 + SPEAKER_WEIGHT)
    factors = _role_factors(table, chunks, roles)
    scores = scores * np.where(np.isnan(factors), 1.0, factors)
    scores = scores / max(1.0, scores.max(initial=0.0))  # a tool call may have more words of the query than any message
    order = _best_first(table, chunks, scores)
    return ColumnRanking(
        table,
        chunks=chunks[order],
        scores=scores[order],
        keywords=np.minimum(1.0, keywords / best)[order],
        has_term=has_term[order],
        vectors=np.where(is_known, vectors, np.nan)[order] if vector_weight else None,
        speakers=None if speaker is None else speaker[order],
        roles=factors[order],
        cosines=cosines[order],
    )


def _best_first(table: ChunkTable, chunks: Any, scores: Any) -> Any:
    """Return the order of the chunks by score, then newest first."""
    import numpy as np

    columns = table.columns
    assert columns is not None
    return np.lexsort((chunks, -columns.created_at[chunks], -scores))


def _role_factors(table: ChunkTable, chunks: Any, roles: Any) -> Any:
    """Return the factor of `assistant_factor` for assistants and tool calls, with that of tool calls; else NaN."""
    import numpy as np

    columns = table.columns
    assert columns is not None
    assistant, tool = (table.roles.by_text.get(name, -1) for name in ("assistant", "tool"))
    tokens = columns.tokens[chunks]
    tokens = np.where(columns.positions[chunks] == 0, tokens, np.maximum(tokens, LONG_TOKENS))
    share = np.log(np.clip(tokens, SHORT_TOKENS, LONG_TOKENS) / SHORT_TOKENS) / math.log(LONG_TOKENS / SHORT_TOKENS)
    factors = np.where(tokens >= LONG_TOKENS, ASSISTANT_FACTOR, 1 - (1 - ASSISTANT_FACTOR) * share)
    factors = np.where(roles == tool, factors * TOOL_FACTOR, factors)
    return np.where((roles == assistant) | (roles == tool), factors, np.nan)
