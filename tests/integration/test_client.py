"""The clients against a real daemon, and against servers that misbehave as a daemon would not."""

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.daemon import DaemonProcess, running_daemon
from helpers.fake_daemon import Peer, played

from clankers import (
    AsyncClient,
    BadReply,
    Client,
    DaemonUnavailable,
    InvalidPayload,
    NotFound,
    Overloaded,
    QueryRefused,
    RpcError,
)
from clankers_protocol.admin import DaemonStatus, DbCheck, Health, HealthReport, JobStatus, Query
from clankers_protocol.events import (
    CompactionEvent,
    LogEntry,
    LogWrite,
    MessageEvent,
    SessionErrorEvent,
    SessionEvent,
    ToolEvent,
    UpsertSession,
)
from clankers_protocol.framing import frame
from clankers_protocol.sessions import SessionDelete, SessionGet, SessionList, SessionTimeline

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

HEALTHY = {"ok": True, "version": "0", "protocol": 1, "schemaVersion": 1} | {
    "sqliteVersion": "3",
    "sqliteVecVersion": None,
}


def silent(peer: Peer) -> None:
    peer.wait_for_the_end()


def hang_up_on_the_first_request(peer: Peer) -> None:
    peer.receive()


def answer_ok(peer: Peer) -> None:
    peer.answer(peer.receive(), {"ok": True})


# The blocking client


