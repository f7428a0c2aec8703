"""Moments: whole milliseconds since 1970 UTC, everywhere."""

import os
import time
import uuid


def now() -> int:
    return time.time_ns() // 1_000_000


def moment(given: float | None) -> int | None:
    """A client's time in milliseconds. Below 1e12 it is seconds; 0 is what clients send for "unknown"."""
    if not given:
        return None
    return round(given * 1000 if given < 1e12 else given)


def new_id() -> str:
    """A UUIDv7: unique, and in the order of making."""
    stamp = time.time_ns() // 1_000_000
    value = (stamp << 80) | (0x7 << 76) | (_random(12) << 64) | (0b10 << 62) | _random(62)
    return str(uuid.UUID(int=value))


def _random(bits: int) -> int:
    return int.from_bytes(os.urandom(8), "big") >> (64 - bits)
