"""Retention: remove captured data that is older than its rule allows, or that exceeds the size budget.

Rows are deleted in small transactions that let events in between. Then what deleting leaves behind is erased, as
`forget` does. Memories are never removed.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import anyio
import msgspec
import structlog

from clankers_protocol.admin import JobStarted, RetentionReport, RetentionRun
from clankers_protocol.documents import DocumentDelete
from clankers_protocol.retention import RetentionCount, RetentionPlan, RetentionShow, RetentionStart
from clankersd import clock
from clankersd.config import Config
from clankersd.db import Db
from clankersd.documents.documents import delete_document
from clankersd.forgetting.erasing import erase_free_space, take_briefly
from clankersd.index.backlog import add_to_backlog
from clankersd.sessions.sessions import erase_session
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

Kind = Literal["tool-outputs", "tools", "messages", "sessions", "documents", "recall-records"]

JOB_KIND = ACTION_ID = "retention"
"""The kind of the job, and the id of the scheduled action."""

DAY_MS = 86_400_000
ROWS_PER_TRANSACTION = 200
SESSIONS_PER_TRANSACTION = 10
MAX_BUDGET_ROUNDS = 5
"""Sizes of texts only estimate how much space deleting them frees, so the result is measured and the rest removed."""

SESSION_BYTES_PER_TEXT_BYTE = 2
"""A message is stored once as a row and once as chunks."""

_TABLES: dict[Kind, str] = {
    "tool-outputs": "tools", "tools": "tools", "messages": "messages", "sessions": "sessions", "documents": "documents",
    "recall-records": "recall_log",
}  # fmt: skip
_QUOTED_IN_RECALL_RECORDS = ("tools", "messages", "sessions")
"""Kinds whose texts a recorded search may repeat: it is removed with them, by the shortest of their general rules."""

_TIME_COLUMNS: dict[Kind, str] = {"sessions": "updated_at", "documents": "updated_at"}
_LAST_RUN = """
    SELECT finished_at, result_json, error FROM jobs WHERE kind = :kind AND state <> 'running'
    ORDER BY rowid DESC LIMIT 1
"""
_TOOL_BYTES = "octet_length(coalesce(tool_input, '')) + octet_length(coalesce(tool_output, '')) + 200"
_SESSION_BYTES = f"""
    {SESSION_BYTES_PER_TEXT_BYTE} * coalesce(
        (SELECT sum(octet_length(text_content) + 200) FROM messages WHERE session_id = sessions.id), 0) + 500
