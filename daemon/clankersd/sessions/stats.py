"""Statistics: what was used, by whom and when."""

from typing import TYPE_CHECKING, Any

from clankers_protocol.sessions import Statistics, Stats, ToolUsage, Totals, Usage
from clankersd.clock import to_ms
from clankersd.db import Db
from clankersd.projects import IN_PROJECT, project_params
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_CHOSEN = f"""
    chosen AS (
        SELECT * FROM sessions
        WHERE (:project IS NULL OR {IN_PROJECT})
          AND (:since IS NULL OR created_at >= :since) AND (:until IS NULL OR created_at < :until)
    )
"""

# A session's figure and the sum over its messages tell of the same tokens: what the messages do not account
# for is added as a row of its own, so that each token is counted once and goes to the model that used it.
_USAGE = f"""
    WITH {_CHOSEN},
    spoken AS (
        SELECT session_id, coalesce(messages.model, chosen.model) AS model,
               date(messages.created_at / 1000, 'unixepoch', 'localtime') AS day,
               count(*) AS messages, sum(coalesce(messages.prompt_tokens, 0)) AS prompt_tokens,
               sum(coalesce(messages.completion_tokens, 0)) AS completion_tokens
        FROM messages JOIN chosen ON chosen.id = session_id
        GROUP BY session_id, 2, 3
    ),
    heard AS (
        SELECT session_id, sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens
        FROM spoken GROUP BY session_id
    ),
    used AS (
        SELECT session_id, model, day, messages, prompt_tokens, completion_tokens, 0.0 AS cost FROM spoken
        UNION ALL
        SELECT id, model, date(created_at / 1000, 'unixepoch', 'localtime'), 0,
               max(coalesce(chosen.prompt_tokens, 0) - coalesce(heard.prompt_tokens, 0), 0),
               max(coalesce(chosen.completion_tokens, 0) - coalesce(heard.completion_tokens, 0), 0),
               coalesce(cost, 0.0)
        FROM chosen LEFT JOIN heard ON heard.session_id = id
    )
    SELECT {{name}} AS name, count(DISTINCT used.session_id) AS sessions, sum(used.messages) AS messages,
           sum(used.prompt_tokens) AS prompt_tokens, sum(used.completion_tokens) AS completion_tokens,
           total(used.cost) AS cost
    FROM used JOIN chosen ON chosen.id = used.session_id
    GROUP BY 1 ORDER BY {{order}} LIMIT :limit
"""
_HEAVIEST = "sum(used.prompt_tokens) + sum(used.completion_tokens) DESC, sum(used.messages) DESC, 1"

_TOTALS = f"""
    WITH {_CHOSEN}
    SELECT (SELECT count(*) FROM chosen) AS sessions,
           (SELECT count(*) FROM tools JOIN chosen ON chosen.id = session_id) AS tools,
           (SELECT count(*) FROM tools JOIN chosen ON chosen.id = session_id
            WHERE success = 0) AS failed_tools,
           (SELECT count(*) FROM session_errors JOIN chosen ON chosen.id = session_id) AS errors,
           (SELECT count(*) FROM compaction_events JOIN chosen ON chosen.id = session_id) AS compactions,
           (SELECT count(DISTINCT project_id) FROM chosen) AS projects
"""
_TOOLS = f"""
    WITH {_CHOSEN}
    SELECT tool_name AS name, count(*) AS calls, total(success = 0) AS failures,
           avg(duration_ms) AS mean_duration_ms
    FROM tools JOIN chosen ON chosen.id = session_id
    GROUP BY tool_name ORDER BY calls DESC, tool_name LIMIT :limit
"""


@handles(Stats)
async def stats(daemon: "Daemon", request: Stats) -> Statistics:
    params: dict[str, Any] = {
        **project_params(request.project),
        "since": to_ms(request.since),
        "until": to_ms(request.until),
        "limit": request.limit,
    }

    async def usage(name: str, order: str = _HEAVIEST) -> list[Usage]:
        # Each in a read of its own, so that events get in between.
        sql = _USAGE.format(name=name, order=order)
        return await daemon.store.read(lambda db: [Usage(**row) for row in db.fetch(sql, params)])

    whole = await usage("NULL")
    return Statistics(
        totals=await daemon.store.read(lambda db: _totals(db, params, whole)),
        by_project=await usage("coalesce(chosen.project_path, chosen.project_name)"),
        by_model=await usage("used.model"),
        by_source=await usage("chosen.source"),
        by_day=await usage("used.day", "1 DESC"),
        tools=await daemon.store.read(lambda db: _tools(db, params)),
    )


def _totals(db: Db, params: dict[str, Any], whole: list[Usage]) -> Totals:
    row = db.fetch_one(_TOTALS, {key: value for key, value in params.items() if key != "limit"})
    assert row
    used = whole[0] if whole else Usage(None, 0, 0, 0, 0, 0.0)
    return Totals(
        messages=used.messages,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        cost=used.cost,
        **row,
    )


def _tools(db: Db, params: dict[str, Any]) -> list[ToolUsage]:
    return [
        ToolUsage(
            name=row["name"],
            calls=row["calls"],
            failures=int(row["failures"]),
            failure_rate=row["failures"] / row["calls"],
            mean_duration_ms=row["mean_duration_ms"],
        )
        for row in db.fetch(_TOOLS, params)
    ]
