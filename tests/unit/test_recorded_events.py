"""Recorded payloads and transcripts of real harnesses: each reads as the events in its golden file.

After an intended change, rewrite the files with CLANKERS_UPDATE_GOLDEN=1, and read the difference.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.recorded import (
    CLAUDE,
    FIXTURES,
    OPENCODE,
    needs_fixtures,
    openclaw_events,
    openclaw_transcripts,
    opencode_events,
    with_event_name,
)

from clankersd.capture.events import CapturedEvent, FirstPrompt, HookReading
from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.harnesses.base import Harness
from clankersd.capture.harnesses.openclaw.entries import read_entry

pytestmark = needs_fixtures

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
AT = 1_768_000_000_000
LONG_TEXT_CHARACTERS = 160
"""Longer texts are compared by their beginning, length and hash."""

RECORDED_IN = {
    "claude-code": "claude-code",
    "codex": "codex",
    "copilot": "copilot-cli",
    "gemini": "gemini-cli",
    "pi": "pi",
    "qwen": "qwen-code",
}


def scenarios() -> Iterator[Any]:
    """Every recording by its harness and name, as what is read and how."""
    for harness, folder in RECORDED_IN.items():
        paths = sorted((FIXTURES / folder).glob("*-[0-9][0-9]-*.json"))
        for name in sorted({path.name.rsplit("-", 2)[0] for path in paths}):
            own = [path for path in paths if path.name.rsplit("-", 2)[0] == name]
            yield pytest.param(harness, name, own, id=f"{harness}-{name}")
    for path in sorted((OPENCODE / "streams").glob("*.jsonl")):
        yield pytest.param("opencode", path.stem, [path], id=f"opencode-{path.stem}")
    yield pytest.param("opencode", "bus", sorted(OPENCODE.glob("event.*.json")), id="opencode-bus")


@pytest.mark.parametrize(("harness", "name", "paths"), list(scenarios()))
def test_hook_payloads_read_as_their_golden_events(harness: str, name: str, paths: list[Path]) -> None:
    lines: list[Any] = []
    for path in paths:
        for source, at, recorded in payloads(path):
            payload = with_event_name(source, recorded) if harness == "copilot" else recorded
            reading = HARNESSES[harness].read_hook(payload, at)
            lines += [{"payload": source, **shape(reading)}]
            check_survives_json(reading)
    compare(GOLDEN / harness / f"{name}.jsonl", lines)


def test_openclaw_payloads_read_as_their_golden_events(tmp_path: Path) -> None:
    lines: list[Any] = []
    for source, payload in openclaw_events(tmp_path):
        reading = HARNESSES["openclaw"].read_hook(payload, AT)
        lines += [{"payload": source, **shape(reading)}]
        check_survives_json(reading)
    compare(GOLDEN / "openclaw" / "hooks.jsonl", lines)


def test_openclaw_transcripts_read_as_their_golden_events() -> None:
    lines: list[Any] = []
    for key, rows in openclaw_transcripts().items():
        for row in rows:
            events = read_entry(row["event"], row["session_id"])
            lines += [{"entry": f"{key} {row['seq']}", **shape(HookReading("transcript", key, events=events))}]
    compare(GOLDEN / "openclaw" / "transcripts.jsonl", lines)


def payloads(path: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    if path.suffix == ".jsonl":
        for at, payload in opencode_events(path):
            yield payload["type"], at, payload
    else:
        yield path.stem, AT, json.loads(path.read_text("utf-8"))


TRANSCRIPTS = {
    "claude-code": CLAUDE / "transcripts",
    "codex": FIXTURES / "codex" / "rollouts",
    "copilot": FIXTURES / "copilot-cli" / "sessions",
    "gemini": FIXTURES / "gemini-cli" / "chats",
    "pi": FIXTURES / "pi" / "sessions",
    "qwen": FIXTURES / "qwen-code" / "sessions",
}
GROWING = ("codex", "copilot", "gemini", "pi", "qwen")
"""Harnesses whose files give complete rows by themselves."""


def transcripts(*harnesses: str) -> Iterator[Any]:
    for harness in harnesses:
        for path in sorted(TRANSCRIPTS[harness].rglob("*.jsonl")):
            name = path.stem.partition("-")[0] if harness == "claude-code" else path.stem[-36:][:13]
            yield pytest.param(harness, path, id=f"{harness}-{name}")


@pytest.mark.parametrize(("harness", "path"), list(transcripts("claude-code", *GROWING)))
def test_transcripts_read_as_their_golden_events(harness: str, path: Path) -> None:
    events = read_transcript(HARNESSES[harness], path)
    lines = [shape(event) for event in events]
    compare(GOLDEN / harness / "transcripts" / f"{path.stem}.jsonl", lines)


def read_transcript(harness: Harness, path: Path, lines_at_once: int = 1_000_000) -> list[CapturedEvent]:
    """Read a transcript, continuing after every few lines as when it grows."""
    assert harness.transcript_reader
    lines = path.read_bytes().splitlines(keepends=True)
    offsets = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    state: dict[str, Any] = {}
    events: list[CapturedEvent] = []
    start = 0
    for end in [*range(lines_at_once, len(lines), lines_at_once), len(lines)]:
        reader = harness.transcript_reader(session_of(path), state, offsets[start])
        for number in range(start, end):
            reader.read_line(offsets[number], json.loads(lines[number]))
        reader.end(offsets[end])
        start, state = offsets.index(reader.safe_offset), json.loads(json.dumps(reader.state))
        events += reader.events
    return events


def session_of(path: Path) -> str:
    """The session for which a hook names a file: for a sub-agent's of Gemini CLI, that of its folder."""
    is_in_session_folder = path.parent.parent == FIXTURES / "gemini-cli" / "chats"
    return path.parent.name if is_in_session_folder else path.stem


