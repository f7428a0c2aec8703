"""Check the faults of the `libsql` package for which there is no libSQL engine (decision 0026).

A test that fails here means that one was mended.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from clankersd.db.connection import has_wal_reset_bug

OTHER_THREAD = """
import json, sys, threading, time
turns, ended = 0, False
def count() -> None:
    global turns
    while not ended:
        turns += 1
        time.sleep(0.001)
connection = driver.connect(":memory:")
threading.Thread(target=count).start()
turns = 0
connection.execute(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT sum(i) FROM n"
).fetchall()
print(turns)
ended = True
"""

TEXT_WITH_NUL = """
import json
connection = driver.connect(":memory:")
connection.execute("CREATE TABLE t (x TEXT)")
connection.execute("INSERT INTO t VALUES (?)", ("before\\0after",))
print(json.dumps(connection.execute("SELECT x FROM t").fetchall()[0][0]))
"""

MISSING_PARAMETER = """
import json
try:
    print(json.dumps(driver.connect(":memory:").execute("SELECT ?, ?", (1,)).fetchall()))
except Exception:
    print('"refused"')
"""

VERSION = 'import json; print(json.dumps(driver.connect(":memory:").execute("SELECT sqlite_version()").fetchall()))'


@pytest.fixture(scope="module")
def python_with_libsql(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libsql")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "--quiet", "libsql"], capture_output=True, text=True)
    if installed.returncode:
        why = f"pip cannot install libsql: {installed.stderr.strip()[-500:]}"
        if os.environ.get("CLANKERS_E2E") == "required":
            pytest.fail(why)
        pytest.skip(why)
    return python


def printed(python: Path | str, driver: str, script: str) -> Any:
    command = [python, "-c", f"import {driver} as driver\n{script}"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_libsql_statement_stops_all_other_threads(python_with_libsql: Path) -> None:
    beside_libsql = printed(python_with_libsql, "libsql", OTHER_THREAD)
    beside_sqlite = printed(sys.executable, "sqlite3", OTHER_THREAD)
    assert beside_libsql * 10 < beside_sqlite


def test_libsql_cuts_text_at_a_nul_character(python_with_libsql: Path) -> None:
    assert printed(python_with_libsql, "libsql", TEXT_WITH_NUL) == "before"
    assert printed(sys.executable, "sqlite3", TEXT_WITH_NUL) == "before\0after"


def test_libsql_takes_a_missing_parameter_for_null(python_with_libsql: Path) -> None:
    assert printed(python_with_libsql, "libsql", MISSING_PARAMETER) == [[1, None]]
    assert printed(sys.executable, "sqlite3", MISSING_PARAMETER) == "refused"


def test_sqlite_of_libsql_may_lose_commits_when_its_log_restarts(python_with_libsql: Path) -> None:
    assert has_wal_reset_bug(printed(python_with_libsql, "libsql", VERSION)[0][0])
