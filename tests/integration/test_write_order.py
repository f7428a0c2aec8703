"""Single events go before bulk work, in the order of their connection; long reads keep nobody waiting."""

import select
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import eventually

from clankers_protocol.errors import DeadlineExceeded, StorageUnavailable
from clankers_protocol.recall import RecordedSearch
from clankersd import clock
from clankersd.capture.pause import Pauses
from clankersd.db import Db, Store, commit_priority, commits, write_queue
from clankersd.db.file_guard import FileGuard
from clankersd.db.group_commit import ChangeResult
from clankersd.db.store import SHORT_READ_SECONDS
from clankersd.recall import recent
from clankersd.recall.outcomes import InjectionJudge

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 30.0
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
LONG = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT count(*) FROM n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[Store]:
    """A store whose writes are committed, with a table of its own."""
    store = Store(folder / "clankers.db", folder / "backups", "normal")
    await store.open()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            await store.run_exclusive(lambda db: db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"))
            yield store
            tasks.cancel_scope.cancel()
    finally:
        await store.close()


def note(text: str, seconds: float = 0.0) -> Callable[[Db], None]:
    def change(db: Db) -> None:
        time.sleep(seconds)
        db.execute("INSERT INTO notes (text) VALUES (:text)", {"text": text})

    return change


async def stored(store: Store) -> list[str]:
    return [row[0] for row in await store.read(lambda db: db.tuples("SELECT text FROM notes ORDER BY id"))]


async def test_single_write_goes_before_bulk_writes_that_wait(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(store.write_all, [note("bulk", 0.002) for _ in range(100)])
        await anyio.sleep(0.01)
        await store.write(note("single"))
        waiting = store.queue.size
        assert waiting > 50


async def test_recall_log_is_stored_in_small_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_ROWS", 30)
    async with open_store(tmp_path) as store:
        log = recent.RecallLog(store, Pauses(tmp_path), InjectionJudge(store))
        for number in range(45):
            facts = RecordedSearch(
                0, clock.now(), f"query {number}", None, "hybrid", 1.0, 0.0, 10, False, False, None, []
            )
            log.add_search(facts)
        writes_before = store.queue.counts.writes
        await log.store_pending()
        assert store.queue.counts.writes - writes_before >= (45 + 15) // recent.ROWS_PER_WRITE
        queries = [row[0] for row in await store.read(lambda db: db.tuples("SELECT query FROM recall_log ORDER BY id"))]
        assert queries == [f"query {number}" for number in range(15, 45)]


async def test_work_on_the_event_loop_goes_on_once_events_that_arrived_before_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "EVENTS_FIRST_SECONDS", WAIT_SECONDS)
    order = []
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:

        async def work() -> None:
            await store.let_events_pass()
            order.append("work")

        async def store_event() -> None:
            await anyio.lowlevel.checkpoint()  # its frame has to be decoded
            await store.write(note("event", 0.01))
            order.append("event")

        tasks.start_soon(work)
        tasks.start_soon(store_event)
    assert order == ["event", "work"]


async def test_work_on_the_event_loop_does_not_wait_without_end_for_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "EVENTS_FIRST_SECONDS", 0.01)
    has_passed = threading.Event()
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(store.write, lambda _: has_passed.wait(WAIT_SECONDS))
        await store.let_events_pass()
        assert store.queue.has_single_writes
        has_passed.set()


