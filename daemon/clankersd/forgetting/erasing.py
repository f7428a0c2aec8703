"""Erase what deleting leaves behind in the files of the database."""

from clankersd.db import Store
from clankersd.wire.jobs import Progress


async def erase_free_space(store: Store, progress: Progress) -> None:
    """Erase what deleting leaves behind: words of deleted texts, free pages, and old versions of pages."""
    await store.engine.erase_free_space(store, progress)
