"""Lines of an export to rows: decoded, checked and redacted outside the transaction."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from clankers_protocol import transfer as records
from clankers_protocol.errors import InvalidParams
from clankers_protocol.transfer import Record
from clankersd.capture.opt_out import is_opted_out
from clankersd.db.commit_priority import yield_to_commits
from clankersd.memories.dedup import HashedText
from clankersd.memories.entities import name_key
from clankersd.memories.prepared import text_columns
from clankersd.memories.similarity import content_hash, simhash
from clankersd.redaction.engine import redact_all, without_secrets
from clankersd.schedule.builtins import BUILTINS
from clankersd.schedule.grammar import parse_schedule, parse_timezone
from clankersd.transfer.tables import TABLE_OF, Row, Table

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(records.ANY_RECORD)

_NOT_REDACTED = ("project_path", "digest", "hash", "checksum", "timezone", "schedule")
"""Texts that are no prose. Ids and paths are exempt by their type."""

_JSON_SHAPES: dict[str, Any] = {
    "metadata": dict[str, Any],
    "context": dict[str, Any],
    "settings": dict[str, Any],
    "before": dict[str, Any],
    "extra": dict[str, Any],
    "skill": dict[str, Any],
    "tags": list[str],
    "concepts": list[str],
    "references": list[str],
    "tools": list[str],
    "files": list[str | dict[str, Any]],
    "ids": list[Any],
    "tool_calls": list[dict[str, Any]],
}
"""Types of JSON fields; other JSON fields take any value."""


@dataclass(frozen=True)
class ParsedRecord:
    """A record that is ready to be stored, with the number of its secrets by kind.

    `derived` has columns that are computed from the others. `position` is that of its line in the request. A session
    `is_opted_out` if its project has opted out of capture on this machine.
    """

    position: int
    table: Table
    record: Record
    row: Row
    derived: Row = field(default_factory=dict)
    redactions: dict[str, int] = field(default_factory=dict)
    is_opted_out: bool = False


def parse_line(position: int, line: str | dict[str, Any]) -> ParsedRecord:
    """Decode, check and redact a line; raises InvalidParams, whose message names the field."""
    yield_to_commits()
    try:
        record = _DECODER.decode(line if isinstance(line, str) else msgspec.json.encode(line))
        _check_json(record)
    except msgspec.ValidationError as error:
        raise InvalidParams(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParams(f"it is not valid JSON ({error})") from error
    _check_values(record)
    table = TABLE_OF[type(record)]
    record, counts = without_secrets(record, *_NOT_REDACTED)
    record, json_counts = _redact_json(table, record)
    redactions = dict(Counter(counts) + Counter(json_counts))
    derived: Row = {}
    if isinstance(record, records.MemoryRowRecord):
        text = HashedText(record.content, content_hash(record.content), simhash(record.content))
        derived = {name: value for name, value in text_columns(text).items() if name != "content"}
    elif isinstance(record, records.EntityRecord):
        derived = {"name_key": name_key(record.name)}
    path = record.project_path if isinstance(record, records.SessionRecord) else None
    is_out = path is not None and is_opted_out(path)
    return ParsedRecord(position, table, record, table.to_row(record), derived, redactions, is_out)


def _check_json(record: Record) -> None:
    """Raise ValidationError for a JSON field of another shape than its column has."""
    table = TABLE_OF[type(record)]
    for name in table.json_fields:
        raw: Raw = getattr(record, name)
        if name in _JSON_SHAPES and not (name in table.optional_json and bytes(raw) == b"null"):
            try:
                msgspec.json.decode(raw, type=_JSON_SHAPES[name])
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(f"{error} (in `$.{_wire_name(record, name)}`)") from error


def _check_values(record: Record) -> None:
    """Raise InvalidParams for values that contradict each other."""
    match record:
        case records.MemoryRowRecord() | records.RelationRowRecord():
            if record.valid_until is not None and record.valid_until < record.valid_from:
                raise InvalidParams("it ends before it begins - at `$.validUntil`")
            if isinstance(record, records.MemoryRowRecord) and not record.content.strip():
                raise InvalidParams("the content is empty - at `$.content`")
            if isinstance(record, records.RelationRowRecord) and record.source_memory_id == record.target_memory_id:
                raise InvalidParams("a relation is between two memories - at `$.targetMemoryId`")
        case records.EntityRecord() if not name_key(record.name):
            raise InvalidParams("there is no name in it - at `$.name`")
        case records.EdgeRecord() if record.source_id == record.target_id:
            raise InvalidParams("an edge is between two chunks - at `$.targetId`")
        case records.ScheduleRecord():
            parse_schedule(record.schedule, parse_timezone(record.timezone))
            if record.builtin is not None and record.builtin not in BUILTINS:
                raise InvalidParams(f"there is no built-in {record.builtin!r} - at `$.builtin`")
        case _:
            pass


def _redact_json(table: Table, record: Record) -> tuple[Record, dict[str, int]]:
    """Redact the JSON fields. One without secrets keeps its text, down to its white space."""
    counts: Counter[str] = Counter()
    clean: dict[str, Raw] = {}
    for name in table.json_fields:
        redacted, found = redact_all(msgspec.json.decode(getattr(record, name)))
        if found:
            counts.update(found)
            clean[name] = Raw(msgspec.json.encode(redacted))
    return (msgspec.structs.replace(record, **clean) if clean else record), dict(counts)


def _wire_name(record: Record, name: str) -> str:
    return record.__struct_encode_fields__[record.__struct_fields__.index(name)]
