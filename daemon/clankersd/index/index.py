"""The index as the rest of the daemon sees it: what is live, what is being built, and who makes vectors."""

import anyio
import structlog

from clankers_protocol.errors import DeadlineExceeded, StorageUnavailable
from clankersd.db import Db, Store
from clankersd.embedders import make_embedder
from clankersd.embedders.base import Embedder, EmbedderSettings, EmbedderUnavailable
from clankersd.embedders.local import RETRY_SECONDS
from clankersd.index import generations
from clankersd.index.chunks import ChunkedText, Chunking, add_tools_to_backlog, chunk_text
from clankersd.index.generations import NO_EMBEDDER, Generation, GenerationSpec
from clankersd.index.vectors import LabelledVector, Mirror, count, read_slice

MAX_INLINE_CHARS = 50_000
"""Characters. A longer text is cut in a thread after it is stored, so that nobody waits for it."""

AVERAGE_TTL_SECONDS = 60.0
MAX_SPEAKERS = 1000

log = structlog.get_logger(component="index")


class Index:
    """State that the capture, the queue, the search and the reindex share."""

    def __init__(self, store: Store, settings: EmbedderSettings, tokens: int, overlap: int, sources: tuple[str, ...]):
        self.store = store
        self.embedder: Embedder | None = None
        self.problem: str | None = None
        self.last_error: str | None = None
        self.problem_is_permanent = False
        """Whether the problem stays until somebody changes something."""
        self.live: Generation | None = None
        self.building: Generation | None = None
        self.mirror: Mirror | None = None
        self.vector_count = 0
        self.speakers: set[str] = set()
        self.max_tool_output_chars = 10_240
        self._average: tuple[float, float] | None = None
        self.woken = anyio.Event()
        self.settings_changed = anyio.Event()
        self._use(settings, tokens, overlap, sources)
        store.on_open.append(self.attach)

    @property
    def wanted(self) -> GenerationSpec:
        """What the index should be; of a remote model the dimensions are known only after its first vector."""
        return GenerationSpec(self.embedder.identity if self.embedder else NO_EMBEDDER, *self._cut)

    @property
    def degraded(self) -> str | None:
        """Why there is no vector search although the configuration asks for it; None when all is well."""
        if self.live is None or self._settings.provider == "none":
            return None
        return f"keyword search only: {self.vector_problem}" if self.vector_problem else None

    @property
    def vector_problem(self) -> str | None:
        """Why there is no search by meaning just now; None when there is."""
        if self.live is None:
            return "the database is not open"
        if self.store.vec.version is None:
            return f"sqlite-vec is missing ({self.store.vec.problem})"
        if self.embedder is None:
            return self.problem or "the embedder is set to none"
        if difference := self.live.differs_from(self.wanted):
            return f"{difference}: run clankers-ctl reindex"
        return self.problem

    def chunkings(self) -> list[Chunking]:
        """The ways in which new text must be cut: as the live index is, and as the one being built."""
        found = {generation.chunking for generation in (self.live, self.building) if generation}
        return sorted(found, key=lambda chunking: chunking.number)

    def chunk_text(self, text: str) -> list[ChunkedText] | None:
        """The text cut for every index, or None when it is too long to be cut while its sender waits."""
        if len(text) > MAX_INLINE_CHARS:
            return None
        return [chunk_text(text, chunking) for chunking in self.chunkings()]

    def add_speaker(self, role: str | None) -> None:
        """Remember who speaks: a query may name them."""
        if role and len(self.speakers) < MAX_SPEAKERS:
            self.speakers.add(role)

    def clear_problem(self) -> None:
        """The embedder works."""
        self.problem, self.problem_is_permanent = None, False

    def vectors_added(self, generation: Generation, ready: list[LabelledVector]) -> None:
        """Vectors were stored in this generation."""
        if self.live and self.live.id == generation.id:
            self.vector_count += len(ready)
        if self.mirror is not None and self.mirror.generation == generation.id:
            self.mirror.add(ready)

    def vectors_removed(self, generation: Generation, chunks: list[int]) -> None:
        """Vectors were removed from this generation."""
        if self.live and self.live.id == generation.id:
            self.vector_count -= len(chunks)
        if self.mirror is not None and self.mirror.generation == generation.id:
            self.mirror.discard(chunks)

    def wake(self) -> None:
        """There is something new to cut or to embed."""
        self.woken.set()

    def can_embed(self, generation: Generation | None) -> bool:
        """Whether the embedder at hand may write into this generation."""
        return (
            generation is not None
            and self.embedder is not None
            and self.store.vec.version is not None
            and generation.differs_from(self.wanted) is None
        )

    def attach(self, db: Db) -> None:
        """Called with every connection: find or make the live generation, and drop what was left half built."""
        with db.transaction():
            generations.drop_unfinished(db)
            self.building, self.mirror = None, None
            live = generations.find(db, "live")
            if live is None or (live.differs_from(self.wanted) and self._is_empty(db, live)):
                db.execute("UPDATE index_generations SET state = 'dropped' WHERE state = 'live'")
                chunking = live.chunking.number if live and self.wanted.has_same_chunking(live) else None
                live = generations.create(db, self._makeable(), "live", chunking or generations.next_chunking(db))
                if "tools" in live.sources:
                    add_tools_to_backlog(db)
            elif self.store.vec.version is not None:
                generations.create_vector_table(db, live)
            self.live = live
        self.vector_count = count(db, live) if self.store.vec.version else 0
        rows = db.tuples(
            f"SELECT DISTINCT role FROM chunks WHERE role NOT IN ('user', 'assistant', 'tool') LIMIT {MAX_SPEAKERS}"
        )
        self.speakers = {row[0] for row in rows}

    async def apply_settings(
        self, settings: EmbedderSettings, tokens: int, overlap: int, sources: tuple[str, ...]
    ) -> None:
        """Apply changed settings; an index made with others is kept, and says so."""
        old = self.embedder
        self._use(settings, tokens, overlap, sources)
        self.settings_changed.set()
        self.settings_changed = anyio.Event()
        if old is not None:
            await old.close()
        if self.live is not None and self.vector_problem and self.building is None:
            await self.store.run_exclusive(self.attach)
        self.wake()

    async def retry_embedder(self) -> None:
        """Try again to make an embedder that could not be made; raises EmbedderUnavailable while it cannot."""
        settings = self._settings
        try:
            embedder = await anyio.to_thread.run_sync(make_embedder, settings)
        except EmbedderUnavailable as error:
            error.retry_after = error.retry_after or RETRY_SECONDS
            raise
        if self.embedder is not None or settings != self._settings:
            return  # the settings changed meanwhile
        self.embedder = embedder
        self.clear_problem()
        log.info("embedder recovered", provider=settings.provider)
        if self.live is not None and self.vector_problem and self.building is None:
            await self.store.run_exclusive(self.attach)
        self.wake()

    async def average_tokens(self) -> float:
        """How long chunks are, of late; looked up now and then."""
        if self._average is None or self._average[1] < anyio.current_time():
            newest = "SELECT avg(tokens) FROM (SELECT tokens FROM chunks ORDER BY id DESC LIMIT 1000)"
            average = await self.store.read(lambda db: db.value(newest))
            self._average = float(average or 0.0), anyio.current_time() + AVERAGE_TTL_SECONDS
        return self._average[0]

    async def load_mirror(self) -> None:
        """Bring the live vectors into memory, a slice at a time so that events get in between."""
        live = self.live
        if live is None or live.identity.dims is None or self.mirror is not None:
            return
        try:
            self.mirror = mirror = Mirror(live.id, live.identity.dims)
        except MemoryError as error:
            log.warning("vectors are not in memory", problem=f"too little memory: {error}")
            return
        try:
            await self._fill(mirror, live)
        except (StorageUnavailable, DeadlineExceeded) as error:
            log.warning("vectors are not in memory", problem=error.message)
        except MemoryError as error:
            log.warning("vectors are not in memory", problem=f"too little memory: {error}")
        finally:
            if not mirror.complete and self.mirror is mirror:
                self.mirror = None

    async def _fill(self, mirror: Mirror, live: Generation) -> None:
        rows = await self.store.read(lambda db: read_slice(db, live, 0))
        while rows:
            mirror.add(rows)
            last = rows[-1][0]
            rows = await self.store.read(lambda db, last=last: read_slice(db, live, last))  # type: ignore[misc]
        mirror.complete = True
        log.info("vectors are in memory", generation=live.id, vectors=self.vector_count)

    def _use(self, settings: EmbedderSettings, tokens: int, overlap: int, sources: tuple[str, ...]) -> None:
        self.clear_problem()
        self.last_error = None
        self._settings = settings
        self.embedder = None
        try:
            self.embedder = make_embedder(settings)
            if self.embedder is not None:
                self.embedder.preflight()
        except EmbedderUnavailable as error:
            self.problem, self.problem_is_permanent = error.reason, error.permanent
            log.warning("no embedder", problem=error.reason)
        self._cut = tokens, overlap, sources

    def _makeable(self) -> GenerationSpec:
        if self.store.vec.version is not None:
            return self.wanted
        return GenerationSpec(NO_EMBEDDER, self.wanted.chunk_tokens, self.wanted.overlap, self.wanted.sources)

    @staticmethod
    def _is_empty(db: Db, live: Generation) -> bool:
        return not db.value(
            "SELECT 1 FROM chunks WHERE chunking = :chunking LIMIT 1", {"chunking": live.chunking.number}
        )
