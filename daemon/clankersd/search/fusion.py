"""Fusion: what keyword and vector search found, together, and ranked by both."""

import json
from dataclasses import dataclass

from clankers_protocol.search import Mode
from clankersd.db import Db, Store
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.column_ranking import ColumnRanking, rank_columns
from clankersd.search.filters import MATCHING_CHUNKS, ChunkFilter
from clankersd.search.ranking import Candidate, fusion_weight, rank
from clankersd.search.rows import RankingRow, fetch_ranking_rows
from clankersd.search.speakers import Speakers
from clankersd.search.turn_scoring import TurnScores
from clankersd.search.vector_search import MAX_REFILLS, VectorMatches, VectorSearch

_CHUNKS_AT_TURNS = """
    SELECT chunks.session_id, chunks.turn, min(chunks.id)
    FROM json_each(:turns) CROSS JOIN chunks
      ON chunks.session_id = json_each.value ->> 0 AND chunks.turn = json_each.value ->> 1
    WHERE {condition} GROUP BY 1, 2
"""


@dataclass(frozen=True)
class Fusion:
    """Ranks the best `pool_size` turns and the chunks nearest to the query.

    `vector_weight` is that of the vectors in a hybrid search, None for what fits the embedder.
    """

    store: Store
    table: ChunkTable
    vectors: VectorSearch
    filter: ChunkFilter
    vector_matches: VectorMatches
    turn_scores: TurnScores | None
    pool_size: int
    mode: Mode
    vector_weight: float | None
    speakers: Speakers

    async def rank(self) -> list[Candidate[RankingRow]] | ColumnRanking:
        """Rank everything that was found, best first: by columns if the table in memory has all of it."""
        found: dict[int, RankingRow] | list[int] = {}
        for _ in range(MAX_REFILLS):
            nearest = [chunk for chunk, _ in self.vector_matches.nearest]
            found = await self._fetch(nearest)
            missing = {*nearest}.difference(found)
            if not missing:
                break
            await self.vectors.replace_missing(self.vector_matches, missing, self.filter, self.pool_size)
        return await (self._rank_columns(found) if isinstance(found, list) else self._rank_rows(found))

    async def _fetch(self, nearest: list[int]) -> dict[int, RankingRow] | list[int]:
        """Return what passes the filter as rows of the database, or only ids if the table in memory has all of them."""
        table, turn_scores = self.table, self.turn_scores
        is_up_to_date = table.is_loaded and not table.has_unread_changes
        has_all = table.columns is not None and is_up_to_date and max(nearest, default=0) <= table.last
        is_current = turn_scores is None or turn_scores.places.session_ids is table.sessions.texts
        if not has_all or not is_current or self.filter.is_narrow:

            def fetch(db: Db) -> dict[int, RankingRow]:
                by_keyword = _best_chunks(db, self.filter, turn_scores)[: self.pool_size] if turn_scores else []
                return fetch_ranking_rows(db, [*by_keyword, *nearest], self.filter)

            return await self.store.read_for_search(fetch)
        by_keyword = turn_scores.ranked_chunks(table, self.filter.params["chunking"]) if turn_scores else []
        found = table.existing([*by_keyword[: self.pool_size], *nearest])
        is_memory = table.of_source(found, "memories")
        if not is_memory.any():
            return found.tolist()  # type: ignore[no-any-return]
        # Only the database knows who may see a memory.
        sql = MATCHING_CHUNKS.format(condition=self.filter.condition)
        params = self.filter.params | {"near": json.dumps(found[is_memory].tolist())}
        visible = [row[0] for row in await self.store.read_for_search(lambda db: db.tuples(sql, params))]
        return sorted([*found[~is_memory].tolist(), *visible])

    async def _rank_columns(self, found: list[int]) -> ColumnRanking:
        import numpy as np

        chunks, columns = np.array(found, np.int64), self.table.columns
        keywords, has_term = np.zeros(len(chunks)), np.zeros(len(chunks), np.bool_)
        if self.turn_scores and found and columns is not None:
            keys = columns.keys(chunks)
            keywords = self.turn_scores.scores_of_chunks(chunks, keys)
            has_term = self.turn_scores.matches_of_keys(keys)
        similarities, cosines = await self.vectors.similarity_columns(self.vector_matches, chunks, self.filter)
        await self.store.let_events_pass()
        weight = self._fixed_weight()
        if weight is None:
            scores = dict(zip(found, keywords.tolist(), strict=True))
            known = zip(found, similarities.tolist(), strict=True)
            weight = self._weight_by_agreement(scores, {chunk: one for chunk, one in known if one == one})
        return rank_columns(
            self.table,
            chunks,
            keywords=keywords,
            has_term=has_term,
            similarities=similarities,
            cosines=cosines,
            vector_weight=weight,
            speakers=self.speakers,
        )

    async def _rank_rows(self, rows: dict[int, RankingRow]) -> list[Candidate[RankingRow]]:
        scores = self.turn_scores.scores_of_rows(rows) if self.turn_scores else {}
        similarities = await self.vectors.similarities(self.vector_matches, list(rows), self.filter)
        weight = self._fixed_weight()
        if weight is None:
            weight = self._weight_by_agreement(scores, similarities)
        with_term = self.turn_scores.matches_of_rows(rows) if self.turn_scores else set()
        candidates = rank(rows, scores, with_term, similarities, weight, self.speakers)
        for candidate in candidates:
            candidate.cosine = self.vector_matches.cosines.get(candidate.row.id)
        return sorted(candidates, key=lambda candidate: candidate.sort_key)

    def _fixed_weight(self) -> float | None:
        """Return the weight of the vectors, None if it depends on how much keyword search agrees with them."""
        if self.mode == "vector":
            return 1.0
        embedder = self.vectors.embedder
        if embedder is None or not self.vector_matches.nearest:
            return 0.0
        if self.vector_weight is not None:
            return self.vector_weight
        return embedder.weight if embedder.weight == embedder.agreed_weight else None

    def _weight_by_agreement(self, scores: dict[int, float], similarities: dict[int, float]) -> float:
        embedder = self.vectors.embedder
        assert embedder is not None
        in_conversation = self.vector_matches.in_conversation
        return fusion_weight(embedder.weight, embedder.agreed_weight, scores, similarities, in_conversation)


def _best_chunks(db: Db, chunk_filter: ChunkFilter, turn_scores: TurnScores) -> list[int]:
    """Return the chunks of the best turns. For a turn that has matches only near it, the chunk is looked up."""
    chunk_by_key = turn_scores.best_chunks(turn_scores.ranked)
    turns = turn_scores.turns_of(key for key in turn_scores.ranked if key not in chunk_by_key)
    if turns:
        sql = _CHUNKS_AT_TURNS.format(condition=chunk_filter.condition)
        params = chunk_filter.params | {"turns": json.dumps(list(turns.values()))}
        chunk_by_turn = {(session, turn): chunk for session, turn, chunk in db.tuples(sql, params)}
        chunk_by_key |= {key: chunk_by_turn[turn] for key, turn in turns.items() if turn in chunk_by_turn}
    return [chunk_by_key[key] for key in turn_scores.ranked if key in chunk_by_key]
