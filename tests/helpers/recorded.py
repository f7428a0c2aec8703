"""What real harnesses sent, recorded: payloads, transcripts and streams that lie beside the project, if they do."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures"
CLAUDE = FIXTURES / "claude-code"
OPENCODE = FIXTURES / "opencode"

needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="the recorded payloads (../shared/fixtures) are not on this machine"
)

PHASES = (
    "basic", "resume", "fork", "compact", "aftercompact", "parallel", "perm", "subagent", "mcp", "slash", "clear",
    "apierror", "autocompact", "stopfailure", "interactive",
)  # fmt: skip
"""In the order they were recorded: later ones go on with earlier sessions."""

RECORDED_HOME = "/home/user"


def claude_events(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded payload by its file's name, with the transcripts where `home` has them."""
    for phase in PHASES:
        for path in sorted(CLAUDE.glob(f"{phase}-*.json")):
            event = json.loads(path.read_text("utf-8"))
            for key in ("transcript_path", "agent_transcript_path"):
                if key in event:
                    event[key] = event[key].replace(f"{RECORDED_HOME}/.claude", f"{home}/.claude")
            yield path.name, event


def put_transcripts(home: Path, session: str = "") -> Path:
    """Lay the recorded transcripts, or those of one session, where Claude Code would have written them."""
    folder = home / ".claude" / "projects" / "-home-user-proj"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((CLAUDE / "transcripts").glob(f"*/{session}*")):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
        elif not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)
    return folder


