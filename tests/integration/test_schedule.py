"""Scheduled actions over the socket: stored, due, handed out until acknowledged, and their history."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.schedules import change_database, create, ended, make_due, next_run_of, nothing_comes, runs, wake
from helpers.waiting import eventually

from clankers import AsyncClient
from clankers_protocol.errors import InvalidParams, NotFound
from clankers_protocol.schedules import RUN, DueRun, ScheduleAck, ScheduleCreate, ScheduleEnable, ScheduleSubscribe

HOUR = 3600


@pytest.fixture(autouse=True)
def _no_client_left(rpc: RawConnection) -> Iterator[None]:
    """Wait after each test until its clients are gone: the next test's runs must not be sent to them."""
    yield
    eventually(lambda: rpc.call("daemon.status")["connections"] == 1, "nobody else is subscribed")


@pytest.fixture(scope="module")
def shared_short_lease_daemon() -> Iterator[DaemonProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="clk-") as folder,
        running_daemon(Path(folder), CLANKERS_SCHEDULE_LEASE_SECONDS="0.5") as process,
    ):
        yield process


@pytest.fixture
def short_leases(shared_short_lease_daemon: DaemonProcess) -> Iterator[DaemonProcess]:
    """A daemon whose clients must acknowledge a run within half a second; emptied after the test."""
    yield shared_short_lease_daemon
    with shared_short_lease_daemon.connect() as connection:
        eventually(lambda: connection.call("daemon.status")["connections"] == 1, "nobody else is subscribed")
        connection.call("schedule.deleteAll")


def test_action_is_created_read_updated_listed_found_and_deleted(rpc: RawConnection) -> None:
    action = rpc.call(
        "schedule.create",
        description="Sum up 100% of the day",
        schedule="18:30 weekly(fri)",
        timezone="Europe/Berlin",
        missed="skip",
        toolCalls=[{"name": "search", "args": {"q": 1}}],
        synthesisPrompt="Be brief",
    )
    assert rpc.call("schedule.get", id=action["id"]) == action
    assert rpc.call("schedule.get", id=action["id"][:23]) == action
    assert action["toolCalls"] == [{"name": "search", "args": {"q": 1}}]
    assert action["nextRun"] > time.time() * 1000
    changed = rpc.call("schedule.update", id=action["id"], schedule="19:00 daily", synthesisPrompt=None)
    assert (changed["schedule"], changed["synthesisPrompt"], changed["missed"]) == ("19:00 daily", None, "skip")
    assert changed["nextRun"] != action["nextRun"]
    assert rpc.call("schedule.list")["actions"] == [changed]
    rpc.call("schedule.delete", id=action["id"])
    assert rpc.request("schedule.get", {"id": action["id"]})["error"]["code"] == NotFound.code


def test_description_wildcards_are_literal(rpc: RawConnection) -> None:
    for description in ("100% done", "100 done", "under_score", "underXscore", "Ärger"):
        create(rpc, description=description)

    def found(text: str) -> list[str]:
        return [action["description"] for action in rpc.call("schedule.find", description=text)]

    assert found("100%") == ["100% done"]
    assert found("%") == ["100% done"]
    assert found("r_s") == ["under_score"]
    assert found("DONE") == ["100% done", "100 done"]
    assert found("ärger") == ["Ärger"]
    assert found("*") == []


