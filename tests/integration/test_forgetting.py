"""Forgetting: the text is in no table, index, log, free page or backup afterwards."""

from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.schedules import change_database
from helpers.waiting import settled

TOKEN = "xylotangerine"


def fill(rpc: RawConnection, session: str, word: str, source: str = "claude-code") -> None:
    """Store the word in everything that holds text."""
    rpc.call(
        "upsertSession", session={"id": session, "source": source, "title": f"About {word}", "summary": f"{word}!"}
    )
    events: list[dict[str, Any]] = [
        {
            "message": {
                "id": f"m-{session}-{n}",
                "sessionId": session,
                "role": "user",
                "textContent": f"{word} {n} " * 20,
            }
        }
        for n in range(20)
    ]
    tool = {"id": f"t-{session}", "sessionId": session, "toolName": "Bash"}
    events.append({"tool": tool | {"toolInput": f'{{"command": "echo {word}"}}'}})
    events.append({"sessionError": {"id": f"e-{session}", "sessionId": session, "errorMessage": f"{word} failed"}})
    assert rpc.call("events.batch", events=events)["ok"]
    rpc.call("memory.add", content=f"The {word} is in the cellar", scope="global", force=True, sessionId=session)
    rpc.call("document.ingest", text=f"# {word}\n\nAll about {word}.", source=f"memo-{session}", title=word)


def files_with(daemon: DaemonProcess, word: str) -> list[str]:
    """List the files of the daemon that contain the bytes of a word."""
    data = word.encode()
    return sorted(path.name for path in daemon.data.rglob("*") if path.is_file() and data in path.read_bytes())


