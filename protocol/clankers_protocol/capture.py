"""Capture as its owner sees it: what arrives from which harness, what is kept out, and bringing in what was before."""

from typing import ClassVar, Literal

from msgspec import field

from clankers_protocol.admin import JobStarted
from clankers_protocol.wire import Method, Time, Wire

Importable = Literal["claude-code", "opencode"]


class HarnessCapture(Wire):
    """What came from one harness.

    `state` is "alive" when something came within a day, "quiet" when it is longer ago and the harness was not used
    since, "dead" when its own files changed well after the last event we got, "never" when nothing ever came.
    `explanation` says so in a sentence, with what to do about it. `ignored` counts events that carry nothing to keep,
    `optedOut` those of projects that do not want to be captured. `lastActivityAt` is when the harness's own files
    changed last, where they can be seen.
    """

    harness: str
    state: Literal["alive", "quiet", "dead", "never"]
    explanation: str
    events: int
    ignored: int
    opted_out: int
    refused: int
    last_event: str | None = None
    last_event_at: int | None = None
    last_session_id: str | None = None
    last_refusal: str | None = None
    last_refused_at: int | None = None
    last_activity_at: int | None = None


class RejectedEvent(Wire):
    """An event of the spool that can never be stored: the file is kept beside the spool.

    `problem` says why; it is null for a file that was set aside before the daemon started.
    """

    name: str
    bytes: int
    at: int
    problem: str | None = None


class SkippedEvent(Wire):
    """A file in the spool that can be neither stored nor moved aside; it is tried again every minute."""

    name: str
    problem: str


class LostEvents(Wire):
    """Events that hooks could neither send nor spool, for want of space for example, since the counter was made."""

    count: int
    last_at: int
    last_reason: str

    @classmethod
    def parse(cls, record: bytes) -> "LostEvents | None":
        """Read the line that hooks write, `COUNT MILLISECONDS REASON`; None for anything else."""
        count, _, rest = record.decode(errors="replace").strip().partition(" ")
        at, _, reason = rest.partition(" ")
        if not all(number.isascii() and number.isdigit() and len(number) < 16 for number in (count, at)):
            return None
        return cls(int(count), int(at), reason)


class SpoolDepth(Wire):
    """What hooks kept while the daemon was away. `newest` are the newest of the rejected.

    `problem` says why the spool directory cannot be read, and what to do.
    """

    waiting: int
    bytes: int
    oldest_at: int | None
    rejected: int
    newest: list[RejectedEvent]
    skipped: list[SkippedEvent] = field(default_factory=list)
    problem: str | None = None


class TranscriptReading(Wire):
    """The transcripts that were read to catch up; `malformed` lines were skipped."""

    files: int
    lines: int
    malformed: int
    last_read_at: int | None


class CaptureReport(Wire):
    """`ok` when no harness's capture is dead, nothing was rejected or skipped, and nothing was lost within a day.

    `redacted` counts by kind.
    """

    ok: bool
    harnesses: list[HarnessCapture]
    spool: SpoolDepth
    transcripts: TranscriptReading
    redacted: dict[str, int]
    lost: LostEvents | None = None


class CaptureStatus(Method[CaptureReport]):
    """Whether what harnesses do arrives, and what was kept out of it."""

    method: ClassVar[str] = "capture.status"


class ImportSummary(Wire):
    """What an import brought in, or with `dryRun` would: rows that were not there before, by table."""

    harness: str
    dry_run: bool
    files: int
    sessions: int
    messages: int
    tools: int
    errors: int
    compactions: int
    redacted: int
    malformed: int
    opted_out: int
    unreadable: int


class ImportStart(Method[JobStarted]):
    """Bring in the history a harness has kept, as a job; its result is an ImportSummary. Twice is harmless.

    `since` leaves out sessions whose files did not change since then.
    """

    method: ClassVar[str] = "import.start"
    harness: Importable
    since: Time | None = None
    dry_run: bool = False
