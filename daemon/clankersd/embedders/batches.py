"""Cutting many texts into requests of a bearable size."""

from collections.abc import Iterator


def in_batches(texts: list[str], most_texts: int, most_bytes: int) -> Iterator[list[int]]:
    """The positions of the texts in batches within both limits; a text over the limit goes alone."""
    batch: list[int] = []
    filled = 0
    for position, text in enumerate(texts):
        size = len(text.encode())
        if batch and (len(batch) >= most_texts or filled + size > most_bytes):
            yield batch
            batch, filled = [], 0
        batch.append(position)
        filled += size
    if batch:
        yield batch
