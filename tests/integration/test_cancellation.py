"""Cancelling requests: by `$/cancelRequest`, by closing the connection, and at the deadline."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import message, request
from helpers.waiting import eventually
from helpers.writers import stored

from clankers import AsyncClient, Client, RequestCancelled
from clankers_protocol.admin import Health, Query

REQUEST_CANCELLED = -32800
DEADLINE_EXCEEDED = 5003
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"


@pytest.fixture(scope="module")
def patient_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon whose queries may take longer than any test."""
    with running_daemon(
        tmp_path_factory.mktemp("patient"), CLANKERS_EMBEDDER="none", CLANKERS_QUERY_SECONDS="60"
    ) as daemon:
        yield daemon


@contextmanager
def writes_waiting(daemon: DaemonProcess) -> Iterator[None]:
    """Hold the write lock of the database: no write can begin inside the block."""
    other = apsw.Connection(str(daemon.database))
    other.set_busy_timeout(5000)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def cancel(connection: RawConnection, request_id: str | int) -> None:
    connection.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": request_id}})


def cancelled(daemon: DaemonProcess, method: str) -> int:
    """Count the requests of this method that were cancelled."""
    with daemon.connect() as connection:
        metrics = {one["name"]: one["samples"] for one in connection.call("metrics")["metrics"]}
    labels = {"method": method, "outcome": "cancelled"}
    return sum(sum(one["buckets"]["counts"]) for one in metrics["clankers_request_seconds"] if one["labels"] == labels)


def memory_texts(connection: RawConnection) -> list[str]:
    return [one["content"] for one in connection.call("memory.list", scopes=["*"])["memories"]]


def test_cancel_request_ends_a_query_and_frees_its_process(patient_daemon: DaemonProcess) -> None:
    with patient_daemon.connect() as connection:
        for number in range(3):  # one more than there are processes
            connection.send(request(f"slow-{number}", "query", sql=ENDLESS))
        for number in range(3):
            cancel(connection, f"slow-{number}")
        replies = [connection.receive() for _ in range(3)]
        assert {reply["id"] for reply in replies} == {"slow-0", "slow-1", "slow-2"}
        assert {reply["error"]["code"] for reply in replies} == {REQUEST_CANCELLED}
        assert connection.call("query", sql="SELECT 1")["rows"] == [[1]]


def test_cancel_request_withdraws_a_write_that_has_not_begun(patient_daemon: DaemonProcess) -> None:
    with patient_daemon.connect() as connection:
        with writes_waiting(patient_daemon):
            for name in ("withdrawn", "kept"):
                connection.send(request(name, "upsertMessage", message=message(name)))
            connection.send(request("memory", "memory.add", scope="global", content="Never remembered."))
            for name in ("withdrawn", "memory"):
                cancel(connection, name)
            refused = {reply["id"]: reply["error"]["code"] for reply in (connection.receive(), connection.receive())}
            assert refused == {"withdrawn": REQUEST_CANCELLED, "memory": REQUEST_CANCELLED}
        assert connection.receive() == {"jsonrpc": "2.0", "id": "kept", "result": {"ok": True}}
        assert "Never remembered." not in memory_texts(connection)
    assert {"withdrawn", "kept"} & stored(patient_daemon.database) == {"kept"}


def test_cancel_request_overtakes_requests_that_wait(patient_daemon: DaemonProcess) -> None:
    with patient_daemon.connect() as connection:
        with writes_waiting(patient_daemon):
            for number in range(70):  # more than run at once
                connection.send(request(number, "upsertMessage", message=message(f"full-{number}")))
            cancel(connection, 0)
            reply = connection.receive()
            assert (reply["id"], reply["error"]["code"]) == (0, REQUEST_CANCELLED)
        replies = [connection.receive() for _ in range(69)]
        assert all("error" not in reply for reply in replies)


def test_cancel_request_for_an_unknown_id_is_ignored(patient_daemon: DaemonProcess) -> None:
    with patient_daemon.connect() as connection:
        cancel(connection, "unknown")
        assert connection.call("health")["ok"]
        assert connection.request("$/cancelRequest", {"id": 5})["result"] == {"ok": True}
        wrong = connection.request("$/cancelRequest", {"request": 5})["error"]
        assert "request" in wrong["message"]


def test_cancel_request_does_not_stop_a_change_of_the_settings(patient_daemon: DaemonProcess) -> None:
    with patient_daemon.connect() as connection:
        connection.send(request("set", "daemon.configure", key="backup_keep", value=9))
        cancel(connection, "set")
        settings = {one["key"]: one["value"] for one in connection.receive()["result"]["settings"]}
        assert settings["backup_keep"] == 9


