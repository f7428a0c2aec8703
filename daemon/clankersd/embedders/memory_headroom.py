"""Memory checks before calls into native code that ends the process when an allocation fails.

Rust's allocator aborts (the tokenizer is written in Rust), and OpenBLAS, which comes with numpy, exits. Their callers
check here first, and handle the MemoryError that Python code would raise.
"""

import importlib
import mmap
import sys
from types import ModuleType

NUMPY_IMPORT_BYTES = 128 * 1024 * 1024
"""Address space needed to import numpy and its OpenBLAS: 96 MiB measured."""


def require_headroom(size_bytes: int) -> None:
    """Raise MemoryError unless the process can allocate this much more, by reserving and releasing it."""
    try:
        mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError(f"less than {size_bytes // 2**20} MiB of memory can be allocated") from error


def import_numpy() -> ModuleType:
    """Import numpy if there is memory for it; raises MemoryError or ImportError."""
    if "numpy" not in sys.modules:
        require_headroom(NUMPY_IMPORT_BYTES)
    try:
        return importlib.import_module("numpy")
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # RuntimeError: the processor lacks instructions that numpy was built for
        raise ImportError(f"{type(error).__name__}: {error}", name="numpy") from error


def numpy_if_available() -> ModuleType | None:
    """Return numpy, or None where it is missing, broken or too large for the memory that is left."""
    try:
        return import_numpy()
    except (ImportError, MemoryError):
        return None
