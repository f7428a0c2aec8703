"""From numbers as they come to vectors that can be trusted."""

import base64
import binascii
from typing import Any

from clankersd.embedders.base import ItemFailed, Outcome, Vector

_NOTHING = 1e-12


def unit_vector(numbers: Any) -> Vector:
    """The numbers scaled to length 1; raises ItemFailed for what has no direction."""
    import numpy as np

    try:
        found = np.asarray(numbers)
    except ValueError:  # lists of unequal length
        raise ItemFailed("its embedding is not a list of numbers") from None
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "fi":
        raise ItemFailed("its embedding is not a list of numbers")
    wide = found.astype(np.float64)  # the squares of large float32s would overflow
    if not (np.abs(wide) <= np.finfo(np.float32).max).all():
        raise ItemFailed("its embedding holds numbers that are not finite")
    length = np.sqrt(wide @ wide)
    if length < _NOTHING:
        raise ItemFailed("its embedding is zero")
    unit: Vector = (wide / length).astype(np.float32)
    return unit


def received_vector(raw: Any) -> Outcome:
    """What came for one text, as numbers or in base64, checked and scaled."""
    try:
        return unit_vector(_from_base64(raw) if isinstance(raw, str) else raw)
    except ItemFailed as failed:
        return failed


def _from_base64(text: str) -> Vector:
    import numpy as np

    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
    except (binascii.Error, ValueError):
        raise ItemFailed("its embedding is not base64 of float32 numbers") from None
