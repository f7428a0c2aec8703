"""Which sessions have something to read: those with new messages are kept in mind, so that not all are looked at."""

import json
from typing import Any

from clankersd import clock
from clankersd.db import Store

AT_ONCE = 200
PAGE = 1000
MINUTE_MS = 60_000
DAY_MS = 86_400_000
SETTLE_MS = 10_000
"""After its end a session may still get its last message."""

_RECENT = "SELECT rowid, id, updated_at FROM sessions WHERE rowid > :after ORDER BY rowid LIMIT :limit"
_HEARD_FROM = "SELECT session_id AS id FROM messages NOT INDEXED WHERE rowid > :seen"
_LOOK = """
    WITH session AS MATERIALIZED (
        SELECT sessions.id, sessions.ended_at,
               (SELECT max(created_at) FROM messages WHERE session_id = sessions.id) AS newest,
               EXISTS (
                   SELECT 1 FROM messages WHERE session_id = sessions.id AND (messages.created_at, messages.id)
                       > (COALESCE(extractions.read_until, -1), COALESCE(extractions.last_message, ''))
               ) AS unread
        FROM json_each(:ids) CROSS JOIN sessions ON sessions.id = json_each.value
        LEFT JOIN extractions ON extractions.session_id = sessions.id
    )
    SELECT id, newest, newest < :rested OR COALESCE(ended_at >= newest AND ended_at < :settled, 0) AS rests
    FROM session WHERE unread AND newest > :since
"""


class PendingSessions:
    """Sessions that may have something to read."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._days = 0.0
        self._seen = 0

    def forget(self) -> None:
        """Begin anew at the next look."""
        self._days = 0.0

    async def ready(self, store: Store, quiet_minutes: float, days: float) -> list[str]:
        """Sessions with something to read that have rested long enough, but not too long; the oldest first."""
        now = clock.now()
        rest = round(quiet_minutes * MINUTE_MS)
        times = {
            "since": now - round(days * DAY_MS),
            "rested": now - rest,
            "settled": now - min(SETTLE_MS, rest),
        }
        newest = await store.read(lambda db: db.value("SELECT max(rowid) FROM messages")) or 0
        self._ids |= await (self._heard_from(store) if days == self._days else self._recent(store, times["since"]))
        self._days, self._seen = days, newest
        found: list[dict[str, Any]] = []
        asked = sorted(self._ids)
        kept: set[str] = set()
        for start in range(0, len(asked), AT_ONCE):
            params = times | {"ids": json.dumps(asked[start : start + AT_ONCE])}
            rows = await store.read(lambda db, params=params: db.fetch(_LOOK, params))  # type: ignore[misc]
            kept.update(row["id"] for row in rows)
            found += [row for row in rows if row["rests"]]
        self._ids -= set(asked) - kept
        return [row["id"] for row in sorted(found, key=lambda row: (row["newest"], row["id"]))]

    async def _heard_from(self, store: Store) -> set[str]:
        """The sessions with messages that were not there at the last look."""
        rows = await store.read(lambda db: db.fetch(_HEARD_FROM, {"seen": self._seen}))
        return {row["id"] for row in rows}

    async def _recent(self, store: Store, since: int) -> set[str]:
        """The sessions in which anything happened lately."""
        found: set[str] = set()
        after = 0
        while rows := await store.read(lambda db, after=after: db.fetch(_RECENT, {"after": after, "limit": PAGE})):  # type: ignore[misc]
            found.update(row["id"] for row in rows if row["updated_at"] > since)
            after = rows[-1]["rowid"]
        return found
