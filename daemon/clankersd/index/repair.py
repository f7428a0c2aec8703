"""What the index lacks of what is stored, and has too much: found on a connection aside, mended in small steps."""

import json
from dataclasses import dataclass, field
from functools import partial

from clankersd.db import Db
from clankersd.db.fts import FullText
from clankersd.index import generations, vectors
from clankersd.index.backlog import TEXT_KINDS, rechunk
from clankersd.index.chunks import OWNERS
from clankersd.index.files.reconcile import MAX_FILE_BYTES, SOURCE
from clankersd.index.files.sync import FileSync
from clankersd.index.generations import Generation
from clankersd.index.index import Index
from clankersd.index.queue import MAX_ATTEMPTS
from clankersd.safe_files import UnsafeFile, read_regular

AT_ONCE = 500

FULL_TEXT = FullText("chunks_fts", "chunks", "id", "text, header, extra")

_THESE = "SELECT value FROM json_each(:ids)"
_OWNERLESS = f"SELECT id FROM chunks WHERE {' AND '.join(f'{owner} IS NULL' for owner in OWNERS)}"
_WAITING_FOR_NOBODY = """
    FROM index_queue WHERE chunk NOT IN (SELECT id FROM chunks)
        OR generation NOT IN (SELECT id FROM index_generations)
"""
_UNCUT = """
    SELECT id FROM ({all}) AS texts
    WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE {owner} = texts.id AND chunking = :chunking)
      AND NOT EXISTS (SELECT 1 FROM index_backlog WHERE kind = :kind AND owner = texts.id)
"""
_ALL_TOOLS = "SELECT id FROM tools"
_UNCUT_FILES = """
    SELECT path FROM files WHERE source = :source
        AND NOT EXISTS (SELECT 1 FROM chunks WHERE file_id = files.id AND chunking = :chunking)
"""
_NOT_QUEUED = """
    SELECT id FROM chunks WHERE chunking = :chunking AND id NOT IN ({embedded})
        AND id NOT IN (SELECT chunk FROM index_queue WHERE generation = :generation)
"""
_FAILED = """
    SELECT count(*) AS failed, max(error) AS error FROM index_queue
    WHERE generation = :generation AND attempts >= :attempts
"""
_QUEUE = f"""
    INSERT INTO index_queue (generation, chunk)
    SELECT :generation, id FROM chunks WHERE id IN ({_THESE}) ON CONFLICT DO NO_EMBEDDER
"""
_WORDS_BELOW = "SELECT id FROM chunks WHERE id < :below ORDER BY id DESC LIMIT :most"
_INDEX_WORDS_BELOW = f"""
    INSERT INTO chunks_fts (rowid, text, header, extra)
    SELECT id, text, header, extra FROM chunks WHERE id IN ({_WORDS_BELOW}) ORDER BY id
"""
_EVERYTHING = 1 << 62


@dataclass(frozen=True)
class Orphans:
    """Chunks that belong to nothing, and how many places in the queue do."""

    chunks: list[int]
    waiting: int


