"""A clock that is set back or jumps forward: nothing is stranded, nothing is archived or deleted because of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.clock import DAY_SECONDS, ClockedDaemon
from helpers.documents import finished
from helpers.waiting import eventually

YEAR_SECONDS = 365 * DAY_SECONDS


@pytest.fixture
def clocked(home: Path) -> Iterator[ClockedDaemon]:
    """A daemon whose clock the test sets; not started yet."""
    daemon = ClockedDaemon(home, HOME=str(home), CLANKERS_EMBEDDER="none", CLANKERS_MAINTAIN_HOURS="0")
    yield daemon
    daemon.close()


def test_ingest_accepted_before_the_clock_was_set_back_is_finished(clocked: ClockedDaemon) -> None:
    texts = [{"text": f"Document {number} about invoices.", "source": f"doc-{number}"} for number in range(300)]
    clocked.set_clock(YEAR_SECONDS)
    with clocked.start().connect() as connection:
        connection.call("document.ingestMany", documents=texts)
        clocked.kill()
    clocked.close()
    clocked.set_clock(0)

    def stored() -> bool:
        with clocked.connect() as connection:
            [[count, waiting]] = connection.call(
                "query", sql="SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM ingest_items)"
            )["rows"]
            return bool(count == len(texts) and waiting == 0)

    clocked.start()
    eventually(stored, "all documents are stored and none waits")


def test_ingest_of_this_daemon_is_not_taken_up_twice(clocked: ClockedDaemon) -> None:
    with clocked.start().connect() as connection:
        job = connection.call("document.ingestMany", documents=[{"text": "one"}, {"text": "two"}])["jobId"]
        assert finished(connection, job)["stored"] == 2
        assert [one["kind"] for one in connection.call("job.list")].count("document ingest") == 1


def test_maintenance_asks_before_it_archives_many_memories_at_once(clocked: ClockedDaemon) -> None:
    with clocked.start().connect() as rpc:
        for number in range(12):
            rpc.call("memory.add", content=f"Fact number {number} about part {number * 7}", importance=0.1)
        clocked.set_clock(3 * YEAR_SECONDS)
        refused = rpc.request("memory.maintain")["error"]
        assert refused["code"] == 4009
        assert "would archive 12 of 12 memories" in refused["message"]
        assert "--force" in refused["message"]
        assert states(rpc) == ["current"] * 12
        assert rpc.call("memory.maintain", dryRun=True)["archived"] == 12
        [found] = [one for one in doctor(rpc) if one["name"] == "memories"]
        assert (found["state"], "--force" in found["advice"]) == ("warning", True)

        clocked.set_clock(0)
        assert rpc.call("memory.maintain")["archived"] == 0
        assert [one["state"] for one in doctor(rpc) if one["name"] == "memories"] == ["ok"]

        clocked.set_clock(3 * YEAR_SECONDS)
        assert rpc.call("memory.maintain", force=True)["archived"] == 12
        assert states(rpc) == ["archived"] * 12


def states(rpc: Any) -> list[str]:
    return [one["state"] for one in rpc.call("memory.list", include=["current", "archived"])["memories"]]


def doctor(rpc: Any) -> list[dict[str, Any]]:
    return list(finished(rpc, rpc.call("doctor.check")["jobId"])["checks"])


def test_maintenance_by_itself_waits_for_its_owner(clocked: ClockedDaemon) -> None:
    with clocked.start().connect() as rpc:
        for number in range(12):
            rpc.call("memory.add", content=f"Fact number {number} about part {number * 7}", importance=0.1)
    clocked.stop()
    clocked.close()
    clocked.set_clock(3 * YEAR_SECONDS)
    clocked.environ["CLANKERS_MAINTAIN_HOURS"] = "24"
    with clocked.start().connect() as rpc:
        eventually(lambda: "maintenance needs confirmation" in logged(clocked), "maintenance was due")
        assert states(rpc) == ["current"] * 12


def logged(daemon: ClockedDaemon) -> str:
    return "".join(path.read_text() for path in daemon.logs.glob("clankers-*.jsonl"))


def test_log_returns_to_the_day_that_is_when_the_clock_is_set_back(clocked: ClockedDaemon) -> None:
    with clocked.start().connect() as connection:
        for seconds, text in ((0, "now"), (2 * YEAR_SECONDS, "then"), (0, "now again")):
            clocked.set_clock(seconds)
            connection.call("log.write", entry={"message": text, "level": "error"})
    files = {
        path.name: [json.loads(line)["message"] for line in path.read_text().splitlines()]
        for path in clocked.logs.glob("clankers-*.jsonl")
    }
    today, far_off = (files[name] for name in sorted(files))
    assert "then" in far_off
    assert today[-1] == "now again"


def test_schedule_planned_while_the_clock_was_ahead_is_planned_again(clocked: ClockedDaemon) -> None:
    clocked.set_clock(3 * YEAR_SECONDS)
    with clocked.start().connect() as connection:
        action = connection.call("schedule.create", description="daily", schedule="09:00 daily")
        clocked.set_clock(0)

        def planned() -> bool:
            connection.call("schedule.enable", id=action["id"])  # wakes the scheduler
            found = connection.call("schedule.get", id=action["id"])
            return bool(found["nextRun"] < action["nextRun"] - YEAR_SECONDS * 1000)

        eventually(planned, "the action is planned for the next day")


def test_transcript_named_while_the_clock_was_ahead_is_read(clocked: ClockedDaemon, home: Path) -> None:
    folder = home / ".claude" / "projects" / "p"
    folder.mkdir(parents=True)
    transcript = folder / "s-1.jsonl"
    event = {"hook_event_name": "SessionStart", "session_id": "s-1", "cwd": "/w", "transcript_path": str(transcript)}
    clocked.set_clock(YEAR_SECONDS)
    with clocked.start().connect() as connection:
        connection.call("hook.event", harness="claude-code", event=event)
        clocked.set_clock(0)
        said = {"role": "user", "content": "Only the transcript has this prompt."}
        line = {"type": "user", "uuid": "u-1", "sessionId": "s-1", "cwd": "/w", "promptId": "p-1", "message": said}
        transcript.write_text(json.dumps(line) + "\n")

        def read() -> bool:
            return bool(connection.call("query", sql="SELECT 1 FROM messages WHERE text_content LIKE 'Only%'")["rows"])

        eventually(read, "the transcript was read")
