"""Large requests are prepared in threads, in the order of their connection."""

import threading

import anyio
import pytest

from clankersd.wire.preparation import (
    HUGE_REQUEST_BYTES,
    LARGE_REQUEST_BYTES,
    RequestOrder,
    current_order,
    current_request_bytes,
    prepare,
    thread_limiter,
)

pytestmark = pytest.mark.anyio


async def test_prepare_calls_at_once_what_is_small_and_in_a_thread_what_is_large() -> None:
    current_order.set(RequestOrder())
    assert await prepare(threading.current_thread) is threading.main_thread()
    current_request_bytes.set(LARGE_REQUEST_BYTES)
    assert await prepare(threading.current_thread) is not threading.main_thread()


async def test_prepare_of_ordinary_size_does_not_wait_for_a_huge_one() -> None:
    current_order.set(RequestOrder())
    current_request_bytes.set(LARGE_REQUEST_BYTES)
    async with thread_limiter(HUGE_REQUEST_BYTES):
        assert await prepare(lambda: "prepared") == "prepared"


async def test_order_starts_those_held_back_one_after_the_other_and_survives_a_cancelled_one() -> None:
    order, started = RequestOrder(), []

    async def serve(name: str, prepares: bool = False) -> None:
        if order.is_blocked:
            await order.wait()
        started.append(name)
        if prepares:
            order.begin_preparing()
            await anyio.sleep(0)
            started.append(f"{name} prepared")
            order.end_preparing()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, "large", True)
        tasks.start_soon(serve, "small")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await serve("cancelled")
        tasks.start_soon(serve, "second large", True)
        tasks.start_soon(serve, "last")
    order_seen = ["large", "large prepared", "small", "second large", "second large prepared", "last"]
    assert [name for name in started if name != "cancelled"] == order_seen
    assert not order.is_blocked