"""

log = structlog.get_logger(component="retention")


@dataclass(frozen=True)
class Removal:
    """Rows to remove: those of a kind that meet the condition."""

    kind: Kind
    condition: str
    params: dict[str, Any]

    @property
    def count(self) -> str:
        return f"SELECT count(*) FROM {_TABLES[self.kind]} WHERE {self.condition}"


@handles(RetentionShow)
async def show(daemon: "Daemon", request: RetentionShow) -> RetentionReport:
    return await daemon.store.read(partial(describe, config=daemon.config))


@handles(RetentionCount)
async def count(daemon: "Daemon", request: RetentionCount) -> RetentionPlan:
    def plan(db: Db) -> RetentionPlan:
        removed: dict[str, int] = {}
        for removal in removals_by_age(daemon.config.retention, clock.now()):
            _add(removed, removal.kind, int(db.value(removal.count, removal.params)))
        used = used_bytes(db)
        excess = _excess(daemon.config, used)
        for removal in removals_by_size(db, excess, clock.now()):
            _add(removed, removal.kind, int(db.value(removal.count, removal.params)))
        return RetentionPlan(removed, used, excess)

    return await daemon.store.snapshot_read(plan)


@handles(RetentionStart)
async def start(daemon: "Daemon", request: RetentionStart) -> JobStarted:
    return JobStarted(await daemon.jobs.start(JOB_KIND, partial(apply_retention, daemon)))


def describe(db: Db, config: Config) -> RetentionReport:
    """Describe the settings, the last run and the next one."""
    report = RetentionReport(config.retention, config.retention_megabytes)
    sql = "SELECT next_run FROM scheduled_actions WHERE id = :id AND enabled = 1"
    report.next_run = db.value(sql, {"id": ACTION_ID})
    if (row := db.fetch_one(_LAST_RUN, {"kind": JOB_KIND})) is not None:
        result = msgspec.json.decode(row["result_json"] or "null") or {}
        report.last = RetentionRun(
            row["finished_at"],
            result.get("removed", {}),
            result.get("freedBytes", 0),
            result.get("note"),
            row["error"],
        )
    return report


def is_configured(config: Config) -> bool:
    """Tell whether any retention setting is on."""
    return bool(config.retention or config.retention_megabytes)


async def apply_retention(daemon: "Daemon", progress: Progress) -> dict[str, Any]:
    """Remove what the settings say; return how much of each kind, and the bytes that are free now."""
    config, now = daemon.config, clock.now()
    before = await daemon.store.read(used_bytes)
    removed: dict[str, int] = {}
    for removal in removals_by_age(config.retention, now):
        await _remove(daemon, removal, removed, progress)
    if removed:
        await _erase(daemon, progress)
    used = await daemon.store.read(used_bytes)
    for _ in range(MAX_BUDGET_ROUNDS):
        find = partial(removals_by_size, excess=_excess(config, used), now=now)
        removals = await daemon.store.snapshot_read(find)
        if not removals:
            break
        for removal in removals:
            await _remove(daemon, removal, removed, progress)
        await _erase(daemon, progress)
        used = await daemon.store.read(used_bytes)
    note = None
    if excess := _excess(config, used):
        note = f"The database is {excess:,} bytes larger than retention_megabytes; nothing else may be removed."
    result = {"removed": removed, "freedBytes": max(before - used, 0), "note": note}
    log.info("retention applied", **result)
    return result


def removals_by_age(rules: list[str], now: int) -> list[Removal]:
    """Return what the rules remove, tool outputs first. A rule for a harness takes the place of the general one."""
    parsed: list[tuple[str, str, int]] = []
    for rule in rules:
        name, _, days = rule.removesuffix("d").partition("=")
        harness, _, named_kind = name.rpartition("/")
        parsed.append((harness, named_kind, int(days)))
    removals = []
    for kind in get_args(Kind):
        of_kind = [(harness, now - days * DAY_MS) for harness, named, days in parsed if named == kind]
        special = sorted({harness for harness, _ in of_kind if harness})
        removals += [_older_than(kind, before, harness, special) for harness, before in of_kind]
    quoted = [days for harness, kind, days in parsed if not harness and kind in _QUOTED_IN_RECALL_RECORDS]
    if quoted:
        removals.append(Removal("recall-records", "at < :before", {"before": now - min(quoted) * DAY_MS}))
    return removals


def _older_than(kind: Kind, before: int, harness: str, special: list[str]) -> Removal:
    """Select rows before a time: those of a harness, or those of all harnesses without a rule of their own."""
    condition = f"{_TIME_COLUMNS.get(kind, 'created_at')} < :before"
    params: dict[str, Any] = {"before": before}
    if kind == "documents":
        return Removal(kind, condition, params)  # they come from no harness
    if harness:
        of_harness, params["harness"] = "source = :harness", harness
    else:
        names = [f":harness_{number}" for number in range(len(special))]
        params |= {f"harness_{number}": name for number, name in enumerate(special)}
        of_harness = f"coalesce(source, '') NOT IN ({', '.join(names)})"
    if kind != "sessions":
        of_harness = f"session_id IN (SELECT id FROM sessions WHERE {of_harness})"
    if kind == "tool-outputs":
        condition += " AND tool_output IS NOT NULL"
    return Removal(kind, f"{condition} AND {of_harness}", params)


@dataclass(frozen=True)
class _BudgetStage:
    """Rows that the size budget removes, oldest first, and SQL for the bytes that each of them takes."""

    kind: Kind
    row_bytes: str
    condition: str = "true"


_BUDGET_STAGES = (
    _BudgetStage("tool-outputs", "octet_length(tool_output)", "tool_output IS NOT NULL"),
    _BudgetStage("tools", _TOOL_BYTES),
    _BudgetStage("sessions", _SESSION_BYTES),
)


def removals_by_size(db: Db, excess: int, now: int) -> list[Removal]:
    """Return what to remove to free about `excess` bytes: the oldest tool outputs, then tool calls, then sessions."""
    removals: list[Removal] = []
    for stage in _BUDGET_STAGES:
        if excess <= 0:
            break
        at_column = _TIME_COLUMNS.get(stage.kind, "created_at")
        rows = db.stream(
            f"SELECT {at_column}, id, {stage.row_bytes} FROM {_TABLES[stage.kind]} "
            f"WHERE {stage.condition} AND {at_column} < :before ORDER BY {at_column}, id",
            {"before": now - DAY_MS},
        )
        last: dict[str, Any] = {}
        for _, (at, row_id, row_bytes) in rows:
            last = {"at": at, "id": row_id}
            excess -= row_bytes
            if excess <= 0:
                break
        if last:
            removals.append(Removal(stage.kind, f"{stage.condition} AND ({at_column}, id) <= (:at, :id)", last))
    return removals


async def _remove(daemon: "Daemon", removal: Removal, removed: dict[str, int], progress: Progress) -> None:
    """Remove rows in small transactions, and count them."""
    total, done = int(await daemon.store.snapshot_read(lambda db: db.value(removal.count, removal.params))), 0
    if removal.kind == "documents":
        sql = f"SELECT id FROM documents WHERE {removal.condition}"
        for (document_id,) in await daemon.store.read(lambda db: db.tuples(sql, removal.params)):
            await delete_document(daemon, DocumentDelete(document_id))
            done += 1
    else:
        while deleted := await daemon.store.write(partial(_remove_some, removal=removal), bulk=True):
            done += deleted
            await progress(min(done, total), total, f"removing {removal.kind}")
    _add(removed, removal.kind, done)


def _remove_some(db: Db, removal: Removal) -> int:
    """Remove a few rows; return how many."""
    table = _TABLES[removal.kind]
    limit = SESSIONS_PER_TRANSACTION if removal.kind == "sessions" else ROWS_PER_TRANSACTION
    rows = db.tuples(f"SELECT id FROM {table} WHERE {removal.condition} LIMIT {limit}", removal.params)
    done = 0
    for (row_id,) in take_briefly(rows):
        done += 1
        params = {"id": row_id}
        if removal.kind == "sessions":
            erase_session(db, row_id)
        elif removal.kind == "tool-outputs":
            db.execute("UPDATE tools SET tool_output = NULL WHERE id = :id", params)
            db.execute("DELETE FROM chunks WHERE tool_id = :id", params)
            add_to_backlog(db, "tool", row_id)
        else:
            db.execute(f"DELETE FROM {table} WHERE id = :id", params)
    return done


async def _erase(daemon: "Daemon", progress: Progress) -> None:
    """Erase the traces of what was removed."""
    with anyio.CancelScope(shield=True):
        await daemon.store.write(lambda db: db.execute("DELETE FROM embedding_cache"), bulk=True)
        await erase_free_space(daemon.store, progress)


def used_bytes(db: Db) -> int:
    """Return the size of the database without its free pages."""
    sizes = db.engine.measure(db)
    return sizes.database - sizes.free


def _excess(config: Config, used: int) -> int:
    limit = config.retention_megabytes * 1_000_000
    return max(used - limit, 0) if limit else 0


def _add(removed: dict[str, int], kind: str, number: int) -> None:
    if number:
        removed[kind] = removed.get(kind, 0) + number
