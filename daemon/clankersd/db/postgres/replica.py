"""A read replica that serves searches, as long as it is not far behind."""

import time
from collections import deque

from clankersd.db.connection import Db

MAX_LAG_SECONDS = 10.0
"""A replica that is farther behind serves no searches."""

REPORTED_LAG_SECONDS = 1.0
"""From this lag on, a search says that its results may lack the newest."""

MAX_POSITIONS = 100

_WRITTEN = "SELECT pg_current_wal_lsn()::text"
_REPLAYED = """
    SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= :written::pg_lsn
"""


class Replica:
    """The lag of the replica, measured by positions in the write-ahead log of the main server."""

    def __init__(self) -> None:
        self.problem: str | None = "it was not reached yet"
        self.lag_seconds = 0.0
        self._written: deque[tuple[float, str]] = deque(maxlen=MAX_POSITIONS)

    @property
    def is_usable(self) -> bool:
        return self.problem is None and self.lag_seconds <= MAX_LAG_SECONDS

    @property
    def note(self) -> str | None:
        """A note for `degraded`, None if searches read from an up-to-date replica."""
        if self.problem is not None:
            return f"the read replica does not serve searches: {self.problem}; the main server does"
        if not self.is_usable:
            return f"the read replica is {self.lag_seconds:.0f} s behind: the main server serves searches"
        if self.lag_seconds > REPORTED_LAG_SECONDS:
            return f"the read replica is {self.lag_seconds:.0f} s behind: the newest may be missing"
        return None

    def record_written(self, db: Db) -> None:
        """Record up to where the main server has written its log."""
        position = db.value(_WRITTEN)
        if not self._written or self._written[-1][1] != position:
            self._written.append((time.monotonic(), position))

    def check_replayed(self, db: Db) -> None:
        """Forget the positions that the replica has replayed; the lag is the age of the oldest that it has not."""
        while self._written and db.value(_REPLAYED, {"written": self._written[0][1]}):
            self._written.popleft()
        self.lag_seconds = time.monotonic() - self._written[0][0] if self._written else 0.0
        self.problem = None
