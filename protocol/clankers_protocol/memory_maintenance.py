"""Memory maintenance, and extraction of memories from sessions."""

from typing import ClassVar, Literal

import msgspec

from clankers_protocol.admin import JobStarted
from clankers_protocol.memories import LogEntry, Scoped, Sector
from clankers_protocol.wire import Id, Method, Wire


class MaintenanceReport(Wire):
    """Changes made by maintenance, or with `dryRun` planned, each with its reason."""

    promoted: int
    archived: int
    merged: int
    expired: int
    entities_dropped: int
    changes: list[LogEntry]
    dry_run: bool


class MemoryMaintain(Method[MaintenanceReport]):
    """Run maintenance on all memories now: promote used ones, archive faded ones, merge near-duplicates, drop entities
    without references. Every change is recorded in the history of its memory.

    If maintenance would archive more than five memories and more than a quarter of all at once, it does nothing and
    fails with a conflict, unless `force` is set: a clock that jumped forward makes all memories look faded.
    """

    method: ClassVar[str] = "memory.maintain"
    dry_run: bool = False
    force: bool = False


class Candidate(Wire):
    """A possible memory extracted from a session, and the rule or model that found it.

    `outcome` is `created`, `duplicate` or `superseded` as for `memory.add`; `known` if the message was read before;
    `confirmed` if it repeats the memory `memoryId`; or null if nothing was stored.
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
    """Result of an extraction: candidates, messages read, model calls, tokens. `note` says what was skipped."""

    candidates: list[Candidate]
    by: Literal["rules", "model"]
    read_messages: int
    calls: int
    tokens: int
    note: str | None


class MemoryExtract(Scoped[Extraction]):
    """Extract memories from a captured session, by rules or by the configured model. `dryRun` stores nothing.

    `by` defaults to the setting `extract`, or to rules if that is off. Only `model` sends data anywhere: to the
    configured chat endpoint.
    """

    method: ClassVar[str] = "memory.extract"
    session_id: Id
    by: Literal["rules", "model"] | None = None
    dry_run: bool = False


class MemorySummarize(Method[JobStarted]):
    """Summarise a session with the configured model, as a job. The summary is stored in the session."""

    method: ClassVar[str] = "memory.summarize"
    session_id: Id
