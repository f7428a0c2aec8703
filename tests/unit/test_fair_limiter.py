"""Turns between connections: a few at once, round robin, and nobody is forgotten."""

import anyio
import pytest

from clankers_protocol.errors import Overloaded
from clankersd.wire.fair_limiter import FairLimiter

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def hold(limiter: FairLimiter, key: str, order: list[str]) -> None:
    async with limiter.slot(key):
        order.append(key)
        await anyio.lowlevel.checkpoint()


async def test_limiter_serves_keys_in_turn() -> None:
    limiter = FairLimiter("calls", 1, 100)
    order: list[str] = []
    async with anyio.create_task_group() as tasks:
        for key in ["a"] * 5 + ["b"] * 2 + ["c"]:
            tasks.start_soon(hold, limiter, key, order)
    assert order == ["a", "a", "b", "c", "a", "b", "a", "a"]


async def test_limiter_lets_no_more_in_than_it_has_slots() -> None:
    limiter, inside, most = FairLimiter("calls", 3, 100), 0, 0

    async def enter() -> None:
        nonlocal inside, most
        async with limiter.slot("a"):
            inside += 1
            most = max(most, inside)
            await anyio.sleep(0)
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(enter)
    assert (most, limiter.waiting) == (3, 0)


async def test_limiter_refuses_when_too_many_wait() -> None:
    limiter = FairLimiter("calls", 1, 2)
    async with anyio.create_task_group() as tasks, limiter.slot("a"):
        tasks.start_soon(hold, limiter, "b", [])
        tasks.start_soon(hold, limiter, "b", [])
        await anyio.lowlevel.checkpoint()
        with pytest.raises(Overloaded, match="calls"):
            await hold(limiter, "c", [])


async def test_limiter_forgets_who_was_cancelled() -> None:
    limiter = FairLimiter("calls", 1, 100)
    order: list[str] = []
    async with anyio.create_task_group() as tasks, limiter.slot("a"):
        async with anyio.create_task_group() as others:
            others.start_soon(hold, limiter, "b", order)
            others.start_soon(hold, limiter, "b", order)
            await anyio.lowlevel.checkpoint()
            others.cancel_scope.cancel()
        tasks.start_soon(hold, limiter, "c", order)
        await anyio.lowlevel.checkpoint()
    assert (order, limiter.waiting) == (["c"], 0)


async def test_limiter_lets_others_in_while_a_turn_is_paused() -> None:
    limiter = FairLimiter("calls", 1, 1)
    order: list[str] = []
    async with anyio.create_task_group() as tasks, limiter.slot("a"):
        tasks.start_soon(hold, limiter, "b", order)
        await anyio.lowlevel.checkpoint()
        async with limiter.pause("a"):
            await anyio.wait_all_tasks_blocked()
            assert order == ["b"]
        tasks.start_soon(hold, limiter, "c", order)
        await anyio.lowlevel.checkpoint()
        assert order == ["b"]
    assert (order, limiter.waiting) == (["b", "c"], 0)


async def test_limiter_has_all_its_slots_after_a_paused_turn_was_cancelled() -> None:
    limiter = FairLimiter("calls", 1, 1)
    order: list[str] = []
    with anyio.move_on_after(0):
        async with limiter.slot("a"), limiter.pause("a"):
            await anyio.sleep_forever()
    async with anyio.create_task_group() as tasks, limiter.slot("b"):
        tasks.start_soon(hold, limiter, "c", order)
        await anyio.wait_all_tasks_blocked()
        assert order == []
