"""OpenCode's own history: its database, and the folder of JSON files that older versions wrote. Only read."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from clankers_protocol.ids import encode_id
from clankersd.capture.harnesses.opencode import message_facts, session_facts, tool_facts
from clankersd.capture.harnesses.payload import Fact, number, record, text
from clankersd.capture.transcripts import open_transcript
from clankersd.safe_files import UnsafeFile

LARGEST_RECORD = 32 * 1024 * 1024

_SESSIONS = "SELECT id, directory, time_updated FROM session ORDER BY time_created, id"
_MESSAGES = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
_PARTS = "SELECT id, message_id, data FROM part WHERE session_id = ? ORDER BY time_created, id"


@dataclass(frozen=True)
class Stored:
    """A session that is there to be imported."""

    id: str
    root: Path
    path: Path
    project: str
    updated_at: int


@dataclass
class Malformed:
    """How many records could not be read."""

    count: int = 0


def sessions(root: Path) -> list[Stored]:
    """Every session of the database, and of the folder those that the database does not have."""
    found = _in_database(root)
    known = {each.id for each in found}
    return found + [each for each in _in_folder(root) if each.id not in known]


def facts_of(stored: Stored, malformed: Malformed) -> list[Fact]:
    """What a stored session tells, as its events would have."""
    read = _database_records if stored.path.suffix == ".db" else _folder_records
    info, messages, parts = read(stored, malformed)
    session_id = encode_id(stored.id)
    facts = session_facts(info, session_id)
    for message in messages:
        own = parts.get(text(message, "id") or "", [])
        facts += message_facts(message, own, session_id)
        at = number(record(message, "time"), "created")
        for part in own:
            facts += tool_facts({**part, "messageID": message.get("id")}, session_id, at)
    return facts


Records = tuple[dict[str, Any], list[dict[str, Any]], dict[str, list[dict[str, Any]]]]


def _in_database(root: Path) -> list[Stored]:
    path = root / "opencode.db"
    try:
        with closing(_opened(path, root)) as db:
            rows = db.execute(_SESSIONS).fetchall()
    except (apsw.Error, OSError, UnsafeFile):
        return []
    return [Stored(str(id_), root, path, str(place or ""), int(updated or 0)) for id_, place, updated in rows]


def _opened(path: Path, root: Path) -> apsw.Connection:
    open_transcript(str(path), [root]).close()
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(2000)
    return db


def _database_records(stored: Stored, malformed: Malformed) -> Records:
    with closing(_opened(stored.path, stored.root)) as db:
        cursor = db.execute("SELECT * FROM session WHERE id = ?", (stored.id,))
        row = cursor.fetchone()
        names = [column[0] for column in cursor.get_description()] if row else []
        messages = [_joined(data, malformed, id=id_) for id_, data in db.execute(_MESSAGES, (stored.id,))]
        parts: dict[str, list[dict[str, Any]]] = {}
        for id_, message_id, data in db.execute(_PARTS, (stored.id,)):
            if part := _joined(data, malformed, id=id_):
                parts.setdefault(message_id, []).append(part)
    return _info(dict(zip(names, row or (), strict=True))), [each for each in messages if each], parts


def _info(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the session table as the record that events carry."""
    cache = {"read": row.get("tokens_cache_read"), "write": row.get("tokens_cache_write")}
    tokens = {"input": row.get("tokens_input"), "output": row.get("tokens_output"), "cache": cache}
    model = _decoded(row.get("model") or "{}")
    return {
        "title": row.get("title"),
        "directory": row.get("directory"),
        "parentID": row.get("parent_id"),
        "agent": row.get("agent"),
        "model": model if isinstance(model, dict) else {},
        "cost": row.get("cost"),
        "tokens": {**tokens, "reasoning": row.get("tokens_reasoning")},
        "time": {"created": row.get("time_created"), "updated": row.get("time_updated")},
    }


def _in_folder(root: Path) -> Iterator[Stored]:
    for path in sorted((root / "storage" / "session").glob("*/*.json")):
        info = _file(path, root)
        if info and (session_id := text(info, "id")):
            updated = number(record(info, "time"), "updated") or 0
            yield Stored(session_id, root, path, text(info, "directory") or "", updated)


def _folder_records(stored: Stored, malformed: Malformed) -> Records:
    storage = stored.root / "storage"
    messages, parts = [], {}
    for path in sorted((storage / "message" / stored.id).glob("*.json")):
        message = _file(path, stored.root)
        malformed.count += message is None
        if message and (message_id := text(message, "id")):
            messages.append(message)
            found = [_file(each, stored.root) for each in sorted((storage / "part" / message_id).glob("*.json"))]
            malformed.count += found.count(None)
            parts[message_id] = [each for each in found if each]
    return _file(stored.path, stored.root) or {}, messages, parts


def _file(path: Path, root: Path) -> dict[str, Any] | None:
    try:
        with open_transcript(str(path), [root]) as file:
            found = _decoded(file.read(LARGEST_RECORD))
    except (OSError, UnsafeFile):
        return None
    return found if isinstance(found, dict) else None


def _joined(data: Any, malformed: Malformed, **more: Any) -> dict[str, Any] | None:
    found = _decoded(data)
    if isinstance(found, dict):
        return {**found, **more}
    malformed.count += 1
    return None


def _decoded(data: Any) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return None
