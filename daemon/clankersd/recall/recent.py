"""`recall.recent`: the last searches of agents, and the last prompts with which nothing was injected."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from clankers_protocol.recall import (
    Recall,
    RecallRecent,
    RecentRecall,
    RecordedSearch,
    SilentPrompt,
)
from clankersd import clock
from clankersd.db import Db
from clankersd.recall.ledger import find_prompt, with_texts
from clankersd.redaction.engine import redact
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_RECORDED = 200
MAX_QUERY_CHARACTERS = 2_000
TEXT_CHARACTERS = 300
CALL_MS = 60_000
"""A harness records the tool call that made a search within this time of it."""

_TEXT = f"SELECT substr(text, 1, {TEXT_CHARACTERS}) FROM chunks WHERE chunk_id = :id"
_CALL = f"""
    SELECT tools.id, tools.session_id, sessions.title FROM tools LEFT JOIN sessions ON sessions.id = tools.session_id
    WHERE tools.created_at BETWEEN :at - {CALL_MS} AND :at + {CALL_MS} AND tool_name LIKE '%search%'
      AND instr(tool_input, :query) > 0 ORDER BY abs(tools.created_at - :at) LIMIT 1
"""


@dataclass
class RecallLog:
    """The last searches and silent prompts, in memory: a search stores nothing.

    Hits and candidates are ids and figures. Their texts are read when somebody looks, so what was deleted is not shown.
    """

    started_at: int = field(default_factory=clock.now)
    searches: deque[RecordedSearch] = field(default_factory=lambda: deque(maxlen=MAX_RECORDED))
    silent: deque[SilentPrompt] = field(default_factory=lambda: deque(maxlen=MAX_RECORDED))

    def add_search(self, search: RecordedSearch) -> None:
        query, _ = redact(search.query[:MAX_QUERY_CHARACTERS])
        self.searches.appendleft(replace(search, query=query))

    def add_silent(self, session: str, recall: Recall) -> None:
        """Record a prompt if something matched it and nothing of that was injected."""
        if recall.considered and not recall.text:
            reason = recall.reason or "nothing relevant to the prompt was found"
            prompt = SilentPrompt(clock.now(), session, None, None, None, reason, recall.considered)
            self.silent.appendleft(prompt)

    def clear(self) -> None:
        self.searches.clear()
        self.silent.clear()


@handles(RecallRecent)
async def recall_recent(daemon: "Daemon", request: RecallRecent) -> RecentRecall:
    wanted = request.session_id

    def recent(db: Db) -> RecentRecall:
        searches = [_with_texts(db, search) for search in daemon.recall_log.searches]
        silent = [one for one in daemon.recall_log.silent if wanted in (None, one.session_id)]
        return RecentRecall(
            daemon.recall_log.started_at,
            [search for search in searches if wanted in (None, search.session_id)][: request.limit],
            [_with_prompt(db, one) for one in silent[: request.limit]],
        )

    return await daemon.store.read(recent)


def _with_texts(db: Db, search: RecordedSearch) -> RecordedSearch:
    hits = [replace(hit, text=db.value(_TEXT, {"id": hit.chunk_id})) for hit in search.hits]
    found: list[tuple[Any, ...]] = db.tuples(_CALL, {"at": search.at, "query": search.query})
    tool, session, title = found[0] if found else (None, None, None)
    return replace(search, hits=hits, tool_id=tool, session_id=session, session_title=title)


def _with_prompt(db: Db, one: SilentPrompt) -> SilentPrompt:
    prompt = find_prompt(db, one.session_id, one.at) or {"id": None, "text": None}
    return replace(
        one,
        session_title=db.value("SELECT title FROM sessions WHERE id = :id", {"id": one.session_id}),
        prompt_id=prompt["id"],
        prompt=prompt["text"],
        considered=with_texts(db, one.considered),
    )
