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
from helpers.recorded import CLAUDE, FIXTURES, OPENCODE, needs_fixtures, opencode_events

from clankersd.capture.events import CapturedEvent, HookReading
from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.harnesses.base import Harness

pytestmark = needs_fixtures

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
AT = 1_768_000_000_000
LONG_TEXT_CHARACTERS = 160
"""Longer texts are compared by their beginning, length and hash."""

RECORDED_IN = {"claude-code": "claude-code", "codex": "codex", "gemini": "gemini-cli"}


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
        for source, at, payload in payloads(path):
            reading = HARNESSES[harness].read_hook(payload, at)
            lines += [{"payload": source, **shape(reading)}]
            check_survives_json(reading)
    compare(GOLDEN / harness / f"{name}.jsonl", lines)


def payloads(path: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    if path.suffix == ".jsonl":
        for at, payload in opencode_events(path):
            yield payload["type"], at, payload
    else:
        yield path.stem, AT, json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize(
    "path", sorted((CLAUDE / "transcripts").rglob("*.jsonl")), ids=lambda path: path.stem.partition("-")[0]
)
def test_transcripts_read_as_their_golden_events(path: Path) -> None:
    events = read_transcript(HARNESSES["claude-code"], path)
    lines = [shape(event) for event in events]
    compare(GOLDEN / "claude-code" / "transcripts" / f"{path.stem}.jsonl", lines)


def read_transcript(harness: Harness, path: Path) -> list[CapturedEvent]:
    assert harness.transcript_reader
    reader = harness.transcript_reader(path.stem, {}, 0)
    offset = 0
    for raw in path.read_bytes().splitlines(keepends=True):
        reader.read_line(offset, json.loads(raw))
        offset += len(raw)
    reader.end(offset)
    return reader.events


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
