"""`clankers-ctl top`: a live view of what the daemon does."""

import time
from collections import deque
from typing import Any

import click

from clankers.client import Client
from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_bytes, format_time
from clankers.ctl.metrics import below, milliseconds
from clankers.ctl.output import echo, one_line, print_json, rich_console
from clankers_protocol.metrics import Buckets, GetMetrics, MetricsReport
from clankers_protocol.subscriptions import CHANGED, Subscribe

MAX_METHODS = 15
MAX_EVENTS = 10
FACTS = {
    "clankers_connections": "connections",
    "clankers_write_queue": "writes waiting",
    "clankers_chunk_backlog": "to chunk",
    "clankers_embed_backlog": "to embed",
    "clankers_spool_files": "spooled",
    "clankers_database_bytes": "database",
    "clankers_wal_bytes": "write-ahead log",
}


@click.command()
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between updates."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N updates.")
@common_options
def top(ctl: Ctl, interval: float, count: int | None) -> None:
    """Show requests with their latencies, queues, sizes and the last events, live. Ctrl-C ends it.

    Rates and latencies are of the time since the last update. With --json, print one JSON object for each update.

    \b
    Examples:
      clankers-ctl top
      clankers-ctl top --interval 5
      clankers-ctl top --json --count 1 | jq .requests
    """
    events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)

    def on_notification(method: str, params: Any) -> None:
        if method == CHANGED:
            events.appendleft(params | {"seenAt": int(time.time() * 1000)})

    with Client(ctl.socket, name="clankers-ctl", timeout=30, on_notification=on_notification) as client:
        client.call(Subscribe(kinds=["session", "message", "memory", "document", "job"]))
        previous = client.call(GetMetrics())
        if ctl.json:
            for update in _updates(client, previous, interval, count):
                print_json(update | {"events": list(events)})
            return
        console = rich_console()
        if not console.is_terminal:
            for update in _updates(client, previous, interval, count):
                console.print(_render(update, list(events), interval))
                echo("")
            return
        from rich.live import Live  # slow to load

        with Live(console=console, screen=True, auto_refresh=False) as live:
            try:
                for update in _updates(client, previous, interval, count):
                    live.update(_render(update, list(events), interval), refresh=True)
            except KeyboardInterrupt:
                echo("", err=True)


def _updates(client: Client, previous: MetricsReport, interval: float, count: int | None) -> Any:
    """Yield what changed between two reports, as often as `count` says."""
    done = 0
    while count is None or done < count:
        time.sleep(interval)
        report = client.call(GetMetrics())
        yield _difference(previous, report)
        previous = report
        done += 1


def _difference(before: MetricsReport, after: MetricsReport) -> dict[str, Any]:
    old = _request_buckets(before)
    requests: list[dict[str, Any]] = []
    for (method, outcome), buckets in _request_buckets(after).items():
        earlier = old.get((method, outcome)) or Buckets(buckets.bounds, [0] * len(buckets.counts), 0)
        counts = [now - then for now, then in zip(buckets.counts, earlier.counts, strict=True)]
        if sum(counts):
            recent = Buckets(buckets.bounds, counts, buckets.sum - earlier.sum)
            p99 = recent.quantile(0.99)
            request = {
                "method": method,
                "outcome": outcome,
                "count": recent.count,
                "meanSeconds": recent.sum / recent.count,
                "p99Seconds": p99 if p99 != float("inf") else None,
            }
            requests.append(request)
    gauges = {metric.name: metric.samples[0].value for metric in after.metrics if metric.type == "gauge"}
    requests.sort(key=lambda request: -request["count"])
    return {"requests": requests, "gauges": gauges, "problem": after.problem}


def _request_buckets(report: MetricsReport) -> dict[tuple[str, str], Buckets]:
    for metric in report.metrics:
        if metric.name == "clankers_request_seconds":
            return {
                (sample.labels["method"], sample.labels["outcome"]): sample.buckets
                for sample in metric.samples
                if sample.buckets is not None
            }
    return {}


def _render(update: dict[str, Any], events: list[dict[str, Any]], interval: float) -> Any:
    from rich.console import Group  # slow to load
    from rich.table import Table
    from rich.text import Text

    gauges = update["gauges"]
    shown = []
    for name, label in FACTS.items():
        value = gauges.get(name) or 0
        shown.append(f"{label} {format_bytes(int(value)) if name.endswith('_bytes') else f'{value:,.0f}'}")
    state = (
        Text(f"● problem: {one_line(update['problem'])}", "bold red")
        if update["problem"]
        else Text("● ok", "bold green")
    )
    expand = rich_console().is_terminal
    requests = Table(box=None, expand=expand, header_style="bold")
    requests.add_column("Method")
    for heading in ("Per second", "Mean", "p99"):
        requests.add_column(heading, justify="right")
    for request in update["requests"][:MAX_METHODS]:
        failed = request["outcome"] != "ok"
        name = f"{request['method']} (error {request['outcome']})" if failed else request["method"]
        p99 = below(request["p99Seconds"] if request["p99Seconds"] is not None else float("inf"))
        rate = f"{request['count'] / interval:,.1f}"
        requests.add_row(Text(one_line(name), "red" if failed else ""), rate, milliseconds(request["meanSeconds"]), p99)
    latest = Table(box=None, expand=expand, header_style="bold")
    for heading in ("Last events", "", ""):
        latest.add_column(heading, no_wrap=True, overflow="ellipsis")
    for event in events:
        seen = format_time(event["seenAt"], "%H:%M:%S")
        what = f"{event.get('kind', '')} {event.get('action', '')}"
        latest.add_row(seen, Text(one_line(what)), Text(one_line(str(event.get("id", "")))))
    if not events:
        latest.add_row(Text("none since this view was opened", "dim"))
    ends = [Text(), Text("Ctrl-C ends it.", "dim")] if expand else []
    return Group(state, Text(" · ".join(shown), "dim"), Text(), requests, Text(), latest, *ends)
