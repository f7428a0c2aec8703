"""Generations of the index: each has one chunking and one model. One is live, and one more may be building."""

from dataclasses import dataclass
from typing import Any

from clankersd import clock
from clankersd.db import Db
from clankersd.embedders.base import Identity
from clankersd.index.chunks import Chunking

_COLUMNS = """
    id, state, chunking, chunk_tokens, overlap, sources, provider, model, provider_key, dims, created_at, published_at
"""
_INSERT = """
    INSERT INTO index_generations
        (state, chunking, chunk_tokens, overlap, sources, provider, model, provider_key, dims, created_at, published_at)
    VALUES (:state, :chunking, :chunk_tokens, :overlap, :sources, :provider, :model, :provider_key, :dims, :now,
            CASE :state WHEN 'live' THEN :now END)
"""

NO_EMBEDDER = Identity("none", "", "", None)
"""The identity of an index with full text but no vectors."""


@dataclass(frozen=True)
class GenerationSpec:
    """The generation that the configuration asks for."""

    identity: Identity
    chunk_tokens: int
    overlap: int
    sources: tuple[str, ...]

    def has_same_chunking(self, other: "Generation") -> bool:
        return (self.chunk_tokens, self.overlap, self.sources) == (other.chunk_tokens, other.overlap, other.sources)


@dataclass(frozen=True)
class Generation:
    """One generation as stored."""

    id: int
    state: str
    chunking: Chunking
    sources: tuple[str, ...]
    identity: Identity

    @property
    def chunk_tokens(self) -> int:
        return self.chunking.tokens

    @property
    def overlap(self) -> int:
        return self.chunking.overlap

    @property
    def vector_table(self) -> str:
        return f"chunk_vectors_{self.id}"

    def differs_from(self, wanted: GenerationSpec) -> str | None:
        """Explain how this generation differs from the wanted one; None when it does not."""
        if difference := self.model_differs_from(wanted):
            return difference
        if (wanted.chunk_tokens, wanted.overlap) != (self.chunk_tokens, self.overlap):
            return "the index was made with other chunk settings than the configuration says"
        if wanted.sources != self.sources:
            return (
                f"the index holds {' and '.join(self.sources)}, the configuration says {' and '.join(wanted.sources)}"
            )
        return None

    def model_differs_from(self, wanted: GenerationSpec) -> str | None:
        """Explain why vectors of the wanted model do not fit into this generation; None if they do."""
        mine, theirs = self.identity, wanted.identity
        if (mine.provider, mine.model, mine.provider_key) != (theirs.provider, theirs.model, theirs.provider_key):
            return f"the index was made with {_model_name(mine)}, the configuration says {_model_name(theirs)}"
        if None not in (mine.dims, theirs.dims) and mine.dims != theirs.dims:
            return f"the index has {mine.dims} dimensions, the model {theirs.dims}"
        return None


def _model_name(identity: Identity) -> str:
    return f"{identity.provider}:{identity.model}" if identity.model else identity.provider


def find(db: Db, state: str) -> Generation | None:
    """Return the one generation in this state, if there is one."""
    row = db.fetch_one(f"SELECT {_COLUMNS} FROM index_generations WHERE state = :state", {"state": state})
    if row is None:
        return None
    return Generation(
        id=row["id"],
        state=row["state"],
        chunking=Chunking(row["chunking"], row["chunk_tokens"], row["overlap"]),
        sources=tuple(row["sources"].split()),
        identity=Identity(row["provider"], row["model"], row["provider_key"], row["dims"]),
    )


def create(db: Db, wanted: GenerationSpec, state: str, chunking: int) -> Generation:
    """Create a generation, and its vector table if the dimensions are known already."""
    identity = wanted.identity
    row: dict[str, Any] = {
        "state": state, "chunking": chunking, "chunk_tokens": wanted.chunk_tokens, "overlap": wanted.overlap,
        "sources": " ".join(wanted.sources), "provider": identity.provider, "model": identity.model,
        "provider_key": identity.provider_key, "dims": identity.dims, "now": clock.now(),
    }  # fmt: skip
    db.execute(_INSERT, row)
    generation = find(db, state)
    assert generation
    create_vector_table(db, generation)
    return generation


def choose_chunking(db: Db, wanted: GenerationSpec, current: Generation | None) -> int:
    """Return the chunking number of the current generation if it fits, otherwise one that no chunk has."""
    if current is not None and wanted.has_same_chunking(current):
        return current.chunking.number
    return int(db.value("SELECT coalesce(max(chunking), 0) + 1 FROM index_generations"))


def set_dims(db: Db, generation: Generation, dims: int) -> Generation:
    """Store the dimensions of a remote model, which are known from its first vector."""
    db.execute("UPDATE index_generations SET dims = :dims WHERE id = :id", {"dims": dims, "id": generation.id})
    updated = find(db, generation.state)
    assert updated
    create_vector_table(db, updated)
    return updated


def create_vector_table(db: Db, generation: Generation) -> None:
    """Create the generation's vector table, and the trigger that removes the vectors of deleted chunks."""
    if generation.identity.dims is None:
        return
    db.engine.create_vectors(db, generation.vector_table, generation.identity.dims)


def publish(db: Db, building: Generation) -> Generation:
    """Make the built generation live and mark the previous one as dropped, in the caller's transaction."""
    db.execute("UPDATE index_generations SET state = 'dropped' WHERE state = 'live'")
    db.execute(
        "UPDATE index_generations SET state = 'live', published_at = :now WHERE id = :id",
        {"now": clock.now(), "id": building.id},
    )
    live = find(db, "live")
    assert live
    return live


def drop_unfinished(db: Db) -> None:
    """Mark as dropped the generation that a crash left unfinished."""
    db.execute("UPDATE index_generations SET state = 'dropped' WHERE state = 'building'")


def drop_building(db: Db, building: Generation) -> None:
    """Mark as dropped the generation of a reindex that failed or was cancelled."""
    db.execute(
        "UPDATE index_generations SET state = 'dropped' WHERE state = 'building' AND id = :id", {"id": building.id}
    )


def remove_dropped(db: Db, max_chunks: int) -> bool:
    """Delete vectors and at most `max_chunks` chunks of dropped generations; return whether there are more."""
    for row in db.fetch("SELECT id FROM index_generations WHERE state = 'dropped'"):
        db.engine.drop_vectors(db, f"chunk_vectors_{row['id']}")
    in_use = "SELECT chunking FROM index_generations WHERE state IN ('live', 'building')"
    stale = f"SELECT id FROM chunks WHERE chunking NOT IN ({in_use}) LIMIT :max_chunks"
    params = {"max_chunks": max_chunks}
    if db.value(f"SELECT 1 FROM ({stale})", params):
        db.execute(f"DELETE FROM chunks WHERE id IN ({stale})", params)
        return True
    db.execute("DELETE FROM index_generations WHERE state = 'dropped'")
    return False
