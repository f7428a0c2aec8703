"""Folders whose repository has to be identified, handed from any thread to the service that does so."""

import asyncio
import threading

import anyio

from clankersd.projects.repositories import Folder

MAX_PENDING = 1000
"""A folder beyond these is identified when it is seen again."""


class PendingFolders:
    """A set of folders with a wait for the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: dict[str, Folder] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: anyio.Event | None = None

    def add(self, folder: Folder) -> None:
        """Ask for a folder to be identified."""
        with self._lock:
            if len(self._folders) < MAX_PENDING:
                self._folders[folder.path] = folder
            loop, woken = self._loop, self._woken
        if loop is not None and woken is not None and not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    async def take(self) -> list[Folder]:
        """Wait for folders and return all that are pending."""
        while True:
            with self._lock:
                self._loop, self._woken = asyncio.get_running_loop(), anyio.Event()
                folders, self._folders = list(self._folders.values()), {}
                woken = self._woken
            if folders:
                return folders
            await woken.wait()


pending = PendingFolders()
"""The folders of this process's daemon."""