async def test_bulk_writes_are_all_stored_beside_single_writes_without_end(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:

        async def write_singles() -> None:
            while True:
                await store.write(note("single", 0.001))

        for _ in range(3):
            tasks.start_soon(write_singles)
        results = await store.write_all([note(f"bulk {number}") for number in range(200)])
        tasks.cancel_scope.cancel()
        assert [result.error for result in results] == [None] * 200


async def test_writes_of_one_source_keep_their_order(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        source = "one"
        store.get_write_source = lambda: source
        tasks.start_soon(store.write_all, [note(f"one {number}", 0.002) for number in range(20)])
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(store.write, note("one, after its bulk"))
        await anyio.lowlevel.checkpoint()
        source = "two"
        await store.write(note("two"))
        while store.queue.size:
            await anyio.sleep(0.005)
        order = await stored(store)
        assert order.index("two") < order.index("one 19")
        assert [text for text in order if text != "two"] == [*(f"one {n}" for n in range(20)), "one, after its bulk"]


async def test_bulk_write_that_fails_fails_alone(tmp_path: Path) -> None:
    def fail(db: Db) -> None:
        db.execute("INSERT INTO notes (text) VALUES ('half')")
        raise ValueError("no")

    async with open_store(tmp_path) as store:
        results = await store.write_all([note("a"), fail, note("b")])
        assert [str(result.error) if result.error else None for result in results] == [None, "no", None]
        assert await stored(store) == ["a", "b"]


async def test_long_read_delays_no_write(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        answers: list[int] = []

        async def read() -> None:
            answers.append(await store.read(lambda db: db.value(LONG)))

        for _ in range(3):
            tasks.start_soon(read)
        await anyio.lowlevel.checkpoint()
        await store.write(note("a"))
        assert answers == []
    assert answers == [3_000_000] * 3


async def test_read_without_end_is_stopped_at_its_deadline(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        with pytest.raises(DeadlineExceeded):
            await store.read(lambda db: db.value(ENDLESS), seconds=0.2)
        await store.write(note("a"))
        assert await stored(store) == ["a"]


async def test_interrupt_that_looks_like_another_error_is_tried_again(tmp_path: Path) -> None:
    tried = []

    def read(db: Db) -> str:
        tried.append(db)
        if len(tried) == 1:
            time.sleep(SHORT_READ_SECONDS * 2)
            raise apsw.SQLError("vtable constructor failed: chunks_instances")
        return "answer"

    async with open_store(tmp_path) as store:
        assert await store.read(read) == "answer"


async def test_store_reports_writes_that_wait_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_queue, "LONG_WAIT_SECONDS", 0.2)
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        await store.write(note("short"))
        assert store.queue.problem is None
        tasks.start_soon(store.write, note("slow", 0.6))
        while not (problem := store.queue.problem):
            await anyio.sleep(0.02)
        assert "events wait" in problem
        await store.write(note("behind it"))
        assert store.queue.problem is None
        assert store.queue.longest_wait_seconds >= 0.6


def test_health_reports_how_long_writes_wait(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        connection.call("upsertSession", session={"id": "s"})
        # Services write something of their own when the daemon starts.
        eventually(lambda: connection.call("health")["writeWaitMs"] == 0, "a report that nothing waits")
        report = connection.call("health")
        assert report["ok"]
        assert report["longestWriteWaitMs"] > 0


def test_event_is_answered_before_a_large_batch_of_another_connection(shared_daemon: DaemonProcess) -> None:
    messages = [{"message": {"id": f"m{n}", "sessionId": "b", "textContent": f"text {n} " * 50}} for n in range(1500)]
    with shared_daemon.connect() as batch, shared_daemon.connect() as other:
        batch.send({"jsonrpc": "2.0", "id": 1, "method": "events.batch", "params": {"events": messages}})
        other.call("upsertSession", session={"id": "s"})
        assert not _has_reply(batch)
        assert batch.receive()["result"]["ok"]


def _has_reply(connection: RawConnection) -> bool:
    return bool(select.select([connection.socket], [], [], 0)[0])


async def test_single_write_that_arrives_during_bulk_writes_is_in_their_commit(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        started, arrived = threading.Event(), threading.Event()

        def wait_for_single(_db: Db) -> None:
            started.set()
            assert arrived.wait(30)

        tasks.start_soon(store.write_all, [wait_for_single, note("bulk")])
        await anyio.to_thread.run_sync(started.wait, 30)
        commits = store.queue.counts.commits
        async with anyio.create_task_group() as singles:
            singles.start_soon(store.write, note("single"))
            await anyio.lowlevel.checkpoint()
            arrived.set()
        assert store.queue.counts.commits == commits + 1


async def test_reader_causes_no_checkpoint_after_each_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_PAGES", 10)
    checkpoints = 0
    checkpoint = FileGuard.checkpoint

    def count(guard: FileGuard, db: Db) -> None:
        nonlocal checkpoints
        checkpoints += 1
        checkpoint(guard, db)

    monkeypatch.setattr(FileGuard, "checkpoint", count)
    reading, done = threading.Event(), threading.Event()

    def read(db: Db) -> None:
        db.value("SELECT count(*) FROM notes")
        reading.set()
        assert done.wait(30)

    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(store.snapshot_read, read)
        await anyio.to_thread.run_sync(reading.wait, 30)
        try:
            await store.write(note("text" * 20_000))  # more pages than a checkpoint waits for
            before = checkpoints
            for number in range(10):
                await store.write(note(f"small {number}"))
                await store.read(lambda db: db.value("SELECT 1"))
            assert checkpoints - before <= 4  # and not one for each commit
        finally:
            done.set()


async def test_write_of_a_running_commit_outlasts_the_time_until_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "IDLE_SECONDS", 0.01)
    async with open_store(tmp_path) as store:
        await store.write(note("first"))
        with anyio.fail_after(WAIT_SECONDS):
            await store.write(note("slow", seconds=0.2))
            await store.write(note("last"))
        assert await stored(store) == ["first", "slow", "last"]


def test_bulk_work_waits_while_a_commit_runs_its_statements() -> None:
    order: list[str] = []

    def prepare() -> None:
        commit_priority.yield_to_commits()
        order.append("bulk")

    with commit_priority.bulk_work_held():
        worker = threading.Thread(target=prepare)
        worker.start()
        order.append("statements")
        commit_priority.release_bulk_work()
        worker.join(30)
        order.append("disk")
    assert order == ["statements", "bulk", "disk"]


async def test_commit_that_ends_after_damage_was_found_does_not_hide_it(tmp_path: Path) -> None:
    is_reading, is_queued, is_recorded = threading.Event(), threading.Event(), threading.Event()

    def find_damage(_: Db) -> None:
        is_reading.set()
        is_queued.wait(WAIT_SECONDS)
        raise apsw.CorruptError("a page is damaged")

    def slow_note(db: Db) -> None:
        is_recorded.wait(WAIT_SECONDS)
        note("committed")(db)

    async def read() -> None:
        with pytest.raises(StorageUnavailable):
            await store.read(find_damage)

    async with open_store(tmp_path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.to_thread.run_sync(is_reading.wait, WAIT_SECONDS)
        tasks.start_soon(store.write, slow_note)
        await anyio.wait_all_tasks_blocked()
        is_queued.set()
        while store.problem is None:
            await anyio.sleep(0.001)
        is_recorded.set()
        while store.queue.size:
            await anyio.sleep(0.001)
        assert store.problem is not None
        assert "damaged" in store.problem


@pytest.mark.parametrize(("since_single", "milliseconds"), [(0.01, 2), (0.2, 10), (1.0, 50), (60.0, 100)])
async def test_bulk_writes_of_a_commit_are_more_the_longer_no_single_write_has_come(
    monkeypatch: pytest.MonkeyPatch, since_single: float, milliseconds: int
) -> None:
    now = [1000.0]
    monkeypatch.setattr("clankersd.db.write_queue.time.monotonic", lambda: now[0])
    queue = write_queue.PendingWrites()
    single = queue.add(lambda db: None, None, bulk=False)
    taken: list[write_queue.PendingWrite] = []
    queue.finish(taken, [ChangeResult() for _ in queue.select(taken, 0.002)], lambda _: None)
    assert single.done()
    now[0] += since_single
    bulk = queue.add_all([lambda db: None] * 500, None)
    taken = []
    for _change in queue.select(taken, 0.002):
        now[0] += 0.001
    assert milliseconds <= len(taken) <= 1.1 * milliseconds + 1  # the share grows while they run
    bulk.cancel()
