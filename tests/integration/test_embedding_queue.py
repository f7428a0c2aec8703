"""The embedding queue while texts are stored all the time."""

from pathlib import Path

import anyio
import pytest

from clankersd.db import Db, Store
from clankersd.embedders.base import EmbedderSettings, Outcome
from clankersd.embedders.local import LocalEmbedder
from clankersd.index.chunks import Owner, replace_chunks
from clankersd.index.index import Index, chunk_inline
from clankersd.index.queue import EmbeddingQueue

pytestmark = pytest.mark.anyio

_ADD_FILE = """
    INSERT INTO files (source, path, hash, mtime, size, indexed_at) VALUES ('memory', :path, '', 0, 0, 0) RETURNING id
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_finish_pending_does_not_wait_for_what_is_stored_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is followed by another text, so that the queue is never empty."""
    store = Store(tmp_path / "test.db", tmp_path / "backups", "normal")
    index = Index(store, EmbedderSettings(provider="static"), 400, 80, ("memory",))
    queue = EmbeddingQueue(index, 1000)
    batches: list[list[str]] = []

    async def store_text(text: str) -> None:
        def change(db: Db) -> None:
            file = db.value(_ADD_FILE, {"path": text})
            for chunked in chunk_inline(text, index.chunkings()) or ():
                replace_chunks(db, Owner("file_id", file, "memory", text, 0), chunked)

        await store.write(change)
        index.wake()

    embed = LocalEmbedder.embed

    async def embed_and_store_another(self: LocalEmbedder, texts: list[str]) -> list[Outcome]:
        batches.append(texts)
        await store_text(f"text number {len(batches)}")
        return await embed(self, texts)

    monkeypatch.setattr(LocalEmbedder, "embed", embed_and_store_another)
    await store.open()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            await store_text("the first text")
            tasks.start_soon(queue.run)
            with anyio.fail_after(30):
                await queue.finish_pending(60)
                await store_text("the text of the search")
                await queue.finish_pending(60)
            assert "the text of the search" in [text for texts in batches for text in texts]
            tasks.cancel_scope.cancel()
    finally:
        await store.close()
