"""Forgetting: delete captured data for good, by project, session, time, harness or words."""

from typing import Annotated, ClassVar

from msgspec import Meta, field

from clankers_protocol.admin import JobStarted
from clankers_protocol.wire import Method, Name, Time, Wire


class ForgetPlan(Wire):
    """Rows that a request would delete, by table.

    `unreachable` names files with the same texts that are not the daemon's: transcripts of harnesses, watched memory
    files. `copies` are files beside the database that restores and repairs have left; `backupsToo` deletes them.
    `traces` counts further rows, and lines of logs, that repeat the words of `matching`: searches, injected blocks,
    entities, models. They are deleted or cleared, too.
    """

    counts: dict[str, int] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    traces: int = 0


class ForgetSelection(Wire):
    """The parameters of both methods, which select what is deleted."""

    project: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    session: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    since: Time | None = None
    until: Time | None = None
    source: Name | None = None
    matching: Annotated[str, Meta(min_length=2, max_length=1000)] | None = None


class ForgetCount(ForgetSelection, Method[ForgetPlan]):
    """Count what `forget.start` with the same parameters would delete.

    At least one of the parameters is needed; several narrow each other. `matching` is text that occurs in a message, a
    tool call, an error, a summary, a memory or a document, in any case; if it is the only parameter, also in a skill, a
    schedule, a client setting, the name of a project or a watched file. Without `since`, `until` and `matching`, whole
    sessions are deleted; with `project` alone, the project too.
    """

    method: ClassVar[str] = "forget.count"


class ForgetStart(ForgetSelection, Method[JobStarted]):
    """Delete what `forget.count` counts, as a job, and erase its traces; its result is `{counts, backupsDeleted}`.

    Afterwards the texts are in no table, full-text index, vector, cache, write-ahead log, free page, spooled event or
    log. With `backupsToo`, all earlier backups and copies of the database are deleted once a new backup is made.
    """

    method: ClassVar[str] = "forget.start"
    backups_too: bool = False
