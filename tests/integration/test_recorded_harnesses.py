"""Recorded sessions of harnesses with session files: hooks and files give the same rows, in any order, repeatedly."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.recorded import (
    codex_events,
    copilot_events,
    gemini_events,
    needs_fixtures,
    openclaw_events,
    pi_events,
    put_chats,
    put_event_logs,
    put_openclaw_database,
    put_pi_sessions,
    put_qwen_chats,
    put_rollouts,
    put_transcripts,
    qwen_events,
)
from helpers.waiting import eventually

pytestmark = needs_fixtures

EVENTS: dict[str, Callable[[Path], Iterator[tuple[str, dict[str, Any]]]]] = {
    "codex": codex_events,
    "copilot": copilot_events,
    "gemini": gemini_events,
    "openclaw": openclaw_events,
    "pi": pi_events,
    "qwen": qwen_events,
}
PUT_FILES: dict[str, Callable[[Path], object]] = {
    "codex": put_rollouts,
    "copilot": put_event_logs,
    "gemini": put_chats,
    "openclaw": put_openclaw_database,
    "pi": put_pi_sessions,
    "qwen": put_qwen_chats,
}

REPLAYED_AT = 1_794_900_000_000
"""Hooks report later than the files record, as they do in life."""

EPHEMERAL = "01a1e4a6-d368-7472-9d64-864bc081e4a0"
"""The session of Codex that has no rollout."""

Counts = tuple[int, int, int, int, int, int, int, int]
"""Prompts, answers, tools, failed tools, errors, compactions, prompt tokens, completion tokens."""

EXPECTED: dict[str, dict[str, Counts]] = {
    "codex": {
        "01a1e4a6-1004": (2, 8, 6, 3, 0, 0, 84_653, 530),  # basic, resume: exit 3, a patch of no file, an unknown tool
        "01a1e4a6-26fc": (1, 1, 0, 0, 0, 0, 11_082, 47),  # fork: only what is new in it
        "01a1e4a6-9bb7": (1, 2, 1, 0, 0, 0, 20_341, 111),  # heredoc
        "01a1e4a6-a2c6": (1, 2, 2, 0, 0, 0, 20_424, 135),  # parallel
        "01a1e4a6-bd7f": (1, 3, 2, 0, 0, 0, 30_742, 178),  # subagent: the parent
        "01a1e4a6-c0f5": (1, 2, 1, 0, 0, 0, 20_450, 92),  # the child, with its task
        "01a1e4a6-ccec": (1, 0, 0, 0, 1, 0, 0, 0),  # apierror
        "01a1e4a6-d0b5": (1, 0, 0, 0, 1, 0, 0, 0),  # ratelimit
        "01a1e4a8-fa64": (1, 3, 2, 1, 0, 0, 31_068, 143),  # mcp
        "01a1e4a8-ff2a": (1, 3, 2, 0, 0, 0, 31_007, 156),  # long
        "01a1e4a9-1094": (2, 3, 1, 0, 0, 1, 288_480, 161),  # grow, aftergrow
        "01a1e4ad-6126": (2, 8, 6, 3, 0, 1, 95_419, 587),  # tuinew
        "01a1e4af-f888": (1, 4, 7, 2, 0, 0, 57_397, 301),  # codemode: three scripts and the four calls in them
        "01a1e4b0-007e": (1, 3, 2, 0, 0, 0, 42_515, 166),  # subagent2: the parent
        "01a1e4b0-0243": (0, 1, 0, 0, 0, 0, 13_805, 44),  # the child; its task is encrypted
        "01a1e4c7-b61c": (2, 3, 2, 0, 0, 1, 44_369, 222),  # tui, before /clear
        "01a1e4c8-4daf": (1, 1, 0, 0, 0, 0, 11_566, 44),  # after it
    },
    "gemini": {
        "7001f4ff-e997": (2, 7, 5, 2, 0, 0, 90_011, 233),  # basic, resume: exit 3, a missing file
        "320bb65b-94e5": (1, 2, 2, 0, 0, 0, 25_212, 50),  # parallel
        "8f6668e1-cf04": (1, 3, 2, 1, 0, 0, 37_871, 46),  # mcp
        "4be60e40-d341": (1, 0, 0, 0, 0, 0, 0, 0),  # apierror: the file does not tell of the error
        "959caa7e-3516": (1, 1, 0, 0, 0, 0, 12_493, 8),  # json
        "7f21542e-9e25": (1, 2, 1, 0, 0, 0, 25_048, 62),  # subagent: the parent
        "99521b25-ae7e": (1, 2, 2, 0, 0, 0, 2_688, 56),  # the child
        "8fea95fa-b031": (4, 10, 6, 2, 0, 1, 134_139, 280),  # tui: one compaction, though PreCompress came often
        "5b120cf6-393d": (1, 1, 0, 0, 0, 0, 13_093, 8),  # clear
        "59ffdea0-2f69": (1, 1, 0, 0, 0, 0, 13_096, 11),  # after it
        "a4d2c7a0-92f5": (1, 1, 0, 0, 0, 0, 12_576, 8),  # ext
    },
    "copilot": {
        "53381cef-f092": (2, 7, 5, 2, 0, 0, 86_374, 283),  # basic, resume: exit 3, a missing file
        "78700702-8316": (1, 2, 1, 0, 0, 0, 24_135, 66),  # subagent: the parent
        "9e3b203d-c967": (1, 1, 0, 0, 0, 0, 11_633, 4),  # the child
        "39b308b2-c164": (1, 0, 0, 0, 1, 0, 0, 0),  # apierror
    },
    "pi": {
        "01a1e4bf-3bd4": (
            2,
            9,
            7,
            4,
            0,
            0,
            17_160,
            350,
        ),  # basic, resume: four kinds of failure
        "01a1e4bf-768a": (1, 8, 7, 4, 0, 0, 15_317, 342),  # with injected context, which is not the user's
        "01a1e4bf-90a9": (1, 0, 0, 0, 4, 0, 0, 0),  # apierror, tried four times
    },
    "qwen": {
        "d5953329-70ed": (2, 7, 5, 2, 0, 0, 140_044, 310),  # basic, resume: exit 3, a missing file
        "22b5c563-db3d": (1, 3, 1, 0, 0, 0, 59_883, 66),  # subagent: the parent, which is told of its end
        "22b5c563-db3d-agent": (1, 1, 0, 0, 0, 0, 15_533, 4),  # the child
        "21f95678-4187": (1, 0, 0, 0, 1, 0, 0, 0),  # apierror
    },
    "openclaw": {
        "65a8399f-5c95": (
            2,
            9,
            7,
            3,
            0,
            1,
            242_756,
            350,
        ),  # gwbasic, gwresume: exit 3, a missing file, a tool that throws
        "b725dd0b-38e5": (1, 3, 1, 0, 0, 0, 72_342, 56),  # gwsub: the parent, also after the child's report
        "0f1c5406-edb9": (1, 1, 0, 0, 0, 0, 14_640, 4),  # the child, with its task
        "df3d0783-a3be": (1, 0, 0, 0, 1, 0, 0, 0),  # gwerror
    },
}

# What only hooks know is left out: when a session was open, its permission mode, and which one it was cleared from.
_TABLES = {
    "sessions": """
        SELECT id, title, project_path, model, provider, source, prompt_tokens, completion_tokens, cost, created_at,
               created_guessed, summary, user_prompt, metadata ->> '$.parentId', metadata ->> '$.agent',
               metadata ->> '$.forkedFrom'
        FROM sessions
    """,
    "messages": """
        SELECT id, session_id, role, text_content, model, source, prompt_tokens, completion_tokens, duration_ms,
               created_at, completed_at, metadata FROM messages
    """,
    "tools": """
        SELECT id, session_id, message_id, tool_name, tool_input, tool_output, file_path, success, error_message,
               duration_ms, created_at FROM tools
    """,
    "errors": "SELECT id, session_id, error_type, error_message, created_at FROM session_errors",
    "compactions": """
        SELECT id, session_id, tokens_before, tokens_after, cause, summary, created_at FROM compaction_events
    """,
}
_COUNTS = """
    SELECT substr(s.id, 1, 13) || iif(length(s.id) > 36, '-agent', ''),
           (SELECT count(*) FROM messages WHERE session_id = s.id AND role = 'user'),
           (SELECT count(*) FROM messages WHERE session_id = s.id AND role = 'assistant'),
           (SELECT count(*) FROM tools WHERE session_id = s.id),
           (SELECT count(*) FROM tools WHERE session_id = s.id AND success = 0),
           (SELECT count(*) FROM session_errors WHERE session_id = s.id),
           (SELECT count(*) FROM compaction_events WHERE session_id = s.id),
           coalesce(s.prompt_tokens, 0), coalesce(s.completion_tokens, 0)
    FROM sessions AS s
