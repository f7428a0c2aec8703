"""Opting out of capture: a file called .clankers-ignore in a project's folder, or in one above it.

A link counts as the folder that it leads to, and a worktree as a part of its repository.
"""

import os
from pathlib import Path

from clankersd.db import Db
from clankersd.projects.repositories import find_folder
from clankersd.ttl_cache import TtlCache

MARKER = ".clankers-ignore"
CACHE_SECONDS = 5.0
MAX_CACHED_PATHS = 10_000

_cache: TtlCache[str, bool] = TtlCache(CACHE_SECONDS, MAX_CACHED_PATHS)


def is_opted_out(path: str) -> bool:
    """Tell whether the project at this path has opted out of capture."""
    cached = _cache.get(path)
    if cached is not None:
        return cached
    if not path.startswith("/") or "\0" in path:
        return _cache.put(path, False)
    places = {Path(path), Path(os.path.realpath(path)), Path(find_folder(path).path)}
    folders = places.union(*(place.parents for place in places))
    # Path.exists would follow a link, and raise where we may not look
    return _cache.put(path, any(os.path.lexists(folder / MARKER) for folder in folders))


def is_session_opted_out(db: Db, session_id: str) -> bool:
    """Tell whether nothing of this session is stored."""
    return db.value("SELECT 1 FROM opted_out WHERE session_id = :id", {"id": session_id}) is not None


def opt_out_session(db: Db, session_id: str, now: int) -> None:
    """Store nothing of this session from now on: later events name the session but not its project."""
    sql = "INSERT INTO opted_out (session_id, at) VALUES (:id, :now) ON CONFLICT (session_id) DO NOTHING"
    db.execute(sql, {"id": session_id, "now": now})
    db.change_cache.clear()


def opt_in_session(db: Db, session_id: str) -> None:
    """Capture this session again: its project has not opted out, or no longer."""
    db.execute("DELETE FROM opted_out WHERE session_id = :id", {"id": session_id})
