"""`recall.recent`: the last searches of agents, and the last prompts with which nothing was injected."""

import json
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from clankers_protocol.errors import StorageUnavailable
from clankers_protocol.recall import Recall, RecallRecent, RecentRecall, RecordedSearch, SilentPrompt
from clankersd import clock
from clankersd.capture.opt_out import is_opted_out, is_session_opted_out
from clankersd.capture.pause import Pauses
from clankersd.db import Db, Store
from clankersd.db.engine import CHUNK_TEXT
from clankersd.db.group_commit import ChangeResult
from clankersd.recall.ledger import find_prompt, with_texts
from clankersd.recall.outcomes import InjectionJudge
from clankersd.redaction.engine import redact
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_ROWS = 2_000
"""Searches that are stored, and silent prompts; older ones are deleted."""

MAX_AGE_MS = 90 * 86_400_000
MAX_PENDING = 1_000
ROWS_PER_WRITE = 10
"""Rows that one write changes: events that arrive meanwhile wait for it."""

STORE_SECONDS = 3.0
"""Time that rows wait for others before they are stored together, in writes that let events go first."""

RETRY_SECONDS = 30.0
STOP_SECONDS = 2.0
MAX_QUERY_CHARACTERS = 2_000
TEXT_CHARACTERS = 300
CALL_MS = 60_000
"""A harness records the tool call that made a search within this time of it."""

_INSERT = """
    INSERT INTO recall_log (at, kind, session_id, tool_id, query, facts_json)
    VALUES (:at, :kind, :session_id, :tool_id, :query, :facts_json)
"""
_OLD = """
    SELECT id FROM recall_log WHERE at < :oldest
      OR kind = 'search' AND id <= (
        SELECT id FROM recall_log WHERE kind = 'search' ORDER BY id DESC LIMIT 1 OFFSET :most)
      OR kind = 'silent' AND id <= (
        SELECT id FROM recall_log WHERE kind = 'silent' ORDER BY id DESC LIMIT 1 OFFSET :most)
"""
_DELETE = "DELETE FROM recall_log WHERE id IN (SELECT value FROM json_each(:ids))"
_LISTED = """
    SELECT id, session_id, tool_id, query, facts_json FROM recall_log
    WHERE kind = :kind AND id < :before {condition} ORDER BY id DESC LIMIT :limit
"""
_TEXT = f"SELECT substr({CHUNK_TEXT}, 1, {TEXT_CHARACTERS}) FROM chunks WHERE chunk_id = :id"
_CALL_AT = f"""
    SELECT {{columns}} FROM tools
    WHERE created_at BETWEEN {{at}} - {CALL_MS} AND {{at}} + {CALL_MS} AND tool_name LIKE '%search%'
      AND instr(tool_input, {{query}}) > 0 ORDER BY abs(created_at - {{at}}) LIMIT 1
"""
_CALL = _CALL_AT.format(columns="tools.id, session_id", at=":at", query=":query")
_CALL_OF_ROW = _CALL_AT.format(columns="tools.id", at="recall_log.at", query="recall_log.query")
_CALLS = f"""
    SELECT id, tool FROM (
        SELECT recall_log.id AS id, ({_CALL_OF_ROW}) AS tool FROM recall_log
        WHERE kind = 'search' AND tool_id IS NULL AND at > :since
          AND id > (SELECT max(id) FROM recall_log) - {2 * MAX_PENDING}
    ) AS found WHERE tool IS NOT NULL
"""
_SET_CALL = """
    UPDATE recall_log SET tool_id = :tool, session_id = (SELECT session_id FROM tools WHERE id = :tool) WHERE id = :id
"""
_TITLE = "SELECT title FROM sessions WHERE id = :id"

T = TypeVar("T")

log = structlog.get_logger(component="recall")


