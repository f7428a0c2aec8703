"""Summaries of sessions that ended, were compacted or became quiet, computed in the background."""

from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.errors import RpcError
from clankersd import clock
from clankersd.db import Db, Store
from clankersd.memories.extraction.rules import SessionMessage, ToolCall
from clankersd.recall.summaries.extract import SessionRows, extract

POLL_SECONDS = 0.5
"""A session is summarized when nothing was added to it between two polls."""

QUIET_CHECK_SECONDS = 300.0
QUIET_MS = 30 * 60_000
"""A session without an end is summarized after this time without an event."""

QUIET_SINCE_MS = 7 * 24 * 3_600_000
"""Sessions that began earlier are not looked at for having become quiet."""

MAX_MESSAGES = 100
"""Newest messages of each role that are read: decisions and the result of a session are near its end."""

MAX_PROMPTS = 5
MAX_DUE = 200

PAUSE_FACTOR = 4
"""After a summary, the next one waits for this many times as long as it took: after the import of a history thousands
are due, and searches need the processor."""

# The newest first: a session that just ended is asked for before those of an imported history.
_DUE = f"""
    SELECT session_id, requested FROM extracted_summaries JOIN sessions ON sessions.id = session_id
    WHERE computed < requested ORDER BY sessions.updated_at DESC, session_id LIMIT {MAX_DUE}
"""
_REQUEST_QUIET = """
    INSERT INTO extracted_summaries (session_id)
    SELECT sessions.id FROM sessions LEFT JOIN extracted_summaries ON session_id = sessions.id
    WHERE sessions.created_at > :since AND ended_at IS NULL AND sessions.updated_at < :quiet_since
      AND covers IS NOT sessions.updated_at
    ON CONFLICT (session_id) DO UPDATE SET requested = extracted_summaries.requested + 1
        WHERE extracted_summaries.computed = extracted_summaries.requested
"""
_STORE = """
    UPDATE extracted_summaries SET summary = :summary, computed = :requested, covers = :covers WHERE session_id = :id
"""
_SESSION = "SELECT project_path, substr(user_prompt, 1, 2000) AS user_prompt, updated_at FROM sessions WHERE id = :id"
_PROMPTS = f"""
    SELECT substr(text_content, 1, 2000) FROM messages
    WHERE session_id = :id AND role = 'user' AND text_content <> '' ORDER BY created_at, id LIMIT {MAX_PROMPTS}
"""
_MESSAGES = f"""
    SELECT id, role, substr(text_content, 1, 3000) AS text, created_at AS at FROM messages
    WHERE session_id = :id AND role = :role AND text_content <> ''
    ORDER BY created_at DESC, id DESC LIMIT {MAX_MESSAGES}
"""
# Inputs of files that were written are long and not needed: the path tells the file.
_CALLS = """
    SELECT message_id, tool_name AS name, success, substr(error_message, 1, 200) AS error, file_path AS path,
           CASE WHEN length(tool_input) <= 4000 OR instr(tool_input, '*** Begin Patch') > 0
                THEN substr(tool_input, 1, 100000) END AS input, created_at AS at
    FROM tools WHERE session_id = :id ORDER BY created_at, id
"""
_LAST_ERROR = """
    SELECT coalesce(error_message, error_type) FROM session_errors
    WHERE session_id = :id AND created_at >= :after ORDER BY created_at DESC, id DESC LIMIT 1
"""

log = structlog.get_logger(component="summaries")


class Summaries:
    """Keeps the extracted summaries up to date, for as long as the daemon runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._requested: dict[str, int] = {}
        """Requests seen at the last poll, by session."""

    async def run(self) -> None:
        """Summarize due sessions; look for quiet ones now and then."""
        next_check = 0.0
        while True:
            try:
                if anyio.current_time() >= next_check:
                    next_check = anyio.current_time() + QUIET_CHECK_SECONDS
                    await self._request_quiet()
                await self._summarize_due()
            except RpcError as error:
                log.debug("summaries wait for storage", problem=error.message)
            await anyio.sleep(POLL_SECONDS)

    async def _request_quiet(self) -> None:
        now = clock.now()
        row = {"since": now - QUIET_SINCE_MS, "quiet_since": now - QUIET_MS}
        await self._store.write(lambda db: db.execute(_REQUEST_QUIET, row), bulk=True)

    async def _summarize_due(self) -> None:
        due: dict[str, int] = dict(await self._store.read(lambda db: db.tuples(_DUE)))
        for session_id, requested in due.items():
            if self._requested.get(session_id) == requested:
                started = anyio.current_time()
                await self._summarize(session_id, requested)
                await anyio.sleep(PAUSE_FACTOR * (anyio.current_time() - started))
        self._requested = due

    async def _summarize(self, session_id: str, requested: int) -> None:
        rows, covers = await self._store.read(partial(read_session, session_id=session_id))
        summary = None
        try:
            summary = await anyio.to_thread.run_sync(extract, rows)
        except Exception:  # the other sessions are summarized all the same
            log.exception("session not summarized", session=session_id)
        stored = {"id": session_id, "summary": summary, "requested": requested, "covers": covers}
        await self._store.write(lambda db: db.execute(_STORE, stored), bulk=True)


def read_session(db: Db, session_id: str) -> tuple[SessionRows, int | None]:
    """Read the rows that a summary is made of, and the time of the session's last event."""
    by_id: dict[str, Any] = {"id": session_id}
    session = db.fetch_one(_SESSION, by_id)
    if session is None:  # deleted meanwhile, with its request
        return SessionRows(None, [], [], []), None
    prompts = [session["user_prompt"] or "", *(row[0] for row in db.tuples(_PROMPTS, by_id))]
    found = [
        SessionMessage(**row) for role in ("user", "assistant") for row in db.fetch(_MESSAGES, by_id | {"role": role})
    ]
    messages = sorted(found, key=lambda one: (one.at, one.id))
    last_answer = max((one.at for one in messages if one.role == "assistant"), default=0)
    calls = []
    for row in db.fetch(_CALLS, by_id):
        success = None if row["success"] is None else bool(row["success"])
        calls.append(ToolCall(**row | {"success": success, "error": row["error"] or "", "input": row["input"] or ""}))
    error = db.value(_LAST_ERROR, by_id | {"after": last_answer})
    return SessionRows(session["project_path"], prompts, messages, calls, error), session["updated_at"]
