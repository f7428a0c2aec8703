"""Metrics: what the daemon counts, and how clankers-ctl prints it."""

from pathlib import Path
from typing import Any

from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import message


def samples(rpc: RawConnection, name: str) -> list[dict[str, Any]]:
    [found] = [metric for metric in rpc.call("metrics")["metrics"] if metric["name"] == name]
    return list(found["samples"])


def count(rpc: RawConnection, method: str, outcome: str) -> int:
    labels = {"method": method, "outcome": outcome}
    return sum(
        sum(sample["buckets"]["counts"])
        for sample in samples(rpc, "clankers_request_seconds")
        if sample["labels"] == labels
    )


def test_requests_are_counted_by_method_and_outcome(rpc: RawConnection) -> None:
    stored, refused = count(rpc, "upsertMessage", "ok"), count(rpc, "upsertMessage", "4001")
    for number in range(3):
        rpc.call("upsertMessage", message=message(f"counted-{number}"))
    assert "error" in rpc.request("upsertMessage", {"message": {"id": "x"}})
    assert count(rpc, "upsertMessage", "ok") == stored + 3
    assert count(rpc, "upsertMessage", "4001") == refused + 1


def test_commits_and_their_writes_are_counted(rpc: RawConnection) -> None:
    def totals() -> tuple[int, float]:
        [commits] = samples(rpc, "clankers_commit_seconds")
        [writes] = samples(rpc, "clankers_commit_writes")
        return sum(commits["buckets"]["counts"]), writes["buckets"]["sum"]

    before = totals()
    rpc.call("upsertMessage", message=message("committed"))
    after = totals()
    assert after[0] > before[0]
    assert after[1] > before[1]


def test_sizes_are_those_of_the_status(rpc: RawConnection) -> None:
    rpc.call("upsertMessage", message=message("sized"))
    [database] = samples(rpc, "clankers_database_bytes")
    assert database["value"] == rpc.call("daemon.status")["sizes"]["database"] > 0
    [wal] = samples(rpc, "clankers_wal_bytes")
    assert wal["value"] > 0


def test_unknown_methods_add_no_metric(rpc: RawConnection) -> None:
    """Otherwise a client could grow the daemon's memory with invented names."""
    rpc.request("no.such.method", {})
    assert "no.such.method" not in str(rpc.call("metrics"))


def test_prometheus_text_has_cumulative_buckets(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    rpc.call("health")
    text = ctl(shared_daemon, "metrics", "--prometheus").out
    assert "# TYPE clankers_request_seconds histogram" in text
    values = [
        int(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith('clankers_request_seconds_bucket{method="health",outcome="ok"')
    ]
    assert values == sorted(values)
    [total] = [line for line in text.splitlines() if line.startswith('clankers_request_seconds_count{method="health"')]
    assert int(total.rsplit(" ", 1)[1]) == values[-1] > 0


def test_ctl_metrics_prints_a_table_of_methods(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    rpc.call("health")
    ran = ctl(shared_daemon, "metrics")
    assert ran.code == 0, ran.err
    [row] = [line for line in ran.out.splitlines() if line.strip().startswith("health")]
    assert "≤" in row
    assert "write-ahead log" in ran.out


def test_slow_requests_are_logged_with_their_parts(home: Path) -> None:
    with running_daemon(home, CLANKERS_SLOW_REQUEST_SECONDS="0.000001") as daemon, daemon.connect() as rpc:
        rpc.call("upsertMessage", message=message("slow"))
        logged = "".join(path.read_text() for path in daemon.logs.iterdir())
    [line] = [line for line in logged.splitlines() if "slow request" in line and "upsertMessage" in line]
    assert '"write"' in line
