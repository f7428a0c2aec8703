"""Read-only SQL: nothing but reading, bounded, with errors that help."""

import select
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually

WRITING = [
    "INSERT INTO sessions (id, created_at, updated_at) VALUES ('x', 1, 1)",
    "UPDATE sessions SET title = 'x'",
    "DELETE FROM sessions",
    "DROP TABLE sessions",
    "CREATE TABLE x (y)",
    "ALTER TABLE sessions ADD COLUMN x",
    "TRUNCATE sessions",
    "REPLACE INTO sessions (id, created_at, updated_at) VALUES ('x', 1, 1)",
    "MERGE INTO sessions USING x",
    "UPSERT INTO sessions",
    "ATTACH DATABASE '/tmp/x' AS x",
    "DETACH DATABASE main",
    "REINDEX",
    "VACUUM",
    "PRAGMA user_version = 5",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA query_only = OFF",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT x",
    "RELEASE x",
    "ANALYZE",
    "WITH x AS (SELECT 1) DELETE FROM sessions",
    "WITH x AS (SELECT 1)\n\tINSERT INTO projects SELECT * FROM x",
    "SELECT 1; DELETE FROM sessions",
    "EXPLAIN SELECT 1; DROP TABLE sessions",
    "SELECT load_extension('x')",
]


@pytest.fixture
def filled(shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    events = [{"session": {"id": f"s{number}", "title": f"title {number}"}} for number in range(30)]
    with shared_daemon.connect() as connection:
        connection.call("events.batch", events=events)
        yield connection


@pytest.mark.parametrize("sql", WRITING)
def test_whatever_would_do_more_than_read_is_refused(filled: RawConnection, sql: str) -> None:
    before = filled.call("query", sql="SELECT * FROM sessions ORDER BY id")["rows"]
    error = filled.request("query", {"sql": sql})["error"]
    assert error["code"] == 4010
    assert filled.call("query", sql="SELECT * FROM sessions ORDER BY id")["rows"] == before
    filled.call("upsertSession", session={"id": "s0", "title": "title 0"})


@pytest.mark.parametrize("word", ["INSERT", "UPDATE", "DELETE", "DROP", "ATTACH", "VACUUM", "PRAGMA", "TRUNCATE"])
def test_refusal_names_what_was_refused(filled: RawConnection, word: str) -> None:
    sql = next(sql for sql in WRITING if sql.startswith(word))
    assert word in filled.request("query", {"sql": sql})["error"]["message"]


@pytest.mark.parametrize(
    ("sql", "columns", "rows"),
    [
        ("SELECT 1 AS a, NULL AS b, 1.5 AS c", ["a", "b", "c"], [[1, None, 1.5]]),
        ("SELECT 'DELETE FROM x' AS text", ["text"], [["DELETE FROM x"]]),
        ("WITH x(n) AS (SELECT 1 UNION ALL SELECT 2) SELECT n FROM x;", ["n"], [[1], [2]]),
        ("select x'414243' as text, x'ff' as bytes", ["text", "bytes"], [["ABC", "X'ff'"]]),
        ("SELECT id FROM sessions WHERE 0", ["id"], []),
        ("-- a comment\nSELECT count(*) AS n FROM sessions", ["n"], [[30]]),
    ],
)  # fmt: skip
def test_reading_gives_columns_and_typed_values(
    filled: RawConnection, sql: str, columns: list[str], rows: list[list[object]]
) -> None:
    result = filled.call("query", sql=sql)
    assert (result["columns"], result["rows"], result["truncated"]) == (columns, rows, False)


def test_rows_beyond_the_limit_are_left_out_and_it_says_so(filled: RawConnection) -> None:
    result = filled.call("query", sql="SELECT id FROM sessions", limit=7)
    assert (len(result["rows"]), result["truncated"]) == (7, True)


def test_large_answers_are_cut_to_what_a_reply_holds(filled: RawConnection) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100)"
    sql = f"{numbers} SELECT hex(zeroblob(500000)) FROM n"
    assert filled.call("query", sql=sql)["truncated"]


def test_statement_that_takes_too_long_is_stopped_and_events_go_on(home: Path) -> None:
    with running_daemon(home, CLANKERS_QUERY_SECONDS="0.2") as daemon, daemon.connect() as connection:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        assert connection.request("query", {"sql": endless})["error"]["code"] == 5003
        connection.call("upsertSession", session={"id": "s"})
        assert connection.call("query", sql="SELECT id FROM sessions")["rows"] == [["s"]]


@pytest.mark.parametrize(
    ("sql", "suggestion"),
    [
        ("SELECT proj FROM sessions", "project_path"),
        ("SELECT titel FROM sessions", "title"),
        ("SELECT * FROM session", "sessions"),
        ("SELEC 1", "SELECT"),
        ("SELECT * FORM sessions", "FROM"),
    ],
)
def test_mistake_is_answered_with_what_was_perhaps_meant(filled: RawConnection, sql: str, suggestion: str) -> None:
    error = filled.request("query", {"sql": sql})["error"]
    assert error["code"] == 4010
    assert suggestion in error["data"]["suggestions"]
    assert suggestion in error["message"]


@pytest.mark.parametrize("sql", [";", " ", "--", "SELECT ?", "SELECT :x", "SELECT 1; SELECT 2", "\x00", "SELECT '"])
def test_nonsense_is_refused_with_a_sentence(filled: RawConnection, sql: str) -> None:
    error = filled.request("query", {"sql": sql})["error"]
    assert error["code"] == 4010
    assert error["message"]


