"""Full-text indexes stay fast after texts were deleted."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from clankersd.db import Db, Store, fts

pytestmark = pytest.mark.anyio

DELETED = 1_000
TEXTS = 20 * DELETED
"""FTS5 merges by itself once a tenth of a segment was deleted."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "clankers.db", tmp_path / "backups", "normal")
    await store.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        yield store
        tasks.cancel_scope.cancel()
    await store.close()


async def add_texts(store: Store, first: int, last: int) -> None:
    def add(db: Db) -> None:
        for chunk in range(first, last):
            db.execute("INSERT INTO chunks_fts (rowid, text) VALUES (:id, 'alpha beta')", {"id": chunk})

    await store.write(add)


async def delete_texts(store: Store, first: int, last: int) -> None:
    await store.write(
        lambda db: db.execute(
            "DELETE FROM chunks_fts WHERE rowid >= :first AND rowid < :last", {"first": first, "last": last}
        )
    )


def tombstone_bytes(db: Db) -> int:
    return sum(len(row[0]) for row in db.tuples("SELECT block FROM chunks_fts_data WHERE id >= 65537 << 37"))


async def test_full_text_index_is_merged_after_many_texts_were_deleted(store: Store) -> None:
    await add_texts(store, 1, TEXTS + 1)
    await delete_texts(store, 1, DELETED + 1)
    assert await store.read(tombstone_bytes) > fts.MAX_TOMBSTONE_BYTES
    assert await store.engine.merge_full_text(store) == ["chunks_fts"]
    assert await store.read(tombstone_bytes) == 0
    found = await store.read(lambda db: db.value("SELECT count(*) FROM chunks_fts WHERE chunks_fts MATCH 'alpha'"))
    assert found == TEXTS - DELETED
    assert await store.engine.merge_full_text(store) == []


async def test_full_text_index_is_not_rewritten_for_a_few_deleted_texts(store: Store) -> None:
    await add_texts(store, 1, TEXTS + 1)
    await delete_texts(store, 1, DELETED // 100)
    assert await store.engine.merge_full_text(store) == []