def test_call_returns_a_typed_result(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        report = client.call(Health())

    assert isinstance(report, HealthReport)
    assert report.ok


def test_client_uses_the_default_socket(shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLANKERS_DATA_PATH", str(shared_daemon.home))
    monkeypatch.delenv("CLANKERS_SOCKET_PATH", raising=False)

    with Client() as client:
        assert client.call(DaemonStatus()).socket_path == str(shared_daemon.socket_path)


def test_call_raises_the_error_of_the_daemon(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        with pytest.raises(NotFound, match="nothing-like-it"):
            client.call(SessionGet("nothing-like-it"))
        with pytest.raises(QueryRefused):
            client.call(Query("DELETE FROM sessions"))


def test_client_can_be_used_after_an_error(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        with pytest.raises(NotFound):
            client.call(SessionGet("nothing-like-it"))

        assert client.call(Health()).ok


def test_events_of_all_five_kinds_are_stored(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        client.events.session("s1", title="Ship it", source="test")
        client.events.message("m1", "s1", role="user", text_content="hello", created_at=1_700_000_000_000)
        client.events.tool("t1", "s1", tool_name="Bash", success=False, created_at=1_700_000_001_000)
        client.events.error("e1", "s1", error_type="Timeout", created_at=1_700_000_002_000)
        client.events.compaction("c1", "s1", tokens_before=9, created_at=1_700_000_003_000)

        session = client.call(SessionGet("s1"))
        timeline = client.call(SessionTimeline("s1"))

    assert session.title == "Ship it"
    assert [entry.kind for entry in timeline.entries] == ["message", "tool", "error", "compaction"]
    assert timeline.entries[0].message
    assert timeline.entries[0].message.text_content == "hello"


def test_events_without_id_are_refused_with_the_field_name(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client, pytest.raises(InvalidPayload) as refused:
        client.events.session("")

    assert refused.value.data["field"].endswith("id")


def test_batch_stores_valid_events_and_reports_invalid_ones(shared_daemon: DaemonProcess) -> None:
    events: list[SessionEvent | MessageEvent | ToolEvent | SessionErrorEvent | CompactionEvent] = [
        SessionEvent("s1"),
        MessageEvent("m1", "s1"),
        MessageEvent("", "s1"),
        ToolEvent("t1", "s1", tool_name="Bash"),
        SessionErrorEvent("e1", "s1"),
        CompactionEvent("c1", "s1"),
    ]
    with Client(shared_daemon.socket_path) as client:
        outcome = client.events.batch(events)
        counts = client.call(SessionGet("s1")).counts

    assert [each.ok for each in outcome.outcomes] == [True, True, False, True, True, True]
    assert not outcome.ok
    assert counts
    assert (counts.messages, counts.tools, counts.errors, counts.compactions) == (1, 1, 1, 1)


def test_client_is_thread_safe(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path, timeout=30) as client:
        threads = [threading.Thread(target=client.events.session, args=(f"s{number}",)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(client.call(SessionList(limit=100)).sessions) == 20


def test_client_reconnects_after_a_restart(home: Path) -> None:
    client = Client(home / "clankers" / "dxta-clankers.sock")
    with client:
        with running_daemon(home) as first:
            client.events.session("s1")
            first.stop()
        with running_daemon(home):
            assert client.call(SessionGet("s1")).id == "s1"


def test_call_without_a_daemon_says_how_to_start_one(home: Path) -> None:
    with Client(home / "none.sock") as client, pytest.raises(DaemonUnavailable) as raised:
        client.call(Health())

    assert isinstance(raised.value, ConnectionError)
    assert "clankersd" in str(raised.value)
    assert "clankers-ctl service install" in str(raised.value)


def test_call_to_an_abandoned_socket_raises_daemon_unavailable(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(home / "old.sock"))

    with Client(home / "old.sock") as client, pytest.raises(DaemonUnavailable):
        client.call(Health())


def test_call_times_out_if_the_server_is_silent(home: Path) -> None:
    with (
        played(home / "s", silent),
        Client(home / "s", timeout=0.05) as client,
        pytest.raises(TimeoutError, match=r"health within 0\.05 s"),
    ):
        client.call(Health())


def test_call_ignores_the_late_reply_of_an_earlier_call(home: Path) -> None:
    late = threading.Event()

    def answer_late(peer: Peer) -> None:
        request = peer.receive()
        late.wait(30)
        with suppress(BrokenPipeError):  # expected: the client has closed the connection
            peer.answer(request, HEALTHY | {"version": "late"})

    def answer_at_once(peer: Peer) -> None:
        peer.answer(peer.receive(), HEALTHY | {"version": "prompt"})

    with played(home / "s", answer_late, answer_at_once), Client(home / "s") as client:
        with pytest.raises(TimeoutError):
            client.call(Health(), timeout=0.05)
        late.set()

        assert client.call(Health()).version == "prompt"


def test_call_resends_an_event_after_a_lost_connection(home: Path) -> None:
    with played(home / "s", hang_up_on_the_first_request, answer_ok) as begun, Client(home / "s") as client:
        assert client.events.session("s1").ok

    assert begun == [0, 1]


def test_call_does_not_resend_a_request_that_is_not_idempotent(home: Path) -> None:
    with played(home / "s", hang_up_on_the_first_request, answer_ok) as begun, Client(home / "s") as client:
        with pytest.raises(DaemonUnavailable, match=r"session\.delete"):
            client.call(SessionDelete("s1"))

        assert begun == [0]


def test_call_resends_any_request_if_the_connection_was_lost_while_idle(home: Path) -> None:
    hung_up = threading.Event()

    def answer_and_hang_up(peer: Peer) -> None:
        answer_ok(peer)
        peer.hang_up()
        hung_up.set()

    def delete(peer: Peer) -> None:
        peer.answer(peer.receive(), {"id": "s1", "counts": {}, "dryRun": False})

    with played(home / "s", answer_and_hang_up, delete), Client(home / "s") as client:
        client.events.session("s1")
        hung_up.wait(30)

        assert client.call(SessionDelete("s1")).id == "s1"


def test_call_raises_the_reason_of_a_refused_connection(home: Path) -> None:
    def refuse(peer: Peer) -> None:
        peer.send({"jsonrpc": "2.0", "id": None, "error": {"code": Overloaded.code, "message": "256 are enough"}})

    with (
        played(home / "s", refuse),
        Client(home / "s") as client,
        pytest.raises(Overloaded, match="256 are enough"),
    ):
        client.call(Health())


@pytest.mark.parametrize("reply", [b"HTTP/1.1 200 OK\r\n\r\n", frame(b"{"), frame(b"[1]")])
def test_call_raises_bad_reply_for_another_protocol(home: Path, reply: bytes) -> None:
    def speak(peer: Peer) -> None:
        peer.send_bytes(reply)
        peer.wait_for_the_end()

    with played(home / "s", speak), Client(home / "s") as client, pytest.raises(BadReply):
        client.call(Health())


def test_call_raises_bad_reply_for_an_unexpected_result(home: Path) -> None:
    def mistake(peer: Peer) -> None:
        peer.answer(peer.receive(), {"ok": "perhaps"})

    with played(home / "s", mistake), Client(home / "s") as client, pytest.raises(BadReply, match="health"):
        client.call(Health())


def test_call_raises_rpc_error_for_an_unknown_error_code(home: Path) -> None:
    def fail(peer: Peer) -> None:
        request = peer.receive()
        peer.send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": 4999, "message": "new"}})

    with played(home / "s", fail), Client(home / "s") as client, pytest.raises(RpcError) as raised:
        client.call(Health())

    assert raised.value.code == 4999


def test_call_refuses_a_request_beyond_the_frame_limit(home: Path) -> None:
    with played(home / "s", answer_ok) as begun, Client(home / "s") as client:
        with pytest.raises(Overloaded):
            client.events.message("m1", "s1", text_content="x" * (33 * 1024 * 1024))

        assert begun == []


def test_call_passes_notifications_to_the_callback(home: Path) -> None:
    def report(peer: Peer) -> None:
        request = peer.receive()
        peer.send({"jsonrpc": "2.0", "method": "$/progress", "params": {"done": 1}})
        peer.answer(request, HEALTHY)

    received: list[Any] = []
    with (
        played(home / "s", report),
        Client(home / "s", on_notification=lambda method, params: received.append((method, params))) as client,
    ):
        client.call(Health())

    assert received == [("$/progress", {"done": 1})]


def test_client_receives_progress_of_a_job(shared_daemon: DaemonProcess) -> None:
    received: list[str] = []
    with Client(shared_daemon.socket_path, on_notification=lambda method, _: received.append(method)) as client:
        job = client.call(JobStatus(client.call(DbCheck()).job_id))
        while job.state == "running":
            job = client.call(JobStatus(job.id))
        client.call(Health())

    assert job.state == "done"
    assert set(received) == {"$/progress"}


# Fire and forget


def test_fire_stores_events(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        fired = [
            client.fire.session("s1", title="Fired"),
            client.fire.message("m1", "s1"),
            client.fire.tool("t1", "s1", tool_name="Bash"),
            client.fire.error("e1", "s1"),
            client.fire.compaction("c1", "s1"),
            client.fire.batch([MessageEvent("m2", "s1")]),
        ]
        wait_for_counts(client, messages=2, compactions=1, errors=1, tools=1)

    assert all(fired)


def wait_for_counts(client: Client, **wanted: int) -> None:
    """Poll until the session has these counts: there is no signal that a notification was stored."""
    counts = None
    while any(getattr(counts, name, None) != number for name, number in wanted.items()):
        with suppress(NotFound):
            counts = client.call(SessionGet("s1")).counts


def test_fire_without_a_daemon_returns_false(home: Path) -> None:
    with Client(home / "none.sock") as client:
        assert client.fire.session("s1") is False


def test_fire_returns_false_for_values_that_are_not_json(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        assert client.fire.session("s1", metadata={"unwritable": object()}) is False
        assert client.notify(Health())


def test_fire_times_out_if_the_server_does_not_read(home: Path) -> None:
    given_up = threading.Event()

    def read_late(peer: Peer) -> None:
        given_up.wait(30)
        peer.wait_for_the_end()

    with played(home / "s", read_late, answer_ok), Client(home / "s", timeout=0.5) as client:
        assert client.fire.message("m1", "s1", text_content="x" * 10_000_000) is False
        given_up.set()

        # The interrupted connection is not reused: this call opens a new one.
        assert client.call(UpsertSession(session=SessionEvent("s1")), timeout=30).ok


def test_fire_reconnects_after_a_restart(home: Path) -> None:
    with Client(home / "clankers" / "dxta-clankers.sock") as client:
        with running_daemon(home) as first:
            assert client.fire.session("s0")
            first.stop()
        assert client.fire.session("lost") is False
        with running_daemon(home):
            assert client.fire.session("s1")
            wait_for_counts(client, messages=0)


# The async client


@pytest.mark.anyio
async def test_async_client_calls_the_daemon(shared_daemon: DaemonProcess) -> None:
    async with AsyncClient(shared_daemon.socket_path) as client:
        await client.events.session("s1", title="Ship it")
        outcome = await client.events.batch([MessageEvent("m1", "s1"), MessageEvent("m2", "s1")])
        session = await client.call(SessionGet("s1"))

    assert outcome.ok
    assert session.title == "Ship it"
    assert session.counts
    assert session.counts.messages == 2


@pytest.mark.anyio
async def test_async_client_raises_errors_unwrapped(shared_daemon: DaemonProcess) -> None:
    with pytest.raises(NotFound):
        async with AsyncClient(shared_daemon.socket_path) as client:
            await client.call(SessionGet("nothing-like-it"))


async def store_session(client: AsyncClient, name: str) -> None:
    await client.events.session(name)


@pytest.mark.anyio
async def test_async_client_shares_one_connection_between_tasks(shared_daemon: DaemonProcess) -> None:
    async with AsyncClient(shared_daemon.socket_path, timeout=30) as client:
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(store_session, client, f"s{number}")
        status = await client.call(DaemonStatus())
        with anyio.fail_after(30):
            while status.connections > 2:  # `rpc` is the second; those of the previous test may still be closing
                status = await client.call(DaemonStatus())

    assert status.counts["sessions"] == 200
    assert status.connections == 2


@pytest.mark.anyio
async def test_async_client_matches_replies_by_id(home: Path) -> None:
    def answer_backwards(peer: Peer) -> None:
        requests = [peer.receive() for _ in range(3)]
        for request in reversed(requests):
            peer.answer(request, {"sessions": [{"id": request["params"]["project"]}]})

    found: dict[str, str] = {}

    async def look(client: AsyncClient, project: str) -> None:
        found[project] = (await client.call(SessionList(project=project))).sessions[0].id

    with played(home / "s", answer_backwards):
        async with AsyncClient(home / "s") as client, anyio.create_task_group() as tasks:
            for project in ("a", "b", "c"):
                tasks.start_soon(look, client, project)

    assert found == {"a": "a", "b": "b", "c": "c"}


@pytest.mark.anyio
async def test_async_client_can_be_used_after_a_timeout(home: Path) -> None:
    def ignore_the_first(peer: Peer) -> None:
        first, cancellation = peer.receive(), peer.receive()
        assert cancellation["method"] == "$/cancelRequest"
        assert cancellation["params"] == {"id": first["id"]}
        second = peer.receive()
        peer.answer(first, HEALTHY | {"version": "late"})
        peer.answer(second, HEALTHY | {"version": "prompt"})

    with played(home / "s", ignore_the_first) as begun:
        async with AsyncClient(home / "s") as client:
            with pytest.raises(TimeoutError, match="health within"):
                await client.call(Health(), timeout=0.05)

            assert (await client.call(Health())).version == "prompt"

    assert begun == [0]


@pytest.mark.anyio
async def test_async_client_reconnects_after_a_restart(home: Path) -> None:
    async with AsyncClient(home / "clankers" / "dxta-clankers.sock") as client:
        with running_daemon(home) as first:
            await client.events.session("s1")
            first.stop()
        with pytest.raises(DaemonUnavailable):
            await client.call(Health())
        with running_daemon(home):
            assert (await client.call(SessionGet("s1"))).id == "s1"


@pytest.mark.anyio
async def test_async_client_resends_only_events(home: Path) -> None:
    async with AsyncClient(home / "s") as client:
        with played(home / "s", hang_up_on_the_first_request, answer_ok):
            assert (await client.events.session("s1")).ok
        (home / "s").unlink()
        with played(home / "s", hang_up_on_the_first_request, answer_ok) as begun:
            with pytest.raises(DaemonUnavailable, match=r"session\.delete"):
                await client.call(SessionDelete("s1"))
            assert begun == [0]


@pytest.mark.anyio
async def test_async_client_fire_never_raises(shared_daemon: DaemonProcess, home: Path) -> None:
    async with AsyncClient(home / "none.sock") as nobody:
        assert await nobody.fire.session("s1") is False
    async with AsyncClient(shared_daemon.socket_path) as client:
        assert await client.fire.session("s1", metadata={"unwritable": object()}) is False
        assert await client.fire.session("s1")
        await client.events.session("s1")  # stored after the fired event, so that no other test sees it


@pytest.mark.anyio
async def test_async_client_passes_notifications_to_the_callback(home: Path) -> None:
    def report(peer: Peer) -> None:
        request = peer.receive()
        peer.send({"jsonrpc": "2.0", "method": "$/progress", "params": {"done": 1}})
        peer.answer(request, HEALTHY)

    received: list[Any] = []
    with played(home / "s", report):
        async with AsyncClient(
            home / "s", on_notification=lambda method, params: received.append((method, params))
        ) as client:
            await client.call(Health())

    assert received == [("$/progress", {"done": 1})]


# Client information


def test_events_carry_name_and_version_of_the_client(home: Path) -> None:
    received: list[dict[str, Any]] = []

    def remember(peer: Peer) -> None:
        received.append(peer.receive())
        peer.answer(received[0], {"ok": True})

    with played(home / "s", remember), Client(home / "s", name="my-plugin", version="1.2") as client:
        client.events.session("s1")

    assert received[0]["params"]["schemaVersion"] == "v1"
    assert received[0]["params"]["client"] == {"name": "my-plugin", "version": "1.2"}


def test_log_write_reaches_the_log_of_the_daemon(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        client.call(LogWrite(entry=LogEntry(level="warning", component="my-plugin", message="odd thing")))
        client.call(UpsertSession(session=SessionEvent("s1")))

    lines = [json.loads(line) for file in shared_daemon.logs.iterdir() for line in file.read_text().splitlines()]
    assert any(line["message"] == "odd thing" and line["level"] == "warning" for line in lines)
