"""Capture status: which harnesses send events, what is spooled or rejected, and what was redacted."""

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
from clankers_protocol.harnesses import NAMES, find_harness
from clankersd import clock
from clankersd.capture import lost_events
from clankersd.capture.harnesses import HARNESSES, data_folders
from clankersd.capture.spool import Spool
from clankersd.db import Db
from clankersd.safe_files import printable_name
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

DEAD_AFTER_MS = 10 * 60_000
"""A harness writes its own files within moments of an event; if they change this long after, its hooks are broken."""

ALIVE_MS = 24 * 3_600_000
MAX_REJECTED_SHOWN = 5
MAX_SKIPPED_SHOWN = 20

_COUNTS = "SELECT * FROM capture_counts"
_STORED = "SELECT source AS harness, max(updated_at) AS at FROM sessions WHERE source IS NOT NULL GROUP BY source"
_TRANSCRIPTS = """
    SELECT count(*) AS files, coalesce(sum(lines), 0) AS lines, coalesce(sum(malformed), 0) AS malformed,
           max(read_at) AS last_read_at
    FROM transcripts WHERE read_at IS NOT NULL
"""


@handles(CaptureStatus)
async def capture_status(daemon: "Daemon", request: CaptureStatus) -> CaptureReport:
    def plugins_installed_at() -> dict[str, int]:  # from the records that clankers-ctl makes
        times = {}
        with suppress(OSError):
            for entry in (daemon.paths.data / "plugins").iterdir():
                times[entry.name] = round(entry.stat().st_mtime * 1000)
        return times

    spool = await anyio.to_thread.run_sync(_spool_depth, daemon.paths.spool, daemon.spool)
    lost = await anyio.to_thread.run_sync(lost_events.read, daemon.paths.data)
    activity = await anyio.to_thread.run_sync(_last_activity, daemon.config.transcript_folders)
    installed = await anyio.to_thread.run_sync(plugins_installed_at)
    counts, transcripts, redacted = await daemon.store.read(_fetch)
    names = sorted({*NAMES, *counts})
    harnesses = []
    for name in names:
        row, installed_at = counts.get(name, {}), installed.get(name)
        last = None if row.get("is_only_stored") and installed_at else row.get("last_event_at")
        state, explanation = _state(name, last, activity.get(name), installed_at, bool(row.get("is_only_stored")))
        facts: dict[str, Any] = {key: row.get(key) or 0 for key in ("events", "ignored", "opted_out", "refused")}
        for key in ("last_event", "last_event_at", "last_session_id", "last_refusal", "last_refused_at"):
            facts[key] = row.get(key)
        harnesses.append(HarnessCapture(name, state, explanation, last_activity_at=activity.get(name), **facts))
    dead = any(harness.state == "dead" for harness in harnesses)
    held_back = spool.rejected or spool.skipped or spool.problem or (lost and lost_events.is_recent(lost))
    ok = not dead and not held_back
    return CaptureReport(ok, harnesses, spool, transcripts, redacted, lost, daemon.pauses.active())


def _fetch(db: Db) -> tuple[dict[str, dict[str, Any]], TranscriptReading, dict[str, int]]:
    """Return the counts by harness, those of transcripts, and redactions by kind."""
    counts: dict[str, dict[str, Any]] = {row["harness"]: row for row in db.fetch(_COUNTS)}
    for row in db.fetch(_STORED):  # plugins that send upserts are known by the sessions they stored
        count = counts.setdefault(row["harness"], {})
        if not count.get("last_event_at"):
            count["last_event_at"], count["is_only_stored"] = row["at"], True
    transcripts = db.fetch_one(_TRANSCRIPTS)
    assert transcripts
    redacted = {row["kind"]: row["count"] for row in db.fetch("SELECT kind, count FROM redactions ORDER BY kind")}
    return counts, TranscriptReading(**transcripts), redacted


def _state(
    name: str, last: int | None, activity: int | None, installed_at: int | None, is_only_stored: bool
) -> tuple[Any, str]:
    """Return the state of a harness, and a sentence that explains it.

    Sessions that are only stored may have been imported: they prove neither that hooks work nor that they broke.
    """
    info = find_harness(name)
    has_plugin = info is not None and info.has_plugin
    if last is None and installed_at:
        return "never", f"the plugin of {name} is installed; its first event comes with the next session you start"
    if last is None and not activity:
        return "never", f"no events received from {name}"
    if last is None:
        install = f": clankers-ctl plugin install {name}" if has_plugin else ""
        return "never", f"{name} is in use, but no events were received from it{install}"
    if is_only_stored and clock.now() - last >= ALIVE_MS:
        return "quiet", f"sessions of {name} are stored, but none was active within a day"
    since = max(last, installed_at or 0)  # a plugin that was installed again gets a chance to send something
    if activity and activity > since + DEAD_AFTER_MS and not is_only_stored:
        minutes = (activity - last) // 60_000
        check = f": see clankers-ctl plugin status {name}, and hook.log beside the daemon's log" if has_plugin else ""
        return (
            "dead",
            f"{name} was used {minutes:,} minutes after its last event: its hooks no longer reach the daemon{check}",
        )
    if clock.now() - last < ALIVE_MS:
        return "alive", f"events are received from {name}"
    return "quiet", f"no recent events from {name}, which was not used since the last one"


def _spool_depth(folder: Path, spool: Spool) -> SpoolDepth:
    waiting = [each for each in _list_files(folder, ".json") if each[0] not in spool.skipped]
    rejected = sorted(_list_files(folder / "rejected", ".json", any_type=True), key=lambda each: each[1])
    newest = [(printable_name(name), at, size) for name, at, size in reversed(rejected[-MAX_REJECTED_SHOWN:])]
    return SpoolDepth(
        waiting=len(waiting),
        bytes=sum(size for _, _, size in waiting),
        oldest_at=min((at for _, at, _ in waiting), default=None),
        rejected=len(rejected),
        newest=[RejectedEvent(name, size, at, spool.reasons.get(name)) for name, at, size in newest],
        skipped=spool.skipped_events()[:MAX_SKIPPED_SHOWN],
        problem=spool.problem,
    )


def _list_files(folder: Path, suffix: str, *, any_type: bool = False) -> Iterator[tuple[str, int, int]]:
    """List name, time and size of the regular files in a folder, or of everything; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix) and (any_type or entry.is_file(follow_symlinks=False)):
                    with suppress(FileNotFoundError):  # it was stored just now
                        status = entry.stat(follow_symlinks=False)
                        yield entry.name, round(status.st_mtime * 1000), status.st_size
    except OSError:
        return


def _last_activity(extra_folders: list[str]) -> dict[str, int]:
    """Return when each harness's own files changed last."""
    activity: dict[str, int] = {}
    for harness in HARNESSES.values():
        if harness.list_activity_files is None:
            continue
        for root in data_folders(harness, extra_folders):
            for path in harness.list_activity_files(root):
                with suppress(OSError):
                    changed_at = round(path.lstat().st_mtime * 1000)
                    activity[harness.name] = max(activity.get(harness.name, 0), changed_at)
    return activity
