"""No secret reaches the database or the log: every text of every method, hooks, watched files, transcripts."""

import inspect
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.schedules import make_due, next_run_of, wake
from helpers.waiting import eventually

from clankers_protocol.transfer import RECORDS, kind_of
from clankers_protocol.wire import methods
from clankersd.capture.harnesses.claude_code import hooks as claude_code
from clankersd.capture.harnesses.codex import hooks as codex
from clankersd.capture.harnesses.gemini import hooks as gemini
from clankersd.capture.harnesses.qwen import hooks as qwen

BODY = "16C7e42F292c6912E7710c838347Ae178B4a"
SECRET = f"ghp_{BODY}"

READS_ONLY = {
    "capture.status", "chunk.get", "chunk.list", "chunk.search", "chunk.searchKeyword", "config.get", "config.list",
    "daemon.config", "daemon.status", "db.check", "doctor.check", "document.get", "document.list", "entity.get",
    "entity.list", "export.read", "export.start", "file.history", "file.list", "forget.count", "getDbPath",
    "graph.getEdges", "graph.incoming", "graph.neighbors", "graph.traverse", "health",
    "id.find", "id.shorten", "index.status", "job.list", "job.status", "memory.compare", "memory.context",
    "memory.export", "memory.get", "memory.has",
    "memory.history", "memory.list", "memory.related", "memory.search", "memory.stats", "memory.strength",
    "memory.timeline",
    "message.list", "message.search", "metrics", "model.list", "project.list", "project.show", "query",
    "recall.ledger", "recall.lines", "recall.preview", "recall.recent", "recall.totals",
    "relation.list", "retention.count", "retention.show",
    "rpc.discover", "schedule.due", "schedule.find", "schedule.get", "schedule.history", "schedule.list", "search",
    "search.facets",
    "session.compactions", "session.entry", "session.errors", "session.get", "session.injections", "session.list",
    "session.timeline", "session.turns",
    "skill.export", "skill.get", "skill.list", "skill.search", "skill.versions", "stats", "thread.get", "thread.list",
    "tool.list", "tool.search",
}  # fmt: skip
"""Methods that store nothing of what they are given."""

NOT_TEXT = {
    "daemon.configure": "writes the owner's settings file, which holds API keys by design; it is no captured text",
    "daemon.reload": "reads that file",
    "db.migrate": "takes no text", "db.rollback": "takes no text", "db.vacuum": "takes no text",
    "doctor.repair": "takes no text", "ensureDb": "takes no text", "reindex": "takes names of sources only",
    "index.add": "a path: the identity of a file", "index.remove": "a path: the identity of a file",
    "index.sync": "takes no text", "import.start": "a path; what it reads is stored as events are",
    "schedule.subscribe": "stores nothing", "subscribe": "stores nothing", "unsubscribe": "stores nothing",
    "schedule.delete": "an id", "schedule.deleteAll": "takes no text", "schedule.enable": "an id",
    "session.delete": "an id", "skill.delete": "an id", "thread.delete": "an id", "entity.delete": "an id",
    "document.delete": "an id", "config.delete": "an id", "job.cancel": "an id", "$/cancelRequest": "an id",
    "graph.prune": "takes no text",
    "engine.copy": "a URL or a path, which is not stored",
    "backup.create": "takes no text", "backup.restore": "a path", "capture.pause": "a path", "capture.resume": "a path",
    "forget.start": "words to delete; they are stored nowhere", "memory.maintain": "takes no text",
    "retention.start": "takes no text",
    "memory.purge": "an id", "project.forget": "the identity of a project",
    "project.merge": "identities of projects", "project.move": "a path: the identity of a project",
}  # fmt: skip
"""Methods with no text to store, and why."""

EXEMPT_PARAMETERS = {
    "path": "the file to read, as it is on disk",
    "project": "a path: the identity of a project, and where .clankers-ignore is looked for",
    "project_path": "a path: the identity of a project, and where .clankers-ignore is looked for",
    "cwd": "a path: the identity of a project",
    "folder": "the folder a skill was read from: its name must be the skill's",
    "data": "base64 of a document; its text is redacted when it is extracted",
    "cursor": "an opaque position in a list",
    "schedule": "must parse as a schedule", "timezone": "must be the name of a zone",
    "key": "the identity of a setting", "namespace": "the identity of a setting", "harness": "one of a known set",
}  # fmt: skip
"""Parameters that are not redacted, and why. Ids are not either: they tie rows together."""

