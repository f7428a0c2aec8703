"""Why libSQL is no engine (docs/decisions/0026): each test states one reason, and fails once the package is fixed.

They run where the package is installed: pip install libsql.
"""

import threading
import time
from pathlib import Path

import pytest

from clankersd.db.connection import has_wal_reset_bug

libsql = pytest.importorskip("libsql")


def test_sqlite_of_the_package_may_lose_commits_when_its_log_restarts() -> None:
    [(version,)] = libsql.connect(":memory:").execute("SELECT sqlite_version()").fetchall()
    assert has_wal_reset_bug(version)


def test_statement_holds_the_interpreter_for_as_long_as_it_runs() -> None:
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        started, before = time.monotonic(), ticks[0]
        numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000000)"
        libsql.connect(":memory:").execute(f"{numbers} SELECT count(*) FROM n").fetchall()
        elapsed, during = time.monotonic() - started, ticks[0] - before
    finally:
        stop.set()
        thread.join()
    assert during < elapsed * 1000 / 20, "a thread beside the statement had its turns"


def test_errors_cannot_be_told_apart(tmp_path: Path) -> None:
    one, other = (libsql.connect(str(tmp_path / "a.db")) for _ in range(2))
    one.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    one.execute("INSERT INTO t VALUES (1)")
    one.commit()
    with pytest.raises(ValueError, match="UNIQUE") as constraint:
        one.execute("INSERT INTO t VALUES (1)")
    one.rollback()
    one.execute("BEGIN IMMEDIATE")
    other.execute("PRAGMA busy_timeout = 10").fetchall()
    with pytest.raises(ValueError, match="locked") as locked:
        other.execute("INSERT INTO t VALUES (2)")
    assert constraint.type is locked.type is ValueError


def test_statements_cannot_be_interrupted_or_backed_up() -> None:
    connection = libsql.connect(":memory:")
    for name in ("interrupt", "set_progress_handler", "backup", "load_extension"):
        assert not hasattr(connection, name)
