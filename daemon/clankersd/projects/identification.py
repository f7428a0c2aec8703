"""The service that identifies repositories by their root commit, merges projects and notices folders that moved."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.errors import RpcError
from clankersd.db import Db, Store
from clankersd.projects.pending import pending
from clankersd.projects.repositories import ROOT_COMMIT, Folder, read_root_commit
from clankersd.projects.store import Merge, learn_folder, show_at
from clankersd.ttl_cache import TtlCache

RETRY_SECONDS = 600.0
"""Time after which a folder is identified again whose repository has no commit, or none that git found in time."""

DISK_SECONDS = 5.0
"""Deadline for a look at the folders of a project, which may lie on a server that is away."""

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
        self._unidentified: TtlCache[Folder, bool] = TtlCache(RETRY_SECONDS, 10_000)

    async def run(self) -> None:
        """Identify folders as they are seen."""
        while True:
            for folder in await pending.take():
                if self._unidentified.get(folder):
                    continue
                try:
                    await self._identify(folder)
                except RpcError as error:  # the folder is seen again
                    log.warning("project identification failed", folder=folder.path, problem=error.message)

    async def _identify(self, folder: Folder) -> None:
        known = folder
        if folder.repository is None and folder.git_dir is not None:
            began = time.monotonic()
            commit = await read_root_commit(folder.git_dir)
            log.debug("root commit read", folder=folder.path, commit=commit, seconds=time.monotonic() - began)
            if commit is None:
                self._unidentified.put(folder, True)
            else:
                known = replace(folder, repository=f"{ROOT_COMMIT}{commit}")
        merge = await self._store.write(lambda db: learn_folder(db, known), bulk=True)
        if merge is not None:
            log.info("projects merged", folder=folder.path, merged=merge.merged, kept=merge.kept)
            self._announce_merge(merge)
        await self._follow(folder.path)

    async def _follow(self, path: str) -> None:
        """Show the project at a folder that exists, if the one at which it is shown does not."""
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
