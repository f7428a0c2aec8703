"""Forgetting: the text is in no table, index, log, free page or backup afterwards."""

from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
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
