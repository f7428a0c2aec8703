"""Times as integer milliseconds since 1970 UTC, and ids in order of creation."""

import os
import time
import uuid
from datetime import UTC, datetime

_TICKS_PER_MS = 1 << 12
"""As many as fit beside the time in an id."""

_last_tick = 0


def now() -> int:
    """Return the current time in milliseconds."""
    return time.time_ns() // 1_000_000


def local_time() -> datetime:
    """Return the current time in the local zone."""
    return datetime.fromtimestamp(now() / 1000, UTC).astimezone()


def to_ms(time_sent: float | None) -> int | None:
    """Convert a client's time to milliseconds. Values below 1e12 are seconds; 0 means unknown and returns None."""
    if not time_sent:
        return None
    return round(time_sent * 1000 if time_sent < 1e12 else time_sent)


def new_id() -> str:
    """Return a UUIDv7: ids sort in order of creation, even within a millisecond and after the clock was set back."""
    global _last_tick
    _last_tick = max(_last_tick + 1, time.time_ns() * _TICKS_PER_MS // 1_000_000)
    stamp, part = divmod(_last_tick, _TICKS_PER_MS)
    random_bits = int.from_bytes(os.urandom(8), "big") >> 2
    value = (stamp << 80) | (0x7 << 76) | (part << 64) | (0b10 << 62) | random_bits
    return str(uuid.UUID(int=value))
