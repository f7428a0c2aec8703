"""Look-up of values in sorted arrays."""

from typing import Any


def find_sorted(values: Any, wanted: Any) -> tuple[Any, Any]:
    """Return the position of each wanted value in a sorted array that is not empty, and whether it is there."""
    import numpy as np

    positions = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return positions, values[positions] == wanted
