"""Looking after memories, and finding new ones in what sessions said."""

from typing import ClassVar, Literal

import msgspec

from clankers_protocol.admin import JobStarted
from clankers_protocol.memories import LogEntry, Scoped, Sector
from clankers_protocol.wire import Id, Method, Wire


class Maintained(Wire):
    """What maintenance did, or would do: each with its reason."""

    promoted: int
    archived: int
    merged: int
    expired: int
    entities_dropped: int
    changes: list[LogEntry]
    dry_run: bool


class MemoryMaintain(Method[Maintained]):
    """Look after all memories now: promote what is used, archive what has faded, merge what says the same, drop
    entities nothing refers to. Every change is in the history of its memory.

    If more than five memories and more than a quarter of them were to be archived at once, nothing is done and the call
    fails with a conflict, unless `force` is set: a clock that jumped forward makes all memories look faded.
    """

    method: ClassVar[str] = "memory.maintain"
    dry_run: bool = False
    force: bool = False


class Candidate(Wire):
    """Something a session said that may be worth remembering, and the rule or model that noticed it.

    `outcome` is what became of it: `created`, `duplicate` or `superseded` as for `memory.add`, `known` when this very
    message has been learnt from before, `confirmed` when it says what the memory `memoryId` says, or null when nothing
    was stored.
    """

    content: str
    category: str
    sector: Sector
    importance: float
    confidence: float
    rule: str
    message_id: str | None
    files: list[str] = msgspec.field(default_factory=list)
    supersedes: str | None = None
    memory_id: str | None = None
    outcome: Literal["created", "duplicate", "superseded", "confirmed", "known"] | None = None


class Extraction(Wire):
    """What was found in how many messages, and what of the model that cost; `note` says what was left out and why."""

    candidates: list[Candidate]
    by: Literal["rules", "model"]
    read_messages: int
    calls: int
    tokens: int
    note: str | None


class MemoryExtract(Scoped[Extraction]):
    """Look for memories in a captured session, by rules or by the configured model. `dryRun` stores nothing.

    Without `by` it is as the configuration says (`extract`), and by rules while that is off. Only with `model` is
    anything sent anywhere: to the chat endpoint of the configuration.
    """

    method: ClassVar[str] = "memory.extract"
    session_id: Id
    by: Literal["rules", "model"] | None = None
    dry_run: bool = False


class MemorySummarize(Method[JobStarted]):
    """Let the configured model sum up a session, as a job; the summary is kept with the session."""

    method: ClassVar[str] = "memory.summarize"
    session_id: Id
