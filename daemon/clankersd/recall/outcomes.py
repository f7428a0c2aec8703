"""`recall.totals`: how often items were injected and what became of them, counted over all injections of a period.

Whether an item was used is judged from what followed in its session (`recall.ledger`). That is too slow for all
injections at once, so the outcomes are stored: some at a time, in the background, and again after the session changed.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from clankers_protocol.recall import LedgerTotal, LedgerTotals, RecallTotals
from clankersd import clock
from clankersd.clock import to_ms
from clankersd.db import Db, Store
from clankersd.recall.ledger import ENTRIES, ITEM_CHARACTERS, find_text, ledger_entry, selection
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

INJECTIONS_AT_ONCE = 50
RECENT_MS = 7 * 86_400_000
"""Age up to which an injection is judged again if its session has changed."""

QUIET_MS = 60_000
"""The background judges injections of sessions in which nothing has happened for so long."""

_RECENT = """
    SELECT injections.id, sessions.updated_at FROM injections JOIN sessions ON sessions.id = session_id
    WHERE at >= :since AND ids_json <> '[]' AND sessions.updated_at <= :quiet AND NOT EXISTS (
        SELECT 1 FROM injection_outcomes
        WHERE injection_id = injections.id AND session_updated_at = sessions.updated_at)
    ORDER BY at DESC LIMIT :limit
"""
_EARLIER = """
    SELECT injections.id, sessions.updated_at FROM injections JOIN sessions ON sessions.id = session_id
    WHERE injections.id < :before AND ids_json <> '[]'
      AND NOT EXISTS (SELECT 1 FROM injection_outcomes WHERE injection_id = injections.id)
    ORDER BY injections.id DESC LIMIT :limit
"""
_STORE = """
    INSERT INTO injection_outcomes (injection_id, item_id, outcome, session_updated_at)
    SELECT :injection, :item, :outcome, :updated_at WHERE EXISTS (SELECT 1 FROM injections WHERE id = :injection)
    ON CONFLICT (injection_id, item_id) DO UPDATE
        SET outcome = excluded.outcome, session_updated_at = excluded.session_updated_at
"""
_OUTCOMES = ", ".join(
    f"sum(CASE WHEN outcome {condition} THEN 1 ELSE 0 END) AS {name}"
    for name, condition in {
        "used": "= 'used'",
        "contradicted": "= 'contradicted'",
        "ignored": "= 'ignored'",
        "open": "IS NULL",
    }.items()
)
_INJECTED = """
    FROM injections JOIN json_each(injections.ids_json) AS ids ON true
    LEFT JOIN injection_outcomes ON injection_id = injections.id AND item_id = ids.value
    WHERE {conditions}
"""
_ITEMS = f"""
    SELECT ids.value AS id, count(*) AS told, {_OUTCOMES} {_INJECTED} GROUP BY ids.value
    ORDER BY told DESC, ids.value LIMIT :limit
"""
_SESSIONS = f"""
    SELECT session_id AS id, count(*) AS told, {_OUTCOMES} {_INJECTED} GROUP BY session_id
    ORDER BY told DESC, session_id LIMIT :limit
"""
_INJECTIONS = "SELECT count(*), count(DISTINCT session_id) FROM injections WHERE {conditions}"
_ITEM_COUNT = f"SELECT count(DISTINCT ids.value) {_INJECTED}"


@dataclass
class InjectionJudge:
    """Judges injections and stores the outcomes."""

    store: Store
    _earlier_than: int = 2**53
    """All injections before this id that had no outcome when the daemon started wait to be judged; 0 if none do."""

    async def judge_quiet(self) -> bool:
        """Judge some injections of sessions that are quiet, and some from before; return whether more may wait."""
        if await self.judge_recent(clock.now() - QUIET_MS) == INJECTIONS_AT_ONCE:
            return True
        if not self._earlier_than:
            return False
        page = {"before": self._earlier_than, "limit": INJECTIONS_AT_ONCE}
        due = await self.store.snapshot_read(lambda db: db.fetch(_EARLIER, page))
        await self._judge(due)
        self._earlier_than = due[-1]["id"] if due else 0
        return bool(due)

    async def judge_recent(self, quiet_since: int = 2**53) -> int:
        """Judge injections of the last days whose session has changed; return how many."""
        period = {"since": clock.now() - RECENT_MS, "quiet": quiet_since, "limit": INJECTIONS_AT_ONCE}
        due = await self.store.snapshot_read(lambda db: db.fetch(_RECENT, period))
        await self._judge(due)
        return len(due)

    async def _judge(self, due: list[dict[str, Any]]) -> None:
        """Read what followed each injection beside the events, and store the outcomes in one bulk write."""

        def judge(db: Db) -> list[dict[str, Any]]:
            sql = ENTRIES.format(conditions="injections.id = :id")
            return [
                {"injection": one["id"], "item": item.id, "outcome": item.outcome, "updated_at": one["updated_at"]}
                for one in due
                for row in db.fetch(sql, {"id": one["id"], "limit": 1})
                for item in ledger_entry(db, row).items
            ]

        def store_outcomes(db: Db, rows: list[dict[str, Any]]) -> None:
            for row in rows:
                db.execute(_STORE, row)

        if due:
            judged = await self.store.snapshot_read(judge)
            await self.store.write(partial(store_outcomes, rows=judged), bulk=True)


@handles(RecallTotals)
async def recall_totals(daemon: "Daemon", request: RecallTotals) -> LedgerTotals:
    conditions, filters = selection(request)
    since = to_ms(request.since)
    if since is not None:
        conditions.append("at >= :since")
        filters["since"] = since
    condition = " AND ".join(conditions)
    of_item = condition if request.memory_id is None else f"{condition} AND ids.value = :memory"
    await daemon.recall_log.judge.judge_recent()

    def totals(db: Db) -> LedgerTotals:
        limited = filters | {"limit": request.limit}
        items, sessions = [], []
        for row in db.fetch(_ITEMS.format(conditions=of_item), limited):
            kind, text = find_text(db, row["id"], ITEM_CHARACTERS)
            items.append(LedgerTotal(kind=kind, text=text, **row))
        for row in db.fetch(_SESSIONS.format(conditions=condition), limited):
            title = db.value("SELECT title FROM sessions WHERE id = :id", {"id": row["id"]})
            sql = f"SELECT sum(characters) FROM injections WHERE {condition} AND session_id = :of"
            characters = int(db.value(sql, filters | {"of": row["id"]}) or 0)
            sessions.append(LedgerTotal(kind="session", text=title, characters=characters, **row))
        [(injections, session_count)] = db.tuples(_INJECTIONS.format(conditions=condition), filters)
        item_count = db.value(_ITEM_COUNT.format(conditions=of_item), filters)
        return LedgerTotals(items, sessions, injections, item_count, session_count, since)

    return await daemon.store.snapshot_read(totals)
