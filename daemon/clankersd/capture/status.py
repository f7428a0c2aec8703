"""Whether what harnesses do arrives here, and what was kept out of it."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from clankers_protocol.capture import (
    CaptureReport,
    CaptureStatus,
    HarnessCapture,
    RejectedEvent,
    SpoolDepth,
    TranscriptReading,
)
from clankersd import clock
from clankersd.capture import lost_events
from clankersd.capture.harnesses import READERS
from clankersd.capture.spool import Spool
from clankersd.capture.transcripts import folders
from clankersd.db import Db
from clankersd.safe_files import printable_name
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

DEAD_AFTER_MS = 10 * 60_000
"""A harness writes its own files within moments of telling us; so long after, it no longer tells."""

ALIVE_MS = 24 * 3_600_000
NEWEST_REJECTED = 5
MOST_SKIPPED_SHOWN = 20
PLUGINS = ("claude-code", "opencode")

_COUNTS = "SELECT * FROM capture_counts"
_STORED = "SELECT source AS harness, max(updated_at) AS at FROM sessions WHERE source IS NOT NULL GROUP BY source"
_TRANSCRIPTS = """
    SELECT count(*) AS files, coalesce(sum(lines), 0) AS lines, coalesce(sum(malformed), 0) AS malformed,
           max(read_at) AS last_read_at
    FROM transcripts WHERE read_at IS NOT NULL
"""


@handles(CaptureStatus)
async def capture_status(daemon: "Daemon", request: CaptureStatus) -> CaptureReport:
    spool = await anyio.to_thread.run_sync(_spool, daemon.paths.spool, daemon.spool)
    lost = await anyio.to_thread.run_sync(lost_events.read, daemon.paths.data)
    activity = await anyio.to_thread.run_sync(_activity, daemon.config.transcript_folders)
    known, transcripts, redacted = await daemon.store.read(_known)
    names = sorted({*READERS, *known})
    harnesses = [_harness(name, known.get(name, {}), activity.get(name)) for name in names]
    dead = any(harness.state == "dead" for harness in harnesses)
    held_back = spool.rejected or spool.skipped or spool.problem or (lost and lost_events.is_recent(lost))
    return CaptureReport(not dead and not held_back, harnesses, spool, transcripts, redacted, lost)


def _known(db: Db) -> tuple[dict[str, dict[str, Any]], TranscriptReading, dict[str, int]]:
    known: dict[str, dict[str, Any]] = {row["harness"]: row for row in db.fetch(_COUNTS)}
    for row in db.fetch(_STORED):  # plugins that send upserts are heard of by what they store
        counted = known.setdefault(row["harness"], {})
        counted["last_event_at"] = counted.get("last_event_at") or row["at"]
    transcripts = db.fetch_one(_TRANSCRIPTS)
    assert transcripts
    redacted = {row["kind"]: row["count"] for row in db.fetch("SELECT kind, count FROM redactions ORDER BY kind")}
    return known, TranscriptReading(**transcripts), redacted


def _harness(name: str, row: dict[str, Any], activity: int | None) -> HarnessCapture:
    state, explanation = _state(name, row.get("last_event_at"), activity)
    facts: dict[str, Any] = {key: row.get(key) or 0 for key in ("events", "ignored", "opted_out", "refused")}
    for key in ("last_event", "last_event_at", "last_session_id", "last_refusal", "last_refused_at"):
        facts[key] = row.get(key)
    return HarnessCapture(name, state, explanation, last_activity_at=activity, **facts)


def _state(name: str, last: int | None, activity: int | None) -> tuple[Any, str]:
    install = f": clankers-ctl plugin install {name}" if name in PLUGINS else ""
    if last is None:
        seen = f"{name} is used here, but nothing has come from it" if activity else f"nothing has come from {name}"
        return "never", f"{seen}{install}" if activity else seen
    if activity and activity > last + DEAD_AFTER_MS:
        minutes = (activity - last) // 60_000
        check = f": see clankers-ctl plugin status {name}, and hook.log beside the daemon's log" if install else ""
        return "dead", f"{name} was used {minutes:,} minutes after its last event: its hooks no longer reach us{check}"
    if clock.now() - last < ALIVE_MS:
        return "alive", f"events come from {name}"
    return "quiet", f"nothing has come from {name} for a while, and it was not used since"


def _spool(folder: Path, spool: Spool) -> SpoolDepth:
    waiting = [each for each in _files(folder, ".json") if each[0] not in spool.skipped]
    rejected = sorted(_files(folder / "rejected", ".json", anything=True), key=lambda each: each[1])
    newest = [(printable_name(name), at, size) for name, at, size in reversed(rejected[-NEWEST_REJECTED:])]
    return SpoolDepth(
        waiting=len(waiting),
        bytes=sum(size for _, _, size in waiting),
        oldest_at=min((at for _, at, _ in waiting), default=None),
        rejected=len(rejected),
        newest=[RejectedEvent(name, size, at, spool.reasons.get(name)) for name, at, size in newest],
        skipped=spool.skipped_events()[:MOST_SKIPPED_SHOWN],
        problem=spool.problem,
    )


def _files(folder: Path, suffix: str, *, anything: bool = False) -> Iterator[tuple[str, int, int]]:
    """Name, time and size of the files in a folder, or of anything in it; nothing where there is none."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix) and (anything or entry.is_file(follow_symlinks=False)):
                    with suppress(FileNotFoundError):  # it was stored just now
                        found = entry.stat(follow_symlinks=False)
                        yield entry.name, round(found.st_mtime * 1000), found.st_size
    except OSError:
        return


def _activity(further: list[str]) -> dict[str, int]:
    """When each harness's own files changed last."""
    seen = {
        "claude-code": [
            at
            for root in folders("claude-code", further)
            for project in _subfolders(root / "projects")
            for _, at, _ in _files(project, ".jsonl")
        ],
        "opencode": [
            at
            for root in folders("opencode", further)
            for name, at, _ in (*_files(root, ".db"), *_files(root, ".db-wal"))
            if name.startswith("opencode")
        ],
    }
    return {name: max(moments) for name, moments in seen.items() if moments}


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
