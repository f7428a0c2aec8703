"""Capture status per harness, and import of existing harness history."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from clankers_protocol.admin import JobStarted
from clankers_protocol.wire import Method, Time, Wire


class HarnessCapture(Wire):
    """Capture status of one harness.

    `state` is "alive" if an event arrived within a day, "quiet" if the last event is older and the harness was not used
    since, "dead" if the harness's own files changed well after the last event, and "never" if no event ever arrived.
    `explanation` says so in a sentence, with what to do about it. `ignored` counts events without content to store,
    `optedOut` counts events of projects that opted out. `lastActivityAt` is the last change of the harness's own files,
    where they can be read.
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
    """A spooled event that cannot be stored. Its file is moved to the `rejected` folder of the spool.

    `problem` gives the reason; it is null for a file that was rejected before the daemon started.
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
    """Events that hooks spooled while the daemon was unavailable. `newest` lists the newest rejected ones.

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
    """Transcripts read to complete hook events; `malformed` lines were skipped."""

    files: int
    lines: int
    malformed: int
    last_read_at: int | None


class Pause(Wire):
    """A pause of capture, everywhere or in one project, from `since` to `until`; null until it is ended."""

    project: str | None
    since: int
    until: int | None


class PauseReport(Wire):
    """The pauses in force, and how many were `ended` by this request."""

    paused: list[Pause]
    ended: int = 0


class CapturePause(Method[PauseReport]):
    """Store no events from now on, of one project or of all, until `capture.resume` or for so many `seconds`.

    Events that happen during a pause are never stored: they are not spooled, and not read from transcripts later.
    """

    method: ClassVar[str] = "capture.pause"
    is_cancellable: ClassVar[bool] = False
    project: Annotated[str, Meta(max_length=4096)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=366 * 86_400)] | None = None


class CaptureResume(Method[PauseReport]):
    """End the pause of a project, or without `project` all pauses."""

    method: ClassVar[str] = "capture.resume"
    is_cancellable: ClassVar[bool] = False
    project: Annotated[str, Meta(max_length=4096)] | None = None


class CaptureReport(Wire):
    """Capture status. `ok` is true if no harness is dead, no event was rejected or skipped, and none lost within a day.

    `redacted` counts redacted secrets by kind. `paused` lists the pauses in force.
    """

    ok: bool
    harnesses: list[HarnessCapture]
    spool: SpoolDepth
    transcripts: TranscriptReading
    redacted: dict[str, int]
    lost: LostEvents | None = None
    paused: list[Pause] = field(default_factory=list)


class CaptureStatus(Method[CaptureReport]):
    """Report which harnesses send events, what is spooled or rejected, and what was redacted."""

    method: ClassVar[str] = "capture.status"


class ImportSummary(Wire):
    """Result of an import: new rows by table, and the folders that were searched. With `dryRun`, the rows that an
    import would add."""

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
    folders: list[str] = field(default_factory=list)


class ImportStart(Method[JobStarted]):
    """Import the existing history of a harness, as a job; its result is an ImportSummary. Importing twice is harmless.

    `harness` is "claude-code", "codex", "copilot", "gemini", "openclaw", "opencode", "pi" or "qwen". `since` skips
    sessions whose files did not change after that time.
    """

    method: ClassVar[str] = "import.start"
    harness: str
    since: Time | None = None
    dry_run: bool = False
