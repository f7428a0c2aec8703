"""Read fields of payloads, which may be missing or have any type."""

from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from clankers_protocol.ids import encode_id
from clankersd.wire.large_json import replace_lone_surrogates

MAX_TIMESTAMP_CHARACTERS = 64
"""No timestamp of ISO 8601 is longer."""


def decode_object(data: Any) -> dict[str, Any] | None:
    """Decode a JSON object of a harness's file; None for anything else.

    Harnesses cut texts in the middle of a character, and files are cut in the middle of one: neither is a reason to
    lose the rest.
    """
    data = data.encode("utf-8", "replace") if isinstance(data, str) else data
    if not isinstance(data, bytes):
        return None
    value = _decode(data)
    if value is None and (b"\\ud" in data or b"\\uD" in data):
        value = _decode(replace_lone_surrogates(data))
    if value is None and not data.isascii():
        value = _decode(replace_lone_surrogates(data.decode("utf-8", "replace").encode()))
    return value if isinstance(value, dict) else None


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def text(payload: dict[str, Any], key: str) -> str | None:
    """Return a text that is not blank, or None."""
    value = payload.get(key)
    return value if isinstance(value, str) and value and not value.isspace() else None


def identifier(payload: dict[str, Any], key: str) -> str | None:
    """Return an id, encoded so that it can be stored: no hook event is rejected because of its ids."""
    given = text(payload, key)
    return encode_id(given) if given else None


def number(payload: dict[str, Any], key: str) -> int | None:
    """Return a number that is not negative, without its fraction, or None."""
    value = payload.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def record(payload: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object; empty if there is none."""
    value = payload.get(key)
    return value if isinstance(value, dict) else {}


def records(payload: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    value = payload.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def readable(value: Any) -> str | None:
    """Render the input or output of a tool as text: content blocks and shell output as they read, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        if isinstance(value.get("stdout"), str):
            streams = (value["stdout"], readable(value.get("stderr")))
            return "\n".join(stream for stream in streams if stream) or None
        if isinstance(value.get("content"), list):
            return readable(value["content"])
        value = {key: each for key, each in value.items() if key != "originalFile"}
    if isinstance(value, list) and value and all(_is_block(block) for block in value):
        return "\n".join(block.get("text") or f"[{block['type']}]" for block in value)
    return msgspec.json.encode(value).decode()


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("type"), str) and isinstance(block.get("text", ""), str)


def file_of(tool_input: dict[str, Any]) -> str | None:
    """Return the file that a tool works on."""
    for key in ("file_path", "filePath", "notebook_path", "absolute_path", "path", "file"):
        if path := text(tool_input, key):
            return path
    return None


def millis(timestamp: Any) -> int | None:
    """Convert an ISO 8601 timestamp to milliseconds; None for anything else."""
    given = str(timestamp)
    return _parse_timestamp(given) if len(given) <= MAX_TIMESTAMP_CHARACTERS else None


@lru_cache(maxsize=256)
def _parse_timestamp(timestamp: str) -> int | None:
    """Parse a timestamp; the time of a line is asked for several times."""
    try:
        return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
    except ValueError:
        return None


def duration(began: int | None, ended: int | None) -> int | None:
    """Return the milliseconds between two times; None if one is missing or the clock was set back."""
    return ended - began if began and ended and ended >= began else None


def without_empty(facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the facts that have a value; None if none has."""
    return {key: value for key, value in facts.items() if value} or None
