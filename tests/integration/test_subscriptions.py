"""Being told of changes: what was asked for and only that, after the commit, and never at the others' cost."""

import time
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import message
from helpers.waiting import eventually

from clankers_protocol.errors import Conflict, InvalidParams, NotFound

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test


def subscribe(connection: RawConnection, *kinds: str, **filters: Any) -> str:
    return str(connection.call("subscribe", kinds=list(kinds), **filters)["subscriptionId"])


def next_change(connection: RawConnection) -> dict[str, Any]:
    """The next notification of a change, without what no test expects."""
    told = connection.notifications.pop(0) if connection.notifications else connection.receive()
    assert told["method"] == "subscription.changed"
    return {key: told["params"][key] for key in ("kind", "action", "id", "facts")}


def changes_until(connection: RawConnection, last: str) -> list[str]:
    """The ids of what changed, up to and with the last."""
    found: list[str] = []
    while last not in found:
        found.append(next_change(connection)["id"])
    return found


def store(connection: RawConnection, name: str, session: str = "s", role: str = "user") -> None:
    connection.call("upsertMessage", message={"id": name, "sessionId": session, "role": role, "textContent": "hello"})


def test_notifications_of_sessions_and_messages_have_their_facts(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader:
        subscribe(reader, "session", "message")
        writer.call("upsertSession", session={"id": "s", "projectPath": "/src/shop", "chatId": "room"})
        told = next_change(reader)
        project = writer.call("session.get", id="s")["projectId"]
        place = {"chatId": "room", "projectPath": "/src/shop", "projectId": project}
        assert told == {"kind": "session", "action": "stored", "id": "s", "facts": {"sessionId": "s", **place}}
        store(writer, "m", role="assistant")
        facts = {"sessionId": "s", "role": "assistant", **place}
        assert next_change(reader) == {"kind": "message", "action": "stored", "id": "m", "facts": facts}
        writer.call("thread.delete", id="s")
        told = next_change(reader)
        assert (told["kind"], told["action"], told["facts"]["chatId"]) == ("session", "deleted", "room")


def test_notifications_come_from_every_way_to_store_a_message(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader:
        subscribe(reader, "message")
        store(writer, "upserted")
        writer.call("events.batch", events=[{"message": message("batched")}, {"nonsense": 1}])
        writer.call("hook.event", harness="generic", event={"message": message("hooked")})
        writer.call("message.store", threadId="t", role="user", content="x", id="stored")
        assert changes_until(reader, "stored") == ["upserted", "batched", "hooked", "stored"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["a-user", "a-assistant", "b-user", "b-assistant"]),
        ({"sessionId": "a"}, ["a-user", "a-assistant"]),
        ({"chatId": "hall"}, ["b-user", "b-assistant"]),
        ({"project": "/src/a/"}, ["a-user", "a-assistant"]),
        ({"role": "assistant"}, ["a-assistant", "b-assistant"]),
        ({"sessionId": "b", "role": "user"}, ["b-user"]),
        ({"id": "a-user"}, ["a-user"]),
    ],
)
def test_filters_select_the_notifications(
    shared_daemon: DaemonProcess, filters: dict[str, str], expected: list[str]
) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader:
        writer.call("upsertSession", session={"id": "a", "chatId": "room", "projectPath": "/src/a"})
        writer.call("upsertSession", session={"id": "b", "chatId": "hall", "projectPath": "/src/b"})
        subscribe(reader, "message", **filters)
        for session in ("a", "b"):
            for role in ("user", "assistant"):
                store(writer, f"{session}-{role}", session, role)
        subscribe(reader, "session", id="end")
        writer.call("upsertSession", session={"id": "end"})
        assert changes_until(reader, "end")[:-1] == expected


def test_role_filter_uses_the_stored_role_of_a_partial_message(
    shared_daemon: DaemonProcess,
) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader:
        store(writer, "m", role="assistant")
        subscribe(reader, "message", role="assistant")
        writer.call("upsertMessage", message={"id": "m", "sessionId": "s", "completionTokens": 5})
        assert next_change(reader)["id"] == "m"


