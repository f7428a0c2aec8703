"""Cancellation of requests: possible until their first write has begun, and never afterwards."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import anyio
import apsw
import pytest

from clankers_protocol.errors import RequestCancelled
from clankersd.cancellation import Cancellation, current_cancellation
from clankersd.db import Db
from clankersd.db.group_commit import commit_together
from clankersd.db.write_queue import PendingWrite, PendingWrites


@pytest.fixture
def db() -> Iterator[Db]:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE messages (id TEXT PRIMARY KEY) STRICT")
    yield Db(connection)
    connection.close()


def add(queue: PendingWrites, name: str, cancellation: Cancellation | None) -> "asyncio.Future[None]":
    """Queue a write of this request."""
    current_cancellation.set(cancellation)
    return queue.add(lambda db: db.execute("INSERT INTO messages VALUES (:id)", {"id": name}), None, bulk=False)


def commit(db: Db, queue: PendingWrites) -> list[str]:
    """Commit what waits; returns all that is stored."""
    taken: list[PendingWrite] = []
    results = commit_together(db, queue.select(taken, 1.0))
    queue.finish(taken, results, lambda _: None)
    return [row[0] for row in db.tuples("SELECT id FROM messages ORDER BY rowid")]


@pytest.mark.anyio
async def test_queue_leaves_out_the_writes_of_a_cancelled_request(db: Db) -> None:
    queue, cancelled = PendingWrites(), Cancellation()
    first, withdrawn, last = add(queue, "a", None), add(queue, "b", cancelled), add(queue, "c", Cancellation())
    assert cancelled.cancel(RequestCancelled("enough"))
    assert commit(db, queue) == ["a", "c"]
    assert queue.size == 0
    await first
    await last
    with pytest.raises(RequestCancelled, match="enough"):
        await withdrawn


@pytest.mark.anyio
async def test_cancellation_is_refused_once_a_write_has_begun(db: Db) -> None:
    queue, request = PendingWrites(), Cancellation()
    first = add(queue, "a", request)
    assert commit(db, queue) == ["a"]
    await first
    second = add(queue, "b", request)
    assert not request.cancel(RequestCancelled("too late"))
    assert commit(db, queue) == ["a", "b"]
    await second


@pytest.mark.anyio
async def test_write_added_after_a_cancellation_cleans_up(db: Db) -> None:
    queue, request = PendingWrites(), Cancellation()
    request.cancel(RequestCancelled("enough"))
    cleaning = add(queue, "a", request)
    assert commit(db, queue) == ["a"]
    await cleaning


async def run(request: Cancellation, way: str, work: Callable[[], Awaitable[None]]) -> None:
    if way == "run":
        await request.run(work)
    else:
        task = asyncio.current_task()
        assert task is not None
        await request.run_event(work, task)


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["run", "run_event"])
async def test_cancellation_ends_the_work_with_its_reason(way: str) -> None:
    request, ended = Cancellation(), list[str]()

    async def serve() -> None:
        with pytest.raises(RequestCancelled, match="enough"):
            await run(request, way, anyio.sleep_forever)
        await anyio.sleep(0)  # the task itself goes on
        ended.append(way)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await anyio.wait_all_tasks_blocked()
        assert request.cancel(RequestCancelled("enough"))
    assert ended == [way]


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["run", "run_event"])
async def test_request_cancelled_before_it_starts_does_nothing(way: str) -> None:
    request, ran = Cancellation(), list[int]()
    request.cancel(RequestCancelled("enough"))

    async def work() -> None:
        ran.append(1)

    with pytest.raises(RequestCancelled):
        await run(request, way, work)
    assert not ran
