"""Generations of the index: one way of cutting and one model each. One is live, one may be being built."""

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
"""The identity of an index that has words but no vectors."""


@dataclass(frozen=True)
class GenerationSpec:
    """What the configuration asks the index to be."""

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
        """The name of its table of vectors."""
        return f"chunk_vectors_{self.id}"

    def differs_from(self, wanted: GenerationSpec) -> str | None:
        """Why this is not the index that is wanted; None when it is."""
        mine, theirs = self.identity, wanted.identity
        if (mine.provider, mine.model, mine.provider_key) != (theirs.provider, theirs.model, theirs.provider_key):
            return f"the index was made with {_named(mine)}, the configuration says {_named(theirs)}"
        if None not in (mine.dims, theirs.dims) and mine.dims != theirs.dims:
            return f"the index has {mine.dims} dimensions, the model {theirs.dims}"
        if not wanted.has_same_chunking(self):
            return "the index was cut in other chunks than the configuration says"
        return None


def _named(identity: Identity) -> str:
    return f"{identity.provider}:{identity.model}" if identity.model else identity.provider


def find(db: Db, state: str) -> Generation | None:
    """The one generation in this state."""
    row = db.fetch_one(f"SELECT {_COLUMNS} FROM index_generations WHERE state = :state", {"state": state})
    return _from_row(row) if row else None


def create(db: Db, wanted: GenerationSpec, state: str, chunking: int) -> Generation:
    """A new generation, with its table of vectors where the dimensions are known already."""
    identity = wanted.identity
    row = {
        "state": state, "chunking": chunking, "chunk_tokens": wanted.chunk_tokens, "overlap": wanted.overlap,
        "sources": " ".join(wanted.sources), "provider": identity.provider, "model": identity.model,
        "provider_key": identity.provider_key, "dims": identity.dims, "now": clock.now(),
    }  # fmt: skip
    db.execute(_INSERT, row)
    generation = find(db, state)
    assert generation
    create_vector_table(db, generation)
    return generation


def next_chunking(db: Db) -> int:
    """A number for a way of cutting that no chunk has."""
    return int(db.value("SELECT coalesce(max(chunking), 0) + 1 FROM index_generations"))


def set_dims(db: Db, generation: Generation, dims: int) -> Generation:
    """Take down the dimensions of a remote model, once its first vector tells."""
    db.execute("UPDATE index_generations SET dims = :dims WHERE id = :id", {"dims": dims, "id": generation.id})
    found = find(db, generation.state)
    assert found
    create_vector_table(db, found)
    return found


def create_vector_table(db: Db, generation: Generation) -> None:
    """The table of this generation's vectors, and what keeps it in step with the chunks."""
    if generation.identity.dims is None:
        return
    name = generation.vector_table
    db.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} "
        f"USING vec0 (embedding float[{generation.identity.dims}] distance_metric=cosine)"
    )
    # Temporary: a database opened without sqlite-vec must still be able to delete chunks.
    db.execute(
        f"CREATE TEMP TRIGGER IF NOT EXISTS {name}_ad AFTER DELETE ON main.chunks "
        f"BEGIN DELETE FROM {name} WHERE rowid = OLD.id; END"
    )


def publish(db: Db, building: Generation) -> Generation:
    """Make the built generation the live one, and the live one dropped, in the caller's transaction."""
    db.execute("UPDATE index_generations SET state = 'dropped' WHERE state = 'live'")
    db.execute(
        "UPDATE index_generations SET state = 'live', published_at = :now WHERE id = :id",
        {"now": clock.now(), "id": building.id},
    )
    live = find(db, "live")
    assert live
    return live


def drop_unfinished(db: Db) -> None:
    """What a crash or a cancelled reindex left half built is dropped."""
    db.execute("UPDATE index_generations SET state = 'dropped' WHERE state = 'building'")


def remove_dropped(db: Db, at_most: int) -> bool:
    """Remove some of what dropped generations left behind; tells whether there is more."""
    kept = "SELECT chunking FROM index_generations WHERE state IN ('live', 'building')"
    for row in db.fetch("SELECT id FROM index_generations WHERE state = 'dropped'"):
        _drop_vectors(db, row["id"])
    stale = f"SELECT id FROM chunks WHERE chunking NOT IN ({kept}) LIMIT :at_most"
    found = db.fetch(stale, {"at_most": at_most})
    if found:
        db.execute(f"DELETE FROM chunks WHERE id IN ({stale})", {"at_most": at_most})
        return True
    db.execute("DELETE FROM index_generations WHERE state = 'dropped'")
    return False


def _drop_vectors(db: Db, number: int) -> None:
    db.execute(f"DROP TRIGGER IF EXISTS temp.chunk_vectors_{number}_ad")
    db.execute(f"DROP TABLE IF EXISTS chunk_vectors_{number}")


def _from_row(row: dict[str, Any]) -> Generation:
    return Generation(
        id=row["id"],
        state=row["state"],
        chunking=Chunking(row["chunking"], row["chunk_tokens"], row["overlap"]),
        sources=tuple(row["sources"].split()),
        identity=Identity(row["provider"], row["model"], row["provider_key"], row["dims"]),
    )