def test_notifications_of_jobs_and_schedules(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as writer, daemon.connect() as reader:
        subscribe(reader, "job", "schedule")
        job = writer.call("db.check")["jobId"]
        first, second = next_change(reader), next_change(reader)
        assert (first["action"], first["id"], first["facts"]["kind"]) == ("started", job, "check")
        assert (second["action"], second["id"], second["facts"]["error"]) == ("done", job, None)
        action = writer.call("schedule.create", description="d", schedule="09:00 daily")["id"]
        writer.call("schedule.enable", id=action, enabled=False)
        writer.call("schedule.delete", id=action)
        told = [next_change(reader) for _ in range(3)]
        assert [(one["action"], one["id"]) for one in told] == [
            ("created", action), ("disabled", action), ("deleted", action)
        ]  # fmt: skip


def test_notifications_of_memories_have_scope_and_project(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader, shared_daemon.connect() as elsewhere:
        subscribe(reader, "memory", project="/src/shop")
        subscribe(elsewhere, "memory", project="/src/other")
        writer.call("memory.add", content="The deploy key lives in the vault", project="/src/other")
        added = writer.call("memory.add", content="We deploy on Tuesdays", project="/src/shop")["memory"]
        told = next_change(reader)
        assert (told["kind"], told["action"], told["id"]) == ("memory", "created", added["id"])
        assert (told["facts"]["projectPath"], told["facts"]["scope"]) == ("/src/shop", added["scope"])
        known = {"id": added["id"], "project": "/src/shop"}
        writer.call("memory.update", **known, importance=0.9)
        for verb in ("reinforce", "delete", "restore"):
            writer.call(f"memory.{verb}", **known)
        told_then = [next_change(reader)["action"] for _ in range(4)]
        assert told_then == ["updated", "reinforced", "deleted", "restored"]
        assert next_change(elsewhere)["facts"]["projectPath"] == "/src/other"


def test_notifications_of_documents_have_source_and_project(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader, shared_daemon.connect() as elsewhere:
        subscribe(reader, "document", project=str(tmp_path))
        subscribe(elsewhere, "document", id="other")
        for text in ("Kestrels hover.", "Kestrels hover.", "Owls hunt."):  # the second is unchanged
            added = writer.call("document.ingest", text=text, source="birds", project=str(tmp_path))["document"]
        writer.call("document.update", id=added["id"], title="On birds")
        writer.call("document.update", id=added["id"], title="On birds")
        writer.call("document.store", id="other", chunks=[{"content": "of no project"}])
        writer.call("document.delete", id=added["id"], dryRun=True)
        writer.call("document.delete", id=added["id"])
        told = [next_change(reader) for _ in range(4)]
        assert [one["action"] for one in told] == ["stored", "updated", "updated", "deleted"]
        assert {(one["kind"], one["id"]) for one in told} == {("document", added["id"])}
        project = {"projectPath": str(tmp_path), "projectId": told[0]["facts"]["projectId"]}
        assert told[-1]["facts"] == {"source": "birds", "title": "On birds", "kind": "text", **project}
        job = writer.call("document.ingestMany", documents=[{"text": "Newts.", "project": str(tmp_path)}])["jobId"]
        assert next_change(reader)["action"] == "stored"
        assert next_change(elsewhere)["id"] == "other"
        eventually(lambda: writer.call("job.status", id=job)["state"] == "done", "the job has ended")


def test_notifications_of_skills_have_their_name(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader:
        subscribe(reader, "skill")
        text = "---\nname: bisect\ndescription: Find the commit\n---\nRun git bisect.\n"
        for _ in range(2):  # the second changes nothing
            skill = writer.call("skill.import", text=text, folder="bisect")["skill"]
        writer.call("skill.update", id="bisect", description="Find the commit that broke it")
        writer.call("skill.delete", id="bisect")
        told = [next_change(reader) for _ in range(3)]
        assert [(one["action"], one["facts"]) for one in told] == [
            ("created", {"name": "bisect", "version": 1}),
            ("updated", {"name": "bisect", "version": 2}),
            ("deleted", {"name": "bisect"}),
        ]
        assert {one["id"] for one in told} == {skill["id"]}


def test_notification_comes_after_the_commit(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader:
        subscribe(reader, "message")
        for number in range(20):
            writer.send(
                {
                    "jsonrpc": "2.0",
                    "id": number,
                    "method": "upsertMessage",
                    "params": {"message": message(f"m{number}")},
                }
            )
            told = next_change(reader)["id"]
            sql = f"SELECT count(*) FROM messages WHERE id = '{told}'"
            with shared_daemon.connect() as other:
                assert other.call("query", sql=sql)["rows"] == [[1]]
            writer.receive()


def test_unsubscribe_ends_only_subscriptions_of_the_same_connection(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as reader:
        subscription = subscribe(reader, "message")
        other = writer.request("unsubscribe", {"subscriptionId": subscription})
        assert other["error"]["code"] == NotFound.code
        reader.call("unsubscribe", subscriptionId=subscription)
        assert reader.request("unsubscribe", {"subscriptionId": subscription})["error"]["code"] == NotFound.code
        subscribe(reader, "session", id="end")
        store(writer, "m")
        writer.call("upsertSession", session={"id": "end"})
        assert next_change(reader)["id"] == "end"


def test_subscription_ends_with_its_connection(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    def subscriptions() -> int:
        return int(rpc.call("daemon.status")["subscriptions"])

    eventually(lambda: subscriptions() == 0, "the subscriptions of earlier tests have ended")
    with shared_daemon.connect() as staying:
        subscribe(staying, "message")
        for _ in range(5):
            with shared_daemon.connect() as leaving:
                subscribe(leaving, "message")
                subscribe(leaving, "session", "memory")
                assert subscriptions() >= 3
        eventually(lambda: subscriptions() == 1, "only the open connection has a subscription")
        store(rpc, "m")
        assert next_change(staying)["id"] == "m"
    eventually(lambda: subscriptions() == 0, "no subscription is left")


def test_slow_subscriber_is_dropped_with_a_notice_and_slows_nobody_down(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer, shared_daemon.connect() as slow, shared_daemon.connect() as quick:
        subscription = subscribe(slow, "message")
        subscribe(quick, "message", id="last")
        for batch in range(6):
            events = [{"message": message(f"m{batch}-{number}")} for number in range(1000)]
            began = time.monotonic()
            assert writer.call("events.batch", events=events)["ok"]
            assert time.monotonic() - began < 20
        store(writer, "last")
        assert next_change(quick)["id"] == "last"
        told = [slow.receive()]
        while told[-1]["method"] == "subscription.changed":
            told.append(slow.receive())
        assert told[-1]["method"] == "subscription.dropped"
        assert told[-1]["params"] == {"subscriptionId": subscription, "reason": "this client reads too slowly"}
        assert len(told) < 6000
        store(writer, "after")
        assert slow.call("health")["ok"] is True  # the connection itself goes on
        assert slow.notifications == []
        again = subscribe(slow, "message")
        store(writer, "heard")
        assert again
        assert next_change(slow)["id"] == "heard"


def test_subscriber_that_hangs_up_in_the_middle_harms_nobody(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as writer:
        reader = shared_daemon.connect()
        subscribe(reader, "message", "session")
        for number in range(200):
            writer.send({"jsonrpc": "2.0", "method": "upsertMessage", "params": {"message": message(f"m{number}")}})
            if number == 100:
                reader.socket.close()
        counted = "SELECT count(*) FROM messages"
        eventually(lambda: writer.call("query", sql=counted)["rows"] == [[200]], "all messages are stored")


def test_connection_has_a_limit_of_subscriptions(rpc: RawConnection) -> None:
    for _ in range(100):
        subscribe(rpc, "memory")
    reply = rpc.request("subscribe", {"kinds": ["memory"]})
    assert reply["error"]["code"] == Conflict.code


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({}, "kinds"),
        ({"kinds": []}, "$.kinds"),
        ({"kinds": ["weather"]}, "$.kinds"),
        ({"kinds": ["job"], "sessionId": "s"}, "$.sessionId"),
        ({"kinds": ["message", "schedule"], "chatId": "c"}, "$.chatId"),
        ({"kinds": ["job"], "project": "/p"}, "$.project"),
        ({"kinds": ["session"], "role": "user"}, "$.role"),
        ({"kinds": ["session"], "colour": "red"}, "colour"),
    ],
)
def test_filters_that_do_not_apply_to_the_kind_are_refused(
    shared_daemon: DaemonProcess, params: dict[str, Any], names: str
) -> None:
    with shared_daemon.connect() as connection:
        error = connection.request("subscribe", params)["error"]
        assert error["code"] == InvalidParams.code
        assert names in error["message"]