@pytest.mark.parametrize("lines_at_once", [1, 3])
@pytest.mark.parametrize(("harness", "path"), list(transcripts(*GROWING)))
def test_growing_transcript_reads_as_the_complete_one(harness: str, path: Path, lines_at_once: int) -> None:
    at_once = merged(read_transcript(HARNESSES[harness], path))
    assert merged(read_transcript(HARNESSES[harness], path, lines_at_once)) == at_once


HOSTILE: list[Any] = [None, True, -1, 1e308, "", "x", [], [None], [[]], ["x"], {}, {"text": 1}, {"type": [], "id": {}}]


@pytest.mark.parametrize("harness", GROWING)
def test_transcript_with_fields_of_any_type_is_read(harness: str) -> None:
    make_reader = HARNESSES[harness].transcript_reader
    assert make_reader
    for path in sorted(TRANSCRIPTS[harness].rglob("*.jsonl")):
        reader = make_reader("session", {}, 0)
        for number, raw in enumerate(path.read_bytes().splitlines()):
            for line in spoiled(json.loads(raw), number):
                reader.read_line(0, line)
            reader.read_line(0, json.loads(raw))
        reader.end(0)
        json.dumps(reader.state)


def spoiled(value: Any, number: int, depth: int = 0) -> Iterator[Any]:
    """Copies of a record in which one field, at any depth, has another type."""
    for place, (key, inner) in enumerate(value.items() if isinstance(value, dict) else ()):
        yield value | {key: HOSTILE[(number + place + depth) % len(HOSTILE)]}
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            yield from (value | {key: [each]} for each in spoiled(inner[0], number, depth + 1))
        yield from (value | {key: each} for each in spoiled(inner, number, depth + 1))


def merged(events: list[CapturedEvent]) -> dict[str, dict[str, Any]]:
    """What remains of each row when later events complete or replace what earlier ones told of it."""
    rows: dict[str, dict[str, Any]] = {}
    for event in events:
        kinds = ("session", "message", "tool", "error", "compaction")
        wrapped = next((getattr(event, kind) for kind in kinds if hasattr(event, kind)), event)
        told = {key: value for key, value in msgspec.to_builtins(wrapped).items() if value is not None}
        if told.get("toolName") == "unknown":
            del told["toolName"]
        if isinstance(event, FirstPrompt):
            continue
        row = rows.setdefault(f"{type(event).__name__} {told.get('id') or told.get('session_id')}", {})
        row |= told
        if told.get("success"):
            row.pop("errorMessage", None)
    return rows


def check_survives_json(reading: HookReading) -> None:
    assert msgspec.json.decode(msgspec.json.encode(reading), type=HookReading) == reading


def shape(value: Any) -> Any:
    """The value as JSON, without empty fields, and with long texts shortened."""
    return _shortened(msgspec.to_builtins(value))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if isinstance(value, str) and len(value) > LONG_TEXT_CHARACTERS:
        digest = hashlib.sha256(value.encode()).hexdigest()[:12]
        return f"{value[: LONG_TEXT_CHARACTERS // 2]}… {len(value)} characters, {digest}"
    return value


def compare(path: Path, lines: list[Any]) -> None:
    if os.environ.get("CLANKERS_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == lines
