"""The index as the rest of the daemon sees it: the live generation, the one being built, and the embedder."""

import sys
from dataclasses import dataclass, field
from functools import partial

import anyio
import structlog

from clankers_protocol.errors import DeadlineExceeded, StorageUnavailable
from clankersd.db import Db, Store
from clankersd.db.engine import AddedVectors
from clankersd.embedders import make_embedder
from clankersd.embedders.base import Embedder, EmbedderSettings, EmbedderUnavailable
from clankersd.embedders.fallback import FallbackEmbedder, Sample
from clankersd.embedders.local import RETRY_SECONDS
from clankersd.index import generations
from clankersd.index.chunks import HAS_SPEAKER, ChunkedText, Chunking, add_tools_to_backlog, chunk_text
from clankersd.index.generations import NO_EMBEDDER, Generation, GenerationSpec
from clankersd.index.mirror import Mirror
from clankersd.index.vector_store import LabelledVector, count, read_added_vectors, read_samples, read_slice

MAX_INLINE_CHARS = 50_000
"""A longer text is chunked in a worker thread after it is stored, so that its sender does not wait for it."""

MAX_SPEAKERS = 1000
REINDEX_LOCK = "reindex"
"""Lock of the daemon that builds a generation."""

SYNC_SECONDS = 2.0
"""Time between two checks of what other daemons have done; a search checks too."""

log = structlog.get_logger(component="index")


def chunk_inline(text: str, chunkings: list[Chunking]) -> list[ChunkedText] | None:
    """Chunk a text; None when it is too long to do so while its sender waits."""
    return None if len(text) > MAX_INLINE_CHARS else [chunk_text(text, chunking) for chunking in chunkings]


@dataclass(frozen=True)
class _SharedState:
    """Generations in the database, and the vectors that were added since they were last read."""

    live: Generation | None
    building: Generation | None
    added: AddedVectors | None = None
    vectors: list[LabelledVector] = field(default_factory=list)
    vector_count: int = 0


