"""Captured events: what hooks, transcripts and imports report, as data that can be printed and compared.

Each event wraps one of the protocol's structs, or names a change of a session that has no struct there. Readers in
`harnesses/` make them; `apply.py` stores them.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from clankers_protocol.errors import InvalidParams
from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd.wire.large_json import convert_large

MessageKind = Literal["prompt", "answer", "compaction"]

UNKNOWN_TOOL = "unknown"
"""Name of a tool when only its result was reported."""

DIGEST_CHARACTERS = 64 * 1024
"""Characters hashed in one call, which holds the interpreter lock."""

_ASCII_WHITE_SPACE = bytes(code for code in range(128) if chr(code).isspace())


class HookIdentity(msgspec.Struct, tag_field="by", tag="hook", omit_defaults=True):
    """A message that a hook reports by the id of its prompt; the transcript may report the same one."""

    kind: MessageKind
    prompt_id: str


class TranscriptIdentity(msgspec.Struct, tag_field="by", tag="transcript", omit_defaults=True):
    """A message that a transcript reports by the id of its line; a hook may have reported the same one."""

    kind: MessageKind
    prompt_id: str
    line_id: str


class FirstSession(msgspec.Struct, tag_field="by", tag="firstSession", omit_defaults=True):
    """A message that only transcripts report. It belongs to the session that reported it first."""


Identity = HookIdentity | TranscriptIdentity | FirstSession
"""Decides in which row an event is stored; without one, it is the row of the event's own id."""


class _Captured(msgspec.Struct, tag_field="event", omit_defaults=True):
    """Base of captured events; the tag is the name of the class."""


class SessionReported(_Captured):
    """Create or update a session. With `only_without_project`, a session that has a project is left alone."""

    session: SessionEvent
    only_without_project: bool = False


class SessionOptedOut(_Captured):
    """Store nothing of this session from now on: its project has opted out."""

    session_id: str
    at: int


class SessionOpened(_Captured):
    """A session is in use, so it has not ended, or no longer."""

    session_id: str
    at: int


class SessionEnded(_Captured):
    """A session has ended. Ignored if it was opened again later."""

    session_id: str
    at: int
    reason: str | None = None


class SessionInactive(_Captured):
    """Nothing has happened in a session for long. If it has no status, it ended with its last event."""

    session_id: str


class SessionNote(_Captured):
    """Facts about a session that have no column; they are merged into its metadata."""

    session_id: str
    facts: dict[str, Any]


class SessionClearedFrom(_Captured):
    """The session continues the last one in the same project that was ended by a clear."""

    session_id: str
    project_path: str | None = None


class SessionUsage(_Captured):
    """Totals of a session. Those of a fork include its parent's, and are ignored."""

    session_id: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class SessionTotals(_Captured):
    """Messages with tokens were reported: the totals of the session are at least their sums.

    Not every version of a harness reports totals, and those of a fork include its parent's.
    """

    session_id: str


class FirstPrompt(_Captured):
    """A prompt that names its session, unless it has a title already. `at` is when it was said.

    Here and below, `original_at` is when the harness recorded it. A fork begins with copies, under new ids, of what was
    said before it: an event that is older than its session is such a copy, and is not stored.
    """

    session_id: str
    prompt: str
    at: int | None
    original_at: int | None = None


class SessionSummary(_Captured):
    """The summary that a compaction made of a session, and when it was made."""

    session_id: str
    summary: str
    at: int | None
    original_at: int | None = None


class MessageReported(_Captured):
    """Create or update a message.

    `from_record` marks one that comes from the harness's own record under its final id: its times are exact.
    """

    message: MessageEvent
    identity: Identity | None = None
    original_at: int | None = None
    from_record: bool = False


class ToolReported(_Captured):
    """Create or update a tool call.

    `report` says how it is known. A "success" clears the error that a batch had concluded. A "batch" lists its calls
    after they ended: one that neither succeeded nor failed by then was denied. A "transcript" fills in what hooks
    missed and is right about success. A "record" is right about every field it has, and a "hint" only fills in
    fields that no record has set: together they give the same row in any order.
    """

    tool: ToolEvent
    report: Literal["call", "success", "batch", "transcript", "record", "hint"] = "call"
    original_at: int | None = None


class ErrorReported(_Captured):
    """Create or update an error. With `once`, the same error within a minute under another id is ignored."""

    error: SessionErrorEvent
    once: bool = False
    original_at: int | None = None


class CompactionReported(_Captured):
    """Create or update a compaction.

    Some harnesses report it twice, under different ids. `provisional` is the report without the summary; it is ignored
    if another came within ten minutes before, and a report with `replaces_provisional` removes it.
    """

    compaction: CompactionEvent
    identity: Identity | None = None
    provisional: bool = False
    replaces_provisional: bool = False
    original_at: int | None = None


CapturedEvent = (
    SessionReported
    | SessionOptedOut
    | SessionOpened
    | SessionEnded
    | SessionInactive
    | SessionNote
    | SessionClearedFrom
    | SessionUsage
    | SessionTotals
    | FirstPrompt
    | SessionSummary
    | MessageReported
    | ToolReported
    | ErrorReported
    | CompactionReported
)


class HookReading(msgspec.Struct, omit_defaults=True):
    """Events of one hook payload. A payload without events is counted as ignored.

    `transcripts` are files with new lines. `opens_or_closes` is true at the start and end of a session, when every
    transcript of the session is worth another look.
    """

    name: str
    session_id: str
    project: str | None = None
    events: list[CapturedEvent] = []
    transcripts: list[str] = []
    opens_or_closes: bool = False


_KINDS: dict[str, tuple[type[msgspec.Struct], Callable[[Any], CapturedEvent]]] = {
    "session": (SessionEvent, SessionReported),
    "message": (MessageEvent, MessageReported),
    "tool": (ToolEvent, ToolReported),
    "sessionError": (SessionErrorEvent, ErrorReported),
    "compactionEvent": (CompactionEvent, CompactionReported),
}
"""Events of `events.batch` by their key: what they are validated as, and the event that is stored."""


def parse_event(given: dict[str, Any]) -> CapturedEvent:
    """Parse an event of `events.batch`; raises InvalidParams."""
    present = _KINDS.keys() & given
    if len(present) != 1:
        raise InvalidParams(f"invalid params: an event has exactly one of {', '.join(_KINDS)}")
    [kind] = present
    struct, reported = _KINDS[kind]
    try:
        return reported(convert_large(given[kind], struct))
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {error}") from error


def text_digest(text: str | None) -> str:
    """Hash a text without its white space: harnesses join the blocks of a message in several ways."""
    text = text or ""
    digest = hashlib.sha256()
    for start in range(0, len(text), DIGEST_CHARACTERS):
        piece = text[start : start + DIGEST_CHARACTERS]
        if piece.isascii():  # the same, and several times as fast
            digest.update(piece.encode().translate(None, _ASCII_WHITE_SPACE))
        else:
            digest.update("".join(piece.split()).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:24]
