"""OpenCode's own history: its database, and the folder of JSON files that older versions wrote. Both are only read."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from clankersd.capture.harnesses.base import History, PastSession, Payload
from clankersd.capture.harnesses.opencode.hooks import read_message_record, read_session_record, read_tool_part
from clankersd.capture.harnesses.payload import decode_object, number, record, text
from clankersd.safe_files import UnsafeFile, open_below

MAX_RECORD_BYTES = 32 * 1024 * 1024
BUSY_TIMEOUT_MS = 2000

_SESSIONS = "SELECT id, directory, time_updated FROM session ORDER BY time_created, id"
_MESSAGES = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
_PARTS = "SELECT id, message_id, data FROM part WHERE session_id = ? ORDER BY time_created, id"


@dataclass
class _Records:
    """The records of one session: itself, its messages, and their parts by the message's id."""

    info: Payload = field(default_factory=dict)
    messages: list[Payload] = field(default_factory=list)
    parts: dict[str, list[Payload]] = field(default_factory=dict)
    malformed: int = 0


def find_sessions(roots: list[Path], since: int) -> list[PastSession]:
    """List every session of the databases, and of the folders those that the database does not have."""
    found: list[PastSession] = []
    for root in roots:
        in_database = _find_in_database(root)
        known = {session.id for session in in_database}
        found += in_database + [session for session in _find_in_folder(root) if session.id not in known]
    return [session for session in found if session.updated_at >= since]


def read_session(past: PastSession) -> History:
    """Read a stored session into the events that its plugin would have sent."""
    records = _read_database(past) if past.path.suffix == ".db" else _read_folder(past)
    events = read_session_record(records.info, past.session_id)
    for message in records.messages:
        parts = records.parts.get(text(message, "id") or "", [])
        events += read_message_record(message, parts, past.session_id)
        at = number(record(message, "time"), "created")
        for part in parts:
            events += read_tool_part({**part, "messageID": message.get("id")}, past.session_id, at)
    return History(events, records.malformed)


def _past_session(session_id: str, root: Path, path: Path, project: str, updated_at: int) -> PastSession:
    return PastSession(session_id, root, path, project, updated_at, label=(project or session_id)[-30:])


# -- the database


def _find_in_database(root: Path) -> list[PastSession]:
    path = root / "opencode.db"
    try:
        with closing(_open_database(path, root)) as db:
            rows = db.execute(_SESSIONS).fetchall()
    except (apsw.Error, OSError, UnsafeFile):
        return []
    return [
        _past_session(str(session_id), root, path, str(project or ""), int(updated_at or 0))
        for session_id, project, updated_at in rows
    ]


def _open_database(path: Path, root: Path) -> apsw.Connection:
    open_below(str(path), [root]).close()
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    return db


def _read_database(past: PastSession) -> _Records:
    records = _Records()
    with closing(_open_database(past.path, past.root)) as db:
        cursor = db.execute("SELECT * FROM session WHERE id = ?", (past.id,))
        if row := cursor.fetchone():
            names = [column[0] for column in cursor.get_description()]
            records.info = _session_record(dict(zip(names, row, strict=True)))
        for message_id, data in db.execute(_MESSAGES, (past.id,)):
            if (message := decode_object(data)) is not None:
                records.messages.append({**message, "id": message_id})
            else:
                records.malformed += 1
        for part_id, message_id, data in db.execute(_PARTS, (past.id,)):
            if (part := decode_object(data)) is not None:
                records.parts.setdefault(message_id, []).append({**part, "id": part_id})
            else:
                records.malformed += 1
    return records


def _session_record(row: Payload) -> Payload:
    """Convert a row of the session table to the record that events carry."""
    cache = {"read": row.get("tokens_cache_read"), "write": row.get("tokens_cache_write")}
    tokens = {"input": row.get("tokens_input"), "output": row.get("tokens_output"), "cache": cache}
    return {
        "title": row.get("title"),
        "directory": row.get("directory"),
        "parentID": row.get("parent_id"),
        "agent": row.get("agent"),
        "model": decode_object(row.get("model") or "{}") or {},
        "cost": row.get("cost"),
        "tokens": {**tokens, "reasoning": row.get("tokens_reasoning")},
        "time": {"created": row.get("time_created"), "updated": row.get("time_updated")},
    }


# -- the folder


def _find_in_folder(root: Path) -> Iterator[PastSession]:
    for path in sorted((root / "storage" / "session").glob("*/*.json")):
        info = _read_file(path, root)
        if info and (session_id := text(info, "id")):
            updated_at = number(record(info, "time"), "updated") or 0
            yield _past_session(session_id, root, path, text(info, "directory") or "", updated_at)


def _read_folder(past: PastSession) -> _Records:
    storage = past.root / "storage"
    records = _Records(info=_read_file(past.path, past.root) or {})
    for path in sorted((storage / "message" / past.id).glob("*.json")):
        message = _read_file(path, past.root)
        if message is None:
            records.malformed += 1
        elif message_id := text(message, "id"):
            records.messages.append(message)
            parts = [_read_file(each, past.root) for each in sorted((storage / "part" / message_id).glob("*.json"))]
            records.malformed += parts.count(None)
            records.parts[message_id] = [part for part in parts if part]
    return records


def _read_file(path: Path, root: Path) -> Payload | None:
    try:
        with open_below(str(path), [root]) as file:
            return decode_object(file.read(MAX_RECORD_BYTES))
    except (OSError, UnsafeFile):
        return None
