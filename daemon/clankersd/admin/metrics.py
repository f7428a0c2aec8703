"""The `metrics` method: what the daemon counted, and the sizes of its queues and files."""

import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from clankers_protocol.errors import StorageUnavailable
from clankers_protocol.metrics import Buckets, GetMetrics, Metric, MetricsReport, Sample
from clankersd.db import Db
from clankersd.metrics import Histogram, metrics
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


@handles(GetMetrics)
async def get_metrics(daemon: "Daemon", request: GetMetrics) -> MetricsReport:
    problem = daemon.store.problem
    database: list[Metric] = []
    try:
        database = await daemon.store.read(partial(_measure_database, behind_since=daemon.queue.behind_since))
    except StorageUnavailable as error:
        problem = error.message
    return MetricsReport([*_measure_requests(), *_measure_daemon(daemon), *database], problem)


def _measure_requests() -> list[Metric]:
    by_method = [
        Sample({"method": method, "outcome": outcome}, buckets=_buckets(histogram))
        for (method, outcome), histogram in sorted(metrics.requests.items())
    ]
    restarts = [Sample({"service": name}, count) for name, count in sorted(metrics.service_restarts.items())]
    return [
        Metric("clankers_request_seconds", "histogram", "Time to answer a request, by method and outcome.", by_method),
        _number("clankers_slow_requests_total", "Requests slower than slow_request_seconds.", metrics.slow_requests),
        _histogram("clankers_commit_seconds", "Time of a commit with all its writes.", metrics.commit_seconds),
        _histogram("clankers_commit_sync_seconds", "Time of COMMIT, which syncs to the disk.", metrics.sync_seconds),
        _histogram("clankers_commit_writes", "Writes in a commit.", metrics.commit_writes),
        Metric(
            "clankers_service_restarts_total", "counter", "Restarts of a background service after an error.", restarts
        ),
    ]


def _measure_daemon(daemon: "Daemon") -> list[Metric]:
    store = daemon.store
    uptime_seconds = time.monotonic() - daemon.started
    spooled: list[int] = []
    with suppress(OSError), os.scandir(daemon.paths.spool) as entries:
        spooled = [entry.stat(follow_symlinks=False).st_size for entry in entries if entry.name.endswith(".json")]
    waits = store.queue.longest_wait_seconds
    return [
        Metric("clankers_build_info", "gauge", "Version of the daemon.", [Sample({"version": daemon.version}, 1)]),
        _number("process_start_time_seconds", "Start of the process, as Unix time.", time.time() - uptime_seconds),
        _number("process_cpu_seconds_total", "CPU time of the process.", time.process_time()),
        _number("clankers_ok", "1 if events can be stored.", 0 if store.problem else 1),
        _number("clankers_connections", "Open connections.", daemon.server.connections),
        _number(
            "clankers_unsent_bytes", "Bytes of replies that clients have not read yet.", daemon.server.unsent.used_bytes
        ),
        _number("clankers_write_queue", "Writes that wait for a commit.", store.queue.size),
        _number("clankers_write_wait_seconds", "Longest wait of a single write in the last minute.", waits),
        _number("clankers_jobs_running", "Running jobs.", daemon.jobs.running),
        _number("clankers_embeddings_per_second", "Recent rate of embedding.", daemon.queue.rate),
        _number("clankers_spool_files", "Spooled events that wait for the daemon.", len(spooled)),
        _number("clankers_spool_bytes", "Size of the spooled events.", sum(spooled)),
        _number("clankers_spool_rejected_files", "Spooled events that could not be stored.", daemon.spool.rejected),
    ]


def _measure_database(db: Db, behind_since: float | None) -> list[Metric]:
    sizes = db.engine.measure(db)
    to_chunk = db.value("SELECT count(*) FROM index_backlog")
    to_embed = db.value("SELECT count(*) FROM index_queue")
    lag_seconds = time.monotonic() - behind_since if to_embed and behind_since else 0.0
    return [
        _number("clankers_database_bytes", "Size of the database.", sizes.database),
        _number("clankers_wal_bytes", "Size of the write-ahead log.", sizes.wal),
        _number("clankers_database_free_bytes", "Part of the database that a vacuum would release.", sizes.free),
        _number("clankers_chunk_backlog", "Texts that are not chunked yet.", to_chunk),
        _number("clankers_embed_backlog", "Chunks without a vector.", to_embed),
        _number("clankers_index_lag_seconds", "Time since every chunk had a vector; 0 if all have one.", lag_seconds),
    ]


def _number(name: str, description: str, value: float) -> Metric:
    """Make a counter of a name that ends in `_total`, and a gauge of any other."""
    return Metric(name, "counter" if name.endswith("_total") else "gauge", description, [Sample(value=value)])


def _histogram(name: str, description: str, histogram: Histogram) -> Metric:
    return Metric(name, "histogram", description, [Sample(buckets=_buckets(histogram))])


def _buckets(histogram: Histogram) -> Buckets:
    return Buckets(list(histogram.bounds), list(histogram.counts), histogram.total)