SCRIPT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("upsertSession", {"session": {"id": "s1"}}),
    ("upsertMessage", {"message": {"id": "m1", "session_id": "s1"}}),
    ("upsertTool", {"tool": {"id": "t1", "session_id": "s1"}}),
    ("upsertSessionError", {"session_error": {"id": "e1", "session_id": "s1"}}),
    ("upsertCompactionEvent", {"compaction_event": {"id": "c1", "session_id": "s1"}}),
    ("events.batch", {"events": [
        {"session": {"id": "s2", "title": SECRET, "projectName": SECRET, "context": {SECRET: SECRET}}},
        {"tool": {"id": "t2", "sessionId": "s2", "toolName": SECRET, "filePath": f"/a/{SECRET}", "toolInput": SECRET}},
    ]}),
    ("hook.event", {
        "harness": "generic", "event": {"message": {"id": "m3", "sessionId": "s2", "textContent": SECRET}},
    }),
    ("log.write", {}),
    ("mcp.message", {"project": "/w", "message": {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "remember", "arguments": {"content": f"The agent was told {SECRET} by its user."}}}}),
    ("memory.add", {"content": f"one fact {SECRET}", "supersedes": None, "session_id": "s1"}),
    ("memory.add", {"content": f"another thing entirely {SECRET}", "supersedes": None, "force": True}),
    ("memory.update", {"id": "$memory.add", "clear": None, "session_id": "s1"}),
    ("memory.promote", {"id": "$memory.add", "tier": "global"}),
    ("memory.pin", {"id": "$memory.add"}),
    ("memory.reinforce", {"id": "$memory.add"}),
    ("memory.deemphasize", {"id": "$memory.add"}),
    ("memory.touch", {"ids": ["$memory.add"], "session_id": "s1"}),
    ("memory.import", {"memories": [{
        "id": "01J00000000000000000000001", "content": f"about {SECRET}", "createdAt": 1, "metadata": {SECRET: SECRET},
        "entities": [{"name": f"E {SECRET}", "type": "concept", "role": "subject"}],
    }]}),
    ("relation.add", {"source": "$memory.add", "target": "01J00000000000000000000001"}),
    ("relation.close", {"id": "$relation.add"}),
    ("memory.delete", {"id": "$memory.add"}),
    ("memory.restore", {"id": "$memory.add"}),
    ("memory.bulkDelete", {}),
    ("entity.upsert", {"id": None}),
    ("entity.link", {"memory_id": "$memory.add", "entity_id": "$entity.upsert"}),
    ("thread.create", {"chat_id": "c1", "id": "thread1", "project": "/shop"}),
    ("project.rename", {"project": "/shop"}),
    ("thread.update", {"id": "thread1", "chat_id": "c1"}),
    ("message.store", {"thread_id": "thread1", "id": "m9", "role": "user"}),
    ("document.store", {"id": None, "chunks": [
        {"id": "k1", "content": f"chunk {SECRET}", "metadata": {SECRET: SECRET}}, {"id": "k2", "content": "other"},
    ]}),
    ("document.update", {"id": "$document.store"}),
    ("graph.storeEdges", {"edges": [
        {"sourceId": "k1", "targetId": "k2", "relation": "references", "description": SECRET},
    ]}),
    ("document.ingest", {
        "kind": None, "strategy": None, "text": f"# Title {SECRET}\n\nbody {SECRET}", "source": f"x {SECRET}",
    }),
    ("document.ingestMany", {"documents": [{"text": f"many {SECRET}", "title": SECRET, "source": f"s {SECRET}"}]}),
    ("skill.create", {"name": "first-skill", "files": [{"path": "a.md", "text": f"file {SECRET}"}]}),
    ("skill.update", {
        "id": "$skill.create", "name": "first-skill", "files": [{"path": "a.md", "text": f"v2 {SECRET}"}],
    }),
    ("skill.import", {
        "text": f"---\nname: second\ndescription: note {SECRET}\nx: {SECRET}\n---\nuse {SECRET}\n",
        "folder": "second", "files": [],
    }),
    ("schedule.create", {"schedule": "09:00 daily", "builtin": None, "skill_id": None}),
    ("schedule.update", {"id": "$schedule.create", "builtin": None, "skill_id": None, "schedule": "10:00 daily"}),
    ("schedule.ack", {"run_id": "$run", "state": "done"}),
    ("config.set", {"namespace": "tests", "key": "api_key"}),
)  # fmt: skip
"""Every storing method in an order that gives each what it needs. `$method` is the id in that method's reply."""