"""


def rows(connection: RawConnection) -> dict[str, list[list[Any]]]:
    """Everything that is stored, by table; without the session that only hooks report."""
    found = {name: connection.call("query", sql=sql, limit=5000)["rows"] for name, sql in _TABLES.items()}
    return {name: sorted((row for row in each if EPHEMERAL not in row[:2]), key=str) for name, each in found.items()}


def counts(connection: RawConnection) -> dict[str, Counts]:
    return {row[0]: tuple(row[1:]) for row in connection.call("query", sql=_COUNTS, limit=1000)["rows"]}


def replay(connection: RawConnection, harness: str, home: Path) -> None:
    for number, (name, event) in enumerate(EVENTS[harness](home)):
        request = {"harness": harness, "event": event, "at": REPLAYED_AT + 100 * number}
        reply = connection.request("hook.event", request)
        assert "error" not in reply, (name, reply)


def import_history(connection: RawConnection, harness: str) -> Any:
    job = connection.call("import.start", harness=harness)["jobId"]
    done = eventually(lambda: (each := connection.call("job.status", id=job))["state"] != "running" and each, "it ends")
    assert done["state"] == "done", done
    return done["result"]


def wait_until_read(connection: RawConnection) -> None:
    due = "SELECT path FROM transcripts WHERE wanted_at IS NOT NULL AND read_at IS NULL"
    eventually(lambda: connection.call("query", sql=due)["rows"] == [], "every file that hooks named is read")


@pytest.mark.parametrize("harness", sorted(EVENTS))
def test_hooks_and_session_files_give_the_same_rows_in_any_order(fresh_daemon: DaemonProcess, harness: str) -> None:
    home = fresh_daemon.home / "user"
    with fresh_daemon.connect() as connection:
        PUT_FILES[harness](home)
        summary = import_history(connection, harness)
        assert (summary["malformed"], summary["unreadable"]) == (0, 0)
        imported = rows(connection)
        assert counts(connection) == EXPECTED[harness]
        for _ in range(2):
            replay(connection, harness, home)
            wait_until_read(connection)
            assert rows(connection) == imported, "hooks after an import"
        again = import_history(connection, harness)
        assert (again["sessions"], again["messages"], again["tools"]) == (0, 0, 0)
        assert rows(connection) == imported, "an import after hooks"


@pytest.mark.parametrize("harness", sorted(EVENTS))
def test_hooks_before_the_session_files_give_the_same_rows(fresh_daemon: DaemonProcess, harness: str) -> None:
    home = fresh_daemon.home / "user"
    with fresh_daemon.connect() as connection:
        replay(connection, harness, home)
        PUT_FILES[harness](home)
        replay(connection, harness, home)
        wait_until_read(connection)
        live = rows(connection)
        import_history(connection, harness)
        assert rows(connection) == live
        stored = {key: each for key, each in counts(connection).items() if not EPHEMERAL.startswith(key)}
        assert stored == EXPECTED[harness]


@pytest.mark.parametrize("harness", ["openclaw"])
def test_hooks_alone_give_the_rows_of_an_import(fresh_daemon: DaemonProcess, home: Path, harness: str) -> None:
    with fresh_daemon.connect() as connection:
        replay(connection, harness, home)
        live = rows(connection)
        for (session_id,) in connection.call("query", sql="SELECT id FROM sessions")["rows"]:
            connection.call("session.delete", id=session_id)
        PUT_FILES[harness](fresh_daemon.home / "user")
        import_history(connection, harness)
        assert rows(connection) == live


WITH_FILES = {"claude-code": put_transcripts, **PUT_FILES}
del WITH_FILES["openclaw"]


def session_files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*.jsonl") if path.is_file())


def damage_duplicate(lines: list[bytes], chance: random.Random) -> list[bytes]:
    """Write lines twice, at once or later."""
    damaged = list(lines)
    for line in lines:
        if chance.random() < 0.3:
            damaged.insert(damaged.index(line) + 1 + chance.randrange(3), line)
    return damaged


def damage_insert(lines: list[bytes], chance: random.Random) -> list[bytes]:
    """Insert lines that are no JSON, of no known kind, or without anything that they need."""
    kinds = sorted({str(json.loads(line).get("type")) for line in lines})
    strange: list[bytes] = [
        b"", b"   ", b"{", b"[]", b"null", b"\xff\xfe", b"\x00" * 50, b"[" * 3000, b"{}",
        b'{"type": "of another version"}', b'{"type": ["user"], "message": 5}',
        *(json.dumps({"type": kind}).encode() for kind in kinds),
    ]  # fmt: skip
    for _ in range(30):
        lines.insert(chance.randrange(1, len(lines) + 1), chance.choice(strange))
    return lines


@pytest.mark.parametrize("damage", [damage_duplicate, damage_insert])
@pytest.mark.parametrize("harness", sorted(WITH_FILES))
def test_damaged_session_files_give_the_rows_of_sound_ones(
    fresh_daemon: DaemonProcess, harness: str, damage: Callable[[list[bytes], random.Random], list[bytes]]
) -> None:
    home, chance = fresh_daemon.home / "user", random.Random(13)
    with fresh_daemon.connect() as connection:
        WITH_FILES[harness](home)
        import_history(connection, harness)
        sound = rows(connection)
        for (session_id,) in connection.call("query", sql="SELECT id FROM sessions", limit=1000)["rows"]:
            connection.call("session.delete", id=session_id)
        for path in session_files(home):
            lines = damage(path.read_bytes().splitlines(), chance)
            path.write_bytes(b"".join(line + b"\n" for line in lines))
        assert import_history(connection, harness)["unreadable"] == 0
        assert rows(connection) == sound


@pytest.mark.parametrize("harness", sorted(set(EVENTS) - {"openclaw"}))
def test_files_that_grow_while_they_are_read_give_the_same_rows(fresh_daemon: DaemonProcess, harness: str) -> None:
    """Cut anywhere, also within a line or a character."""
    home, chance = fresh_daemon.home / "user", random.Random(13)
    with fresh_daemon.connect() as connection:
        PUT_FILES[harness](home)
        whole = {path: path.read_bytes() for path in session_files(home)}
        for path in whole:
            path.write_bytes(b"")
        cuts = {path: sorted(chance.randrange(len(content) + 1) for _ in range(4)) for path, content in whole.items()}
        for step in range(5):
            for path, content in whole.items():
                with path.open("ab") as file:
                    file.write(content[path.stat().st_size : [*cuts[path], len(content)][step]])
            replay(connection, harness, home)
            wait_until_current(connection)
        live = rows(connection)
        import_history(connection, harness)
        assert rows(connection) == live
        stored = {key: each for key, each in counts(connection).items() if not EPHEMERAL.startswith(key)}
        assert stored == EXPECTED[harness]


def wait_until_current(connection: RawConnection) -> None:
    """Wait until every file that a hook named is read as far as it goes."""

    def is_current() -> bool:
        found = connection.call("query", sql="SELECT path, size FROM transcripts", limit=1000)["rows"]
        return all(size == Path(path).stat().st_size for path, size in found if Path(path).exists())

    eventually(is_current, "every file is read to its end")
