"""Jobs, vacuum, checks, migrations by hand."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually


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

    def told() -> list[dict[str, Any]]:
        rpc.call("health")  # reads what was sent before its reply
        return [note["params"] for note in rpc.notifications if note["method"] == "$/progress"]

    eventually(lambda: told()[-1:] == [job], "the end of the job is told")
    assert {note["id"] for note in told()} == {job_id}


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


def copy_to(connection: RawConnection, path: Path) -> dict[str, Any]:
    return finished(connection, connection.call("engine.copy", to=str(path))["jobId"])


def test_engine_copy_changes_no_file_but_a_database_of_ours(
    shared_daemon: DaemonProcess, rpc: RawConnection, tmp_path: Path
) -> None:
    text, link, foreign = tmp_path / "notes.txt", tmp_path / "link", tmp_path / "foreign.db"
    text.write_text("mine")
    text.chmod(0o644)
    link.symlink_to(text)
    with closing(sqlite3.connect(foreign)) as other:
        other.execute("CREATE TABLE theirs (a)")
    foreign.chmod(0o644)
    before = foreign.read_bytes()

    expected = {
        text: "not a database",
        link: "links are not followed",
        foreign: "another program",
        tmp_path: "directory",
        shared_daemon.database: "would be copied",
    }
    for path, reason in expected.items():
        job = copy_to(rpc, path)
        assert job["state"] == "failed"
        assert reason in job["error"]
    assert (text.read_text(), foreign.read_bytes()) == ("mine", before)
    assert [path.stat().st_mode & 0o777 for path in (text, foreign)] == [0o644, 0o644]


def test_engine_copy_writes_a_file_that_only_the_owner_can_read(rpc: RawConnection, tmp_path: Path) -> None:
    for _ in range(2):  # the second time, everything is there already
        assert copy_to(rpc, tmp_path / "copy.db")["state"] == "done"
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600


def test_engine_copy_to_an_older_copy_says_what_to_do(rpc: RawConnection, tmp_path: Path) -> None:
    copies = {reason: tmp_path / f"{reason}.db" for reason in ("changed", "deleted")}
    rpc.call("config.set", namespace="n", key="k", value="before")
    for path in copies.values():
        assert copy_to(rpc, path)["state"] == "done"
    rpc.call("config.set", namespace="n", key="k", value="after")
    changed = copy_to(rpc, copies["changed"])
    rpc.call("config.delete", namespace="n", key="k")
    deleted = copy_to(rpc, copies["deleted"])
    assert (changed["state"], deleted["state"]) == ("failed", "failed")
    advice = "what is in the target already stays as it is: copy to a new file or an empty schema"
    assert changed["error"] == f"table config differs: some rows have other values; {advice}"
    assert deleted["error"] == f"table config differs: 1 rows instead of 0; {advice}"


@pytest.mark.parametrize("path", ["/tmp/" + "a" * 300, "/tmp/a\0b", "~nobody-of-this-name/notes"])
def test_impossible_path_is_an_error_of_the_caller(rpc: RawConnection, path: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("index.add", {"path": path}),
        ("index.remove", {"path": path}),
        ("backup.restore", {"path": path}),
        ("document.ingest", {"path": path}),
        ("daemon.configure", {"key": "watch_roots", "value": [path]}),
        ("daemon.configure", {"key": "transcript_folders", "value": [path]}),
    ]
    for method, params in calls:
        assert rpc.request(method, params)["error"]["code"] in (-32602, 4004), method


def test_restoring_a_file_that_is_no_database_says_so(rpc: RawConnection, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    error = rpc.request("backup.restore", {"path": str(tmp_path / "notes.txt")})["error"]
    assert "is not a database" in error["message"]