ELSEWHERE = {
    "import.lines": "called by import_records, with a record of every kind",
    "entity.merge": "moves rows that are stored already",
    "memory.extract": "needs a chat service; stores what memory.add stores, through the same function",
    "memory.summarize": "needs a chat service; stores what memory.add stores, through the same function",
    "recall.get": "records ids", "recall.hook": "records what is recalled from the database",
}  # fmt: skip
"""Storing methods that are not called here, and why."""


@pytest.fixture(scope="module")
def daemon_full_of_secrets() -> Iterator[DaemonProcess]:
    """A daemon that was sent a secret in every way there is."""
    with tempfile.TemporaryDirectory(prefix="clk-") as path:
        home = Path(path)
        notes = home / "work" / "memory"
        notes.mkdir(parents=True)
        (notes / "note.md").write_text(f"# Note\n\nthe key is {SECRET}\n")
        (home / "clankers.toml").write_text(f'watch_roots = ["{home / "work"}"]\nembedder = "none"\n')
        with running_daemon(home, HOME=str(home / "user")) as daemon, daemon.connect() as connection:
            call_every_method(daemon, connection)
            import_records(connection)
            send_hook_events(connection)
            read_transcript(connection, home)
            eventually(lambda: connection.call("index.status")["files"]["files"] == 1, "the note is indexed")
            yield daemon


def call_every_method(daemon: DaemonProcess, connection: RawConnection) -> None:
    declared, made = methods(), dict[str, str]()
    for name, given in SCRIPT:
        if "$run" in given.values():
            made["$run"] = handed_out_run(daemon, made["$schedule.create"])
        params = parameters(declared[name], resolved(given, made))
        reply = connection.request(name, params)
        assert "error" not in reply, (name, params, reply["error"])
        if identifier := id_in(reply["result"]):
            made.setdefault(f"${name}", identifier)


def handed_out_run(daemon: DaemonProcess, action: str) -> str:
    with daemon.connect() as worker, daemon.connect() as other:
        worker.call("schedule.subscribe")
        make_due(daemon, action)
        wake(other, action)
        return str(next_run_of(worker)["runId"])


def id_in(result: Any) -> str | None:
    if not isinstance(result, dict):
        return None
    inner = next((value for value in result.values() if isinstance(value, dict) and "id" in value), {})
    return result.get("id") or inner.get("id")


def resolved(given: Any, made: dict[str, str]) -> Any:
    if isinstance(given, dict):
        return {key: resolved(value, made) for key, value in given.items()}
    if isinstance(given, list):
        return [resolved(value, made) for value in given]
    return made.get(given, given) if isinstance(given, str) else given


