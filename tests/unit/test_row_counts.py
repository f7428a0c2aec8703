"""Row counts: exact while counting is cheap, reused while it is not."""

import time
from pathlib import Path

import pytest

from clankersd.db import Db, Store
from clankersd.db.row_counts import CHEAP_SECONDS, RowCounts


@pytest.mark.anyio
@pytest.mark.parametrize("is_slow", [False, True])
async def test_counts_are_reused_only_if_counting_takes_long(tmp_path: Path, is_slow: bool) -> None:
    store = Store(tmp_path / "clankers.db", tmp_path / "backups", "full")
    calls: list[int] = []

    def count(db: Db) -> int:
        calls.append(1)
        until = time.thread_time() + CHEAP_SECONDS * 20 * is_slow
        while time.thread_time() < until:
            pass
        return int(db.value("SELECT count(*) FROM sessions"))

    await store.open()
    try:
        counts = RowCounts(store, count)
        first, second = await counts.get(), await counts.get()
        assert (first.result, second.result) == (0, 0)
        assert (first is second) == is_slow
        assert len(calls) == (1 if is_slow else 2)
        counts.clear()
        assert await counts.get() is not first
    finally:
        await store.close()