@dataclass(frozen=True)
class Unchunked:
    """Texts that are stored and cannot be found: ids by kind, and the paths of watched files. Others wait to be cut."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    waiting: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.texts.values())) + len(self.files)


@dataclass(frozen=True)
class VectorMismatches:
    """Chunks without a vector that do not wait for one either, vectors of no chunk, and how many chunks could not get
    one, for what reason."""

    chunks: list[int] = field(default_factory=list)
    vectors: list[int] = field(default_factory=list)
    failed: int = 0
    error: str | None = None


def find_orphans(db: Db) -> Orphans:
    """What belongs to nothing: another program deleted its owner without looking."""
    found = {row["rowid"] for row in db.fetch("PRAGMA foreign_key_check(chunks)")}
    found |= {row["id"] for row in db.fetch(_OWNERLESS)}
    return Orphans(sorted(found), int(db.value(f"SELECT count(*) {_WAITING_FOR_NOBODY}")))


async def remove_orphans(index: Index, found: Orphans) -> None:
    """Remove chunks that belong to nothing, their words and vectors with them."""
    for some in _in_parts(found.chunks):
        params = {"ids": json.dumps(some)}
        await index.store.write(
            partial(Db.execute, sql=f"DELETE FROM chunks WHERE id IN ({_THESE})", params=params), bulk=True
        )
    await index.store.write(partial(Db.execute, sql=f"DELETE {_WAITING_FOR_NOBODY}"))


def find_unchunked(db: Db) -> Unchunked:
    """What should be in the live index, and is neither there nor on its way."""
    live = generations.find(db, "live")
    if live is None:
        return Unchunked()
    texts = {kind: _uncut_of(db, kind, live) for kind in TEXT_KINDS}
    row = {"source": SOURCE, "chunking": live.chunking.number}
    paths = [row["path"] for row in db.fetch(_UNCUT_FILES, row)]
    return Unchunked(
        {kind: ids for kind, ids in texts.items() if ids},
        [path for path in paths if _says_something(path)],
        int(db.value("SELECT count(*) FROM index_backlog")),
    )


async def chunk_missing(index: Index, files: FileSync, found: Unchunked) -> None:
    """Cut what was found uncut."""
    for kind, ids in found.texts.items():
        for owner in ids:
            await rechunk(index, kind, owner)
    if found.files:
        await files.rechunk()
    index.wake()


def find_vector_mismatches(db: Db, generation: Generation) -> VectorMismatches:
    """Where the vectors of a generation and its chunks do not match."""
    if generation.identity.provider == "none":
        return VectorMismatches()
    known = generation.identity.dims is not None  # else there is no table of vectors yet
    embedded = f"SELECT rowid FROM {generation.vector_table}_rowids" if known else "SELECT NULL WHERE false"
    params = {"chunking": generation.chunking.number, "generation": generation.id, "attempts": MAX_ATTEMPTS}
    failed = db.fetch_one(_FAILED, params)
    assert failed
    return VectorMismatches(
        _ids(db, _NOT_QUEUED.format(embedded=embedded), params),
        _ids(db, f"SELECT * FROM ({embedded}) EXCEPT SELECT id FROM chunks", {}),
        **failed,
    )


async def repair_vectors(index: Index, generation: Generation, found: VectorMismatches) -> None:
    """Let chunks wait for their vectors, and remove vectors of no chunk."""
    for some in _in_parts(found.chunks):
        params = {"generation": generation.id, "ids": json.dumps(some)}
        await index.store.write(partial(Db.execute, sql=_QUEUE, params=params), bulk=True)
    for some in _in_parts(found.vectors):
        await index.store.write(partial(vectors.remove, generation=generation, chunks=some), bulk=True)
    index.vectors_removed(generation, found.vectors)
    index.wake()


async def rebuild_full_text(index: Index) -> None:
    """Make the full text of all chunks anew, the newest first, so that what comes in meanwhile is beyond it."""
    below = await index.store.write(_index_newest_words)
    while below is not None:
        below = await index.store.write(partial(_index_words_below, below=below), bulk=True)


def _index_newest_words(db: Db) -> int | None:
    db.execute("INSERT INTO chunks_fts (chunks_fts) VALUES ('delete-all')")
    return _index_words_below(db, _EVERYTHING)


def _index_words_below(db: Db, below: int) -> int | None:
    """Index some chunks; tells below which the next ones are, or None when these were the last."""
    params = {"below": below, "most": AT_ONCE}
    db.execute(_INDEX_WORDS_BELOW, params)
    return db.value(f"SELECT min(id) FROM ({_WORDS_BELOW})", params)  # type: ignore[no-any-return]


def _uncut_of(db: Db, kind: str, live: Generation) -> list[str]:
    every = TEXT_KINDS[kind].all_after or (_ALL_TOOLS if kind == "tool" and "tools" in live.sources else None)
    if every is None:
        return []
    owner = f"{kind.replace(' ', '_')}_id"  # as its column is called
    params = {"after": "", "limit": -1, "kind": kind, "chunking": live.chunking.number}
    candidates = [row["id"] for row in db.fetch(_UNCUT.format(all=every, owner=owner), params)]
    return [each for each in candidates if _is_to_be_found(db, kind, each)]


def _is_to_be_found(db: Db, kind: str, owner: str) -> bool:
    """Whether there is anything to cut: some roles are not searched, and blank texts have no chunks."""
    row = db.fetch_one(TEXT_KINDS[kind].select, {"id": owner})
    return row is not None and bool((row["text"] or "").strip())


def _says_something(path: str) -> bool:
    try:
        return bool(read_regular(path, max_bytes=MAX_FILE_BYTES).strip())
    except (OSError, UnsafeFile):
        return False  # the file sync says what is wrong with it


def _ids(db: Db, sql: str, params: dict[str, int]) -> list[int]:
    return [row[0] for row in db.tuples(sql, params)]


def _in_parts(ids: list[int]) -> list[list[int]]:
    return [ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE)]
