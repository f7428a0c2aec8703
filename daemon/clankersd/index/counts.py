"""Sizes of the index that take a scan to count."""

import msgspec

from clankersd.db import Db
from clankersd.index import generations, vector_store
from clankersd.index.generations import Generation


class IndexCounts(msgspec.Struct):
    """Chunks of the live generation by source, vectors by generation, and cached vectors."""

    chunks: dict[str, int]
    vectors: dict[int, int]
    cache_entries: int


def count_index(db: Db) -> IndexCounts:
    """Count what the index holds."""
    live, building = generations.find(db, "live"), generations.find(db, "building")
    per_source = db.fetch(
        "SELECT source, count(*) AS chunks FROM chunks WHERE chunking = :chunking GROUP BY source ORDER BY source",
        {"chunking": live.chunking.number if live else 0},
    )
    return IndexCounts(
        chunks={row["source"]: row["chunks"] for row in per_source},
        vectors={
            one.id: vector_store.count(db, one) if _has_vectors(db, one) else 0 for one in (live, building) if one
        },
        cache_entries=db.value("SELECT count(*) FROM embedding_cache"),
    )


def _has_vectors(db: Db, generation: Generation) -> bool:
    """Tell whether there is a table of its vectors: without sqlite-vec there is none."""
    return f"{generation.vector_table}_rowids" in db.engine.table_names(db)
