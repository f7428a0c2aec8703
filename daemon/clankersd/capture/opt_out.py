"""Projects that do not want to be captured: a file called .clankers-ignore in their folder, or in one above it."""

import os
from collections.abc import Callable
from pathlib import Path

from clankersd.db import Db
from clankersd.ttl_cache import TtlCache

MARKER = ".clankers-ignore"
CACHE_SECONDS = 5.0
MAX_CACHED_PATHS = 10_000

_DECLINE = "INSERT INTO opted_out (session_id, at) VALUES (:id, :now) ON CONFLICT (session_id) DO NOTHING"

_declined: TtlCache[str, bool] = TtlCache(CACHE_SECONDS, MAX_CACHED_PATHS)


def declines(path: str) -> bool:
    """Whether the project at this path does not want to be captured."""
    known = _declined.get(path)
    if known is not None:
        return known
    found = path.startswith("/") and any(
        os.path.lexists(folder / MARKER)  # Path.exists would follow a link, and raise where we may not look
        for folder in (Path(path), *Path(path).parents)
    )
    return _declined.put(path, found)


def decline(session_id: str, now: int) -> Callable[[Db], None]:
    """Store nothing of this session from now on: what follows names the session alone."""

    def store(db: Db) -> None:
        db.execute(_DECLINE, {"id": session_id, "now": now})

    return store


def declined(db: Db, session_id: str) -> bool:
    """Whether nothing of this session is to be stored."""
    return db.value("SELECT 1 FROM opted_out WHERE session_id = :id", {"id": session_id}) is not None


def welcome(db: Db, session_id: str) -> None:
    """The project of this session wants to be captured, again."""
    db.execute("DELETE FROM opted_out WHERE session_id = :id", {"id": session_id})
