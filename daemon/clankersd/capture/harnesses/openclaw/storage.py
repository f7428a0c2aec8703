"""OpenClaw's own history: one SQLite database for each agent, with the transcripts of its sessions. It is only read."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from clankers_protocol.ids import encode_id
from clankersd.capture.harnesses.base import History, PastSession, Payload, list_folders
from clankersd.capture.harnesses.openclaw.entries import read_entry
from clankersd.capture.harnesses.openclaw.hooks import note_parent
from clankersd.capture.harnesses.payload import decode_object, text
from clankersd.safe_files import UnsafeFile, open_below

BUSY_TIMEOUT_MS = 2000
MAX_ENTRY_BYTES = 4 * 1024 * 1024
"""Size of the largest entry that OpenClaw compresses."""

_SESSIONS = """
    SELECT session_id, updated_at,
           (SELECT coalesce(event_json, event_zstd) FROM transcript_events AS event
            WHERE event.session_id = session_windows.session_id ORDER BY seq LIMIT 1)
    FROM session_windows ORDER BY created_at, session_id
"""
_ENTRIES = "SELECT coalesce(event_json, event_zstd) FROM transcript_events WHERE session_id = ? ORDER BY seq"
# The window of the parent that was open when the sub-agent began.
_PARENT = """
    SELECT parent.session_id FROM session_windows AS child JOIN session_windows AS parent
        ON parent.session_key = coalesce(child.spawned_by, child.parent_session_key)
    WHERE child.session_id = ? AND parent.session_id <> child.session_id
    ORDER BY parent.created_at <= child.created_at DESC, abs(parent.created_at - child.created_at) LIMIT 1
"""


def find_sessions(roots: list[Path], since: int) -> list[PastSession]:
    """List every session in the databases of all agents."""
    found: list[PastSession] = []
    for root in roots:
        for agent in sorted(list_folders(root / "agents")):
            found += _find_in_database(root, agent / "agent" / "openclaw-agent.sqlite")
    return [session for session in found if session.updated_at >= since]


def _find_in_database(root: Path, path: Path) -> list[PastSession]:
    try:
        with closing(_open_database(path, root)) as db:
            rows = db.execute(_SESSIONS).fetchall()
    except (apsw.Error, OSError, UnsafeFile):
        return []
    found = []
    for session_id, updated_at, first in rows:
        project = text(decode_entry(first) or {}, "cwd")
        label = (project or str(session_id))[-30:]
        found.append(PastSession(str(session_id), root, path, project, int(updated_at or 0), label))
    return found


def read_session(past: PastSession) -> History:
    """Read a stored session into the events that its plugin would have sent."""
    history = History()
    with closing(_open_database(past.path, past.root)) as db:
        for (stored,) in db.execute(_ENTRIES, (past.id,)):
            entry = decode_entry(stored)
            if entry is None:
                history.malformed += 1
            else:
                history.events += read_entry(entry, past.session_id)
        for (parent,) in db.execute(_PARENT, (past.id,)):
            history.events.append(note_parent(past.session_id, encode_id(str(parent))))
    return history


def _open_database(path: Path, root: Path) -> apsw.Connection:
    open_below(str(path), [root]).close()
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    return db


def decode_entry(stored: Any) -> Payload | None:
    """Decode an entry, which is compressed if it is long; None for anything but an object."""
    try:
        if isinstance(stored, bytes):
            stored = _decompress(stored)
    except ValueError:
        return None
    return decode_object(stored)


def _decompress(data: bytes) -> bytes:
    """Decompress an entry; raises ValueError for damaged or too long data."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    decompressor = zstd.ZstdDecompressor()
    try:
        content = decompressor.decompress(data, max_length=MAX_ENTRY_BYTES)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    if not decompressor.eof:
        raise ValueError("the entry is too long")
    return content
