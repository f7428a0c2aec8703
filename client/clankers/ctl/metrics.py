"""`clankers-ctl metrics`: counters and latencies of the daemon."""

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_bytes
from clankers.ctl.output import Column, echo, print_facts, print_table, secho
from clankers_protocol.metrics import Buckets, GetMetrics, MetricsReport, prometheus_text

COLUMNS = [
    Column("Method", min_width=16),
    Column("Requests", align_right=True),
    Column("Errors", align_right=True),
    Column("Mean", align_right=True),
    Column("p50", align_right=True, optional=True),
    Column("p99", align_right=True),
]
SHOWN_FACTS = {
    "clankers_connections": "connections",
    "clankers_write_queue": "writes waiting",
    "clankers_chunk_backlog": "texts to chunk",
    "clankers_embed_backlog": "chunks to embed",
    "clankers_index_lag_seconds": "seconds behind",
    "clankers_jobs_running": "jobs running",
    "clankers_spool_files": "spooled events",
    "clankers_slow_requests_total": "slow requests",
    "clankers_database_bytes": "database",
    "clankers_wal_bytes": "write-ahead log",
}


@click.command()
@click.option("--prometheus", is_flag=True, help="Print Prometheus' text format.")
@common_options
def metrics(ctl: Ctl, prometheus: bool) -> None:
    """Show requests with their latencies, queues and sizes since the daemon started.

    The daemon has no TCP port. To collect metrics with Prometheus, write them for the textfile collector of the node
    exporter, from cron or a systemd timer.

    \b
    Examples:
      clankers-ctl metrics
      clankers-ctl metrics --prometheus > clankers.prom.new && mv clankers.prom.new clankers.prom
      clankers-ctl metrics --json | jq -r '.metrics[].name'
    """
    report = ctl.call(GetMetrics())
    if prometheus:
        echo(prometheus_text(report), nl=False)
    else:
        ctl.report(report, _print)


def _print(report: MetricsReport) -> None:
    if report.problem:
        secho(f"● problem: {report.problem}", fg="red", bold=True)
    by_name = {metric.name: metric.samples for metric in report.metrics}
    ok: dict[str, Buckets] = {}
    errors: dict[str, int] = {}
    for sample in by_name["clankers_request_seconds"]:
        method, buckets = sample.labels["method"], sample.buckets
        assert buckets is not None
        if sample.labels["outcome"] == "ok":
            ok[method] = buckets
        else:
            errors[method] = errors.get(method, 0) + buckets.count
    rows = []
    for method in sorted({*ok, *errors}):
        latency = ["", "", ""]
        count = 0
        if buckets := ok.get(method):
            count = buckets.count
            latency = [milliseconds(buckets.sum / count), *(below(buckets.quantile(share)) for share in (0.5, 0.99))]
        rows.append([method, f"{count:,}", f"{errors.get(method, 0):,}", *latency])
    print_table(COLUMNS, rows)
    facts = []
    for name, label in SHOWN_FACTS.items():
        if name in by_name:
            value = by_name[name][0].value or 0
            facts.append((label, format_bytes(int(value)) if name.endswith("_bytes") else f"{value:,.0f}"))
    echo("")
    print_facts(facts)


def below(seconds: float) -> str:
    """Format an estimated quantile: the bound of its bucket."""
    return "> 10 s" if seconds == float("inf") else f"≤ {milliseconds(seconds)}"


def milliseconds(seconds: float) -> str:
    """Format a latency."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
