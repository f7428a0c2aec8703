"""A reindex whose database is opened again before the new index is published."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from clankers_protocol.admin import Job
from clankers_protocol.errors import Conflict, RpcError
from clankersd.db import Db, Store
from clankersd.embedders.base import EmbedderSettings, Outcome
from clankersd.embedders.local import LocalEmbedder
from clankersd.index import generations, reindex
from clankersd.index.chunks import Owner, replace_chunks
from clankersd.index.files.sync import FileSync, WatchSettings
from clankersd.index.generations import Generation
from clankersd.index.index import Index, chunk_inline
from clankersd.index.queue import EmbeddingQueue
from clankersd.wire.jobs import Progress

pytestmark = pytest.mark.anyio

_ADD_FILE = """
    INSERT INTO files (source, path, hash, mtime, size, indexed_at) VALUES ('memory', :path, '', 0, 0, 0) RETURNING id
"""
_STATES = "SELECT id, state FROM index_generations ORDER BY id"


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[Index]:
    """An index of one text."""
    store = Store(tmp_path / "test.db", tmp_path / "backups", "normal")
    made = Index(store, EmbedderSettings(provider="static"), 400, 80, ("memory",))

    def add_text(db: Db) -> None:
        file = db.value(_ADD_FILE, {"path": "notes.md"})
        for chunked in chunk_inline("a text about gardens", made.chunkings()) or ():
            replace_chunks(db, Owner("file_id", file, "memory", "notes.md", 0), chunked)

    await store.open()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            await store.write(add_text)
            yield made
            tasks.cancel_scope.cancel()
    finally:
        await store.close()


async def rebuild(index: Index) -> dict[str, int] | RpcError:
    """Reindex as the job does, and return the result or the error."""
    progress = Progress(Job("job", "reindex", "running", 0, None, None, None, None, 0, None), None)
    queue = EmbeddingQueue(index, 1000)
    files = FileSync(index, WatchSettings(), lambda _: False)
    outcome: dict[str, int] | RpcError = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.run)
        try:
            with anyio.fail_after(60):
                outcome = await reindex.rebuild(index, queue, files, progress)
        except RpcError as error:
            outcome = error
        tasks.cancel_scope.cancel()
    return outcome


def assert_reopened(outcome: dict[str, int] | RpcError) -> None:
    assert isinstance(outcome, Conflict)
    assert outcome.message == "the database was opened again meanwhile; start the reindex again"


async def test_reindex_ends_when_the_database_is_opened_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    before = index.live

    async def reopen_and_wait(_: LocalEmbedder, texts: list[str]) -> list[Outcome]:
        while index.building is None:
            await anyio.sleep(0.01)
        await index.store.run_exclusive(index.on_database_opened)
        await anyio.sleep_forever()
        return []

    monkeypatch.setattr(LocalEmbedder, "embed", reopen_and_wait)
    assert_reopened(await rebuild(index))
    assert (index.live, index.building) == (before, None)
    monkeypatch.undo()
    assert await rebuild(index) == {"chunks": 1, "failed": 0}


async def test_generation_that_was_dropped_is_not_published(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reopen(_: Generation) -> None:
        await index.store.run_exclusive(index.on_database_opened)

    monkeypatch.setattr(index, "index_vectors", reopen)  # the last step before publishing, which may take minutes
    before = index.live
    assert_reopened(await rebuild(index))
    assert (index.live, index.building) == (before, None)
    assert before is not None
    assert await index.store.read(lambda db: db.tuples(_STATES)) == [(before.id, "live")]
    monkeypatch.undo()
    assert await rebuild(index) == {"chunks": 1, "failed": 0}


async def test_generation_of_another_daemon_is_neither_published_nor_dropped(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere: list[Generation] = []

    async def reopen(_: Generation) -> None:
        def build_elsewhere(db: Db) -> None:
            index.on_database_opened(db)
            assert index.live is not None
            elsewhere.append(generations.create(db, index.wanted, "building", index.live.chunking.number))

        await index.store.run_exclusive(build_elsewhere)
        [index.building] = elsewhere  # as `Index.sync_shared_index` does

    monkeypatch.setattr(index, "index_vectors", reopen)
    assert_reopened(await rebuild(index))
    [building] = elsewhere
    assert index.building == building
    assert index.live is not None
    expected = [(index.live.id, "live"), (building.id, "building")]
    assert await index.store.read(lambda db: db.tuples(_STATES)) == expected
