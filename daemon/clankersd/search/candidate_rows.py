"""Rows of everything that keyword and vector search found, from the table in memory or from the database."""

import json

from clankersd.db import Db, Store
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.filters import MATCHING_CHUNKS, ChunkFilter
from clankersd.search.rows import RankingRow, fetch_ranking_rows
from clankersd.search.turn_scoring import TurnScores

_CHUNKS_AT_TURNS = """
    SELECT chunks.session_id, chunks.turn, min(chunks.id)
    FROM json_each(:turns) CROSS JOIN chunks
      ON chunks.session_id = json_each.value ->> 0 AND chunks.turn = json_each.value ->> 1
    WHERE {condition} GROUP BY 1, 2
"""


async def fetch_candidate_rows(
    store: Store,
    table: ChunkTable,
    chunk_filter: ChunkFilter,
    turn_scores: TurnScores | None,
    nearest: list[int],
    pool_size: int,
) -> dict[int, RankingRow]:
    """Return the rows of the best `pool_size` turns and of the nearest chunks, as far as they pass the filter."""
    has_all = table.is_loaded and not chunk_filter.is_narrow and max(nearest, default=0) <= table.last
    if not has_all or (turn_scores and turn_scores.places.session_ids is not table.sessions.texts):

        def fetch(db: Db) -> dict[int, RankingRow]:
            by_keyword = _best_chunks(db, chunk_filter, turn_scores)[:pool_size] if turn_scores else []
            return fetch_ranking_rows(db, [*by_keyword, *nearest], chunk_filter)

        return await store.read(fetch)
    by_keyword: list[int] = []
    if turn_scores:
        chunk_by_key = turn_scores.best_chunks(turn_scores.ranked)
        near = [key for key in turn_scores.ranked if key not in chunk_by_key]
        chunk_by_key |= table.chunks_at_turns(near, chunk_filter.params["chunking"])
        by_keyword = [chunk_by_key[key] for key in turn_scores.ranked if key in chunk_by_key][:pool_size]
    rows = table.rows([*by_keyword, *nearest])
    # Only the database knows who may see a memory.
    if memories := [chunk for chunk, row in rows.items() if row.source == "memories"]:
        sql = MATCHING_CHUNKS.format(condition=chunk_filter.condition)
        params = chunk_filter.params | {"near": json.dumps(memories)}
        visible = {row[0] for row in await store.read(lambda db: db.tuples(sql, params))}
        rows = {chunk: row for chunk, row in rows.items() if row.source != "memories" or chunk in visible}
    return rows


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
