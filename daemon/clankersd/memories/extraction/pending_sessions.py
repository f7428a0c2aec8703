"""Sessions with unread messages. Only sessions with new messages are checked, not all of them."""

import json
from typing import Any

from clankersd import clock
from clankersd.db import Store

SESSIONS_PER_QUERY = 200
SESSIONS_PER_PAGE = 1000
MINUTE_MS = 60_000
DAY_MS = 86_400_000
MAX_END_DELAY_MS = 10_000
"""The last message of a session may arrive after the event that ends it."""

_SESSION_PAGE = "SELECT rowid, id, updated_at FROM sessions WHERE rowid > :after ORDER BY rowid LIMIT :limit"
_WITH_NEW_MESSAGES = "SELECT session_id AS id FROM messages NOT INDEXED WHERE rowid > :seen"
_UNREAD = """
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
    SELECT id, newest, newest < :quiet_since OR COALESCE(ended_at >= newest AND ended_at < :ended_before, 0) AS ready
    FROM session WHERE unread AND newest > :since
"""


class PendingSessions:
    """Tracks the sessions that may have unread messages."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._days = 0.0
        self._last_rowid = 0

    def reset(self) -> None:
        """Check all recent sessions the next time."""
        self._days = 0.0

    async def ready(self, store: Store, quiet_minutes: float, days: float) -> list[str]:
        """Return sessions with unread messages that have been quiet long enough but not for `days`, oldest first."""
        now = clock.now()
        quiet_ms = round(quiet_minutes * MINUTE_MS)
        times = {
            "since": now - round(days * DAY_MS),
            "quiet_since": now - quiet_ms,
            "ended_before": now - min(MAX_END_DELAY_MS, quiet_ms),
        }
        last_rowid = await store.read(lambda db: db.value("SELECT max(rowid) FROM messages")) or 0
        if days == self._days:
            rows = await store.read(lambda db: db.fetch(_WITH_NEW_MESSAGES, {"seen": self._last_rowid}))
            self._ids.update(row["id"] for row in rows)
        else:
            page = {"after": 0, "limit": SESSIONS_PER_PAGE}
            while rows := await store.read(lambda db: db.fetch(_SESSION_PAGE, page)):
                self._ids.update(row["id"] for row in rows if row["updated_at"] > times["since"])
                page["after"] = rows[-1]["rowid"]
        self._days, self._last_rowid = days, last_rowid
        return await self._select_ready(store, times)

    async def _select_ready(self, store: Store, times: dict[str, int]) -> list[str]:
        """Return the sessions that are ready, and drop those without unread messages."""
        ready: list[dict[str, Any]] = []
        candidates = sorted(self._ids)
        unread: set[str] = set()
        for start in range(0, len(candidates), SESSIONS_PER_QUERY):
            params = times | {"ids": json.dumps(candidates[start : start + SESSIONS_PER_QUERY])}
            rows = await store.read(lambda db, params=params: db.fetch(_UNREAD, params))  # type: ignore[misc]
            unread.update(row["id"] for row in rows)
            ready += [row for row in rows if row["ready"]]
        self._ids -= set(candidates) - unread
        return [row["id"] for row in sorted(ready, key=lambda row: (row["newest"], row["id"]))]
