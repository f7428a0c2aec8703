"""Vectors as they are stored, in vec0."""

import json
from typing import Any

from clankersd.db import Db
from clankersd.db.engine import CHUNK_TEXT, AddedVectors
from clankersd.embedders.base import Vector
from clankersd.index.generations import Generation

MAX_SAMPLES, MAX_SAMPLE_TOKENS = 4, 200
"""Number and length of the texts whose stored vectors are compared with those of a fallback embedder."""

VECTORS_PER_READ = 1_000
"""As many as a read of a few milliseconds takes: a longer one is interrupted and begins again on a snapshot."""

ScoredChunks = list[tuple[int, float]]
"""Chunk ids with their similarity, most similar first."""

LabelledVector = tuple[int, bytes, str, int]
"""A chunk's id, its vector, its label and the number of its project, which is 0 for none."""

LABEL = "chunks.source || coalesce(' ' || chunks.scope, '')"
"""SQL for a chunk's label: its source and, for a memory, its scope, which most searches filter by."""

PROJECT = "coalesce(chunks.project, 0)"
"""SQL for the number of a chunk's project."""

MOVES_PER_READ = 1_000
"""As many as are read well before a read is interrupted: it begins again on a snapshot, which has no log of them."""

_MOVED_CHUNKS = f"""
    SELECT chunks.id, {PROJECT}, moved.position
    FROM moved_chunks AS moved CROSS JOIN chunks ON chunks.id = moved.chunk
    WHERE moved.position > :after ORDER BY moved.position LIMIT {MOVES_PER_READ}
"""


def insert(db: Db, generation: Generation, rows: list[tuple[int, bytes]]) -> None:
    """Store vectors of chunks that still exist."""
    sql = "SELECT chunks.id FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value"
    existing = {row[0] for row in db.tuples(sql, {"ids": json.dumps([chunk for chunk, _ in rows])})} if rows else ()
    for chunk, embedding in rows:
        if chunk in existing:
            db.engine.insert_vector(db, generation.vector_table, chunk, embedding)


def remove(db: Db, generation: Generation, chunks: list[int]) -> None:
    """Remove the vectors of these chunks."""
    for chunk in chunks:
        db.engine.delete_vector(db, generation.vector_table, chunk)


def count(db: Db, generation: Generation) -> int:
    """Count the chunks that have a vector."""
    if generation.identity.dims is None:
        return 0
    return int(db.value(f"SELECT count(*) FROM {generation.vector_table}_rowids"))


def nearest(
    db: Db, generation: Generation, query: bytes, k: int, eligible: str, params: dict[str, Any]
) -> ScoredChunks:
    """Return the `k` nearest of the eligible chunks, by the vectors in the database."""
    return db.engine.nearest(db, generation.vector_table, query, k, eligible, params)


def read_vectors(db: Db, generation: Generation, chunks: list[int]) -> list[bytes]:
    """Return the stored vectors of those of the chunks that have one."""
    sql = f"""
        SELECT vectors.embedding FROM json_each(:ids) CROSS JOIN {generation.vector_table} AS vectors
          ON vectors.rowid = json_each.value
    """
    return [row[0] for row in db.tuples(sql, {"ids": json.dumps(chunks)})]


def read_samples(db: Db, generation: Generation) -> list[tuple[str, Vector]]:
    """Return the newest texts of the generation that are short and have a vector, with their vectors."""
    import numpy as np

    sql = f"""
        SELECT id, {CHUNK_TEXT} FROM chunks WHERE chunking = :chunking AND tokens <= {MAX_SAMPLE_TOKENS}
        AND NOT EXISTS (SELECT 1 FROM index_queue WHERE generation = :generation AND chunk = chunks.id)
        ORDER BY id DESC LIMIT {MAX_SAMPLES}
    """
    rows = db.tuples(sql, {"chunking": generation.chunking.number, "generation": generation.id})
    samples = []
    for chunk, text in rows:
        samples += [(text, np.frombuffer(blob, "<f4")) for blob in read_vectors(db, generation, [chunk])]
    return samples


def label_of(source: str, scope: str | None) -> str:
    """Return the label of a chunk of this source and scope."""
    return f"{source} {scope}" if scope else source


def read_slice(db: Db, generation: Generation, after: int) -> list[LabelledVector]:
    """Read the next vectors after the chunk `after`, in the order of their chunks.

    Each vector is looked up by its id: vec0 scans the whole table for a range of them.
    """
    table = generation.vector_table
    sql = f"""
        SELECT vectors.rowid, vectors.embedding, {LABEL}, {PROJECT}
        FROM {table}_rowids AS listed
        CROSS JOIN {table} AS vectors ON vectors.rowid = listed.rowid
        CROSS JOIN chunks ON chunks.id = listed.rowid
        WHERE listed.rowid > :after ORDER BY listed.rowid LIMIT :limit
    """
    return db.tuples(sql, {"after": after, "limit": VECTORS_PER_READ})


def read_added_vectors(
    db: Db, generation: Generation, after: int
) -> tuple[AddedVectors | None, list[LabelledVector]]:  # fmt: skip
    """Return the vectors that other daemons have stored since the log's position `after`."""
    table = generation.vector_table
    added = db.engine.added_vectors(db, table, after)
    if added is None or not added.chunks:
        return added, []
    sql = f"""
        SELECT vectors.rowid, vectors.embedding, {LABEL}, {PROJECT}
        FROM json_each(:ids) CROSS JOIN {table} AS vectors ON vectors.rowid = json_each.value
        CROSS JOIN chunks ON chunks.id = vectors.rowid
    """
    return added, db.tuples(sql, {"ids": json.dumps(added.chunks)})


def read_moved_chunks(db: Db, after: int) -> tuple[list[tuple[int, int, int]], bool]:
    """Return the next chunks that have moved since the log's position `after`: id, project and position of each.

    Return also whether there may be more. A snapshot connection has no log, so that it cannot tell.
    """
    if not db.engine.has_moved_chunks(db):
        return [], True
    moved = db.tuples(_MOVED_CHUNKS, {"after": after})
    return moved, len(moved) == MOVES_PER_READ