def test_forgotten_words_are_in_no_file_of_the_daemon(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as rpc:
        fill(rpc, "doomed", TOKEN)
        fill(rpc, "other", "marzipan")
        settled(rpc)
        assert ctl(daemon, "backup", "create").code == 0
        assert files_with(daemon, TOKEN)

        planned = ctl(daemon, "forget", "--matching", TOKEN.upper(), "--dry-run", "--json").json["counts"]
        assert planned == {
            "messages": 20, "tools": 1, "session_errors": 1, "memories": 1, "documents": 1, "sessions": 1,
        }  # fmt: skip
        done = ctl(daemon, "forget", "--matching", TOKEN.upper(), "--backups-too", "--yes", "--json")
        assert done.code == 0, done.err
        assert done.json["counts"] == planned
        assert files_with(daemon, TOKEN) == []
        assert TOKEN not in str(rpc.call("search", query=TOKEN)["hits"])
        assert rpc.call("search", query="marzipan")["hits"]
        assert rpc.call("session.get", id="other")["counts"]["messages"] == 20
        assert rpc.call("health")["ok"]


@pytest.mark.parametrize("words", [["--session", "doomed"], ["--source", "opencode"]])
def test_forget_deletes_whole_sessions_of_a_harness_or_by_id(
    rpc: RawConnection, shared_daemon: DaemonProcess, words: list[str]
) -> None:
    fill(rpc, "doomed", "quincewort", source="opencode")
    fill(rpc, "other", "marzipan")
    assert ctl(shared_daemon, "forget", *words, "--yes").code == 0
    assert [session["id"] for session in rpc.call("session.list")["sessions"]] == ["other"]
    memories = [memory["content"] for memory in rpc.call("memory.list", scopes=["*"])["memories"]]
    assert memories == ["The marzipan is in the cellar"]


def test_forget_by_time_leaves_what_is_outside_the_range(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    for name, at in (("early", 1_700_000_000_000), ("late", 1_710_000_000_000)):
        message = {"id": name, "sessionId": f"s-{name}", "role": "user", "textContent": name, "createdAt": at}
        rpc.call("upsertMessage", message=message)
    ran = ctl(shared_daemon, "forget", "--until", "2024-01-01", "--yes", "--json")
    assert ran.json["counts"] == {"messages": 1}
    assert [session["id"] for session in rpc.call("session.list")["sessions"]] == ["s-late"]


def test_forget_asks_first_and_needs_a_criterion(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    fill(rpc, "kept", "quincewort")
    assert ctl(shared_daemon, "forget", "--matching", "quincewort", typed="n\n").code == 1
    assert rpc.call("session.get", id="kept")["counts"]["messages"] == 20
    assert ctl(shared_daemon, "forget", "--yes").code == 2
    assert "error" in rpc.request("forget.start", {})
    assert ctl(shared_daemon, "forget", "--matching", "no such words", "--yes").out == "Nothing matches.\n"


def test_matching_takes_wildcards_literally(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    fill(rpc, "kept", "quincewort")
    assert ctl(shared_daemon, "forget", "--matching", "quince%", "--yes").out == "Nothing matches.\n"
    assert ctl(shared_daemon, "forget", "--matching", "quince_ort", "--yes").out == "Nothing matches.\n"


def test_words_are_forgotten_wherever_they_are(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    word = "quartzlemming"
    fill(rpc, "other", "marzipan")
    rpc.call("upsertSession", session={"id": "named", "projectPath": f"/home/me/{word}", "title": "Plain"})
    rpc.call("skill.create", name="look", description="Look", instructions=f"Look for the {word}")
    rpc.call("skill.update", id="look", instructions="Look elsewhere")  # an older version has the word
    rpc.call("schedule.create", description=f"Feed the {word}", schedule="09:00 daily", builtin="sync")
    rpc.call("config.set", namespace="plugin", key="pet", value={"kind": word})
    rpc.call("log.write", entry={"level": "error", "component": "plugin", "message": f"the {word} is loose"})
    rpc.call("search", query=f"Where is the {word}?", project=f"/home/me/{word}")
    rpc.call("recall.recent")  # stores the search
    change_database(
        shared_daemon,
        "INSERT INTO injections (session_id, at, kind, trigger_event, characters, ids_json, text) "
        "VALUES ('other', 1, 'start', 'SessionStart', 3, '[]', ?)",
        f"remember the {word}",
    )
    change_database(
        shared_daemon,
        "INSERT INTO transcripts (path, harness, session_id, state) VALUES (?, 'codex', 'other', ?)",
        "/home/me/rollout.jsonl",
        f'{{"prompt": "{word}"}}',
    )
    rejected = shared_daemon.data / "spool" / "rejected"
    rejected.mkdir(parents=True, exist_ok=True)
    (rejected / "1-2.json").write_text(f'{{"payload": "{word}"}}')
    (rejected / "1-3.json").write_text('{"payload": "another"}')
    replaced = shared_daemon.data / "clankers.db.replaced-20250131T030000000000"
    replaced.write_text(word)
    assert len(files_with(shared_daemon, word)) > 3

    planned = ctl(shared_daemon, "forget", "--matching", word, "--dry-run", "--json").json
    expected = {"sessions": 1, "skills": 1, "scheduled_actions": 1, "config": 1, "projects": 1}
    assert planned["counts"] == expected
    assert planned["copies"] == [str(replaced)]
    done = ctl(shared_daemon, "forget", "--matching", word, "--yes")
    assert str(replaced) in done.out
    assert files_with(shared_daemon, word) == [replaced.name]
    again = ctl(shared_daemon, "forget", "--matching", "marzipan", "--backups-too", "--yes")
    assert again.code == 0, again.err
    assert files_with(shared_daemon, word) == files_with(shared_daemon, "marzipan") == []
    assert [path.name for path in rejected.iterdir()] == ["1-3.json"]
    (rejected / "1-3.json").unlink()


TRACES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "search": [("search", {"query": f"Where is the {TOKEN}?"})],
    "entity": [("entity.upsert", {"name": f"The {TOKEN}", "type": "concept"})],
    "log line": [("log.write", {"entry": {"level": "error", "component": "plugin", "message": f"{TOKEN} is loose"}})],
    "model of a session": [("upsertSession", {"session": {"id": "s", "model": f"tuned-{TOKEN}"}})],
    "model of a message": [("upsertMessage", {"message": {"id": "m", "sessionId": "s", "model": f"tuned-{TOKEN}"}})],
    "chat of a thread": [("thread.create", {"id": "thread-1", "chatId": TOKEN})],
}


@pytest.mark.parametrize("place", TRACES)
def test_words_that_are_only_in_a_trace_are_forgotten(
    rpc: RawConnection, shared_daemon: DaemonProcess, place: str
) -> None:
    fill(rpc, "other", "marzipan")
    for method, params in TRACES[place]:
        rpc.call(method, **params)
    planned = ctl(shared_daemon, "forget", "--matching", TOKEN, "--dry-run", "--json").json
    assert (planned["counts"], planned["traces"]) == ({}, 1)
    assert "1 trace of it" in ctl(shared_daemon, "forget", "--matching", TOKEN, "--dry-run").out
    assert ctl(shared_daemon, "forget", "--matching", TOKEN, typed="n\n").code == 1
    assert files_with(shared_daemon, TOKEN)
    done = ctl(shared_daemon, "forget", "--matching", TOKEN, "--yes")
    assert done.code == 0, done.err
    assert files_with(shared_daemon, TOKEN) == []
    assert ctl(shared_daemon, "forget", "--matching", TOKEN, "--yes").out == "Nothing matches.\n"
    assert rpc.call("search", query="marzipan")["hits"]


@pytest.mark.parametrize(
    "options",
    [
        ["--project", "/home/me/secret-place"],
        ["--session", "doomed"],
        ["--source", "opencode"],
        ["--until", "2021-01-01"],
        ["--since", "2020-01-01", "--until", "2021-01-01"],
    ],
)
def test_every_selector_leaves_its_text_in_no_file(
    rpc: RawConnection, shared_daemon: DaemonProcess, options: list[str]
) -> None:
    word = f"walnut{options[0].strip('-')}{len(options)}"
    at = {"createdAt": 1_590_000_000_000}
    session = {"id": "doomed", "source": "opencode", "title": f"The {word}", "projectPath": "/home/me/secret-place"}
    rpc.call("upsertSession", session=session | at)
    part = {"sessionId": "doomed"} | at
    events: list[dict[str, Any]] = [
        {"message": part | {"id": f"m{n}", "role": "user", "textContent": f"{word} {n} " * 20}} for n in range(20)
    ]
    events.append({"tool": part | {"id": "t", "toolName": "Bash", "toolOutput": f"{word}\n" * 50}})
    assert rpc.call("events.batch", events=events)["ok"]
    if "--until" not in options:  # a memory is as old as its creation
        rpc.call("memory.add", content=f"The {word} cracks", scope="global", sessionId="doomed", force=True)
    if "--project" in options:
        rpc.call("document.ingest", text=f"All about {word}.", source="memo", project="/home/me/secret-place")
    fill(rpc, "other", "marzipan")
    rpc.call("log.write", entry={"level": "error", "component": "plugin", "message": "session doomed failed"})
    change_database(
        shared_daemon,
        "INSERT INTO injections (session_id, at, kind, trigger_event, characters, ids_json, text) "
        "VALUES ('other', 1, 'start', 'SessionStart', 3, '[]', ?)",
        f"quoted in another session: {word}",
    )
    change_database(
        shared_daemon,
        "INSERT INTO transcripts (path, harness, session_id, state) VALUES (?, 'opencode', 'doomed', ?)",
        f"/home/me/{options[0]}{len(options)}.jsonl",
        f'{{"prompt": "{word}"}}',
    )
    settled(rpc)
    rpc.call("search", query=f"Where is the {word}?")  # its query is in memory until the log is stored
    assert files_with(shared_daemon, word)
    done = ctl(shared_daemon, "forget", *options, "--yes")
    assert done.code == 0, done.err
    assert f"/home/me/{options[0]}{len(options)}.jsonl" in done.out
    assert files_with(shared_daemon, word) == []
    if options[0] in ("--project", "--session", "--source"):
        assert files_with(shared_daemon, "session doomed failed") == []
    assert rpc.call("recall.recent")["searches"] == []
    if options[0] == "--project":
        assert files_with(shared_daemon, "secret-place") == []
    assert rpc.call("search", query="marzipan")["hits"]
