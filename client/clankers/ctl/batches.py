"""Batches of what a command reads from a file and sends to the daemon."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ItemT = TypeVar("ItemT")


def split_batches(
    items: Iterable[ItemT], size_of: Callable[[ItemT], int], max_items: int, max_bytes: int
) -> Iterator[list[ItemT]]:
    """Yield the items in batches within both limits; an item over the limit is a batch of its own."""
    batch: list[ItemT] = []
    batch_bytes = 0
    for item in items:
        size = size_of(item)
        if batch and (len(batch) == max_items or batch_bytes + size > max_bytes):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(item)
        batch_bytes += size
    if batch:
        yield batch
