"""Export and import of everything durable: complete, repeatable, and the same on both machines after a merge."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import settled

from clankersd.transfer.tables import TABLES

OTHER_TABLES = {"project_folders": ("path", "project_id", "repository", "seen_at"), "project_repositories": None}
"""Tables whose rows are part of another record, with the columns that are not of one machine alone."""

LOCAL_COLUMNS = {"number"}
"""Columns that only order rows on one machine."""

LOCAL_IDS = ("memory_log", "injections")
"""Tables whose ids only order rows on one machine."""

REPOSITORY = "example.com/team/shop"


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[DaemonProcess, DaemonProcess]]:
    """Two daemons without embedder, which store nothing until a test does."""
    with (
        TemporaryDirectory(prefix="clk-") as one,
        TemporaryDirectory(prefix="clk-") as other,
        running_daemon(Path(one), CLANKERS_EMBEDDER="none") as first,
        running_daemon(Path(other), CLANKERS_EMBEDDER="none") as second,
    ):
        yield first, second


def fill(rpc: RawConnection, name: str, at: int = 1_760_000_000_000) -> None:
    """Store something of every kind that methods can store; `name` keeps machines apart."""
    session = {
        "id": f"s-{name}", "source": "claude-code", "title": f"Work on {name}", "projectPath": f"/home/{name}/shop",
        "metadata": {"openedAt": at, "note": "ü"}, "createdAt": at, "cost": 0.25, "chatId": f"chat-{name}",
    }  # fmt: skip
    rpc.call("upsertSession", session=session)
    part = {"sessionId": f"s-{name}", "createdAt": at + 1}
    for number in range(3):
        text = f'Prompt {number} of {name} \U0001f980 "quoted"\n\tline two'
        message = part | {"id": f"m-{name}-{number}", "role": "user", "textContent": text, "metadata": {"n": number}}
        rpc.call("upsertMessage", message=message)
    tool = part | {"id": f"t-{name}", "toolName": "Bash", "toolInput": '{"command": "ls"}', "toolOutput": "a\nb"}
    rpc.call("upsertTool", tool=tool | {"success": True, "filePath": "/x/y.py"})
    rpc.call("upsertSessionError", sessionError=part | {"id": f"e-{name}", "errorMessage": "it broke"})
    rpc.call("upsertCompactionEvent", compactionEvent=part | {"id": f"c-{name}", "tokensBefore": 10})
    memories = [
        rpc.call("memory.add", content=f"{text} for {name}", scope="global", force=True, sessionId=f"s-{name}")
        for text in ("We deploy on Tuesdays", "The API listens on port 9090", "Tests need the network")
    ]
    ids = [memory["memory"]["id"] for memory in memories]
    rpc.call("memory.update", id=ids[0], content=f"We deploy on Wednesdays for {name}", scopes=["*"])
    rpc.call("memory.delete", id=ids[2], scopes=["*"])
    entity = rpc.call("entity.upsert", name="PostgreSQL", type="technology", scopes=["*"])["id"]
    rpc.call("entity.link", memoryId=ids[0], entityId=entity, role="subject", scopes=["*"])
    rpc.call("relation.add", source=ids[0], target=ids[1], type="RELATED_TO", scopes=["*"])
    text = "\n\n".join(f"## Part {number}\n\n{'word ' * 90}{name}" for number in range(6))
    rpc.call("document.ingest", text=text, source=f"memo-{name}", title=name)
    rpc.call("skill.create", name=f"skill-{name}", description="Find it", instructions="git bisect run")
    rpc.call("skill.update", id=f"skill-{name}", instructions="git bisect start")
    rpc.call("schedule.create", description=f"Back up {name}", schedule="09:00 daily", builtin="backup")
    rpc.call("config.set", namespace="plugin", key=name, value={"colour": "red"})
    rpc.call("config.set", namespace="plugin", key=f"{name}-off", value=None)


def rows(daemon: DaemonProcess) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the durable tables, sorted."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    db = apsw.Connection(str(daemon.database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = {table.name: None for table in TABLES} | OTHER_TABLES
        for table, chosen in tables.items():
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            left_out = LOCAL_COLUMNS | ({"id"} if table in LOCAL_IDS else set())
            columns = ", ".join(chosen or [f'"{name}"' for name in names if name not in left_out])
            found[table] = sorted(db.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)
    finally:
        db.close()
    return found


def differences(one: DaemonProcess, other: DaemonProcess) -> dict[str, Any]:
    """Return the rows that only one of the daemons has, by table."""
    ours, theirs = rows(one), rows(other)
    return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}


def export(daemon: DaemonProcess, name: str = "all.jsonl.zst") -> Path:
    path = daemon.data / name
    ran = ctl(daemon, "export", str(path), "--json")
    assert ran.code == 0, ran.err
    return path


def import_file(daemon: DaemonProcess, path: Path) -> dict[str, Any]:
    ran = ctl(daemon, "import", str(path), "--json")
    assert ran.code == 0, ran.out + ran.err
    return dict(ran.json)


def test_export_into_an_empty_daemon_restores_every_durable_row(machines: tuple[DaemonProcess, DaemonProcess]) -> None:
    old, new = machines
    with old.connect() as rpc:
        fill(rpc, "ann")
    path = export(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    assert {table for table, found in rows(old).items() if not found} <= {
        "opted_out", "told_messages", "injections", "extractions", "schedule_runs", "watched_paths",
        "project_repositories",
    }  # fmt: skip
    imported = import_file(new, path)
    assert imported["updated"] == imported["unchanged"] == 0
    assert differences(old, new) == {}
    again = import_file(new, path)
    assert (again["new"], again["updated"], again["unchanged"]) == (0, 0, imported["new"])
    assert differences(old, new) == {}


def test_two_machines_are_equal_after_imports_in_both_directions(
    machines: tuple[DaemonProcess, DaemonProcess],
) -> None:
    first, second = machines
    for daemon, name, at in ((first, "eve", 1_760_000_000_000), (second, "bob", 1_750_000_000_000)):
        with daemon.connect() as rpc:
            fill(rpc, name, at)
            # Both know the same repository, entity and skill, under ids of their own.
            place = {"projectPath": f"/home/{name}/shop", "projectRepository": REPOSITORY, "projectId": f"p-{name}"}
            memory = {"id": f"memory-{name}", "content": f"Shop fact of {name}", "createdAt": at, **place}
            rpc.call("memory.import", memories=[memory | {"scope": f"project:p-{name}"}], scopes=["*"])
            rpc.call("skill.create", name="shared", description=f"Of {name}", instructions="x")
    from_first, from_second = export(first), export(second)
    assert import_file(second, from_first)["new"] > 30
    assert import_file(first, from_second)["new"] > 30
    import_file(second, export(first, "again.jsonl"))
    assert differences(first, second) == {}
    assert len({row for row in rows(first)["project_repositories"] if row[0] == REPOSITORY}) == 1
    assert len(rows(first)["projects"]) == 2  # one of them from the test before
    for daemon in machines:
        for path in (from_first, from_second, first.data / "again.jsonl"):
            assert import_file(daemon, path) | {"unchanged": 0} == {
                "new": 0, "updated": 0, "unchanged": 0, "rejected": [],
            }  # fmt: skip
    assert differences(first, second) == {}
    with second.connect() as rpc:
        settled(rpc)
        [hit] = rpc.call("search", query="Prompt 1 of eve", limit=1)["hits"]
        assert hit["ref"]["sessionId"] == "s-eve"
        assert rpc.call("search", query="Wednesdays eve", sources=["memories"], scopes=["*"])["hits"]


def lines_of(*given: dict[str, Any]) -> str:
    header = {"format": "clankers-export", "version": 1, "exportedAt": 1, "clankers": "0.1.0", "rows": {}}
    return "".join(f"{json.dumps(line)}\n" for line in (header, *given))


def test_import_names_line_and_field_of_what_it_rejects(
    rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    session = {"kind": "session", "id": "s", "createdAt": 1, "updatedAt": 1}
    message = {"kind": "message", "sessionId": "s", "createdAt": 2, "textContent": "kept"}
    file = tmp_path / "all.jsonl"
    file.write_text(
        lines_of(
            session,
            message | {"id": "good"},
            message | {"id": "bad", "createdAt": "yesterday"},
            message | {"id": "orphan", "sessionId": "elsewhere"},
            message | {"id": "more", "colour": "red"},
            {"kind": "wish"},
            session | {"id": "s2", "metadata": [1]},
        )
        + "{broken\n"
    )
    ran = ctl(shared_daemon, "import", str(file), "--json")
    assert ran.code == 4
    assert (ran.json["new"], ran.json["updated"], ran.json["unchanged"]) == (2, 0, 0)
    reasons = {line["line"]: line["reason"] for line in ran.json["rejected"]}
    assert sorted(reasons) == [4, 5, 6, 7, 8, 9]
    for line, named in {4: "createdAt", 5: "sessionId", 6: "colour", 7: "kind", 8: "metadata", 9: "JSON"}.items():
        assert named in reasons[line]
    readable = ctl(shared_daemon, "import", str(file))
    assert readable.out == "Imported: 0 new, 0 updated, 2 unchanged, 6 rejected.\n"
    assert "line 4: " in readable.err
    assert [one["id"] for one in rpc.call("message.list", sessionId="s")["messages"]] == ["good"]


def test_imported_texts_are_redacted(rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    file = tmp_path / "all.jsonl"
    at = {"createdAt": 1, "updatedAt": 1}
    session = {"kind": "session", "id": "s", **at, "title": f"token {secret}", "metadata": {"k": secret}}
    setting = {"kind": "clientSetting", "namespace": "n", "key": "k", "value": [secret], "updatedAt": 1}
    file.write_text(lines_of(session, setting))
    assert ctl(shared_daemon, "import", str(file)).code == 0
    assert secret not in str(rpc.call("session.get", id="s"))
    assert secret not in str(rpc.call("config.get", namespace="n", key="k"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lines_of().replace('"version": 1', '"version": 99'), "format version 99"),
        (b"\x28\xb5\x2f\xfdnonsense", "damaged or incomplete"),
    ],
)
def test_import_refuses_files_that_it_cannot_read(
    shared_daemon: DaemonProcess, tmp_path: Path, text: str | bytes, expected: str
) -> None:
    file = tmp_path / "all.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = ctl(shared_daemon, "import", str(file))
    assert ran.code == 1
    assert expected in ran.err


def test_import_tells_of_a_file_that_ends_early(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text(lines_of().replace('"rows": {}', '"rows": {"session": 2}'))
    ran = ctl(shared_daemon, "import", str(file))
    assert ran.code == 4
    assert "2 records" in ran.err


def test_export_is_a_snapshot_and_events_are_stored_meanwhile(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    for number in range(40):
        message = {"id": f"m{number}", "sessionId": "s", "role": "user", "textContent": "x" * 60_000}
        rpc.call("upsertMessage", message=message)
    started = rpc.call("export.start")
    assert "error" in rpc.request("export.start", {})  # one at a time
    pieces = [rpc.call("export.read", jobId=started["jobId"])]
    with shared_daemon.connect() as other:
        other.call("upsertMessage", message={"id": "later", "sessionId": "s", "role": "user", "textContent": "later"})
    while not pieces[-1]["isLast"]:
        pieces.append(rpc.call("export.read", jobId=started["jobId"]))
    assert len(pieces) > 2
    records = [json.loads(line) for line in "".join(piece["text"] for piece in pieces).splitlines()]
    assert sum(record.get("kind") == "message" for record in records) == 40
    assert len(records) - 1 == pieces[-1]["rows"] == started["rows"]
    assert "error" in rpc.request("export.read", {"jobId": started["jobId"]})


def test_rows_of_memory_lancedb_pro_are_imported_and_written(
    rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    row = {
        "id": "0b54c1f6-2f0e-4c1c-9e3f-111111111111", "text": "The cellar key hangs behind the door",
        "category": "fact", "scope": "custom:work", "importance": 0.7, "timestamp": 1_700_000_000_000,
        "metadata": '{"room": "cellar"}',
    }  # fmt: skip
    file, written = tmp_path / "memory-backup-2025-01-31.jsonl", tmp_path / "memory-backup-2025-02-01.jsonl"
    legacy = row | {"id": "0b54c1f6-2f0e-4c1c-9e3f-222222222222", "scope": None, "text": "Bees like the balcony"}
    file.write_text(f"{json.dumps(row)}\n{json.dumps(legacy)}\n")
    assert ctl(shared_daemon, "import", str(file)).out == "2 memories imported.\n"
    assert "2 already existed" in ctl(shared_daemon, "import", str(file)).out
    assert ctl(shared_daemon, "memory", "export", str(written), "--format", "lancedb-pro").code == 0
    rows_written = {one["id"]: one for one in map(json.loads, written.read_text().splitlines())}
    assert rows_written[row["id"]] == row
    assert rows_written[legacy["id"]]["scope"] == "global"
