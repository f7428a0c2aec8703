"""Files of memories: reading of our own exports and those of other memory stores."""

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
from clankers_protocol.memory_transfer import MemoryRecord

LIST_KEYS = ("memories", "results", "items")
"""Keys under which other stores put their list of memories in a JSON document."""

MAX_DOCUMENT_BYTES = 256 * 2**20
"""Limit for a JSON document that is not in lines, because it is parsed in memory."""


@dataclass
class Entry:
    """A memory in an import file.

    `location` names its line or item, `end` is the byte offset after it. Either `record` holds the memory, or `problem`
    says why it cannot be read.
    """

    location: str
    end: int
    size: int
    record: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


def read_entries(file: Path) -> Iterator[Entry]:
    """Iterate over the memories in a file, which is either JSON lines or one JSON document with a list."""
    document = _read_document(file)
    if document is not None:
        file_size = file.stat().st_size
        for number, item in enumerate(document, 1):
            end = file_size * number // len(document)
            yield _parse_entry(f"item {number}", end, json.dumps(item).encode())
        return
    end = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            end += len(line)
            if line.strip():
                yield _parse_entry(f"line {number}", end, line)


def _read_document(file: Path) -> list[Any] | None:
    """Return the memories of a file that is one JSON document; None if it consists of lines."""
    with file.open("rb") as opened:
        first_line = opened.readline()
    with suppress(ValueError, RecursionError):
        record = json.loads(first_line)
        if isinstance(record, dict) and _find_list(record) is None:
            return None
    if file.stat().st_size > MAX_DOCUMENT_BYTES:
        return None
    with suppress(ValueError, RecursionError):
        document = json.loads(file.read_bytes())
        return document if isinstance(document, list) else _find_list(document)
    return None


def _find_list(document: Any) -> list[Any] | None:
    if isinstance(document, dict):
        for key in LIST_KEYS:
            if isinstance(document.get(key), list):
                return list(document[key])
    return None


def _parse_entry(location: str, end: int, line: bytes) -> Entry:
    try:
        record = msgspec.json.decode(line.removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Entry(location, end, len(line), problem=f"not valid JSON ({error})")
    if not isinstance(record, dict):
        return Entry(location, end, len(line), problem="not a JSON object")
    return Entry(location, end, len(line), record)


def convert_record(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a memory of OpenMemory, mcp-memory-service, mem0 or memory-lancedb-pro to our format.

    Any other record is returned unchanged.

    Each of these stores is recognised by a field that only it has.
    """
    if "primary_sector" in record:
        converted = _convert_openmemory(record)
    elif "content_hash" in record:
        converted = _convert_memory_service(record)
    elif isinstance(record.get("memory"), str):
        converted = _convert_mem0(record)
    elif isinstance(record.get("text"), str) and "content" not in record:
        return _convert_lancedb_pro(record)
    else:
        return record
    converted["createdAt"] = _parse_time(record.get("created_at", record.get("created_at_iso")))
    converted["updatedAt"] = _parse_time(record.get("updated_at", record.get("updated_at_iso")))
    return {name: value for name, value in converted.items() if value is not None}


def _convert_openmemory(record: dict[str, Any]) -> dict[str, Any]:
    sector = record["primary_sector"]
    salience = record.get("salience")
    return {
        "id": record.get("id"),
        "content": record.get("content"),
        "sector": sector if sector in get_args(Sector) else None,
        "tags": _parse_tags(record.get("tags")),
        "metadata": _parse_mapping(record.get("metadata", record.get("meta"))),
        "salience": min(max(salience, 0.0), 1.0) if isinstance(salience, int | float) else None,
        "lastAccessed": _parse_time(record.get("last_seen_at")),
    }


def _convert_memory_service(record: dict[str, Any]) -> dict[str, Any]:
    metadata = dict(_parse_mapping(record.get("metadata")) or {})
    if record.get("memory_type"):
        metadata["memory_type"] = record["memory_type"]
    return {
        "id": record["content_hash"],
        "content": record.get("content"),
        "tags": _parse_tags(record.get("tags")),
        "metadata": metadata or None,
    }


def _convert_mem0(record: dict[str, Any]) -> dict[str, Any]:
    metadata = dict(_parse_mapping(record.get("metadata")) or {})
    for name in ("user_id", "agent_id", "app_id", "run_id"):
        if record.get(name):
            metadata[name] = record[name]
    return {
        "id": record.get("id"),
        "content": record["memory"],
        "tags": _parse_tags(record.get("categories")),
        "metadata": metadata or None,
    }


def _convert_lancedb_pro(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a row of memory-lancedb-pro, which writes them to memory-backup-YYYY-MM-DD.jsonl."""
    converted = {
        "id": record.get("id"),
        "content": record["text"],
        "category": record.get("category"),
        "scope": record.get("scope") or "global",
        "importance": record.get("importance"),
        "createdAt": _parse_time(record.get("timestamp")),
        "metadata": _parse_mapping(record.get("metadata")),
    }
    return {name: value for name, value in converted.items() if value is not None}


def to_lancedb_pro(record: MemoryRecord) -> dict[str, Any]:
    """Convert a memory to a row of memory-lancedb-pro, without its vector."""
    return {
        "id": record.id,
        "text": record.content,
        "category": record.category or "other",
        "scope": record.scope,
        "importance": record.importance,
        "timestamp": record.created_at,
        "metadata": json.dumps(record.metadata or {}, ensure_ascii=False),
    }


def _parse_time(value: Any) -> Any:
    """Convert ISO 8601 text, UTC unless it has an offset, to milliseconds; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        moment = datetime.fromisoformat(value)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return value  # validation of the record reports what is wrong with it


def _parse_tags(value: Any) -> list[str] | None:
    """Read tags from a list, a JSON list or comma-separated words."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return None
    return [tag.strip() for tag in value if isinstance(tag, str) and tag.strip()]


def _parse_mapping(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    return value if isinstance(value, dict) else None
