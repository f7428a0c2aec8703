"""Capture status per harness, and import of existing harness history."""

from typing import ClassVar, Literal

from clankers_protocol.admin import JobStarted
from clankers_protocol.wire import Method, Time, Wire

Importable = Literal["claude-code", "opencode"]


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
    """A spooled event that cannot be stored. Its file is moved to the `rejected` folder of the spool."""

    name: str
    bytes: int
    at: int


class SpoolDepth(Wire):
    """Events that hooks spooled while the daemon was unavailable. `newest` lists the newest rejected ones."""

    waiting: int
    bytes: int
    oldest_at: int | None
    rejected: int
    newest: list[RejectedEvent]


class TranscriptReading(Wire):
    """Transcripts read to complete hook events; `malformed` lines were skipped."""

    files: int
    lines: int
    malformed: int
    last_read_at: int | None


class CaptureReport(Wire):
    """Capture status of all harnesses. `ok` is true if none is dead and no event was rejected.

    `redacted` counts redacted secrets by kind.
    """

    ok: bool
    harnesses: list[HarnessCapture]
    spool: SpoolDepth
    transcripts: TranscriptReading
    redacted: dict[str, int]


class CaptureStatus(Method[CaptureReport]):
    """Report which harnesses send events, what is spooled or rejected, and what was redacted."""

    method: ClassVar[str] = "capture.status"


class ImportSummary(Wire):
    """Result of an import: new rows by table. With `dryRun`, the rows that an import would add."""

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
    """Import the existing history of a harness, as a job; its result is an ImportSummary. Importing twice is harmless.

    `since` skips sessions whose files did not change after that time.
    """

    method: ClassVar[str] = "import.start"
    harness: Importable
    since: Time | None = None
    dry_run: bool = False
