"""Usage statistics: tokens, cost and tools by project, model, source and day."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from clankers_protocol.sessions import DayActivity, Statistics, Stats, ToolUsage, Totals, Usage
from clankersd.clock import local_time, now, to_ms
from clankersd.db import Db
from clankersd.projects import IN_PROJECT, find_project_id
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

DAY_MS = 86_400_000
SLOT_MS = 900_000
"""Messages are added up by quarters of an hour: in every time zone, each of them belongs to one day."""

_SELECTED = f"""
    (:every_project OR {IN_PROJECT})
    AND (:since IS NULL OR sessions.created_at >= :since) AND (:until IS NULL OR sessions.created_at < :until)
"""
_SESSIONS = f"""
    SELECT id, model, source, created_at, prompt_tokens, completion_tokens, cost, project_id,
           coalesce((SELECT path FROM projects WHERE projects.id = sessions.project_id), project_path, project_name)
               AS project
    FROM sessions WHERE {_SELECTED}
"""
_MESSAGES = f"""
    SELECT session_id, model, created_at / {SLOT_MS} AS slot, count(*) AS messages,
           sum(coalesce(prompt_tokens, 0)) AS prompt_tokens, sum(coalesce(completion_tokens, 0)) AS completion_tokens
    FROM messages WHERE session_id IN (SELECT id FROM sessions WHERE {_SELECTED})
    GROUP BY session_id, slot, model
"""
_COUNTS = f"""
    SELECT (SELECT count(*) FROM session_errors JOIN sessions ON sessions.id = session_id WHERE {_SELECTED}) AS errors,
           (SELECT count(*) FROM compaction_events JOIN sessions ON sessions.id = session_id WHERE {_SELECTED})
               AS compactions
"""
_TOOLS = f"""
    SELECT tool_name AS name, count(*) AS calls, total(success = 0) AS failures,
           avg(duration_ms) AS mean_duration_ms
    FROM tools JOIN sessions ON sessions.id = session_id WHERE {_SELECTED}
    GROUP BY tool_name ORDER BY calls DESC, tool_name
"""


@dataclass(frozen=True)
class _Part:
    """Messages of one session, model and day; or what the session reports and its messages do not account for."""

    session: dict[str, Any]
    model: str | None
    day: str | None
    messages: int
    prompt_tokens: int
    completion_tokens: int
    cost: float = 0.0


@dataclass
class _Sum:
    sessions: set[str] = field(default_factory=set)
    messages: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def add(self, part: _Part) -> None:
        self.sessions.add(part.session["id"])
        self.messages += part.messages
        self.prompt_tokens += part.prompt_tokens
        self.completion_tokens += part.completion_tokens
        self.cost += part.cost

    def usage(self, name: str | None) -> Usage:
        tokens = (self.prompt_tokens, self.completion_tokens)
        return Usage(name, len(self.sessions), self.messages, *tokens, self.cost)


@handles(Stats)
async def stats(daemon: "Daemon", request: Stats) -> Statistics:
    project = request.project
    selection: dict[str, Any] = {
        "every_project": project is None,
        "project_id": project and await daemon.store.read(lambda db: find_project_id(db, project)),
        "since": to_ms(request.since),
        "until": to_ms(request.until),
    }
    return await daemon.store.read(lambda db: _add_up(db, selection, request))


def _add_up(db: Db, selection: dict[str, Any], request: Stats) -> Statistics:
    since, first_day = selection["since"], None
    if request.calendar_days:
        first_day = (local_time() - timedelta(days=request.calendar_days - 1)).strftime("%Y-%m-%d")
        start = now() - (request.calendar_days + 1) * DAY_MS
        since = None if since is None else min(since, start)
    everything = _read_parts(db, selection | {"since": since})
    parts = [
        part for part in everything if selection["since"] is None or part.session["created_at"] >= selection["since"]
    ]
    activity: Counter[str] = Counter()
    for part in everything:
        if first_day is not None and part.day is not None and part.day >= first_day:
            activity[part.day] += part.messages
    limit = request.limit
    total = _Sum()
    for part in parts:
        total.add(part)
    tools = db.fetch(_TOOLS, selection)
    counts = db.fetch_one(_COUNTS, selection)
    assert counts
    return Statistics(
        totals=Totals(
            sessions=len(total.sessions),
            messages=total.messages,
            tools=sum(row["calls"] for row in tools),
            failed_tools=sum(int(row["failures"]) for row in tools),
            projects=len({part.session["project_id"] for part in parts} - {None}),
            prompt_tokens=total.prompt_tokens,
            completion_tokens=total.completion_tokens,
            cost=total.cost,
            **counts,
        ),
        by_project=_largest(parts, lambda part: part.session["project"], limit),
        by_model=_largest(parts, lambda part: part.model, limit),
        by_source=_largest(parts, lambda part: part.session["source"], limit),
        by_day=sorted(_largest(parts, lambda part: part.day), key=lambda usage: usage.name or "", reverse=True)[:limit],
        tools=[
            ToolUsage(
                name=row["name"],
                calls=row["calls"],
                failures=int(row["failures"]),
                failure_rate=row["failures"] / row["calls"],
                mean_duration_ms=row["mean_duration_ms"],
            )
            for row in tools[:limit]
        ],
        calendar=[DayActivity(day, messages) for day, messages in sorted(activity.items()) if messages],
    )


def _read_parts(db: Db, selection: dict[str, Any]) -> list[_Part]:
    """Read the usage of all selected sessions in parts.

    A session's token count and the sum over its messages describe the same tokens. The part that the messages do not
    account for is added separately, so that each token is counted once, for the model that used it.
    """
    sessions = {row["id"]: row for row in db.fetch(_SESSIONS, selection)}
    days = _Days()
    parts: list[_Part] = []
    reported: Counter[tuple[str, str]] = Counter()
    for row in db.fetch(_MESSAGES, selection):
        session = sessions[row["session_id"]]
        tokens = row["prompt_tokens"], row["completion_tokens"]
        parts.append(_Part(session, row["model"] or session["model"], days[row["slot"]], row["messages"], *tokens))
        reported[session["id"], "prompt_tokens"] += tokens[0]
        reported[session["id"], "completion_tokens"] += tokens[1]
    for session in sessions.values():
        prompt, completion = (
            max((session[name] or 0) - reported[session["id"], name], 0)
            for name in ("prompt_tokens", "completion_tokens")
        )
        day = days[session["created_at"] // SLOT_MS]
        parts.append(_Part(session, session["model"], day, 0, prompt, completion, session["cost"] or 0.0))
    return parts


class _Days(dict[int, str | None]):
    """Local days of slots; None for times that no calendar has."""

    def __missing__(self, slot: int) -> str | None:
        self[slot] = None
        with suppress(ValueError, OverflowError, OSError):
            self[slot] = datetime.fromtimestamp(slot * SLOT_MS / 1000, UTC).astimezone().strftime("%Y-%m-%d")
        return self[slot]


def _largest(parts: Iterable[_Part], name: Callable[[_Part], str | None], limit: int | None = None) -> list[Usage]:
    """Add up the parts by name; most tokens first, then most messages."""
    sums: dict[str | None, _Sum] = {}
    for part in parts:
        sums.setdefault(name(part), _Sum()).add(part)
    usages = [found.usage(each) for each, found in sums.items()]
    usages.sort(key=lambda usage: (-usage.prompt_tokens - usage.completion_tokens, -usage.messages, usage.name or ""))
    return usages[:limit]
