"""Create, update, list, find, enable and delete scheduled actions, and list their runs."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from clankers_protocol.errors import InvalidParams, NotFound
from clankers_protocol.schedules import (
    ActionPage,
    ActionsDeleted,
    RunPage,
    ScheduleCreate,
    ScheduledAction,
    ScheduleDelete,
    ScheduleDeleteAll,
    ScheduleDue,
    ScheduleEnable,
    ScheduleFind,
    ScheduleGet,
    ScheduleHistory,
    ScheduleList,
    ScheduleUpdate,
)
from clankers_protocol.wire import Ok
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor, fit_reply
from clankersd.redaction.engine import count_redactions, without_secrets
from clankersd.schedule.builtins import BUILTINS
from clankersd.schedule.grammar import local_timezone, parse_schedule, parse_timezone
from clankersd.schedule.runs import SELECT_RUN, run_from_row, skip_waiting_runs
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_TOOL_CALLS_BYTES = 256 * 1024
NEVER_MS = 2**53 - 1
"""Sort key of an action without a next run: after all others."""

_COLUMNS = """
    id, description, schedule, timezone, missed, builtin, tool_calls_json, synthesis_prompt, skill_id, enabled,
    next_run, created_at, updated_at
"""
SELECT_ACTION = f"SELECT {_COLUMNS} FROM scheduled_actions"
_COLUMN_NAMES = [name.strip() for name in _COLUMNS.split(",")]
_INSERT = f"INSERT INTO scheduled_actions ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _COLUMN_NAMES)})"
_UPDATE = f"UPDATE scheduled_actions SET {', '.join(f'{name} = :{name}' for name in _COLUMN_NAMES[1:])} WHERE id = :id"
_NEXT_RUN_ORDER = f"coalesce(next_run, {NEVER_MS})"
_DUE = f"{SELECT_ACTION} WHERE enabled = 1 AND next_run <= :at ORDER BY next_run, id LIMIT :limit"


@handles(ScheduleCreate)
async def create(daemon: "Daemon", request: ScheduleCreate) -> ScheduledAction:
    request, secrets = await prepare(partial(without_secrets, request))
    now = clock.now()
    zone = request.timezone or local_timezone()
    planned = compute_next_run(request.schedule, zone, now)  # also validates the schedule of a disabled action
    given = ScheduledAction(
        id=clock.new_id(),
        description=request.description,
        schedule=request.schedule.strip(),
        timezone=zone,
        missed=request.missed,
        builtin=_check_builtin(request.builtin),
        tool_calls=request.tool_calls,
        synthesis_prompt=request.synthesis_prompt,
        skill_id=request.skill_id,
        enabled=request.enabled,
        next_run=planned if request.enabled else None,
        created_at=now,
        updated_at=now,
    )
    _encode_tool_calls(given.tool_calls)  # refuses too many before anything is queued

    def store(db: Db) -> ScheduledAction:
        action = replace(given, skill_id=_resolve_skill(db, given.skill_id))
        count_redactions(db, secrets, now)
        insert_action(db, action)
        return action

    return await _write(daemon, store)


@handles(ScheduleGet)
async def get(daemon: "Daemon", request: ScheduleGet) -> ScheduledAction:
    return await daemon.store.read(lambda db: _fetch_action(db, request.id))


@handles(ScheduleList)
async def list_actions(daemon: "Daemon", request: ScheduleList) -> ActionPage:
    after_run, after_id = decode_cursor(request.cursor, int, str) if request.cursor else (-1, "")
    sql = f"""
        {SELECT_ACTION}
        WHERE (:enabled IS NULL OR enabled = :enabled) AND ({_NEXT_RUN_ORDER}, id) > (:after_run, :after_id)
        ORDER BY {_NEXT_RUN_ORDER}, id LIMIT :limit
    """
    params = {"enabled": request.enabled, "after_run": after_run, "after_id": after_id, "limit": request.limit + 1}
    rows = await daemon.store.read(lambda db: db.fetch(sql, params))
    shown = fit_reply(rows[: request.limit])
    more = len(rows) > len(shown)
    cursor = encode_cursor(shown[-1]["next_run"] or NEVER_MS, shown[-1]["id"]) if more else None
    return ActionPage([action_from_row(row) for row in shown], cursor)


@handles(ScheduleUpdate)
async def update(daemon: "Daemon", request: ScheduleUpdate) -> ScheduledAction:
    request, secrets = await prepare(partial(without_secrets, request))
    changes = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
    del changes["id"]
    _check_builtin(changes.get("builtin"))
    _encode_tool_calls(changes.get("tool_calls"))  # refuses too many before anything is queued

    def store(db: Db) -> ScheduledAction:
        now = clock.now()
        action = replace(_fetch_action(db, request.id), **changes, updated_at=now)
        if "skill_id" in changes:
            action.skill_id = _resolve_skill(db, action.skill_id)
        count_redactions(db, secrets, now)
        if "schedule" in changes or "timezone" in changes:
            planned = compute_next_run(action.schedule, action.timezone, now)
            action.next_run = planned if action.enabled else None
        db.execute(_UPDATE, _to_row(action))
        _announce(db, action, "updated")
        return action

    return await _write(daemon, store)


@handles(ScheduleEnable)
async def enable(daemon: "Daemon", request: ScheduleEnable) -> ScheduledAction:
    def store(db: Db) -> ScheduledAction:
        action = _fetch_action(db, request.id)
        if action.enabled == request.enabled:
            return action
        now = clock.now()
        planned = compute_next_run(action.schedule, action.timezone, now) if request.enabled else None
        action = replace(action, enabled=request.enabled, next_run=planned, updated_at=now)
        db.execute(_UPDATE, _to_row(action))
        if not request.enabled:
            skip_waiting_runs(db, action.id)
        _announce(db, action, "enabled" if request.enabled else "disabled")
        return action

    return await _write(daemon, store)


@handles(ScheduleDelete)
async def delete(daemon: "Daemon", request: ScheduleDelete) -> Ok:
    def remove(db: Db) -> None:
        if not db.fetch("DELETE FROM scheduled_actions WHERE id = :id RETURNING id", {"id": request.id}):
            raise NotFound(f"scheduled action not found: {request.id}")
        db.after_commit(Notification("schedule", "deleted", request.id))

    await daemon.store.write(remove)
    return Ok()


@handles(ScheduleDeleteAll)
async def delete_all(daemon: "Daemon", request: ScheduleDeleteAll) -> ActionsDeleted:
    if request.dry_run:
        count = await daemon.store.read(lambda db: int(db.value("SELECT count(*) FROM scheduled_actions")))
        return ActionsDeleted(count, dry_run=True)

    def remove(db: Db) -> int:
        deleted = db.fetch("DELETE FROM scheduled_actions RETURNING id")
        for row in deleted:
            db.after_commit(Notification("schedule", "deleted", row["id"]))
        return len(deleted)

    return ActionsDeleted(await daemon.store.write(remove))


@handles(ScheduleFind)
async def find(daemon: "Daemon", request: ScheduleFind) -> list[ScheduledAction]:
    wanted = request.description.casefold()
    rows = await daemon.store.read(lambda db: db.fetch(f"{SELECT_ACTION} ORDER BY created_at, id"))
    matching = [row for row in rows if wanted in row["description"].casefold()]
    return [action_from_row(row) for row in fit_reply(matching[: request.limit])]


@handles(ScheduleDue)
async def due(daemon: "Daemon", request: ScheduleDue) -> list[ScheduledAction]:
    params = {"at": clock.to_ms(request.at) or clock.now(), "limit": request.limit}
    rows = await daemon.store.read(lambda db: db.fetch(_DUE, params))
    return [action_from_row(row) for row in fit_reply(rows)]


@handles(ScheduleHistory)
async def history(daemon: "Daemon", request: ScheduleHistory) -> RunPage:
    conditions = ["true"]
    params: dict[str, Any] = {"limit": request.limit + 1, "state": request.state}
    if request.state is not None:
        conditions.append("state = :state")
    if request.cursor:
        conditions.append("(schedule_runs.created_at, schedule_runs.id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)

    def page(db: Db) -> list[dict[str, Any]]:
        if request.action_id is not None:
            conditions.append("action_id = :action_id")
            params["action_id"] = _fetch_action(db, request.action_id).id
        order = "ORDER BY schedule_runs.created_at DESC, schedule_runs.id DESC LIMIT :limit"
        return db.fetch(f"{SELECT_RUN} WHERE {' AND '.join(conditions)} {order}", params)

    rows = await daemon.store.read(page)
    runs = [run_from_row(row) for row in fit_reply(rows[: request.limit])]
    cursor = encode_cursor(runs[-1].created_at, runs[-1].id) if len(rows) > len(runs) else None
    return RunPage(runs, cursor)


def compute_next_run(schedule: str, zone: str, now: int) -> int | None:
    """Return the first run after `now`, in milliseconds; raises InvalidParams if the schedule cannot be parsed."""
    planned = parse_schedule(schedule, parse_timezone(zone)).next_after(datetime.fromtimestamp(now / 1000, UTC))
    return None if planned is None else int(planned.timestamp() * 1000)


def action_from_row(row: dict[str, Any]) -> ScheduledAction:
    """Convert a row of SELECT_ACTION."""
    values = dict(row)
    encoded = values.pop("tool_calls_json")
    values["tool_calls"] = msgspec.json.decode(encoded) if encoded else None
    values["enabled"] = bool(row["enabled"])
    return ScheduledAction(**values)


def insert_action(db: Db, action: ScheduledAction) -> None:
    """Insert a scheduled action, and notify subscribers."""
    db.execute(_INSERT, _to_row(action))
    _announce(db, action, "created")


def _to_row(action: ScheduledAction) -> dict[str, Any]:
    """Return the parameters of _INSERT and _UPDATE."""
    row = msgspec.structs.asdict(action)
    row["tool_calls_json"] = _encode_tool_calls(row.pop("tool_calls"))
    return row


async def _write(daemon: "Daemon", transaction: Callable[[Db], ScheduledAction]) -> ScheduledAction:
    """Store a scheduled action and wake the scheduler; return the action."""
    action = await daemon.store.write(transaction)
    daemon.scheduler.wake()
    return action


def _announce(db: Db, action: ScheduledAction, change: str) -> None:
    facts = {"description": action.description, "nextRun": action.next_run}
    db.after_commit(Notification("schedule", change, action.id, facts))


def _check_builtin(name: str | None) -> str | None:
    """Return the name; raises InvalidParams if there is no such built-in."""
    if name is not None and name not in BUILTINS:
        known = ", ".join(sorted(BUILTINS))
        raise InvalidParams(f"invalid params: there is no built-in {name!r}; there are {known} - at `$.builtin`")
    return name


def _resolve_skill(db: Db, skill: str | None) -> str | None:
    """Return the id of a skill given by id or name; raises InvalidParams."""
    if skill is None:
        return None
    skill_id = db.value("SELECT id FROM skills WHERE id = :skill OR name = :skill", {"skill": skill})
    if skill_id is None:
        raise InvalidParams(f"invalid params: there is no skill {skill!r} - at `$.skillId`")
    return str(skill_id)


def _fetch_action(db: Db, id_or_prefix: str) -> ScheduledAction:
    """Return an action given by id or unique id prefix; raises NotFound."""
    action_id = resolve_id(db, id_or_prefix, "scheduled_actions", "scheduled action")
    row = db.fetch_one(f"{SELECT_ACTION} WHERE id = :id", {"id": action_id})
    assert row
    return action_from_row(row)


def _encode_tool_calls(calls: list[dict[str, Any]] | None) -> str | None:
    if calls is None:
        return None
    encoded = msgspec.json.encode(calls)
    if len(encoded) > MAX_TOOL_CALLS_BYTES:
        problem = f"tool calls may have at most {MAX_TOOL_CALLS_BYTES} bytes"
        raise InvalidParams(f"invalid params: {problem} - at `$.toolCalls`")
    return encoded.decode()
