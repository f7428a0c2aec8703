"""The bytes of a model, told apart without reading gigabytes."""

import hashlib
from pathlib import Path

from clankersd.index.embedders.base import EmbedderUnavailable

BLOCKS = 16
BLOCK_SIZE = 64 * 1024


def fingerprint(path: Path) -> str:
    """A hash of the file's size and of blocks spread evenly over it; other weights give another."""
    try:
        size = path.stat().st_size
        digest = hashlib.sha256(str(size).encode())
        with path.open("rb") as file:
            for block in range(BLOCKS):
                file.seek(max(0, size - BLOCK_SIZE) * block // (BLOCKS - 1))
                digest.update(file.read(BLOCK_SIZE))
    except OSError as error:
        raise EmbedderUnavailable(f"{path} cannot be read: {error.strerror}", permanent=True) from error
    return digest.hexdigest()