@dataclass
class RecallLog:
    """Searches and silent prompts: queued in memory by those who wait for an answer, stored later in bulk.

    Hits and candidates are ids and figures. Their texts are read when somebody looks, so what was deleted is not shown.
    """

    store: Store
    pauses: Pauses
    judge: InjectionJudge
    _pending: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_PENDING))
    _added: anyio.Event = field(default_factory=anyio.Event)
    _storing: anyio.Lock = field(default_factory=anyio.Lock)
    _calls_until: int = 0
    """Time until which the tool call of a stored search may still be reported."""

    def add_search(self, search: RecordedSearch) -> None:
        query, _ = redact(search.query[:MAX_QUERY_CHARACTERS])
        self._add("search", search.at, None, query, replace(search, query=""))

    def add_silent(self, session: str, recall: Recall) -> None:
        """Record a prompt if something matched it and nothing was injected, or if the search for it was incomplete.

        With the first prompt of a session, what a start is told may have been injected without any match.
        """
        if any(one.chosen for one in recall.considered):
            return
        reason = recall.reason or recall.degraded
        if reason and (recall.considered or recall.degraded):
            prompt = SilentPrompt(0, clock.now(), session, None, None, None, reason, recall.considered)
            self._add("silent", prompt.at, session, None, prompt)

    def notice_injection(self) -> None:
        """Have the outcomes of injections judged, once there is time for it."""
        self._added.set()

    def drop_pending(self) -> None:
        self._pending.clear()

    async def store_pending(self) -> None:
        """Store what is queued, and find the tool calls of searches. If that fails, it stays queued."""
        async with self._storing:
            rows = list(self._pending)
            self._pending.clear()
            if any(row["kind"] == "search" for row in rows):
                self._calls_until = clock.now() + CALL_MS
            if not rows and clock.now() > self._calls_until:
                return
            parts = _split(rows)
            try:
                outcomes = await self.store.write_all(partial(self._insert, rows=part) for part in parts)
            except BaseException:
                self._pending.extendleft(reversed(rows))
                raise
            failed = [row for part, outcome in zip(parts, outcomes, strict=True) if outcome.error for row in part]
            self._pending.extendleft(reversed(failed))
            _raise_first_error(outcomes)
            calls, old = await self.store.snapshot_read(_read_follow_up)
            changes = [partial(_set_calls, calls=part) for part in _split(calls)]
            changes += [partial(_delete, ids=part) for part in _split(old)]
            _raise_first_error(await self.store.write_all(changes))

    async def run(self) -> None:
        """Store what is queued and judge injections, in the background, until cancelled."""
        self._added.set()  # injections of an earlier run may wait
        try:
            while True:
                await self._added.wait()
                await anyio.sleep(STORE_SECONDS)
                self._added = anyio.Event()
                try:
                    await self.store_pending()
                    if await self.judge.judge_quiet():
                        self._added.set()
                except StorageUnavailable as error:
                    log.warning("recall log not stored", error=str(error))
                    await anyio.sleep(RETRY_SECONDS)
                    self._added.set()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_SECONDS):
                await self.store_pending()

    def _add(
        self, kind: Literal["search", "silent"], at: int, session: str | None, query: str | None, facts: Any
    ) -> None:
        row = {"at": at, "kind": kind, "session_id": session, "query": query, "tool_id": None}
        self._pending.append(row | {"facts_json": msgspec.json.encode(facts).decode()})
        self._added.set()

    def _insert(self, db: Db, rows: list[dict[str, Any]]) -> None:
        """Store rows, unless capture is off for them."""
        for row in rows:
            project = msgspec.json.decode(row["facts_json"]).get("project")
            is_paused = not self.pauses.is_empty and self.pauses.find(db, row["at"], row["session_id"] or "", project)
            is_out = (project and is_opted_out(project)) or is_session_opted_out(db, row["session_id"] or "")
            if not is_paused and not is_out:
                db.execute(_INSERT, row)


def _split(items: list[T]) -> list[list[T]]:
    """Split what is to be written into the parts of ROWS_PER_WRITE."""
    return [items[start : start + ROWS_PER_WRITE] for start in range(0, len(items), ROWS_PER_WRITE)]


def _raise_first_error(outcomes: list[ChangeResult]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error


def _read_follow_up(db: Db) -> tuple[list[tuple[int, str]], list[int]]:
    """Return stored searches whose tool call is known by now, each with it, and the rows that are too old or too many.

    A hook may report a tool call after the search that it made.
    """
    now = clock.now()
    calls = db.tuples(_CALLS, {"since": now - 2 * CALL_MS})
    old = db.tuples(_OLD, {"oldest": now - MAX_AGE_MS, "most": MAX_ROWS})
    return [(row, tool) for row, tool in calls], [row for (row,) in old]


def _set_calls(db: Db, calls: list[tuple[int, str]]) -> None:
    for row, tool in calls:
        db.execute(_SET_CALL, {"id": row, "tool": tool})


def _delete(db: Db, ids: list[int]) -> None:
    db.execute(_DELETE, {"ids": json.dumps(ids)})


@handles(RecallRecent)
async def recall_recent(daemon: "Daemon", request: RecallRecent) -> RecentRecall:
    await daemon.recall_log.store_pending()
    condition = "" if request.session_id is None else "AND session_id = :session"
    of_session = {} if request.session_id is None else {"session": request.session_id}

    def recent(db: Db) -> RecentRecall:
        def rows(kind: str) -> list[dict[str, Any]]:
            page = {"kind": kind, "before": request.before_id or 2**53, "limit": request.limit}
            return db.fetch(_LISTED.format(condition=condition), page | of_session)

        def total(kind: str) -> int:
            sql = f"SELECT count(*) FROM recall_log WHERE kind = :kind {condition}"
            return int(db.value(sql, {"kind": kind} | of_session))

        return RecentRecall(
            [_search(db, row) for row in rows("search")],
            [_silent(db, row) for row in rows("silent")],
            total("search"),
            total("silent"),
            db.value("SELECT min(at) FROM recall_log"),
        )

    return await daemon.store.read(recent)


def _search(db: Db, row: dict[str, Any]) -> RecordedSearch:
    search = msgspec.json.decode(row["facts_json"], type=RecordedSearch)
    hits = [replace(hit, text=db.value(_TEXT, {"id": hit.chunk_id})) for hit in search.hits]
    tool, session = row["tool_id"], row["session_id"]
    if tool is None and (found := db.tuples(_CALL, {"at": search.at, "query": row["query"]})):
        tool, session = found[0]
    return replace(
        search,
        id=row["id"],
        query=row["query"],
        hits=hits,
        tool_id=tool,
        session_id=session,
        session_title=db.value(_TITLE, {"id": session}),
    )


def _silent(db: Db, row: dict[str, Any]) -> SilentPrompt:
    one = msgspec.json.decode(row["facts_json"], type=SilentPrompt)
    prompt = find_prompt(db, one.session_id, one.at) or {"id": None, "text": None}
    return replace(
        one,
        id=row["id"],
        session_title=db.value(_TITLE, {"id": one.session_id}),
        prompt_id=prompt["id"],
        prompt=prompt["text"],
        considered=with_texts(db, one.considered),
    )