def test_closed_connection_stores_what_it_sent_and_cancels_its_query(patient_daemon: DaemonProcess) -> None:
    before = cancelled(patient_daemon, "query")
    with patient_daemon.connect() as other, patient_daemon.connect() as connection:
        connection.send(request("slow", "query", sql=ENDLESS))
        connection.call("daemon.status")  # the query has passed its check of the database
        with writes_waiting(patient_daemon):
            connection.send(request("event", "upsertMessage", message=message("last-words")))
            connection.send(request("memory", "memory.add", scope="global", content="Nobody waits for this."))
            connection.send({"jsonrpc": "2.0", "method": "upsertMessage", "params": {"message": message("fired")}})
            for number in range(80):  # more than run at once
                connection.send(request(number, "upsertMessage", message=message(f"more-{number}")))
            connection.socket.close()
            for _ in range(5):
                other.call("health")  # it has seen the end of the connection by now
        eventually(lambda: cancelled(patient_daemon, "query") == before + 1, "the query is cancelled")
        wanted = {"last-words", "fired", *(f"more-{number}" for number in range(80))}
        eventually(lambda: wanted <= stored(patient_daemon.database), "events are stored")
        eventually(lambda: "Nobody waits for this." in memory_texts(other), "the memory is stored")


def test_closed_connection_is_noticed_while_the_daemon_does_not_read_from_it(patient_daemon: DaemonProcess) -> None:
    before = cancelled(patient_daemon, "query")
    with patient_daemon.connect() as connection:
        for number in range(2):
            connection.send(request(f"slow-{number}", "query", sql=ENDLESS))
        connection.call("daemon.status")  # both have passed their check of the database
        filler = request("filler", "health", client={"name": "x" * 60_000, "version": "1"})
        connection.socket.setblocking(False)
        with suppress(BlockingIOError):  # the daemon has stopped reading
            while True:
                connection.send(filler)
    eventually(lambda: cancelled(patient_daemon, "query") == before + 2, "both are cancelled")


def test_half_closed_connection_still_gets_its_answer(patient_daemon: DaemonProcess) -> None:
    count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT count(*) FROM n"
    with patient_daemon.connect() as connection:
        connection.send(request(1, "query", sql=count))
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.receive()["result"]["rows"] == [[3_000_000]]


def test_request_beyond_its_deadline_is_cancelled_with_advice(home: Path) -> None:
    with running_daemon(
        home, CLANKERS_EMBEDDER="none", CLANKERS_QUERY_SECONDS="60", CLANKERS_REQUEST_SECONDS="0.4"
    ) as daemon:
        with daemon.connect() as connection:
            error = connection.request("query", {"sql": ENDLESS})["error"]
            assert error["code"] == DEADLINE_EXCEEDED
            assert "request_seconds" in error["message"]
            with writes_waiting(daemon):
                late = connection.request("upsertMessage", {"message": message("late")})["error"]
                assert late["code"] == DEADLINE_EXCEEDED
            assert "error" not in connection.request("upsertMessage", {"message": message("in-time")})
        assert stored(daemon.database) == {"in-time"}


def test_client_cancels_the_call_of_another_thread(patient_daemon: DaemonProcess) -> None:
    raised: list[BaseException] = []

    def call(client: Client) -> None:
        try:
            client.call(Query(ENDLESS), timeout=60)
        except BaseException as error:
            raised.append(error)

    with Client(patient_daemon.socket_path) as client:
        assert client.cancel() is False
        thread = threading.Thread(target=call, args=(client,))
        thread.start()
        eventually(client.cancel, "there is a call to cancel")
        thread.join()
        assert [type(error) for error in raised] == [RequestCancelled]
        assert client.call(Health()).ok


def test_client_timeout_cancels_the_request(patient_daemon: DaemonProcess) -> None:
    before = cancelled(patient_daemon, "query")
    with Client(patient_daemon.socket_path) as client:
        with pytest.raises(TimeoutError):
            client.call(Query(ENDLESS), timeout=0.3)
        eventually(lambda: cancelled(patient_daemon, "query") == before + 1, "the query is cancelled")


@pytest.mark.anyio
async def test_async_client_cancels_with_its_task_and_keeps_the_connection(patient_daemon: DaemonProcess) -> None:
    before = cancelled(patient_daemon, "query")
    async with AsyncClient(patient_daemon.socket_path, timeout=60) as client:
        await client.call(Health())
        connection = client._connection
        with anyio.move_on_after(0.3) as scope:
            await client.call(Query(ENDLESS))
        assert scope.cancelled_caught
        await anyio.to_thread.run_sync(
            eventually, lambda: cancelled(patient_daemon, "query") == before + 1, "the query is cancelled"
        )
        assert (await client.call(Health())).ok
        assert client._connection is connection
