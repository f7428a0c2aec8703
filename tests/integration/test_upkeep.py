"""Jobs, vacuum, checks, migrations by hand."""

import time
from typing import Any

import apsw
from helpers.daemon import DaemonProcess, RawConnection, running_daemon


def finished(connection: RawConnection, job_id: str) -> dict[str, Any]:
    for _ in range(600):
        job = connection.call("job.status", id=job_id)
        if job["state"] != "running":
            return dict(job)
        time.sleep(0.05)
    raise AssertionError("the job did not end")


def fill(connection: RawConnection, count: int) -> None:
    for start in range(0, count, 500):
        events = [
            {"message": {"id": f"m{number}", "sessionId": "s", "textContent": "x" * 2000}}
            for number in range(start, min(start + 500, count))
        ]
        connection.call("events.batch", events=events)


def test_vacuum_gives_back_the_space_of_what_was_deleted(rpc: RawConnection) -> None:
    fill(rpc, 3000)
    rpc.call("session.delete", id="s")
    before = rpc.call("daemon.status")["sizes"]
    assert before["free"] > 3_000_000
    job = finished(rpc, rpc.call("db.vacuum")["jobId"])
    assert (job["state"], job["error"]) == ("done", None)
    after = rpc.call("daemon.status")["sizes"]
    assert after["free"] == 0
    assert job["result"]["freedBytes"] == before["database"] - after["database"] > 3_000_000


def test_progress_is_told_to_the_connection_that_began_the_job(rpc: RawConnection) -> None:
    job_id = rpc.call("db.check")["jobId"]
    job = finished(rpc, job_id)
    assert job["result"] == {"ok": True, "problems": []}
    rpc.call("health")
    told = [note["params"] for note in rpc.notifications if note["method"] == "$/progress"]
    assert told[-1] == job
    assert {note["id"] for note in told} == {job_id}


def test_job_is_cancelled_between_two_of_its_steps(rpc: RawConnection) -> None:
    fill(rpc, 6000)
    rpc.call("session.delete", id="s")
    job_id = rpc.call("db.vacuum")["jobId"]
    reply = rpc.request("job.cancel", {"id": job_id})
    job = finished(rpc, job_id)
    assert job["state"] == "cancelled" or reply["error"]["code"] == 4009  # it may have been quicker than we
    assert rpc.request("job.cancel", {"id": job_id})["error"]["code"] == 4009
    assert rpc.request("job.status", {"id": "nope"})["error"]["code"] == 4004
    assert rpc.call("job.list")[0]["id"] == job_id
    assert rpc.call("health")["ok"]


def test_job_that_a_kill_interrupted_is_not_running_after_the_next_start(fresh_daemon: DaemonProcess) -> None:
    fresh_daemon.kill()
    raw = apsw.Connection(str(fresh_daemon.database))
    raw.execute("INSERT INTO jobs (id, kind, state, created_at) VALUES ('j', 'vacuum', 'running', 1)")
    raw.close()
    fresh_daemon.close()
    with running_daemon(fresh_daemon.home) as again, again.connect() as connection:
        job = connection.call("job.status", id="j")
    assert job["state"] == "failed"
    assert "stopped" in job["error"]


def test_rolling_back_refuses_events_until_the_schema_is_back(rpc: RawConnection) -> None:
    rpc.call("upsertSession", session={"id": "s"})
    rolled = rpc.call("db.rollback")
    assert rolled["toVersion"] == rolled["fromVersion"] - 1
    copy = apsw.Connection(rolled["backup"])
    assert list(copy.execute("SELECT id FROM sessions")) == [("s",)]
    copy.close()
    refused = rpc.request("upsertSession", {"session": {"id": "t"}})["error"]
    assert (refused["code"], refused["data"]["retry"]) == (5001, "spool")
    assert "db migrate" in rpc.call("health")["problem"]
    migrated = rpc.call("db.migrate")
    assert migrated["toVersion"] == rolled["fromVersion"]
    assert rpc.call("health")["ok"]
    rpc.call("upsertSession", session={"id": "t"})
    assert rpc.call("db.migrate")["applied"] == []


def test_newer_database_is_refused_with_a_reason_and_left_alone(fresh_daemon: DaemonProcess) -> None:
    fresh_daemon.stop()
    raw = apsw.Connection(str(fresh_daemon.database))
    raw.execute("INSERT INTO _migrations (version, name, checksum, applied_at) VALUES (9999, 'x', 'x', 1)")
    raw.close()
    fresh_daemon.close()
    with running_daemon(fresh_daemon.home) as again, again.connect() as connection:
        health = connection.call("health")
        assert health["ok"] is False
        assert "9999" in health["problem"]
        refused = connection.request("upsertSession", {"session": {"id": "s"}})["error"]
        assert (refused["code"], refused["data"]["retry"]) == (5001, "spool")
