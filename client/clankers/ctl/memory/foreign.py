"""Files of memories: our own lines, and the exports of other stores, made ours."""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from clankers_protocol.memories import Sector

LISTS = ("memories", "results", "items")
"""Where the others keep their memories in a document."""

LARGEST = 256 * 2**20
"""Bytes of a document that is not made of lines: it is read at once."""


@dataclass
class Entry:
    """One memory of a file: where it stands, up to which byte, and what it says or why it cannot be read."""

    where: str
    end: int
    size: int
    record: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


def entries(file: Path) -> Iterator[Entry]:
    """Every memory in the file, line by line or item by item."""
    document = _document(file)
    return _lines(file) if document is None else _items(document, file.stat().st_size)


def _document(file: Path) -> list[Any] | None:
    """The memories of a file that is one JSON document; None when it is made of lines."""
    with file.open("rb") as opened:
        first = opened.readline()
    with suppress(ValueError, RecursionError):
        record = json.loads(first)
        if isinstance(record, dict) and not _listed(record):
            return None
    if file.stat().st_size > LARGEST:
        return None
    with suppress(ValueError, RecursionError):
        document = json.loads(file.read_bytes())
        return document if isinstance(document, list) else _listed(document)
    return None


def _listed(document: Any) -> list[Any] | None:
    if not isinstance(document, dict):
        return None
    return next((document[name] for name in LISTS if isinstance(document.get(name), list)), None)


def _lines(file: Path) -> Iterator[Entry]:
    end = 0
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            end += len(line)
            if line.strip():
                yield _read(f"line {number}", end, line)


def _read(where: str, end: int, line: bytes) -> Entry:
    try:
        record = msgspec.json.decode(line.removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Entry(where, end, len(line), problem=f"it is not JSON ({error})")
    if not isinstance(record, dict):
        return Entry(where, end, len(line), problem="it is no JSON object")
    return Entry(where, end, len(line), record)


def _items(document: list[Any], size: int) -> Iterator[Entry]:
    for number, item in enumerate(document, 1):
        entry = _read(f"item {number}", 0, json.dumps(item).encode())
        entry.end = size * number // len(document)
        yield entry


def adopted(record: dict[str, Any]) -> dict[str, Any]:
    """The record as ours: OpenMemory, mcp-memory-service and mem0 are known by fields that only they have."""
    if "primary_sector" in record:
        found = _of_openmemory(record)
    elif "content_hash" in record:
        found = _of_memory_service(record)
    elif isinstance(record.get("memory"), str):
        found = _of_mem0(record)
    else:
        return record
    return {name: value for name, value in found.items() if value is not None}


def _of_openmemory(record: dict[str, Any]) -> dict[str, Any]:
    salience = record.get("salience")
    return {
        "id": record.get("id"),
        "content": record.get("content"),
        "sector": record["primary_sector"] if record["primary_sector"] in get_args(Sector) else None,
        "tags": _tags(record.get("tags")),
        "metadata": _mapping(record.get("metadata", record.get("meta"))),
        "salience": min(max(salience, 0.0), 1.0) if isinstance(salience, int | float) else None,
        "salienceAt": _time(record.get("last_seen_at")),
        "lastAccessed": _time(record.get("last_seen_at")),
        **_times(record),
    }


def _of_memory_service(record: dict[str, Any]) -> dict[str, Any]:
    kind = record.get("memory_type")
    metadata = _mapping(record.get("metadata")) or {}
    return {
        "id": record["content_hash"],
        "content": record.get("content"),
        "tags": _tags(record.get("tags")),
        "metadata": metadata | ({"memory_type": kind} if kind else {}) or None,
        **_times(record),
    }


def _of_mem0(record: dict[str, Any]) -> dict[str, Any]:
    people = {name: record[name] for name in ("user_id", "agent_id", "app_id", "run_id") if record.get(name)}
    return {
        "id": record.get("id"),
        "content": record["memory"],
        "tags": _tags(record.get("categories")),
        "metadata": (_mapping(record.get("metadata")) or {}) | people or None,
        **_times(record),
    }


def _times(record: dict[str, Any]) -> dict[str, Any]:
    created = _time(record.get("created_at", record.get("created_at_iso")))
    return {"createdAt": created, "updatedAt": _time(record.get("updated_at", record.get("updated_at_iso")))}


def _time(value: Any) -> Any:
    """A moment in milliseconds or seconds; text in ISO 8601 is UTC unless it says otherwise."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        moment = datetime.fromisoformat(value)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return value  # and the daemon's contract says what is wrong with it


def _tags(value: Any) -> list[str] | None:
    """A list, a list in JSON, or words between commas."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return None
    return [tag.strip() for tag in value if isinstance(tag, str) and tag.strip()]


def _mapping(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    return value if isinstance(value, dict) else None
