"""`session.turns`: the outline of a session, by prompts, with the size of each turn."""

from typing import TYPE_CHECKING, Any

from clankers_protocol.errors import NotFound
from clankers_protocol.transcripts import SessionTurns, Turn, Turns
from clankersd.db import Db
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

EXCERPT_CHARACTERS = 160

# Entries are ordered as in the timeline. A prompt begins a turn; the turn 0 is what precedes the first prompt.
_TURNS = f"""
    WITH entries AS (
        SELECT 'message' AS kind, 0 AS rank, id, created_at, role IS 'user' AS is_prompt, prompt_tokens,
               completion_tokens, false AS failed
        FROM messages WHERE session_id = :id
        UNION ALL SELECT 'tool', 1, id, created_at, false, NULL, NULL, success IS 0 FROM tools WHERE session_id = :id
        UNION ALL SELECT 'error', 2, id, created_at, false, NULL, NULL, false
            FROM session_errors WHERE session_id = :id
        UNION ALL SELECT 'compaction', 3, id, created_at, false, NULL, NULL, false
            FROM compaction_events WHERE session_id = :id
    ),
    numbered AS (
        SELECT *, row_number() OVER in_order - 1 AS position, sum(is_prompt) OVER in_order AS turn FROM entries
        WINDOW in_order AS (ORDER BY created_at, rank, id ROWS UNBOUNDED PRECEDING)
    ),
    turns AS (
        SELECT min(position) AS position, count(*) AS entries, max(iif(is_prompt, id, NULL)) AS id,
               min(created_at) AS at, max(created_at) AS until, sum(kind = 'message') AS messages,
               sum(kind = 'tool') AS tools, sum(failed) AS failed_tools, sum(kind = 'error') AS errors,
               sum(kind = 'compaction') AS compactions, max(prompt_tokens) AS context_tokens,
               sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens
        FROM numbered GROUP BY turn ORDER BY turn
    )
    SELECT turns.*, count(*) OVER () AS total, sum(turns.entries) OVER () AS all_entries,
           (SELECT substr(text_content, 1, {EXCERPT_CHARACTERS}) FROM messages WHERE messages.id = turns.id) AS text
    FROM turns ORDER BY position LIMIT :limit OFFSET :first
"""


@handles(SessionTurns)
async def session_turns(daemon: "Daemon", request: SessionTurns) -> Turns:
    params: dict[str, Any] = {"id": request.session_id, "limit": request.limit, "first": request.first}

    def turns(db: Db) -> Turns:
        rows = db.fetch(_TURNS, params)
        if not rows and not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": request.session_id}):
            raise NotFound(f"session not found: {request.session_id}")
        total, entries = (rows[0]["total"], rows[0]["all_entries"]) if rows else (0, 0)
        for row in rows:
            del row["total"], row["all_entries"]
        return Turns([Turn(**row) for row in rows], total, entries)

    return await daemon.store.read(turns)
