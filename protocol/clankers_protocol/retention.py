"""Retention: captured data that is removed for good after a time, or when the database exceeds a size."""

from typing import ClassVar

from msgspec import field

from clankers_protocol.admin import JobStarted, RetentionReport
from clankers_protocol.wire import Method, Wire


class RetentionShow(Method[RetentionReport]):
    """Return the retention settings, the last run and the next one."""

    method: ClassVar[str] = "retention.show"


class RetentionPlan(Wire):
    """Rows that a run would remove, by kind. What the size budget takes is estimated from the sizes of texts."""

    removed: dict[str, int] = field(default_factory=dict)
    database_bytes: int = 0
    over_budget_bytes: int = 0


class RetentionCount(Method[RetentionPlan]):
    """Count what `retention.start` would remove now."""

    method: ClassVar[str] = "retention.count"


class RetentionStart(Method[JobStarted]):
    """Remove what the retention settings say, for good, as a job; its result is `{removed, freedBytes, note}`.

    The daemon does this by itself once a day, as the scheduled action `retention`. Memories are never removed, and the
    size budget takes nothing that is younger than a day.
    """

    method: ClassVar[str] = "retention.start"
