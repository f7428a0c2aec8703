"""The service that identifies repositories by their root commit, merges projects and notices folders that moved."""

import os
from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.errors import RpcError
from clankersd.db import Db, Store
from clankersd.projects.pending import MAX_PENDING, pending
from clankersd.projects.repositories import (
    ROOT_COMMIT,
    Folder,
    find_folder,
    find_source_remote,
    read_head,
    read_root_commit,
)
from clankersd.projects.store import Merge, learn_folder, show_at
from clankersd.ttl_cache import TtlCache

EMPTY_SECONDS = 60.0
"""Interval between looks at a repository that has no commit yet."""

RETRY_SECONDS = 6 * 3600.0
"""Interval between attempts at a repository whose root commit git did not find in time."""

MAX_UNIDENTIFIED = 10_000

READ_STORED_SECONDS = 30.0
DISK_SECONDS = 5.0
"""Deadline for a look at the folders of a project, which may lie on a server that is away."""

_UNREAD = f"""
    SELECT path FROM project_folders WHERE repository IS NULL AND directory IS NULL
    ORDER BY seen_at DESC LIMIT {MAX_PENDING}
"""
_FOLDERS = """
    SELECT project_id, projects.path AS shown, folders.path FROM project_folders AS folders
    JOIN projects ON projects.id = project_id
    WHERE project_id = (SELECT project_id FROM project_folders WHERE path = :path) ORDER BY seen_at DESC, folders.path
"""

log = structlog.get_logger(component="projects")


class ProjectIdentification:
    """The service. `announce_merge` is called after two projects were merged."""

    def __init__(self, store: Store, announce_merge: Callable[[Merge], None]) -> None:
        self._store = store
        self._announce_merge = announce_merge
        self._empty: TtlCache[Folder, bool] = TtlCache(EMPTY_SECONDS, MAX_UNIDENTIFIED)
        self._failed: TtlCache[Folder, bool] = TtlCache(RETRY_SECONDS, MAX_UNIDENTIFIED)

    async def run(self) -> None:
        """Identify folders as they are seen, and first those that an older version stored."""
        try:
            await self._read_stored()
        except RpcError as error:  # they are read when they are seen
            log.warning("stored projects not read", problem=error.message)
        while True:
            for folder in await pending.take():
                if self._empty.get(folder) or self._failed.get(folder):
                    continue
                try:
                    await self._identify(folder)
                except (RpcError, OSError) as error:  # the folder is seen again
                    log.warning("project identification failed", folder=folder.path, problem=str(error))

    async def _read_stored(self) -> None:
        """Read the folders of which only the path is known, before one of them is moved."""
        paths = [row[0] for row in await self._store.read(lambda db: db.tuples(_UNREAD))]

        def read() -> None:
            for path in paths:
                folder = find_folder(path)
                if folder.path == path and (folder.repository or folder.git_dir or folder.directory):
                    pending.add(folder)

        with anyio.move_on_after(READ_STORED_SECONDS):
            await anyio.to_thread.run_sync(read, abandon_on_cancel=True)

    async def _identify(self, folder: Folder) -> None:
        known = folder
        if folder.repository is None and folder.git_dir is not None:
            known = replace(folder, repository=await self._read_repository(folder, folder.git_dir))
        merge = await self._store.write(lambda db: learn_folder(db, known), bulk=True)
        if merge is not None:
            log.info("projects merged", folder=folder.path, merged=merge.merged, kept=merge.kept)
            self._announce_merge(merge)
        await self._follow(folder.path)

    async def _read_repository(self, folder: Folder, git_dir: str) -> str | None:
        """Return the remote of the repository that this one was cloned from, else the root commit."""
        with anyio.move_on_after(DISK_SECONDS):
            path = folder.path
            remote = await anyio.to_thread.run_sync(find_source_remote, git_dir, path, abandon_on_cancel=True)
            if remote is not None:
                return remote
        head = await anyio.to_thread.run_sync(read_head, git_dir)
        if head is None:
            self._empty.put(folder, True)
            return None
        commit = await read_root_commit(git_dir, head)
        if commit is None:
            log.warning("root commit not found", folder=folder.path)
            self._failed.put(folder, True)
            return None
        return f"{ROOT_COMMIT}{commit}"

    async def _follow(self, path: str) -> None:
        """Move the project's main folder to one that exists, if the current one does not."""
        rows = await self._store.read(lambda db: db.fetch(_FOLDERS, {"path": path}))
        if len(rows) < 2:
            return
        present: list[str] = []

        def look() -> None:
            for candidate in [rows[0]["shown"], *(row["path"] for row in rows)]:
                if os.path.isdir(candidate):  # noqa: PTH112
                    present.append(candidate)
                    return

        with anyio.move_on_after(DISK_SECONDS):
            await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        if present and present[0] != rows[0]["shown"]:
            project_id, found = rows[0]["project_id"], present[0]

            def show(db: Db) -> None:
                show_at(db, project_id, found)

            await self._store.write(show, bulk=True)
