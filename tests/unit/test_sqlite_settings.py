"""Settings of SQLite that hold for the whole process, so they are tried in one of their own."""

import subprocess
import sys
from pathlib import Path

LARGE_STATEMENT = """
import sys
import apsw
from clankersd.db.connection import configure_sqlite

configure_sqlite()
db = apsw.Connection(sys.argv[1])
db.pragma("journal_mode", "wal")
db.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT UNIQUE)")
db.execute(
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) "
    "INSERT INTO texts SELECT i, hex(randomblob(100)) FROM n"
)
db.execute("BEGIN")
db.execute("UPDATE texts SET text = text || 'x'")  # its journal is larger than what is kept in memory
try:
    db.execute("UPDATE texts SET text = CASE id WHEN 20000 THEN (SELECT text FROM texts LIMIT 1) ELSE text || 'y' END")
except apsw.ConstraintError:
    pass
db.execute("COMMIT")
print(db.execute("SELECT count(*) FROM texts WHERE text LIKE '%x'").fetchall()[0][0])
"""


def test_statement_that_changes_many_pages_is_stored_and_rolled_back(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LARGE_STATEMENT, str(tmp_path / "test.db")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "20000", ran.stderr