def opencode_events(stream: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """A recorded stream as the plugin sends it: when, and an event of the bus or a message put together from parts."""
    at = 0
    infos: dict[str, dict[str, Any]] = {}
    parts: dict[str, dict[str, dict[str, Any]]] = {}
    for line in stream.read_text("utf-8").splitlines():
        entry = json.loads(line)
        at = entry["t"]
        event = entry.get("event") or {}
        kind, properties = event.get("type", ""), event.get("properties", {})
        if kind.startswith("session."):
            yield at, event
        elif kind == "message.part.updated":
            part = properties["part"]
            parts.setdefault(part["messageID"], {})[part["id"]] = part
            if part["type"] == "tool":
                yield at, event
        elif kind == "message.updated":
            infos[properties["info"]["id"]] = properties["info"]
            if "completed" in properties["info"].get("time", {}):
                yield at, _assembled(properties["info"], parts)
    for info in infos.values():  # as at the plugin's end: all of it, once more
        yield at, _assembled(info, parts)


def _assembled(info: dict[str, Any], parts: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    own = [
        part for part in parts.get(info["id"], {}).values() if part["type"] not in ("tool", "step-start", "step-finish")
    ]
    return {"type": "clankers.message", "properties": {"sessionID": info["sessionID"], "info": info, "parts": own}}


CODEX = FIXTURES / "codex"
GEMINI = FIXTURES / "gemini-cli"


def codex_events(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded payload of Codex by its file's name, in the order of the sessions."""
    phases = "basic resume fork heredoc parallel subagent apierror ratelimit ephemeral mcp long grow aftergrow"
    for phase in f"{phases} tuinew codemode subagent2 tui".split():
        yield from _moved(sorted(CODEX.glob(f"{phase}-[0-9]*.json")), f"{home}/.codex", ".codex")


def gemini_events(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded payload of Gemini CLI by its file's name, in the order of the sessions."""
    for phase in ["basic", "resume", "parallel", "mcp", "apierror", "json", "subagent", "tui", "clear", "ext"]:
        yield from _moved(sorted(GEMINI.glob(f"{phase}-[0-9]*.json")), f"{home}/.gemini", ".gemini")


def _moved(paths: list[Path], folder: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        recorded = path.read_text("utf-8").replace(f"{RECORDED_HOME}/{name}", folder)
        yield path.name, json.loads(recorded)


def put_rollouts(home: Path) -> None:
    """Lay the recorded rollouts where Codex would have written them."""
    folder = home / ".codex" / "sessions" / "2026" / "11" / "16"
    shutil.copytree(CODEX / "rollouts", folder, dirs_exist_ok=True)


def put_chats(home: Path) -> None:
    """Lay the recorded session files where Gemini CLI would have written them."""
    folder = home / ".gemini" / "tmp" / "project"
    shutil.copytree(GEMINI / "chats", folder / "chats", dirs_exist_ok=True)
    (folder / ".project_root").write_text("/home/user/project")


QWEN = FIXTURES / "qwen-code"
COPILOT = FIXTURES / "copilot-cli"
PI = FIXTURES / "pi"
MORE_PHASES = ("basic", "resume", "subagent", "apierror", "compact")


def qwen_events(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded payload of Qwen Code by its file's name, in the order of the sessions."""
    for phase in MORE_PHASES:
        yield from _moved(sorted(QWEN.glob(f"{phase}-[0-9]*.json")), f"{home}/.qwen", ".qwen")


def copilot_events(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded payload of Copilot CLI by its file's name, with what the plugin has the hook add to it."""
    for phase in MORE_PHASES:
        for name, event in _moved(sorted(COPILOT.glob(f"{phase}-[0-9]*.json")), f"{home}/.copilot", ".copilot"):
            yield name, with_event_name(name, event, f"{home}/.copilot")


def with_event_name(name: str, event: dict[str, Any], folder: str = f"{RECORDED_HOME}/.copilot") -> dict[str, Any]:
    return {"hookEventName": name.split("-")[2].partition(".")[0], "copilotHome": folder, **event}


def pi_events(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded event of pi by its file's name, and the end of sessions that only a file was recorded of."""
    for phase in MORE_PHASES:
        yield from _moved(sorted(PI.glob(f"{phase}-[0-9]*.json")), f"{home}/.pi", ".pi")
    folder = home / ".pi" / "agent" / "sessions" / "--home-user-project--"
    for path in sorted((PI / "sessions").glob("*.jsonl"))[1:]:
        context = {
            "sessionId": path.stem.partition("_")[2],
            "sessionFile": f"{folder}/{path.name}",
            "cwd": "/home/user",
        }
        yield path.name, {"event": {"type": "session_shutdown", "reason": "quit"}, "ctx": context}


def put_qwen_chats(home: Path) -> None:
    """Lay the recorded session files where Qwen Code would have written them."""
    for path in sorted((QWEN / "sessions").glob("*.jsonl")):
        folder = "subagents/22b5c563-db3d-4d0d-9819-45532c074a99" if path.name.startswith("agent-") else "chats"
        _put(path, home / ".qwen" / "projects" / "-home-user-project" / folder / path.name)


def put_event_logs(home: Path) -> None:
    """Lay the recorded event logs where Copilot CLI would have written them."""
    for path in sorted((COPILOT / "sessions").glob("*.jsonl")):
        _put(path, home / ".copilot" / "session-state" / path.name.partition(".")[0] / "events.jsonl")


def put_pi_sessions(home: Path) -> None:
    """Lay the recorded session files where pi would have written them."""
    for path in sorted((PI / "sessions").glob("*.jsonl")):
        _put(path, home / ".pi" / "agent" / "sessions" / "--home-user-project--" / path.name)


def _put(path: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, destination)


OPENCLAW = FIXTURES / "openclaw"
OPENCLAW_PHASES = ("gwbasic", "gwresume", "gwsub", "gwcompact", "gwerror", "gwstop")
OPENCLAW_HOOKS = frozenset(
    """session_start session_end before_message_write before_prompt_build after_compaction subagent_spawned
    subagent_ended""".split()  # noqa: SIM905
)
"""Hooks that the plugin of OpenClaw reports."""

OPENCLAW_SCHEMA = """
    CREATE TABLE session_windows (
        session_id TEXT NOT NULL PRIMARY KEY, session_key TEXT NOT NULL, created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL, parent_session_key TEXT, spawned_by TEXT) STRICT;
    CREATE TABLE transcript_events (
        session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT, created_at INTEGER NOT NULL, event_zstd BLOB,
        PRIMARY KEY (session_id, seq)) STRICT;
    CREATE TABLE transcript_event_identities (
        session_id TEXT NOT NULL, event_id TEXT NOT NULL, seq INTEGER NOT NULL, event_type TEXT,
        PRIMARY KEY (session_id, event_id)) STRICT;
"""
MIN_COMPRESSED_BYTES = 1024
"""Length from which OpenClaw compresses an entry."""


def openclaw_calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded call of a hook by its file's name, in the order of the calls."""
    for phase in OPENCLAW_PHASES:
        for path in sorted(OPENCLAW.glob(f"{phase}-*.json")):
            yield path.name, json.loads(path.read_text("utf-8"))


def openclaw_transcripts() -> dict[str, list[dict[str, Any]]]:
    """The recorded rows of each transcript, by the session's key."""
    found = {}
    for path in sorted((OPENCLAW / "transcripts").glob("*.jsonl")):
        key = path.stem.replace("_", ":")
        found[key] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return found


def openclaw_events(_home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the plugin sends for the recorded calls: with the session's id, and entries of transcripts."""
    transcripts = openclaw_transcripts()
    ids = {key: rows[0]["session_id"] for key, rows in transcripts.items()}
    requesters = {}
    opened = set()
    for name, call in openclaw_calls():
        hook, event, context = call["hook"], call["event"], call["ctx"]
        if hook not in OPENCLAW_HOOKS:
            continue
        key = context.get("sessionKey") or event.get("childSessionKey") or event.get("targetSessionKey")
        given = {
            each: context[each] for each in ("agentId", "workspaceDir", "modelId", "modelProviderId") if each in context
        }
        sent = {"hook": hook, "event": event, "ctx": {**given, "sessionKey": key, "sessionId": ids[key]}}
        if hook == "before_prompt_build":
            sent["event"] = {}
        if hook == "subagent_spawned":
            requesters[key] = context["requesterSessionKey"]
            sent["ctx"]["parentSessionId"] = ids[requesters[key]]
        if hook != "after_compaction":  # sent only if the transcript cannot be read
            yield name, sent
        for row in transcripts[key]:
            kind, is_opened = row["event"]["type"], key in opened
            if (hook == "before_prompt_build" and kind == "session" and not is_opened) or (
                hook == "after_compaction" and kind == "compaction"
            ):
                opened.add(key)
                sent = {"hook": "transcript", "event": {"entry": row["event"]}, "ctx": {"sessionId": ids[key]}}
                yield f"{name} {kind}", sent


def put_openclaw_database(home: Path, workspace: str = "/home/user/project") -> None:
    """Write the recorded transcripts into a database where OpenClaw has its own, as if recorded in a workspace."""
    folder = home / ".openclaw" / "agents" / "main" / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "openclaw-agent.sqlite").unlink(missing_ok=True)
    with closing(apsw.Connection(str(folder / "openclaw-agent.sqlite"))) as db:
        db.execute(OPENCLAW_SCHEMA)
        for key, rows in openclaw_transcripts().items():
            spawned_by = "agent:main:lab2" if ":subagent:" in key else None
            times = rows[0]["created_at"], rows[-1]["created_at"]
            window = (rows[0]["session_id"], key, *times, None, spawned_by)
            db.execute("INSERT INTO session_windows VALUES (?, ?, ?, ?, ?, ?)", window)
            for row in rows:
                text = json.dumps(row["event"]).replace("/home/user/project", workspace)
                place = row["session_id"], row["seq"]
                compressed = zstd.compress(text.encode()) if len(text) >= MIN_COMPRESSED_BYTES else None
                stored = (None if compressed else text, row["created_at"], compressed)
                db.execute("INSERT INTO transcript_events VALUES (?, ?, ?, ?, ?)", (*place, *stored))
                identity = (row["session_id"], row["event"]["id"], row["seq"], row["event"]["type"])
                db.execute("INSERT INTO transcript_event_identities VALUES (?, ?, ?, ?)", identity)
