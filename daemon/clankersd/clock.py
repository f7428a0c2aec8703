"""Moments: whole milliseconds since 1970 UTC, everywhere."""

import os
import time
import uuid
from datetime import UTC, datetime

_TICKS = 1 << 12
"""Of a millisecond: as many as fit beside the time in an id."""

_last_tick = 0


def now() -> int:
    return time.time_ns() // 1_000_000


def local_time() -> datetime:
    """Return the current time in the local zone."""
    return datetime.fromtimestamp(now() / 1000, UTC).astimezone()


def to_ms(given: float | None) -> int | None:
    """A client's time in milliseconds. Below 1e12 it is seconds; 0 is what clients send for "unknown"."""
    if not given:
        return None
    return round(given * 1000 if given < 1e12 else given)


def new_id() -> str:
    """A UUIDv7: unique, and in the order of making, also within a millisecond and when the clock is set back."""
    global _last_tick
    _last_tick = max(_last_tick + 1, time.time_ns() * _TICKS // 1_000_000)
    stamp, part = divmod(_last_tick, _TICKS)
    value = (stamp << 80) | (0x7 << 76) | (part << 64) | (0b10 << 62) | _random(62)
    return str(uuid.UUID(int=value))


def _random(bits: int) -> int:
    return int.from_bytes(os.urandom(8), "big") >> (64 - bits)
