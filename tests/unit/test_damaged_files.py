"""Session files with any value in any place, or damaged: readers neither fail nor lose the other lines."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.recorded import FIXTURES, needs_fixtures

from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.harnesses.payload import decode_object, readable

RECORDED = {
    "claude-code": "claude-code/transcripts",
    "codex": "codex/rollouts",
    "copilot": "copilot-cli",
    "gemini": "gemini-cli/chats",
    "pi": "pi",
    "qwen": "qwen-code",
}
HOSTILE_VALUES: list[Any] = [
    None, 0, -5, 1.5, True, "", "x", "x" * 10_240, [], {}, [None], ["a", 1], [{}], {"a": 1},
    {"stdout": "a", "stderr": 5},
    {"stdout": 5}, {"content": [5]}, [{"type": 5}], [{"type": "text", "text": 5}], 1e300, 2**70, -(2**70),
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00", "1950-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00",
    "\x00", {"": ""},
]  # fmt: skip
MUTATIONS_PER_HARNESS = 4_000

Place = tuple[str | int, ...]


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """The path of every member and of the first elements of every list."""
    if isinstance(value, dict):
        members: list[tuple[str | int, Any]] = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value[:3]))
    else:
        return
    for key, each in members:
        yield (*path, key)
        yield from places(each, (*path, key))


def with_value(line: dict[str, Any], path: Place, value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(line)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return dict(changed)


def shape(value: Any) -> str:
    """The keys and types of a value: lines of one shape need to be tried once."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shape(each)}" for key, each in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({shape(each) for each in value})) + "]"
    return type(value).__name__


def distinct_lines(harness: str) -> list[dict[str, Any]]:
    """One recorded line of each kind and shape."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((FIXTURES / RECORDED[harness]).rglob("*.jsonl")):
        for raw in path.read_bytes().splitlines():
            if line := decode_object(raw):
                found.setdefault(f"{line.get('type')}{shape(line)}", line)
    return list(found.values())


@needs_fixtures
@pytest.mark.parametrize("harness", sorted(RECORDED))
def test_lines_with_any_value_in_any_place_are_read(harness: str) -> None:
    make_reader = HARNESSES[harness].transcript_reader
    assert make_reader
    lines = distinct_lines(harness)
    mutations = [(line, path, value) for line in lines for path in places(line) for value in HOSTILE_VALUES]
    for line, path, value in random.Random(13).sample(mutations, min(MUTATIONS_PER_HARNESS, len(mutations))):
        reader = make_reader("given", {}, 0)
        reader.read_line(0, with_value(line, path, value))
        reader.read_line(1, line)
        reader.end(2)
        json.dumps(reader.state)


@pytest.mark.parametrize("stderr", [5, None, ["a"], {"b": 1}, True])
def test_output_of_a_shell_is_readable_whatever_its_errors_are(stderr: Any) -> None:
    output = readable({"stdout": "done", "stderr": stderr})
    assert output is not None
    assert output.splitlines()[0] == "done"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb'{"text": "cut \ud83d"}', "cut \ufffd"),
        (rb'{"text": "cut \uDE00 here"}', "cut \ufffd here"),
        (rb'{"text": "\ud83d\ude00"}', "\U0001f600"),
        (b'{"text": "cut \xf0\x9f"}', "cut \ufffd"),
        (b'{"text": "cut \xed\xa0\xbd"}', "cut \ufffd\ufffd\ufffd"),
        ('{"text": "\ud83d"}', "?"),
    ],
)
def test_text_that_was_cut_in_the_middle_of_a_character_is_read(raw: bytes | str, text: str) -> None:
    assert decode_object(raw) == {"text": text}


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"5", b"null", b'"x"', b"[" * 5000, b"\x00\xff", None, 5, b'{"a": 1}{}']
)
def test_what_is_no_object_is_none(raw: Any) -> None:
    assert decode_object(raw) is None
