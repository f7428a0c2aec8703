"""The count of events that hooks could neither send nor spool; `clankers.lost_events` writes it."""

import os
from pathlib import Path

from clankers_protocol.capture import LostEvents
from clankersd import clock
from clankersd.safe_files import UnsafeFile, read_regular

FILE_NAME = "lost-events"
RECORD_BYTES = 512
RECENT_MS = 24 * 3_600_000
"""Age up to which losses are reported as a problem; older ones are only counted."""


def prepare(data: Path) -> None:
    """Create the file with its full size while the disk has room: on a full disk, a hook can only overwrite it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(data / FILE_NAME, flags, 0o600)
    except OSError:  # nearly always because the file exists
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"\n".rjust(RECORD_BYTES))


def read(data: Path) -> LostEvents | None:
    """Return the number of lost events; None if none was lost, or the file holds no record."""
    try:
        return LostEvents.parse(read_regular(data / FILE_NAME, max_bytes=RECORD_BYTES))
    except (OSError, UnsafeFile):
        return None


def is_recent(lost: LostEvents) -> bool:
    return clock.now() - lost.last_at < RECENT_MS


def warnings(data: Path) -> list[str]:
    """Describe recent losses, with what to do."""
    lost = read(data)
    if lost is None or not is_recent(lost):
        return []
    events = f"{lost.count:,} hook event{' was' if lost.count == 1 else 's were'}"
    return [f"{events} lost, the last because of {lost.last_reason}: make room, and see clankers-ctl capture status"]
