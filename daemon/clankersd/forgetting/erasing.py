"""Deleting in short changes, and erasing what it leaves behind in the files of the database."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from clankersd.db import Store
from clankersd.wire.jobs import Progress

T = TypeVar("T")

BULK_CHANGE_SECONDS = 0.003
"""Time after which a change deletes no further row: single events wait until it ends."""


def take_briefly(items: Iterable[T]) -> Iterator[T]:
    """Yield items, at least one, until a change has taken long enough; the rest is left to the next change."""
    stop_at = time.monotonic() + BULK_CHANGE_SECONDS
    for item in items:
        yield item
        if time.monotonic() > stop_at:
            return


async def erase_free_space(store: Store, progress: Progress) -> None:
    """Erase what deleting leaves behind: words of deleted texts, free pages, and old versions of pages."""
    await store.engine.erase_free_space(store, progress)
