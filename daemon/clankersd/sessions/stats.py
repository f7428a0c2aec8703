"""Usage statistics: tokens, cost and tools by project, model, source and day."""

from typing import TYPE_CHECKING, Any

from clankers_protocol.sessions import Statistics, Stats, ToolUsage, Totals, Usage
from clankersd.clock import to_ms
from clankersd.projects import IN_PROJECT, find_project_id
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_SELECTED_SESSIONS = f"""
    selected AS (
        SELECT * FROM sessions
        WHERE (:every_project OR {IN_PROJECT})
          AND (:since IS NULL OR created_at >= :since) AND (:until IS NULL OR created_at < :until)
    )
"""

# A session's token count and the sum over its messages describe the same tokens. The part that the messages do not
# account for is added as a separate row, so that each token is counted once, for the model that used it.
_USAGE = f"""
    WITH {_SELECTED_SESSIONS},
    message_usage AS (
        SELECT session_id, coalesce(messages.model, selected.model) AS model,
               date(messages.created_at / 1000, 'unixepoch', 'localtime') AS day,
               count(*) AS messages, sum(coalesce(messages.prompt_tokens, 0)) AS prompt_tokens,
               sum(coalesce(messages.completion_tokens, 0)) AS completion_tokens
        FROM messages JOIN selected ON selected.id = session_id
        GROUP BY session_id, 2, 3
    ),
    message_totals AS (
        SELECT session_id, sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens
        FROM message_usage GROUP BY session_id
    ),
    usage AS (
        SELECT session_id, model, day, messages, prompt_tokens, completion_tokens, 0.0 AS cost FROM message_usage
        UNION ALL
        SELECT id, model, date(created_at / 1000, 'unixepoch', 'localtime'), 0,
               max(coalesce(selected.prompt_tokens, 0) - coalesce(message_totals.prompt_tokens, 0), 0),
               max(coalesce(selected.completion_tokens, 0) - coalesce(message_totals.completion_tokens, 0), 0),
               coalesce(cost, 0.0)
        FROM selected LEFT JOIN message_totals ON message_totals.session_id = id
    )
    SELECT {{name}} AS name, count(DISTINCT usage.session_id) AS sessions, sum(usage.messages) AS messages,
           sum(usage.prompt_tokens) AS prompt_tokens, sum(usage.completion_tokens) AS completion_tokens,
           total(usage.cost) AS cost
    FROM usage JOIN selected ON selected.id = usage.session_id
    GROUP BY 1 ORDER BY {{order}} LIMIT :limit
"""
_MOST_TOKENS_FIRST = "sum(usage.prompt_tokens) + sum(usage.completion_tokens) DESC, sum(usage.messages) DESC, 1"

_PROJECT = """coalesce(
    (SELECT path FROM projects WHERE projects.id = selected.project_id), selected.project_path, selected.project_name
)"""

_TOTALS = f"""
    WITH {_SELECTED_SESSIONS}
    SELECT (SELECT count(*) FROM selected) AS sessions,
           (SELECT count(*) FROM tools JOIN selected ON selected.id = session_id) AS tools,
           (SELECT count(*) FROM tools JOIN selected ON selected.id = session_id
            WHERE success = 0) AS failed_tools,
           (SELECT count(*) FROM session_errors JOIN selected ON selected.id = session_id) AS errors,
           (SELECT count(*) FROM compaction_events JOIN selected ON selected.id = session_id) AS compactions,
           (SELECT count(DISTINCT project_id) FROM selected) AS projects
"""
_TOOLS = f"""
    WITH {_SELECTED_SESSIONS}
    SELECT tool_name AS name, count(*) AS calls, total(success = 0) AS failures,
           avg(duration_ms) AS mean_duration_ms
    FROM tools JOIN selected ON selected.id = session_id
    GROUP BY tool_name ORDER BY calls DESC, tool_name LIMIT :limit
"""


@handles(Stats)
async def stats(daemon: "Daemon", request: Stats) -> Statistics:
    project = request.project
    params: dict[str, Any] = {
        "every_project": project is None,
        "project_id": project and await daemon.store.read(lambda db: find_project_id(db, project)),
        "since": to_ms(request.since),
        "until": to_ms(request.until),
        "limit": request.limit,
    }

    async def usage(name: str, order: str = _MOST_TOKENS_FIRST) -> list[Usage]:
        # In a separate read each, so that writes are not delayed.
        sql = _USAGE.format(name=name, order=order)
        return await daemon.store.read(lambda db: [Usage(**row) for row in db.fetch(sql, params)])

    usage_rows = await usage("NULL")
    total = usage_rows[0] if usage_rows else Usage(None, 0, 0, 0, 0, 0.0)
    selection = {name: value for name, value in params.items() if name != "limit"}
    counts = await daemon.store.read(lambda db: db.fetch_one(_TOTALS, selection))
    assert counts
    tools = await daemon.store.read(lambda db: db.fetch(_TOOLS, params))
    return Statistics(
        totals=Totals(
            messages=total.messages,
            prompt_tokens=total.prompt_tokens,
            completion_tokens=total.completion_tokens,
            cost=total.cost,
            **counts,
        ),
        by_project=await usage(_PROJECT),
        by_model=await usage("usage.model"),
        by_source=await usage("selected.source"),
        by_day=await usage("usage.day", "1 DESC"),
        tools=[
            ToolUsage(
                name=row["name"],
                calls=row["calls"],
                failures=int(row["failures"]),
                failure_rate=row["failures"] / row["calls"],
                mean_duration_ms=row["mean_duration_ms"],
            )
            for row in tools
        ],
    )