class Index:
    """State shared by capture, the embedding queue, search and reindexing."""

    def __init__(self, store: Store, settings: EmbedderSettings, tokens: int, overlap: int, sources: tuple[str, ...]):
        self.store = store
        self.embedder: Embedder | None = None
        self.problem: str | None = None
        """The reason why the embedder cannot be used now."""
        self.problem_is_permanent = False
        """Set when the problem lasts until someone changes something."""
        self.last_error: str | None = None
        self.rebuild_error: str | None = None
        """The reason why the last automatic rebuild failed."""
        self.live: Generation | None = None
        self.building: Generation | None = None
        self._building_elsewhere: int | None = None
        """Id of the generation that another daemon builds, if it is `building`."""
        self.mirror: Mirror | None = None
        self.mirror_problem: str | None = None
        """The reason why the vectors could not be loaded into memory, until they are."""
        self.vector_count = 0
        self.speakers: set[str] = set()
        self.max_tool_output_chars = 10_240
        self.woken = anyio.Event()
        self.settings_changed = anyio.Event()
        self._use_settings(settings, tokens, overlap, sources)
        store.on_open.append(self.on_database_opened)

    @property
    def wanted(self) -> GenerationSpec:
        """The generation that the configuration asks for; a remote model's first vector tells its dimensions."""
        identity = self.embedder.identity if self.embedder else NO_EMBEDDER
        if self.store.vec.version is None and self.live is not None and self.live.identity.provider == "none":
            identity = NO_EMBEDDER  # without sqlite-vec there can only be full text
        return GenerationSpec(identity, *self._chunk_settings)

    @property
    def sources(self) -> tuple[str, ...]:
        """The configured sources."""
        return self._chunk_settings[2]

    @property
    def rebuild_reason(self) -> str | None:
        """The reason why the index has to be rebuilt; None if it is as configured, or cannot be rebuilt now."""
        if self.live is None or (self.embedder is None and self._settings.provider != "none"):
            return None
        wanted = self.wanted
        if self.store.vec.version is None and wanted.identity.provider != "none":
            return None
        if self._settings.provider == "none" and wanted.has_same_chunking(self.live):
            return None  # its vectors are not used, but the embedder may be switched on again
        return self.live.differs_from(wanted)

    @property
    def rebuild_note(self) -> str | None:
        """A note for search results while the index is not the configured one; None if it is."""
        if self.rebuild_reason is None:
            return None
        if self.rebuild_error:
            return f"the index could not be rebuilt ({self.rebuild_error}): run clankers-ctl reindex"
        return "the index is being rebuilt with the changed settings; results come from the previous one"

    @property
    def fallback_note(self) -> str | None:
        """A note while the fallback embedder makes the vectors; None if the configured one does."""
        embedder = self.embedder
        if not isinstance(embedder, FallbackEmbedder) or embedder.outage is None:
            return None
        return f"{embedder.outage}; {embedder.second_name} makes the vectors meanwhile"

    @property
    def degraded(self) -> str | None:
        """The reason why a configured vector search is unavailable; None when it is available or not configured."""
        if self.live is None or self._settings.provider == "none":
            return None
        return f"keyword search only: {self.vector_problem}" if self.vector_problem else None

    @property
    def vector_problem(self) -> str | None:
        """The reason why there is no vector search now; None when there is."""
        if self.live is None:
            return "the database is not open"
        if self.store.vec.version is None:
            return f"{self.store.engine.vector_extension} is missing ({self.store.vec.problem})"
        if self.embedder is None:
            return self.problem or "the embedder is set to none"
        if difference := self.live.model_differs_from(self.wanted):
            if self.rebuild_error or self.rebuild_reason is None:
                return f"{difference}: run clankers-ctl reindex"
            return f"{difference}; the index is being rebuilt"
        return self.problem

    def chunkings(self, source: str | None = None) -> list[Chunking]:
        """List the chunkings that new text needs: that of the live generation and that of the one being built.

        With `source`, only those of generations that hold it.
        """
        chunkings = {
            generation.chunking.number: generation.chunking
            for generation in (self.live, self.building)
            if generation is not None and (source is None or source in generation.sources)
        }
        return [chunkings[number] for number in sorted(chunkings)]

    def chunk_message(self, text: str) -> list[ChunkedText] | None:
        """Chunk a message for every generation; None when it is too long to do so while its sender waits."""
        return chunk_inline(text, self.chunkings("sessions"))

    def add_speaker(self, role: str | None) -> None:
        """Remember the role of a message's sender: a query may name it."""
        if role and len(self.speakers) < MAX_SPEAKERS:
            self.speakers.add(role)

    def clear_problem(self) -> None:
        """Record that the embedder works."""
        self.problem, self.problem_is_permanent = None, False

    def vectors_added(self, generation: Generation, vectors: list[LabelledVector]) -> None:
        """Update count and mirror after vectors were stored in this generation."""
        if self.live and self.live.id == generation.id:
            self.vector_count += len(vectors)
        if self.mirror is not None and self.mirror.generation == generation.id and not self.store.is_shared:
            self.mirror.add(vectors)  # otherwise they are in the log that `sync_shared_index` reads

    def vectors_removed(self, generation: Generation, chunks: list[int]) -> None:
        """Update count and mirror after vectors were removed from this generation."""
        if self.live and self.live.id == generation.id:
            self.vector_count -= len(chunks)
        if self.mirror is not None and self.mirror.generation == generation.id:
            self.mirror.discard(chunks)

    def wake(self) -> None:
        """Wake the queue: there may be something to embed."""
        if self.embedder is not None or self.problem is not None:
            self.woken.set()

    def end_building(self, generation: Generation) -> None:
        """Record that this generation is not built any more; another daemon may build one."""
        if self.building is not None and self.building.id == generation.id:
            self.building = None

    def can_embed(self, generation: Generation | None) -> bool:
        """Tell whether the embedder's vectors may be stored in this generation."""
        return (
            generation is not None
            and self.embedder is not None
            and self.store.vec.version is not None
            and generation.model_differs_from(self.wanted) is None
        )

    def on_database_opened(self, db: Db) -> None:
        """Find or create the live generation, and drop an unfinished one; also called with changed settings."""
        has_vec = self.store.vec.version is not None
        with db.transaction():
            if db.engine.lock(db, REINDEX_LOCK):  # otherwise another daemon builds it
                generations.drop_unfinished(db)
                db.engine.unlock(db, REINDEX_LOCK)
            self.building, self.mirror = None, None
            live = generations.find(db, "live")
            chunks = "SELECT 1 FROM chunks WHERE chunking = :chunking LIMIT 1"
            if live is None or (
                live.differs_from(self.wanted) and not db.value(chunks, {"chunking": live.chunking.number})
            ):
                live = self._create_live(db, live)
            elif has_vec:
                generations.create_vector_table(db, live)
            self.live = live
        db.engine.log_moved_chunks(db)  # the vectors in memory have to follow
        self.vector_count = count(db, live) if has_vec else 0
        rows = db.tuples(f"SELECT DISTINCT role FROM chunks WHERE {HAS_SPEAKER} LIMIT {MAX_SPEAKERS}")
        self.speakers = {row[0] for row in rows}

    async def apply_settings(
        self, settings: EmbedderSettings, tokens: int, overlap: int, sources: tuple[str, ...]
    ) -> None:
        """Apply changed settings; an index built with others stays until it is rebuilt, see `rebuild_reason`."""
        old, self.rebuild_error = self.embedder, None
        self._use_settings(settings, tokens, overlap, sources)
        self.settings_changed.set()
        self.settings_changed = anyio.Event()
        if old is not None:
            await old.close()
        if self.live is not None and self.live.differs_from(self.wanted) and self.building is None:
            await self.store.run_exclusive(self.on_database_opened)
        self.wake()

    async def retry_embedder(self) -> None:
        """Try again to create an embedder that could not be created; raises EmbedderUnavailable if it still cannot."""
        settings = self._settings
        try:
            embedder = await anyio.to_thread.run_sync(make_embedder, settings)
        except EmbedderUnavailable as error:
            error.retry_after = error.retry_after or RETRY_SECONDS
            raise
        if self.embedder is not None or settings != self._settings:
            return  # the settings changed in the meantime
        self._use_embedder(embedder)
        self.clear_problem()
        log.info("embedder recovered", provider=settings.provider)
        if self.live is not None and self.vector_problem and self.building is None:
            await self.store.run_exclusive(self.on_database_opened)
        self.wake()

    async def sync_shared_index(self) -> None:
        """Take over what other daemons that share the tables have done: a rebuilt index, and new vectors."""
        if not self.store.is_shared or self.live is None:
            return
        live, mirror = self.live, self.mirror

        def read(db: Db) -> _SharedState:
            published, building = generations.find(db, "live"), generations.find(db, "building")
            if mirror is None or not mirror.complete or published is None or published.id != live.id:
                return _SharedState(published, building)
            added, rows = read_added_vectors(db, live, mirror.added_seen)
            return _SharedState(published, building, added, rows, count(db, live) if rows else self.vector_count)

        found = await self.store.read(read)
        if self.building is None or self.building.id == self._building_elsewhere:
            self.building = found.building
            self._building_elsewhere = found.building.id if found.building else None
        if found.live is not None and found.live != live and self.live is live:
            log.info("index of another daemon taken over", generation=found.live.id)
            self.live = found.live
            if found.live.id != live.id:
                self.mirror = None
                self.vector_count = await self.store.read(partial(count, generation=found.live))
        elif found.added is not None and mirror is not None and self.mirror is mirror:
            if not found.added.is_complete:
                self.mirror = None  # too many were added: all are read again
            elif found.added.position > mirror.added_seen:
                mirror.add(found.vectors)
                mirror.added_seen, self.vector_count = found.added.position, found.vector_count

    async def sync_shared_index_periodically(self) -> None:
        """Sync with other daemons, and have the live vectors indexed, for as long as the daemon runs."""
        while True:
            try:
                if self.live is not None and not self.store.problem:
                    await self.index_vectors(self.live)
                    await self.sync_shared_index()
            except Exception:
                log.exception("shared index sync failed")
            await anyio.sleep(SYNC_SECONDS)

    async def index_vectors(self, generation: Generation) -> None:
        """Have the engine index the vectors of a generation, once they are many."""
        if generation.identity.dims is not None:
            await self.store.index_vectors(generation.vector_table, generation.identity.dims)

    async def load_mirror(self) -> None:
        """Load the live vectors into memory, in several reads so that events can be stored in between."""
        live = self.live
        if live is None or live.identity.dims is None or self.mirror is not None:
            return
        mirror: Mirror | None = None
        try:
            self.mirror = mirror = Mirror(live.id, live.identity.dims)
            added, _ = await self.store.read(partial(read_added_vectors, generation=live, after=sys.maxsize))
            mirror.added_seen = added.position if added else 0
            last = 0
            while rows := await self.store.read(partial(read_slice, generation=live, after=last)):
                mirror.add(rows)
                last = rows[-1][0]
            mirror.complete, self.mirror_problem = True, None
            log.info("vectors loaded into memory", generation=live.id, vectors=self.vector_count)
        except (StorageUnavailable, DeadlineExceeded) as error:
            self.mirror_problem = error.message
        except MemoryError as error:
            self.mirror_problem = f"too little memory: {error}"
        finally:
            if self.mirror_problem is not None:
                log.warning("vectors not loaded into memory", problem=self.mirror_problem)
            if mirror is not None and not mirror.complete and self.mirror is mirror:
                self.mirror = None

    def _use_settings(self, settings: EmbedderSettings, tokens: int, overlap: int, sources: tuple[str, ...]) -> None:
        self.clear_problem()
        self.last_error = None
        self._settings = settings
        self.embedder = None
        try:
            self._use_embedder(make_embedder(settings))
            if self.embedder is not None:
                self.embedder.preflight()
        except EmbedderUnavailable as error:
            self.problem, self.problem_is_permanent = error.reason, error.permanent
            log.warning("embedder unavailable", problem=error.reason)
        self._chunk_settings = tokens, overlap, sources

    def _use_embedder(self, embedder: Embedder | None) -> None:
        self.embedder = embedder
        if isinstance(embedder, FallbackEmbedder):
            embedder.read_samples = self._read_samples

    async def _read_samples(self) -> list[Sample]:
        """Return texts with vectors that were made with the configured model."""
        live = self.live
        if live is None or live.identity.dims is None or not self.can_embed(live):
            return []
        return await self.store.read(partial(read_samples, generation=live))

    def _create_live(self, db: Db, previous: Generation | None) -> Generation:
        """Create the wanted generation in place of an empty one or none; without sqlite-vec it has no vectors."""
        db.execute("UPDATE index_generations SET state = 'dropped' WHERE state = 'live'")
        wanted = self.wanted
        chunking = generations.choose_chunking(db, wanted, previous)
        if self.store.vec.version is None:
            wanted = GenerationSpec(NO_EMBEDDER, wanted.chunk_tokens, wanted.overlap, wanted.sources)
        live = generations.create(db, wanted, "live", chunking)
        add_tools_to_backlog(db)
        return live
