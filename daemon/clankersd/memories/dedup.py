"""Is it known already? First the same text, then nearly the same words, then the same meaning, among few candidates.

Every step looks candidates up by an index, so that what an addition costs hardly grows with what is known.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from clankersd.db import Db
from clankersd.db.fts import quote_phrase
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
)
from clankersd.memories.store import SELECT, Row
from clankersd.search.keyword import TermFrequencies, stems_by_word

SAME_MEANING = 0.98
NEARLY_THE_SAME = 0.95
RAREST_WORDS = 4
COMMON = 500
"""A word in more memories than this finds too many of them."""

MOST_COMPARED = 50
MOST_WORDS = 64

_HELD = """
    memories.scope = :scope AND memories.is_deleted = 0 AND memories.id IS NOT :itself
    AND (memories.valid_until IS NULL OR memories.valid_until > :now)
    AND (memories.expires_at IS NULL OR memories.expires_at > :now)
"""
_VECTORS = """
    SELECT chunks.memory_id, {vectors}.embedding FROM json_each(:ids)
    CROSS JOIN chunks ON chunks.memory_id = json_each.value AND chunks.chunking = :chunking
    CROSS JOIN {vectors} ON {vectors}.rowid = chunks.id
    GROUP BY chunks.memory_id HAVING count(*) = 1
"""

_frequencies = TermFrequencies("memories_vocabulary")


@dataclass(frozen=True)
class Text:
    """A text as it is compared."""

    content: str
    hash: str
    simhash: int | None


@dataclass(frozen=True)
class Match:
    """A memory that says the same, or nearly so: then the newer one holds."""

    row: Row
    how: Literal["same", "nearly"]
    why: str


def find_match(
    db: Db, text: Text, scope: str, category: str, now: int, vector: Vector | None, live: Generation | None,
    itself: str | None = None,
) -> Match | None:  # fmt: skip
    """The memory in this scope that the text repeats, other than the one it is of itself."""
    here = {"scope": scope, "now": now, "itself": itself}
    if exact := db.fetch_one(f"{SELECT} WHERE memories.content_hash = :hash AND {_HELD}", here | {"hash": text.hash}):
        return Match(exact, "same", "the same text")
    if text.simhash is None:
        return None
    if alike := _nearly_the_same_words(db, text, text.simhash, here):
        return alike
    if vector is None or live is None or live.identity.dims != len(vector):
        return None
    return _same_meaning(db, text, category, here, vector, live)


def _nearly_the_same_words(db: Db, text: Text, simhash: int, here: dict[str, Any]) -> Match | None:
    apart = max_distance(len(text.content))
    for number, quarter in enumerate(quarters(simhash)):
        sql = f"""{SELECT} WHERE memories.simhash_{number} IN (SELECT value FROM json_each(:values)) AND {_HELD}"""
        for row in db.fetch(sql, here | {"values": json.dumps(list(probes(quarter, apart)))}):
            bits = distance(simhash, int(row["simhash"], 16))
            if bits <= apart and is_near_duplicate(text.content, row["content"]):
                return Match(row, "same", f"nearly the same words ({bits} bits apart)")
    return None


def _same_meaning(
    db: Db, text: Text, category: str, here: dict[str, Any], vector: Vector, live: Generation
) -> Match | None:
    candidates = {row["id"]: row for row in _sharing_rare_words(db, text.content, here)}
    best: tuple[float, Row] | None = None
    for memory_id, blob in _vectors(db, list(candidates), live):
        similar = _cosine(vector, blob)
        row = candidates[memory_id]
        if similar > NEARLY_THE_SAME and (best is None or similar > best[0]):
            best = similar, row
    if best is None:
        return None
    similar, row = best
    if similar > SAME_MEANING and not differs_in_substance(text.content, row["content"]):
        return Match(row, "same", f"the same meaning ({similar:.3f})")
    return Match(row, "nearly", f"nearly the same meaning ({similar:.3f})") if row["category"] == category else None


def _sharing_rare_words(db: Db, content: str, here: dict[str, Any]) -> list[Row]:
    """Memories in which the rarest words of the text stand: what means the same has some of them."""
    known = db.value("SELECT max(number) FROM memories") or 0
    counted = [
        (count, word)
        for word, stem in stems_by_word(db, content, MOST_WORDS).items()
        if 0 < (count := _frequencies.get(db, stem, known)) <= COMMON
    ]
    rarest = [word for _, word in sorted(counted)[:RAREST_WORDS]]
    if not rarest:
        return []
    match = " OR ".join(map(quote_phrase, rarest))
    sql = f"""
        {SELECT} WHERE memories.number IN (
            SELECT rowid FROM memories_fts WHERE memories_fts MATCH :match ORDER BY rowid DESC LIMIT {MOST_COMPARED}
        ) AND {_HELD}
    """
    return db.fetch(sql, here | {"match": match})


def _vectors(db: Db, ids: list[str], live: Generation) -> list[tuple[str, bytes]]:
    sql = _VECTORS.format(vectors=live.vector_table)
    return db.tuples(sql, {"ids": json.dumps(ids), "chunking": live.chunking.number})


def own_vector(db: Db, memory_id: str, live: Generation) -> Vector | None:
    """The vector of a memory that is one chunk; None when there is none, or none yet."""
    np = numpy_if_available()
    if np is None or not live.identity.dims:
        return None
    found = _vectors(db, [memory_id], live)
    return np.frombuffer(found[0][1], "<f4") if found else None


def _cosine(vector: Vector, blob: bytes) -> float:
    import numpy as np

    return float(vector @ np.frombuffer(blob, "<f4"))
