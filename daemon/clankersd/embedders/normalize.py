"""Validation of embeddings: numbers of unknown origin become vectors of length 1."""

import base64
import binascii
from typing import Any

from clankersd.embedders.base import ItemFailed, Outcome, Vector

_MIN_LENGTH = 1e-12


def unit_vector(numbers: Any) -> Vector:
    """Scale the numbers to a vector of length 1; raises ItemFailed when they are not finite or all zero."""
    import numpy as np

    try:
        array = np.asarray(numbers)
    except ValueError:  # lists of unequal length
        raise ItemFailed("its embedding is not a list of numbers") from None
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "fi":
        raise ItemFailed("its embedding is not a list of numbers")
    wide = array.astype(np.float64)  # the squares of large float32s would overflow
    if not (np.abs(wide) <= np.finfo(np.float32).max).all():
        raise ItemFailed("its embedding holds numbers that are not finite")
    length = np.sqrt(wide @ wide)
    if length < _MIN_LENGTH:
        raise ItemFailed("its embedding is zero")
    unit: Vector = (wide / length).astype(np.float32)
    return unit


def parse_embedding(raw: Any) -> Outcome:
    """Validate and scale the embedding of one text, given as numbers or as base64 of float32 numbers."""
    import numpy as np

    try:
        if isinstance(raw, str):
            raw = np.frombuffer(base64.b64decode(raw, validate=True), dtype="<f4").astype(np.float32)
    except (binascii.Error, ValueError):
        return ItemFailed("its embedding is not base64 of float32 numbers")
    try:
        return unit_vector(raw)
    except ItemFailed as error:
        return error
