"""Scheduled actions as their owners see them: made, changed, found, switched on and off, and what became of them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

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
from clankersd.capture.redaction import count_redactions, without_secrets
from clankersd.db import Db, Notification
from clankersd.db.ids import whole_id
from clankersd.db.paging import decode_cursor, encode_cursor, that_fit
from clankersd.schedule.builtins import BUILTINS
from clankersd.schedule.grammar import local_zone, parse, zone_named
from clankersd.schedule.runs import SELECT_RUN, run_from, skip_waiting
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MOST_CALLS = 256 * 1024
NEVER = 2**53 - 1
"""Stands for no next run where actions are put in order."""

_FIELDS = """
    id, description, schedule, timezone, missed, builtin, tool_calls_json, synthesis_prompt, skill_id, enabled,
    next_run, created_at, updated_at
"""
SELECT_ACTION = f"SELECT {_FIELDS} FROM scheduled_actions"
_COLUMNS = [name.strip() for name in _FIELDS.split(",")]
_INSERT = f"INSERT INTO scheduled_actions ({_FIELDS}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
_UPDATE = f"UPDATE scheduled_actions SET {', '.join(f'{name} = :{name}' for name in _COLUMNS[1:])} WHERE id = :id"
_SOONEST = f"coalesce(next_run, {NEVER})"
_DUE = f"{SELECT_ACTION} WHERE enabled = 1 AND next_run <= :at ORDER BY next_run, id LIMIT :limit"


@handles(ScheduleCreate)
async def create(daemon: "Daemon", request: ScheduleCreate) -> ScheduledAction:
    request, secrets = without_secrets(request)
    now = clock.now()
    zone = request.timezone or local_zone()
    row = {
        "id": clock.new_id(),
        "description": request.description,
        "schedule": request.schedule.strip(),
        "timezone": zone,
        "missed": request.missed,
        "builtin": _known_builtin(request.builtin),
        "tool_calls_json": _json(request.tool_calls),
        "synthesis_prompt": request.synthesis_prompt,
        "skill_id": request.skill_id,
        "enabled": request.enabled,
        "next_run": next_run(request.schedule, zone, now),
        "created_at": now,
        "updated_at": now,
    }
    row["next_run"] = row["next_run"] if request.enabled else None

    def store(db: Db) -> dict[str, Any]:
        row["skill_id"] = _skill(db, request.skill_id)
        db.execute(_INSERT, row)
        count_redactions(db, secrets, now)
        _announce(db, row, "created")
        return row

    return await _write(daemon, store)


@handles(ScheduleGet)
async def get(daemon: "Daemon", request: ScheduleGet) -> ScheduledAction:
    return action_from(await daemon.store.read(lambda db: _resolved(db, request.id)))


@handles(ScheduleList)
async def list_actions(daemon: "Daemon", request: ScheduleList) -> ActionPage:
    after_run, after_id = decode_cursor(request.cursor, int, str) if request.cursor else (-1, "")
    sql = f"""
        {SELECT_ACTION}
        WHERE (:enabled IS NULL OR enabled = :enabled) AND ({_SOONEST}, id) > (:after_run, :after_id)
        ORDER BY {_SOONEST}, id LIMIT :limit
    """
    params = {"enabled": request.enabled, "after_run": after_run, "after_id": after_id, "limit": request.limit + 1}
    rows = await daemon.store.read(lambda db: db.fetch(sql, params))
    shown = that_fit(rows[: request.limit])
    more = len(rows) > len(shown)
    cursor = encode_cursor(shown[-1]["next_run"] or NEVER, shown[-1]["id"]) if more else None
    return ActionPage([action_from(row) for row in shown], cursor)


@handles(ScheduleUpdate)
async def update(daemon: "Daemon", request: ScheduleUpdate) -> ScheduledAction:
    request, secrets = without_secrets(request)
    given = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
    del given["id"]
    _known_builtin(given.get("builtin"))
    if "tool_calls" in given:
        given["tool_calls_json"] = _json(given.pop("tool_calls"))

    def store(db: Db) -> dict[str, Any]:
        row = _resolved(db, request.id) | given
        if "skill_id" in given:
            row["skill_id"] = _skill(db, row["skill_id"])
        row["updated_at"] = clock.now()
        count_redactions(db, secrets, row["updated_at"])
        if "schedule" in given or "timezone" in given:
            coming = next_run(row["schedule"], row["timezone"], row["updated_at"])
            row["next_run"] = coming if row["enabled"] else None
        db.execute(_UPDATE, row)
        _announce(db, row, "updated")
        return row

    return await _write(daemon, store)


@handles(ScheduleEnable)
async def enable(daemon: "Daemon", request: ScheduleEnable) -> ScheduledAction:
    def store(db: Db) -> dict[str, Any]:
        row = _resolved(db, request.id)
        if bool(row["enabled"]) == request.enabled:
            return row
        now = clock.now()
        coming = next_run(row["schedule"], row["timezone"], now) if request.enabled else None
        row |= {"enabled": int(request.enabled), "next_run": coming, "updated_at": now}
        db.execute(_UPDATE, row)
        if not request.enabled:
            skip_waiting(db, row["id"])
        _announce(db, row, "enabled" if request.enabled else "disabled")
        return row

    return await _write(daemon, store)


@handles(ScheduleDelete)
async def delete(daemon: "Daemon", request: ScheduleDelete) -> Ok:
    def remove(db: Db) -> None:
        sql = "DELETE FROM scheduled_actions WHERE id = :id RETURNING id"
        if not db.fetch(sql, {"id": request.id}):
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
    sought = request.description.casefold()
    rows = await daemon.store.read(lambda db: db.fetch(f"{SELECT_ACTION} ORDER BY created_at, id"))
    found = [row for row in rows if sought in row["description"].casefold()]
    return [action_from(row) for row in that_fit(found[: request.limit])]


@handles(ScheduleDue)
async def due(daemon: "Daemon", request: ScheduleDue) -> list[ScheduledAction]:
    params = {"at": clock.moment(request.at) or clock.now(), "limit": request.limit}
    return [action_from(row) for row in that_fit(await daemon.store.read(lambda db: db.fetch(_DUE, params)))]


@handles(ScheduleHistory)
async def history(daemon: "Daemon", request: ScheduleHistory) -> RunPage:
    conditions = ["1"]
    params: dict[str, Any] = {"limit": request.limit + 1, "state": request.state}
    conditions += ["state = :state"] * (request.state is not None)
    if request.cursor:
        conditions.append("(schedule_runs.created_at, schedule_runs.id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)

    def page(db: Db) -> list[dict[str, Any]]:
        if request.action_id is not None:
            conditions.append("action_id = :action_id")
            params["action_id"] = _resolved(db, request.action_id)["id"]
        order = "ORDER BY schedule_runs.created_at DESC, schedule_runs.id DESC LIMIT :limit"
        return db.fetch(f"{SELECT_RUN} WHERE {' AND '.join(conditions)} {order}", params)

    rows = await daemon.store.read(page)
    runs = [run_from(row) for row in that_fit(rows[: request.limit])]
    cursor = encode_cursor(runs[-1].created_at, runs[-1].id) if len(rows) > len(runs) else None
    return RunPage(runs, cursor)


def next_run(schedule: str, zone: str, now: int) -> int | None:
    """When the schedule comes next after `now`, in milliseconds; raises InvalidParams for one that is none."""
    found = parse(schedule, zone_named(zone)).next_after(datetime.fromtimestamp(now / 1000, UTC))
    return None if found is None else int(found.timestamp() * 1000)


def action_from(row: dict[str, Any]) -> ScheduledAction:
    """A row as what travels."""
    facts = {name: value for name, value in row.items() if name != "tool_calls_json"}
    calls = row["tool_calls_json"]
    return ScheduledAction(
        **facts | {"enabled": bool(row["enabled"])}, tool_calls=msgspec.json.decode(calls) if calls else None
    )


async def _write(daemon: "Daemon", change: Callable[[Db], dict[str, Any]]) -> ScheduledAction:
    """Store a scheduled action and wake the scheduler; returns the action as it is now."""
    row = await daemon.store.write(change)
    daemon.scheduler.wake()
    return action_from(row)


def _announce(db: Db, row: dict[str, Any], action: str) -> None:
    facts = {"description": row["description"], "nextRun": row["next_run"]}
    db.after_commit(Notification("schedule", action, row["id"], facts))


def _known_builtin(name: str | None) -> str | None:
    if name is not None and name not in BUILTINS:
        known = ", ".join(sorted(BUILTINS))
        raise InvalidParams(f"invalid params: there is no built-in {name!r}; there are {known} - at `$.builtin`")
    return name


def _skill(db: Db, given: str | None) -> str | None:
    """The id of a skill, from its id or its name."""
    if given is None:
        return None
    found = db.value("SELECT id FROM skills WHERE id = :given OR name = :given", {"given": given})
    if found is None:
        raise InvalidParams(f"invalid params: there is no skill {given!r} - at `$.skillId`")
    return str(found)


def _resolved(db: Db, given: str) -> dict[str, Any]:
    """The action of this id, or of a unique beginning of it."""
    whole = whole_id(db, given, "scheduled_actions", "scheduled action")
    row = db.fetch_one(f"{SELECT_ACTION} WHERE id = :id", {"id": whole})
    assert row
    return row


def _json(calls: list[dict[str, Any]] | None) -> str | None:
    if calls is None:
        return None
    encoded = msgspec.json.encode(calls)
    if len(encoded) > MOST_CALLS:
        raise InvalidParams(f"invalid params: tool calls take {MOST_CALLS} bytes at most - at `$.toolCalls`")
    return encoded.decode()