def test_schema_may_be_looked_at(filled: RawConnection) -> None:
    assert filled.call("query", sql="PRAGMA table_info(sessions)")["rows"]
    assert filled.call("query", sql="SELECT name FROM sqlite_master")["rows"]
    assert filled.call("query", sql="EXPLAIN QUERY PLAN SELECT * FROM sessions")["rows"]


# -- full-text tables


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM chunks_fts WHERE chunks_fts MATCH 'watcher'",
        "SELECT count(*) FROM chunks_fts JOIN chunks ON chunks.id = chunks_fts.rowid WHERE chunks_fts MATCH 'watcher'",
        "SELECT count(*) FROM (SELECT bm25(chunks_fts) FROM chunks_fts WHERE chunks_fts MATCH 'watcher' ORDER BY rank)",
        "SELECT count(*) FROM chunks_vocabulary WHERE term = 'watcher'",
        "SELECT count(*) FROM chunks_instances WHERE term = 'watcher'",
    ],
)
def test_query_reads_full_text_tables(filled: RawConnection, sql: str) -> None:
    filled.call("upsertMessage", message={"id": "m", "sessionId": "s0", "textContent": "the watcher test is flaky"})
    assert filled.call("query", sql=sql)["rows"] == [[1]]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO chunks_fts (chunks_fts) VALUES ('rebuild')",
        "INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('merge', 1)",
        "DELETE FROM chunks_fts",
    ],
)
def test_query_does_not_write_full_text_tables(filled: RawConnection, sql: str) -> None:
    error = filled.request("query", {"sql": sql})["error"]
    assert (error["code"], error["message"].split()[0]) == (4010, sql.split()[0])


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("PRAGMA user_version = 5", "PRAGMA user_version"),
        ("SELECT * FROM pragma_journal_mode", "PRAGMA journal_mode"),
        ("SELECT 1 FROM pragma_user_version", "PRAGMA user_version"),
    ],
)
def test_query_refusal_names_the_pragma(filled: RawConnection, sql: str, named: str) -> None:
    assert filled.request("query", {"sql": sql})["error"]["message"].startswith(named)


# -- limits

# One call of `instr` that compares thirty million times thirty megabytes: SQLite cannot interrupt a function.
UNINTERRUPTIBLE = "SELECT instr(hex(zeroblob(30000000)), hex(zeroblob(15000000)) || '1')"
QUERY_SECONDS = 2


@pytest.fixture(scope="module")
def limited() -> Iterator[DaemonProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="clk-") as folder,
        running_daemon(Path(folder), CLANKERS_QUERY_SECONDS=str(QUERY_SECONDS)) as daemon,
    ):
        yield daemon


def answered(connection: RawConnection) -> bool:
    return bool(select.select([connection.socket], [], [], 0)[0])


def test_query_that_cannot_be_interrupted_delays_no_event(limited: DaemonProcess) -> None:
    with limited.connect() as slow, limited.connect() as other:
        assert other.call("query", sql="SELECT 1")["rows"] == [[1]]  # the process is started
        slow.send({"jsonrpc": "2.0", "id": 1, "method": "query", "params": {"sql": UNINTERRUPTIBLE}})
        for number in range(20):
            other.call("upsertSession", session={"id": f"s{number}"})
            assert other.call("session.get", id=f"s{number}")["id"] == f"s{number}"
        assert other.call("health")["ok"]
        assert other.call("query", sql="SELECT count(*) FROM sessions WHERE id LIKE 's%'")["rows"] == [[20]]
        assert not answered(slow)
        assert slow.receive()["error"]["code"] == 5003
        for _ in range(3):  # what was killed is replaced
            assert slow.call("query", sql="SELECT 1")["rows"] == [[1]]


def test_slow_queries_wait_for_each_other_and_nobody_else(limited: DaemonProcess) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with limited.connect() as slow, limited.connect() as other:
        for number in range(3):
            slow.send({"jsonrpc": "2.0", "id": number, "method": "query", "params": {"sql": endless}})
        for number in range(20):
            other.call("upsertSession", session={"id": f"t{number}"})
        assert not answered(slow)
        assert [slow.receive()["error"]["code"] for _ in range(3)] == [5003] * 3


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT length(zeroblob(100000000))", "larger than"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9) SELECT "
         "group_concat(hex(zeroblob(20000000))) FROM n", "larger than"),
        ("SELECT " + ", ".join(f"hex(zeroblob(30000000 + {n}))" for n in range(12)), "memory"),
        ("SELECT hex(zeroblob(20000000))", "first row"),
        ("SELECT replace(hex(zeroblob(3500000)), '0', char(1))", "first row"),
    ],
)  # fmt: skip
def test_query_that_needs_too_much_is_refused(limited: DaemonProcess, sql: str, named: str) -> None:
    with limited.connect() as connection:
        error = connection.request("query", {"sql": sql})["error"]
        assert (error["code"], named in error["message"]) == (4010, True), error
        assert connection.call("query", sql="SELECT 1")["rows"] == [[1]]


def test_daemon_stops_while_a_query_cannot_be_interrupted(home: Path) -> None:
    with running_daemon(home, CLANKERS_QUERY_SECONDS="60") as daemon, daemon.connect() as connection:
        connection.send({"jsonrpc": "2.0", "id": 1, "method": "query", "params": {"sql": UNINTERRUPTIBLE}})
        assert daemon.process
        children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children")
        pid = eventually(lambda: children.exists() and children.read_text().strip(), "the query's process runs")
        assert daemon.stop() == 0
        status = Path(f"/proc/{pid}/status")

        def is_killed() -> bool:
            try:
                return "Z (zombie)" in status.read_text()  # nobody may be there to reap it
            except (FileNotFoundError, ProcessLookupError):
                return True

        eventually(is_killed, "the query's process is killed")
