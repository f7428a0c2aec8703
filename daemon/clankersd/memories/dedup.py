"""Duplicate detection for new memories: same text, then nearly the same words, then nearly the same vector.

Each step looks up a few candidates by an index, so the cost of an addition hardly grows with the number of memories.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from clankersd.db import Db
from clankersd.embedders.base import Vector
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.generations import Generation
from clankersd.memories.similarity import (
    differs_in_substance,
    distance,
    is_near_duplicate,
    max_distance,
    probes,
    quarters,
    replaces_words,
)
from clankersd.memories.store import SELECT_MEMORIES, MemoryRow, fetch_memories
from clankersd.search.keyword import first_spellings
from clankersd.search.term_index import TermFrequencies

SAME_MEANING = 0.98
"""Cosine similarity above which two memories mean the same."""

NEARLY_SAME_MEANING = 0.95
"""Cosine similarity above which a newer memory of the same category replaces an older one."""

RARE_WORDS = 4
"""Words of a text, rarest first, by which candidates are looked up."""

MAX_WORD_FREQUENCY = 500
"""A word in more memories than this finds too many candidates."""

MAX_CANDIDATES = 50
MAX_QUERY_WORDS = 64

_COMPARABLE = """
    memories.scope = :scope AND memories.is_deleted = 0 AND memories.id IS NOT :itself
    AND (memories.valid_until IS NULL OR memories.valid_until > :now)
    AND (memories.expires_at IS NULL OR memories.expires_at > :now)
"""
_VECTORS = """
    SELECT chunks.memory_id, {vector_table}.embedding FROM json_each(:ids)
    CROSS JOIN chunks ON chunks.memory_id = json_each.value AND chunks.chunking = :chunking
    CROSS JOIN {vector_table} ON {vector_table}.rowid = chunks.id
    WHERE (SELECT count(*) FROM chunks AS own
           WHERE own.memory_id = json_each.value AND own.chunking = :chunking) = 1
"""

_frequencies = TermFrequencies("memories_fts")


@dataclass(frozen=True)
class HashedText:
    """A text with its hashes."""

    content: str
    hash: str
    simhash: int | None


@dataclass(frozen=True)
class Match:
    """A stored memory that a text repeats ("same") or updates ("nearly"), with the reason for the log."""

    row: MemoryRow
    kind: Literal["same", "nearly"]
    reason: str


def find_match(
    db: Db, text: HashedText, scope: str, category: str, now: int, vector: Vector | None, live: Generation | None,
    itself: str | None = None,
) -> Match | None:  # fmt: skip
    """Return the memory in this scope that the text repeats or updates, other than the memory `itself`."""
    params = {"scope": scope, "now": now, "itself": itself}
    sql = f"{SELECT_MEMORIES} WHERE memories.content_hash = :hash AND {_COMPARABLE}"
    if identical := fetch_memories(db, sql, params | {"hash": text.hash}):
        return Match(identical[0], "same", "the same text")
    if text.simhash is None:
        return None
    max_bits = max_distance(len(text.content))
    for number, quarter in enumerate(quarters(text.simhash)):
        sql = f"""
            {SELECT_MEMORIES}
            WHERE memories.simhash_{number} IN (SELECT value FROM json_each(:values)) AND {_COMPARABLE}
        """
        for row in fetch_memories(db, sql, params | {"values": json.dumps(list(probes(quarter, max_bits)))}):
            bits = distance(text.simhash, int(row.simhash or "0", 16))
            if bits <= max_bits and is_near_duplicate(text.content, row.content):
                return Match(row, "same", f"nearly the same words ({bits} bits apart)")
    if vector is None or live is None or live.identity.dims != len(vector):
        return None
    return _match_by_vector(db, text.content, category, params, vector, live)


def _match_by_vector(
    db: Db, content: str, category: str, params: dict[str, Any], vector: Vector, live: Generation
) -> Match | None:
    import numpy as np

    candidates = {row.id: row for row in _fetch_sharing_rare_words(db, content, params)}
    best_id, best = None, NEARLY_SAME_MEANING
    for memory_id, blob in _fetch_vectors(db, list(candidates), live):
        cosine = float(vector @ np.frombuffer(blob, "<f4"))
        if cosine > best:
            best_id, best = memory_id, cosine
    if best_id is None:
        return None
    row = candidates[best_id]
    if replaces_words(content, row.content):  # of Monday or Friday, of Ada or Grace: vectors hardly tell them apart
        return None
    if best > SAME_MEANING and not differs_in_substance(content, row.content):
        return Match(row, "same", f"the same meaning ({best:.3f})")
    if row.category == category:
        return Match(row, "nearly", f"nearly the same meaning ({best:.3f})")
    return None


def _fetch_sharing_rare_words(db: Db, content: str, params: dict[str, Any]) -> list[MemoryRow]:
    """Fetch memories that contain a rare word of the text: those with the same meaning share some."""
    last_number = db.value("SELECT max(number) FROM memories") or 0
    counted = []
    for spelling in first_spellings(db, content, MAX_QUERY_WORDS):
        count = _frequencies.get(db, spelling, last_number, last_number)
        if 0 < count <= MAX_WORD_FREQUENCY:
            counted.append((count, spelling.word))
    if not counted:
        return []
    match = " OR ".join(f'"{word}"' for _, word in sorted(counted)[:RARE_WORDS])
    sql = f"""
        {SELECT_MEMORIES} WHERE memories.number IN (
            SELECT rowid FROM memories_fts WHERE memories_fts MATCH :match ORDER BY rowid DESC LIMIT {MAX_CANDIDATES}
        ) AND {_COMPARABLE}
    """
    return fetch_memories(db, sql, params | {"match": match})


def fetch_own_vector(db: Db, memory_id: str, live: Generation) -> Vector | None:
    """Return the vector of a memory that is one chunk; None if it is longer or not embedded yet."""
    np = numpy_if_available()
    if np is None or not live.identity.dims:
        return None
    vectors = _fetch_vectors(db, [memory_id], live)
    return np.frombuffer(vectors[0][1], "<f4") if vectors else None


def _fetch_vectors(db: Db, ids: list[str], live: Generation) -> list[tuple[str, bytes]]:
    sql = _VECTORS.format(vector_table=live.vector_table)
    return db.tuples(sql, {"ids": json.dumps(ids), "chunking": live.chunking.number})