def parameters(struct: type, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a declared struct: a secret in every text, but for what is given; None leaves one out."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    made = {}
    for field in info.fields:
        inner = given.get(field.name)
        if isinstance(field.type, msgspec.inspect.StructType) and isinstance(inner, dict):
            value: Any = parameters(field.type.cls, inner)
        else:
            value = inner if field.name in given else secret_for(field.name, field.type)
        if value is not None:
            made[field.encode_name] = value
    return made


def secret_for(name: str, declared: msgspec.inspect.Type) -> Any:
    if name in EXEMPT_PARAMETERS or name in ("id", "ids") or name.endswith(("_id", "_ids")):
        return None
    if isinstance(declared, msgspec.inspect.UnionType):
        return next((value for each in declared.types if (value := secret_for(name, each)) is not None), None)
    if isinstance(declared, msgspec.inspect.StrType):
        return None if declared.pattern else f"note {SECRET} in {name}"
    if isinstance(declared, msgspec.inspect.ListType):
        inner = secret_for(name, declared.item_type)
        return None if inner is None else [inner]
    if isinstance(declared, msgspec.inspect.DictType | msgspec.inspect.AnyType):
        return {SECRET: [f"note {SECRET}"], "password": BODY}
    if isinstance(declared, msgspec.inspect.StructType):
        return parameters(declared.cls, {})
    return declared.values[0] if isinstance(declared, msgspec.inspect.LiteralType) else None


RECORD_FIELDS: dict[str, Any] = {
    "session_id": "import-session", "memory_id": "import-memory", "document_id": "import-document",
    "skill_id": "import-skill", "action_id": "import-schedule", "message_id": "import-message", "parent_id": None,
    "project_id": None, "path": "/import/place", "name": f"imported {SECRET}", "skill_name": "imported",
    "prompt_id": "p", "entity_name": f"imported {SECRET}", "namespace": "imported", "key": "imported",
    "source": "import-memo", "document_source": "import-memo",
    "scope": "global", "schedule": "09:00 daily", "timezone": "UTC", "builtin": None, "digest": "abc", "hash": "abc",
    "checksum": "abc", "repositories": [], "folders": [], "project_path": None, "skill": {"note": SECRET},
    "tags": [SECRET], "concepts": [SECRET], "references": [SECRET], "tools": [SECRET], "ids": [SECRET],
    "files": [f"/a/{SECRET}"], "tool_calls": [{"name": SECRET}], "value": [SECRET], "result": {"note": SECRET},
    "metadata": {SECRET: SECRET}, "context": {"note": SECRET}, "settings": {"note": SECRET}, "before": {"note": SECRET},
    "extra": {"note": SECRET},
}  # fmt: skip
"""Values of fields of records; other texts are a secret, and numbers are 1."""


def import_records(connection: RawConnection) -> None:
    """Import a record of every kind that has a text, with a secret in each text."""
    lines = []
    for record in RECORDS:
        if kind_of(record) in ("optedOut", "watchedPath", "relation", "edge"):
            continue  # ids and paths; the descriptions of edges are redacted as all texts of records are
        line: dict[str, Any] = {"kind": kind_of(record)}
        info = msgspec.inspect.type_info(record)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            if field.name == "id":
                value: Any = f"import-{line['kind']}"
            elif field.name in RECORD_FIELDS:
                value = RECORD_FIELDS[field.name]
            elif isinstance(field.type, msgspec.inspect.IntType | msgspec.inspect.FloatType):
                value = 1
            else:
                value = secret_for(field.name, field.type)
            if line["kind"] == "skill" and field.name == "name":
                value = "imported"
            if value is not None:
                line[field.encode_name] = value
        lines.append(line)
    imported = connection.call("import.lines", lines=lines)
    assert imported["rejected"] == []
    assert imported["new"] == len(lines)


_FIELD = re.compile(r"(?:text|number|record)\(\w+, \"([\w-]+)\"\)|\.get\(\"([\w-]+)\"")
_EVENT = re.compile(r"\"([A-Z][A-Za-z]{3,})\"")
_IDENTIFIERS = re.compile(r"(?:^|[_-])(?:id|cwd|path|directory|type|timestamp)$|hook_event_name")


def send_hook_events(connection: RawConnection) -> None:
    """Send every event that a harness's reader names, with a secret in every field that it reads."""
    for module in (claude_code, codex, gemini, qwen):
        source = inspect.getsource(module)
        fields = {one or other for one, other in _FIELD.findall(source)}
        event: dict[str, Any] = {name: f"{name} {SECRET}" for name in fields if not _IDENTIFIERS.search(name)}
        event |= {"tool_name": SECRET, "tool_input": {"command": f"x {SECRET}", "file_path": f"/a/{SECRET}"}}
        for name in sorted(set(_EVENT.findall(source))):
            own = {
                "hook_event_name": name,
                "session_id": f"{module.NAME}-1",
                "tool_use_id": f"{name}-t",
                "prompt_id": name,
            }
            connection.call("hook.event", harness=module.NAME, event=event | own)
    turn = {"type": "agent-turn-complete", "thread-id": "n1", "turn-id": "1", "input-messages": [SECRET]}
    connection.call("hook.event", harness="codex", event=turn | {"last-assistant-message": SECRET})
    info = {"id": "o1", "sessionID": "o1", "title": SECRET, "role": "user", "time": {"created": 1}}
    part = {"id": "p1", "type": "text", "text": SECRET}
    tool = {
        "id": "p2",
        "type": "tool",
        "tool": SECRET,
        "callID": "c",
        "state": {"status": "error", "input": {"a": SECRET}, "error": SECRET},
    }
    for kind, properties in (
        ("session.created", {"info": info}),
        ("session.error", {"sessionID": "o1", "error": {"name": SECRET, "data": {"message": SECRET}}}),
        ("message.updated", {"info": info | {"id": "om"}, "parts": [part, tool]}),
    ):
        connection.request("hook.event", {"harness": "opencode", "event": {"type": kind, "properties": properties}})
    refused = connection.request("hook.event", {"harness": "generic", "event": {SECRET: {}}})
    assert "error" in refused


def read_transcript(connection: RawConnection, home: Path) -> None:
    folder = home / "user" / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True)
    path = folder / "tr1.jsonl"
    lines: list[dict[str, Any]] = [
        {"type": "user", "uuid": "u1", "promptId": "p1", "message": {"role": "user", "content": f"said {SECRET}"}},
        {"type": "summary", "summary": SECRET, "leafUuid": "u1"},
        {"type": "assistant", "uuid": "a1", "message": {"id": "msg1", "model": SECRET, "role": "assistant", "content": [
            {"type": "text", "text": f"answer {SECRET}"},
            {"type": "tool_use", "id": "tu1", "name": "Bash", "input": {"command": SECRET}}]}},
        {"type": "user", "uuid": "r1", "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "tu1", "content": f"output {SECRET}"}]}},
    ]  # fmt: skip
    common = {"sessionId": "tr1", "cwd": "/w", "timestamp": "2026-01-15T10:00:00.000Z"}
    path.write_text("".join(json.dumps(common | line) + "\n" for line in lines))
    event = {"hook_event_name": "Stop", "session_id": "tr1", "cwd": "/w", "transcript_path": str(path)}
    connection.call("hook.event", harness="claude-code", event=event)

    def stored() -> dict[str, Any]:
        return connection.request("tool.list", {"sessionId": "tr1"})

    eventually(lambda: b"" if "error" in stored() else stored()["result"]["tools"], "the transcript is read")


def test_every_declared_method_is_accounted_for() -> None:
    called = {name for name, _ in SCRIPT}
    assert set(methods()) == called | READS_ONLY | set(NOT_TEXT) | set(ELSEWHERE)


def test_database_holds_no_secret(daemon_full_of_secrets: DaemonProcess) -> None:
    assert rows_with_secret(daemon_full_of_secrets) == []


def test_database_file_holds_no_secret(daemon_full_of_secrets: DaemonProcess) -> None:
    """Not in a free page or the write-ahead log either."""
    database = daemon_full_of_secrets.database
    for path in (database, database.with_name(database.name + "-wal")):
        assert BODY.encode() not in path.read_bytes(), path.name


def test_log_holds_no_secret(daemon_full_of_secrets: DaemonProcess) -> None:
    logs = [path.read_text() for path in daemon_full_of_secrets.logs.glob("*.jsonl")]
    assert any("redacted:" in log for log in logs), "log.write wrote nothing"
    assert not any(BODY in log for log in logs)


def test_redactions_are_counted(daemon_full_of_secrets: DaemonProcess) -> None:
    with daemon_full_of_secrets.connect() as connection:
        assert connection.call("capture.status")["redacted"]["api-key"] > len(SCRIPT)


def rows_with_secret(daemon: DaemonProcess) -> list[str]:
    """Every column of every table in which the secret is, whatever its case."""
    found = []
    db = apsw.Connection(str(daemon.database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = [
            row[0]
            for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'")
        ]
        for table in tables:
            cursor = db.execute(f'SELECT * FROM "{table}"')
            for row in cursor:
                names = [each[0] for each in cursor.get_description()]
                for column, value in zip(names, row, strict=True):
                    text = value.decode("utf-8", "ignore") if isinstance(value, bytes) else str(value)
                    if BODY.lower() in text.lower():
                        found.append(f"{table}.{column}: {text[:200]}")
    finally:
        db.close()
    return found
