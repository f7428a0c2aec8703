"""Pausing capture: nothing that happens during a pause is stored, by whatever way it comes."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.hook import hook, spooled
from helpers.waiting import eventually

HOUR_MS = 3_600_000


def now() -> int:
    return time.time_ns() // 1_000_000


def send(connection: RawConnection, name: str, cwd: str, at: int | None = None, session: str = "s") -> dict[str, Any]:
    """Send a message of a generic harness, as a hook would."""
    at = at or now()
    connection.call(
        "hook.event", harness="generic", event={"session": {"id": session, "projectPath": cwd, "createdAt": at}}, at=at
    )
    message = {"id": name, "sessionId": session, "role": "user", "textContent": f"text {name}", "createdAt": at}
    return dict(connection.call("hook.event", harness="generic", event={"message": message}, at=at))


def stored(connection: RawConnection) -> list[str]:
    rows = connection.call("query", sql="SELECT id FROM messages ORDER BY id")["rows"]
    return [row[0] for row in rows]


def test_paused_events_are_not_stored_and_the_reply_says_so(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        assert send(connection, "before", "/w") == {"ok": True}
        assert "until" in ctl(fresh_daemon, "capture", "pause", "--for", "2h").out
        assert "capture is paused" in send(connection, "during", "/w")["paused"]
        upsert = connection.call("upsertMessage", message={"id": "u", "sessionId": "s", "role": "user"})
        assert "clankers-ctl capture resume" in upsert["paused"]
        events = [{"message": {"id": "b", "sessionId": "s", "role": "user"}}, {"message": {"id": "", "sessionId": "s"}}]
        of_batch = connection.call("events.batch", events=events)["outcomes"]
        assert [(one["ok"], "paused" in one) for one in of_batch] == [(True, True), (False, False)]
        assert any("paused" in warning for warning in connection.call("health")["warnings"])
        assert "Capture is paused" in ctl(fresh_daemon, "capture", "status").out
        checks = ctl(fresh_daemon, "doctor", "--json").json["checks"]
        assert [check["state"] for check in checks if check["name"] == "capture"] == ["warning"]
        assert ctl(fresh_daemon, "capture", "resume").out == "Capture is on.\n"
        assert send(connection, "later", "/w") == {"ok": True}
        assert stored(connection) == ["before", "later"]


def test_pause_of_a_project_survives_a_restart_and_ends_by_itself(home: Path, tmp_path: Path) -> None:
    shop, other = tmp_path / "shop", tmp_path / "other"
    (shop / "deep").mkdir(parents=True)
    other.mkdir()
    with running_daemon(home) as daemon:
        assert ctl(daemon, "capture", "pause", "--project", str(shop)).code == 0
        assert daemon.stop() == 0
    with running_daemon(home) as daemon, daemon.connect() as connection:
        send(connection, "shop", str(shop / "deep"), session="a")
        send(connection, "other", str(other), session="b")
        assert ctl(daemon, "capture", "resume", "--project", str(shop)).code == 0
        assert ctl(daemon, "capture", "pause", "--for", "0.2s").code == 0
        eventually(lambda: not connection.call("capture.status")["paused"], "the pause is over", within=10)
        send(connection, "after", str(other), session="b")
        assert stored(connection) == ["after", "other"]
    for words in (["--for", "soon"], ["--for", "0h"], ["--project", str(tmp_path / "none")]):
        assert ctl(DaemonProcess(home), "capture", "pause", *words).code == 2


def test_pause_of_a_project_covers_its_clones_and_new_sessions(fresh_daemon: DaemonProcess, tmp_path: Path) -> None:
    shop, clone = tmp_path / "shop", tmp_path / "clone"
    for folder in (shop, clone):
        subprocess.run(["git", "init", "-q", folder], check=True)
        subprocess.run(["git", "-C", folder, "remote", "add", "origin", "git@example.com:ada/shop.git"], check=True)
    with fresh_daemon.connect() as connection:
        send(connection, "before", str(shop), session="before")
        assert f"paused in {shop}" in ctl(fresh_daemon, "capture", "pause", "--project", "shop").out
        send(connection, "during", str(shop), session="during")
        send(connection, "clone", str(clone), session="clone")
        sessions = connection.call("session.list")["sessions"]
        assert ([each["id"] for each in sessions], stored(connection)) == (["before"], ["before"])
        near = ctl(fresh_daemon, "capture", "pause", "--project", "shpo")
        assert (near.code, "near ones are shop" in near.err) == (1, True)
        assert ctl(fresh_daemon, "capture", "resume", "--project", str(clone)).out == "Capture is on.\n"


def test_hooks_do_not_spool_what_happens_in_a_pause(home: Path, tmp_path: Path) -> None:
    daemon = DaemonProcess(home)
    event = {"message": {"id": "m", "sessionId": "s", "role": "user"}}
    here = event | {"cwd": str(tmp_path / "shop" / "deep")}
    pauses = home / "clankers" / "capture-pauses.json"
    pauses.parent.mkdir()
    for pause, given, count in [
        ({"project": None, "since": now() - 1000, "until": None}, event, 0),
        ({"project": str(tmp_path / "shop"), "since": now() - 1000, "until": now() + HOUR_MS}, here, 0),
        ({"project": str(tmp_path / "shop"), "since": now() - 1000, "until": now() + HOUR_MS}, event, 1),
        ({"project": None, "since": now() - 2000, "until": now() - 1000}, event, 2),
    ]:
        pauses.write_text(json.dumps([pause]))
        hook(daemon.environ, given)
        assert len(spooled(home)) == count


def test_transcript_that_is_read_after_a_pause_leaves_it_out(home: Path) -> None:
    user = home / "user"
    folder = user / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True)
    transcript = folder / "5d6f0c9e-8d0e-4a52-9c4e-5f1f5c1b7a10.jsonl"

    def line(name: str, at: int) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at / 1000)) + f".{at % 1000:03}Z"
        text = {"role": "user", "content": f"the {name} prompt"}
        return json.dumps(
            {
                "type": "user",
                "uuid": name,
                "sessionId": transcript.stem,
                "cwd": "/w",
                "timestamp": stamp,
                "message": text,
            }
        )

    start = now()
    with running_daemon(home, HOME=str(user)) as daemon, daemon.connect() as connection:
        connection.call("capture.pause")
        during = now()
        eventually(lambda: now() > during, "time passes")
        connection.call("capture.resume")
        lines = [line("early", start - HOUR_MS), line("secret", during), line("late", now() + 1000)]
        transcript.write_text("".join(f"{each}\n" for each in lines))
        other = folder / "0f0e7b5c-13a7-4ab1-9d7c-0b1f5a0c2d11.jsonl"
        boundary = json.loads(line("boundary", during)) | {"type": "system", "subtype": "compact_boundary"}
        summary = json.loads(line("summary", during)) | {"isCompactSummary": True}
        lines = [line("hidden", during), json.dumps(boundary), json.dumps(summary), line("later", now() + 1000)]
        other.write_text("".join(f"{each.replace(transcript.stem, other.stem)}\n" for each in lines))
        assert ctl(daemon, "import", "claude-code").code == 0
        texts = [row[0] for row in connection.call("query", sql="SELECT text_content FROM messages")["rows"]]
        assert sorted(texts) == ["the early prompt", "the late prompt", "the later prompt"]
        session = connection.call("session.get", id=other.stem)
        assert (session["title"], session["userPrompt"], session.get("summary")) == (*["the later prompt"] * 2, None)


def test_capture_status_does_not_call_a_fresh_installation_dead(home: Path) -> None:
    user = home / "user"
    folder = user / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True)
    old = {"type": "user", "uuid": "u", "sessionId": "s1", "cwd": "/w", "timestamp": "2026-01-05T10:00:00Z"}
    (folder / "s1.jsonl").write_text(json.dumps(old | {"message": {"role": "user", "content": "an old prompt"}}) + "\n")
    with running_daemon(home, HOME=str(user)) as daemon:
        before = ctl(daemon, "capture", "status")
        assert before.code == 0
        assert "clankers-ctl plugin install claude-code" in before.out
        assert ctl(daemon, "import", "claude-code").code == 0
        assert ctl(daemon, "capture", "status").code == 0  # an import is no sign of broken hooks
        assert ctl(daemon, "plugin", "install", "claude-code").code == 0
        ran = ctl(daemon, "capture", "status", "--json")
        [state] = [each for each in ran.json["harnesses"] if each["harness"] == "claude-code"]
        assert (ran.code, state["state"]) == (0, "never")
        assert "the next session" in state["explanation"]
        checks = ctl(daemon, "doctor", "--json").json["checks"]
        assert {check["state"] for check in checks if check["name"] == "capture claude-code"} == {"ok"}
