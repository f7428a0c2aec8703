"""`make bench-backup`: how long writes take while a large database is backed up, as a multiple of what they take alone.

Many connections write single events, alone before and after, and in between while one backup follows the other. At the
end the newest backup is compared with the database, row by row in every table, then restored and compared again. Exits
1 when the ratio of p99 is above the limit, or when a row differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import apsw
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import Bar, judge, real_disk

MEGABYTES = 1024
CLIENTS = 64
SECONDS = 15.0
FRAMES_PER_SECOND = 5_000
ROW_BYTES = 8_000
MAX_RATIO = 5.0

console = Console(highlight=False, width=110)


@dataclass
class Seen:
    """Figures of the writers, and the number of backups made meanwhile."""

    requests: int
    p50: float
    p99: float
    failures: int
    backups: int = 0


def fill(database: Path, megabytes: int) -> None:
    """Store messages with random texts directly in the file of a stopped daemon: through the socket takes an hour."""
    db = apsw.Connection(str(database))
    try:
        db.pragma("synchronous", "off")
        with db:
            db.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES ('filler', 1, 1)")
            sql = "INSERT INTO messages (id, session_id, text_content, created_at) VALUES (?, 'filler', ?, 1)"
            for number in range(megabytes * 1_000_000 // ROW_BYTES):
                db.execute(sql, (f"filler-{number}", os.urandom(ROW_BYTES // 2).hex()))
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        db.close()


def measure(daemon: DaemonProcess, prefix: str, clients: int, seconds: float, with_backups: bool) -> Seen:
    """Let the connections write for a while; meanwhile make backups, if asked."""
    command = [sys.executable, "-m", "tests.bench.load", "persistent", str(daemon.socket_path), prefix]
    command += ["--connections", str(clients), "--seconds", str(seconds)]
    command += ["--frames", str(int(FRAMES_PER_SECOND * seconds))]
    backups = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        while load.poll() is None:
            if with_backups:
                back_up(daemon)
                backups += 1
            else:
                time.sleep(0.05)
        assert load.stdout
        seen = json.loads(load.stdout.read())
    return Seen(seen["requests"], seen["p50"], seen["p99"], seen["failures"], backups)


def back_up(daemon: DaemonProcess) -> Path:
    with daemon.connect(600) as connection:
        job = connection.call("backup.create")["jobId"]
        while (state := connection.call("job.status", id=job))["state"] == "running":
            time.sleep(0.02)
        assert state["state"] == "done", state
        return Path(state["result"]["path"])


def settle(connection: RawConnection) -> None:
    """Wait until nothing is chunked any more, so that the database stays as it is."""
    while connection.call("index.status")["backlog"]:
        time.sleep(0.2)


def differing_tables(database: Path, backup: Path) -> Iterator[str]:
    """Name the tables whose rows are not the same in both files. Virtual tables are compared by their shadow tables."""
    ours, theirs = (apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY) for path in (database, backup))
    try:
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
        tables = [str(name) for (name,) in ours.execute(sql)]
        if tables != [str(name) for (name,) in theirs.execute(sql)]:
            yield "the list of tables"
        for table in tables:
            rows = (each.execute(f'SELECT * FROM "{table}"') for each in (ours, theirs))
            if table != "jobs" and any(one != other for one, other in zip_longest(*rows)):
                yield table
    finally:
        ours.close()
        theirs.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.backup", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="size of the database")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="connections that write")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of each measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clk-backup-", dir=real_disk()) as folder:
        daemon = DaemonProcess(Path(folder), CLANKERS_EMBEDDER="none", CLANKERS_BACKUP_HOURS="0")
        try:
            daemon.start().stop()
            daemon.close()
            fill(daemon.database, options.megabytes)
            daemon.start()
            seen = {
                name: measure(daemon, name.replace(" ", "-"), options.clients, options.seconds, name == "with backups")
                for name in ("alone", "with backups", "alone again")
            }
            with daemon.connect(600) as connection:
                settle(connection)
            backup = back_up(daemon)
            size_mb = daemon.database.stat().st_size / 1e6
            assert daemon.stop() == 0
            differing = list(differing_tables(daemon.database, backup))
            daemon.close()
            daemon.start()
            began = time.monotonic()
            restored = ctl(daemon, "backup", "restore", backup.name, "--yes")
            restore_seconds = time.monotonic() - began
            assert restored.code == 0, restored.err
            assert daemon.stop() == 0
            differing_restored = list(differing_tables(daemon.database, backup))
        finally:
            daemon.close()
    table = Table(
        f"{options.clients} writing connections", "requests", "p50 ms", "p99 ms", "failed", "backups", box=None
    )
    for name, one in seen.items():
        cells = (f"{one.requests:,}", f"{one.p50 * 1e3:.1f}", f"{one.p99 * 1e3:.1f}", str(one.failures))
        table.add_row(name, *cells, str(one.backups or ""))
    console.print(f"a database of {size_mb:,.0f} MB")
    console.print(table)
    console.print(f"tables of the backup that differ from the database: {', '.join(differing) or 'none'}")
    console.print(f"restored in {restore_seconds:.1f} s; tables that differ: {', '.join(differing_restored) or 'none'}")
    alone = (seen["alone"].p99 + seen["alone again"].p99) / 2
    missed = judge([Bar("p99 with backups / alone", seen["with backups"].p99 / alone, MAX_RATIO, ".1f")])
    return int(bool(missed or differing or differing_restored or any(one.failures for one in seen.values())))


if __name__ == "__main__":
    sys.exit(main())