def test_disabled_actions_are_not_due_and_enabling_does_not_run_missed_ones(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        action = create(connection)
        off = connection.call("schedule.enable", id=action, enabled=False)
        assert (off["enabled"], off["nextRun"]) == (False, None)
        in_a_year = round(time.time() * 1000) + 366 * 24 * HOUR * 1000
        assert connection.call("schedule.due", at=in_a_year) == []
        on = connection.call("schedule.enable", id=action)
        assert on["nextRun"] > time.time() * 1000
        assert [found["id"] for found in connection.call("schedule.due", at=in_a_year)] == [action]
        assert connection.call("schedule.due") == []
        assert runs(connection) == []


def test_actions_are_all_deleted_and_counted(rpc: RawConnection) -> None:
    for _ in range(3):
        create(rpc)
    assert rpc.call("schedule.deleteAll", dryRun=True) == {"deleted": 3, "dryRun": True}
    assert rpc.call("schedule.deleteAll") == {"deleted": 3, "dryRun": False}
    assert rpc.call("schedule.deleteAll")["deleted"] == 0


def test_due_action_is_handed_to_a_client_once_and_is_done_when_acknowledged(short_leases: DaemonProcess) -> None:
    with short_leases.connect() as connection, short_leases.connect() as worker:
        skill = connection.call("skill.create", name="s", description="d")["id"]
        action = create(connection, toolCalls=[{"name": "t"}], synthesisPrompt="p", skillId="s")
        worker.call("schedule.subscribe")
        make_due(short_leases, action)
        wake(connection, action)
        run = next_run_of(worker)
        assert run["action"]["id"] == action
        assert (run["action"]["toolCalls"], run["action"]["synthesisPrompt"]) == ([{"name": "t"}], "p")
        assert run["action"]["skillId"] == skill
        done = worker.call("schedule.ack", runId=run["runId"], result={"answer": 42})
        assert (done["state"], done["result"]) == ("done", {"answer": 42})
        worker.notifications.clear()  # it may have been handed out again before the acknowledgement arrived
        assert nothing_comes(worker, 1.5)
        again = worker.call("schedule.ack", runId=run["runId"], state="failed", error="too late")
        assert (again["state"], again["error"]) == ("done", None)
        assert len(runs(connection, action)) == 1


@pytest.mark.anyio
async def test_python_client_executes_due_actions(shared_daemon: DaemonProcess) -> None:
    inbox, outbox = anyio.create_memory_object_stream[tuple[str, Any]](100)
    with inbox, outbox:
        async with AsyncClient(
            shared_daemon.socket_path, on_notification=lambda *told: inbox.send_nowait(told)
        ) as client:
            made = await client.call(ScheduleCreate("Sum up", "09:00 once", synthesis_prompt="Be brief"))
            await client.call(ScheduleSubscribe())
            make_due(shared_daemon, made.id)
            await client.call(ScheduleEnable(made.id))
            with anyio.fail_after(30):
                method, params = await outbox.receive()
            run = msgspec.convert(params, DueRun)
            assert (method, run.action.synthesis_prompt) == (RUN, "Be brief")
            assert (await client.call(ScheduleAck(run.run_id, result="short"))).result == "short"


def test_unacknowledged_run_is_handed_out_again_with_a_longer_lease(short_leases: DaemonProcess) -> None:
    with short_leases.connect() as connection, short_leases.connect() as worker:
        action = create(connection, "09:00 once")
        worker.call("schedule.subscribe")
        make_due(short_leases, action)
        wake(connection, action)
        handed = [next_run_of(worker) for _ in range(3)]
        assert len({run["runId"] for run in handed}) == 1
        assert [run["attempt"] for run in handed] == [1, 2, 3]
        ends = [run["leaseUntil"] for run in handed]
        assert ends[1] - ends[0] >= 900
        assert ends[2] - ends[1] >= 1900
        worker.call("schedule.ack", runId=handed[0]["runId"])
        assert [(run["state"], run["attempts"]) for run in runs(connection)] == [("done", 3)]


def test_working_client_retains_its_run(home: Path) -> None:
    with (
        running_daemon(home, CLANKERS_SCHEDULE_LEASE_SECONDS="2") as patient,
        patient.connect() as connection,
        patient.connect() as worker,
    ):
        action = create(connection, "09:00 once")
        worker.call("schedule.subscribe")
        make_due(patient, action)
        wake(connection, action)
        run = next_run_of(worker)
        for _ in range(12):
            renewed = worker.call("schedule.ack", runId=run["runId"], state="working")
            time.sleep(0.25)
        assert renewed["leaseUntil"] > run["leaseUntil"]
        assert worker.call("schedule.ack", runId=run["runId"])["attempts"] == 1


def test_runs_wait_without_a_subscriber(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        action = create(connection, "09:00 once")
        make_due(shared_daemon, action)
        wake(connection, action)
        eventually(lambda: [run["state"] for run in runs(connection)] == ["waiting"], "the run waits")
        with shared_daemon.connect() as worker:
            worker.call("schedule.subscribe")
            assert next_run_of(worker)["attempt"] == 1


def test_run_goes_to_one_of_several_clients_and_to_another_after_a_disconnect(
    short_leases: DaemonProcess,
) -> None:
    with (
        short_leases.connect() as connection,
        short_leases.connect() as first,
        short_leases.connect() as second,
    ):
        first.call("schedule.subscribe")
        second.call("schedule.subscribe")
        action = create(connection, "09:00 once")
        make_due(short_leases, action)
        wake(connection, action)
        eventually(lambda: runs(connection)[:1] and runs(connection)[0]["attempts"] == 1, "it is handed out")
        got = first if not nothing_comes(first, 0.2) else second
        other = second if got is first else first
        got.socket.close()
        run = next_run_of(other)
        assert run["attempt"] > 1
        assert other.call("schedule.ack", runId=run["runId"])["state"] == "done"


def test_missed_runs_are_made_up_for_by_one(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection, shared_daemon.connect() as worker:
        action = create(connection, "* * * * *")
        make_due(shared_daemon, action, seconds_ago=400 * 24 * HOUR)
        wake(connection, action)
        eventually(lambda: runs(connection), "the run is made")
        worker.call("schedule.subscribe")
        run = next_run_of(worker)
        assert time.time() - run["scheduledFor"] / 1000 < 120  # the last of those that were missed
        worker.call("schedule.ack", runId=run["runId"])
        assert len(runs(connection, action)) <= 2  # the next minute may have come meanwhile


def test_unclaimed_runs_do_not_accumulate(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        action = create(connection)
        for days in (3, 2, 1):
            make_due(shared_daemon, action, seconds_ago=days * 24 * HOUR)
            wake(connection, action)
            eventually(lambda: connection.call("schedule.due") == [], "the action has moved on")
        assert [run["state"] for run in runs(connection, action)] == ["waiting"]


def test_missed_runs_are_skipped_if_requested(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection, shared_daemon.connect() as worker:
        worker.call("schedule.subscribe")
        skipping, late = (
            create(connection, "09:00 once", missed="skip"),
            create(connection, "09:00 once", missed="once"),
        )
        for action in (skipping, late):
            make_due(shared_daemon, action, seconds_ago=HOUR)
            wake(connection, action)
        run = next_run_of(worker)
        assert run["action"]["id"] == late
        worker.call("schedule.ack", runId=run["runId"])
        assert [found["state"] for found in ended(connection, skipping)] == ["skipped"]
        assert nothing_comes(worker, 1)


def test_disabled_action_skips_its_waiting_run(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection, shared_daemon.connect() as worker:
        action = create(connection)
        make_due(shared_daemon, action)
        wake(connection, action)
        eventually(lambda: runs(connection), "the run is made")
        connection.call("schedule.enable", id=action, enabled=False)
        worker.call("schedule.subscribe")
        assert nothing_comes(worker, 1)
        assert [run["state"] for run in runs(connection)] == ["skipped"]


def test_run_fails_after_too_many_attempts(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection, shared_daemon.connect() as worker:
        worker.call("schedule.subscribe")
        action = create(connection, "09:00 once")
        make_due(shared_daemon, action)
        wake(connection, action)
        next_run_of(worker)
        change_database(shared_daemon, "UPDATE schedule_runs SET attempts = 8, lease_until = 1")
        wake(connection, create(connection))
        (run,) = ended(connection, action)
        assert run["state"] == "failed"
        assert "nobody acknowledged" in run["error"]


def test_unparsable_stored_schedule_fails_alone(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection, shared_daemon.connect() as worker:
        worker.call("schedule.subscribe")
        broken, good = create(connection), create(connection, "09:00 once")
        change_database(shared_daemon, "UPDATE scheduled_actions SET timezone = 'Gone/Zone' WHERE id = ?", broken)
        for action in (broken, good):
            make_due(shared_daemon, action)
            wake(connection, good)
        assert next_run_of(worker)["action"]["id"] == good
        (run,) = ended(connection, broken)
        assert "there is no time zone" in run["error"]
        assert connection.call("schedule.get", id=broken)["enabled"] is False


@pytest.mark.parametrize("builtin", ["backup", "maintain", "reindex", "retention", "sync"])
def test_built_in_actions_are_executed_by_the_daemon(shared_daemon: DaemonProcess, builtin: str) -> None:
    with shared_daemon.connect() as connection:
        action = create(connection, builtin=builtin)
        make_due(shared_daemon, action)
        wake(connection, action)
        (run,) = ended(connection, action)
        assert (run["state"], run["error"]) == ("done", None)
        job = connection.call("job.status", id=run["result"]["jobId"])
        assert (job["kind"], job["state"]) == (builtin, "done")
        if builtin == "backup":
            assert (shared_daemon.data / "backups" / run["result"]["result"]["file"]).is_file()


def test_scheduled_backups_are_limited_to_seven(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        action = create(connection, builtin="backup")
        (shared_daemon.data / "backups").mkdir(exist_ok=True)
        for number in range(9):
            (shared_daemon.data / "backups" / f"clankers-2020010{number}T000000000000-scheduled.db").touch()
        (shared_daemon.data / "backups" / "clankers-20200101T000000000000-before-0002.db").touch()
        make_due(shared_daemon, action)
        wake(connection, action)
        ended(connection, action)
        names = sorted(path.name for path in (shared_daemon.data / "backups").iterdir())
        assert len([name for name in names if name.endswith("-scheduled.db")]) == 7
        assert "clankers-20200101T000000000000-before-0002.db" in names


def test_history_is_paged_newest_first(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        action = create(connection, builtin="sync")
        for count in range(1, 6):
            make_due(shared_daemon, action)
            wake(connection, action)
            eventually(lambda count=count: len(ended(connection, action)) == count, "one more run is over")  # type: ignore[misc]
        first = connection.call("schedule.history", actionId=action, limit=3)
        second = connection.call("schedule.history", actionId=action, limit=3, cursor=first["cursor"])
        times = [run["createdAt"] for run in first["runs"] + second["runs"]]
        assert len(times) == 5
        assert times == sorted(times, reverse=True)


def test_actions_are_listed_by_when_they_are_due_and_paged(rpc: RawConnection) -> None:
    off = create(rpc, enabled=False)
    soon, late = create(rpc, "* * * * *"), create(rpc, "0 0 1 1 *")
    first = rpc.call("schedule.list", limit=2)
    second = rpc.call("schedule.list", limit=2, cursor=first["cursor"])
    assert [action["id"] for action in first["actions"] + second["actions"]] == [soon, late, off]
    assert [action["id"] for action in rpc.call("schedule.list", enabled=False)["actions"]] == [off]


GOOD = {"description": "d", "schedule": "09:00 daily"}
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("schedule.create", {"description": "d"}, InvalidParams.code, "schedule"),
    ("schedule.create", {"description": "", "schedule": "09:00 daily"}, InvalidParams.code, "$.description"),
    ("schedule.create", GOOD | {"schedule": "25:00 daily"}, InvalidParams.code, "an hour from 00 to 23 at character 1"),
    ("schedule.create", GOOD | {"schedule": "09:00 weekly(x)"}, InvalidParams.code, "HH:MM monthly(1-31)"),
    ("schedule.create", GOOD | {"schedule": "0 0 30 2 *"}, InvalidParams.code, "at character 5"),
    ("schedule.create", GOOD | {"schedule": "x" * 300}, InvalidParams.code, "$.schedule"),
    ("schedule.create", GOOD | {"timezone": "Mars/Base"}, InvalidParams.code, "$.timezone"),
    ("schedule.create", GOOD | {"timezone": "../passwd"}, InvalidParams.code, "$.timezone"),
    ("schedule.create", GOOD | {"missed": "twice"}, InvalidParams.code, "$.missed"),
    ("schedule.create", GOOD | {"builtin": "rm -rf"}, InvalidParams.code, "$.builtin"),
    ("schedule.create", GOOD | {"skillId": "missing"}, InvalidParams.code, "$.skillId"),
    ("schedule.create", GOOD | {"toolCalls": ["x"]}, InvalidParams.code, "$.toolCalls"),
    ("schedule.create", GOOD | {"toolCalls": [{"x": "y" * 300_000}]}, InvalidParams.code, "$.toolCalls"),
    ("schedule.update", {"id": "missing-one", "schedule": "09:00 daily"}, NotFound.code, "missing-one"),
    ("schedule.update", {"id": "missing-one", "schedule": None}, InvalidParams.code, "$.schedule"),
    ("schedule.enable", {"id": "missing-one"}, NotFound.code, "missing-one"),
    ("schedule.delete", {"id": "missing-one"}, NotFound.code, "missing-one"),
    ("schedule.find", {"description": ""}, InvalidParams.code, "$.description"),
    ("schedule.history", {"actionId": "missing-one"}, NotFound.code, "missing-one"),
    ("schedule.history", {"state": "lost"}, InvalidParams.code, "$.state"),
    ("schedule.ack", {"runId": "missing-run"}, NotFound.code, "missing-run"),
    ("schedule.ack", {"runId": "missing-run", "state": "working"}, NotFound.code, "missing-run"),
    ("schedule.ack", {"runId": "r", "result": "y" * 300_000}, InvalidParams.code, "$.result"),
    ("schedule.ack", {"runId": "r", "state": "maybe"}, InvalidParams.code, "$.state"),
]


@pytest.mark.parametrize(("method", "params", "code", "message"), BAD)
def test_invalid_schedule_params_are_named_and_nothing_is_stored(
    shared_daemon: DaemonProcess, method: str, params: dict[str, Any], code: int, message: str
) -> None:
    with shared_daemon.connect() as connection:
        error = connection.request(method, params)["error"]
        assert error["code"] == code
        assert message in error["message"]
        assert connection.call("schedule.list")["actions"] == []


def test_invalid_update_leaves_an_action_unchanged(rpc: RawConnection) -> None:
    action = rpc.call("schedule.create", **GOOD)
    for change in ({"schedule": "never"}, {"timezone": "X"}, {"builtin": "x"}, {"skillId": "x"}):
        reply = rpc.request("schedule.update", {"id": action["id"], "description": "changed"} | change)
        assert reply["error"]["code"] == InvalidParams.code
    assert rpc.call("schedule.get", id=action["id"]) == action
