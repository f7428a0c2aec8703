"""Pauses of capture. Nothing that happens during one is stored, whether hooks, upserts or transcripts report it.

The pauses are in a file, so that they survive a restart and hooks can read them while the daemon is away. Past pauses
are kept for a while, because transcripts may be read after them.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec
import structlog

from clankers_protocol.capture import CapturePause, CaptureResume, Pause, PauseReport
from clankers_protocol.errors import Conflict, InvalidParams
from clankers_protocol.safe_writes import write_file
from clankersd import clock
from clankersd.db import Db
from clankersd.projects import find_folder, match_folder
from clankersd.safe_files import UnsafeFile, read_regular
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

FILE_NAME = "capture-pauses.json"
SESSIONS_FILE_NAME = "capture-paused-sessions.json"
"""The folders of sessions that ran in a paused project, by their ids; events need not name a folder."""

MAX_SESSIONS = 1000
MAX_FILE_BYTES = 1024 * 1024
MAX_PAUSES = 1000
KEPT_MS = 90 * 24 * 3_600_000
"""Time for which an ended pause is remembered."""

Value = TypeVar("Value")

log = structlog.get_logger(component="capture")


class Pauses:
    """All pauses, the ended ones too."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._sessions_path = folder / SESSIONS_FILE_NAME
        self._pauses = _read(self._path, list[Pause]) or []
        self._sessions = _read(self._sessions_path, dict[str, str]) or {}

    def active(self) -> list[Pause]:
        """List the pauses in force now."""
        now = clock.now()
        return [pause for pause in self._pauses if _covers_time(pause, now)]

    def find(self, db: Db, at: int, session_id: str, folder: str | None) -> Pause | None:
        """Return the pause that covers this time, and this session if a project is paused; None if there is none.

        `folder` is that of the event or of the stored session. An event without one belongs to the project that an
        earlier event of its session named during the pause.
        """
        known = folder or self._sessions.get(session_id)
        for pause in self._pauses:
            if not _covers_time(pause, at):
                continue
            if pause.project is None:
                return pause
            if _is_in(db, known, pause.project):
                self._remember(session_id, known)
                return pause
        return None

    def _remember(self, session_id: str, folder: str | None) -> None:
        """Store the folder of a session whose events are not stored."""
        if folder and session_id and self._sessions.get(session_id) != folder:
            self._sessions[session_id] = folder
            while len(self._sessions) > MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            write_file(self._sessions_path, msgspec.json.encode(self._sessions), mode=0o600)

    @property
    def is_empty(self) -> bool:
        """Tell whether no pause is remembered, as is nearly always the case."""
        return not self._pauses

    def add(self, project: str | None, seconds: float | None) -> None:
        """Pause from now on; a pause of the same scope is replaced."""
        now = clock.now()
        until = None if seconds is None else now + round(seconds * 1000)
        self._end(lambda pause: pause.project == project)
        self._pauses.append(Pause(project, now, until))
        self._save()

    def projects(self) -> list[str]:
        """List the folders of the projects that are paused now."""
        return [pause.project for pause in self.active() if pause.project is not None]

    def end(self, projects: list[str] | None) -> int:
        """End the pauses of projects, given by the folders of the pauses, or all; return how many there were."""
        ended = self._end(lambda pause: projects is None or pause.project in projects)
        self._save()
        return ended

    def warnings(self) -> list[str]:
        """Describe the pauses in force, each with how to end it."""
        return [describe(pause) for pause in self.active()]

    def _end(self, matches: Callable[[Pause], bool]) -> int:
        now = clock.now()
        active = [pause for pause in self.active() if matches(pause)]
        for pause in active:
            pause.until = now
        self._pauses = [pause for pause in self._pauses if pause.until is None or pause.until > now - KEPT_MS]
        return len(active)

    def _save(self) -> None:
        self._pauses = self._pauses[-MAX_PAUSES:]
        if self._pauses:
            write_file(self._path, msgspec.json.encode(self._pauses), mode=0o600)
        else:
            self._path.unlink(missing_ok=True)
            self._sessions_path.unlink(missing_ok=True)


def _read(path: Path, kind: type[Value]) -> Value | None:
    """Read a file of pauses; None if there is none, or if it cannot be read, which is logged."""
    try:
        return msgspec.json.decode(read_regular(path, max_bytes=MAX_FILE_BYTES, owner=os.geteuid()), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, UnsafeFile, msgspec.MsgspecError) as error:
        log.error("pauses not read", path=str(path), problem=str(error))
        return None


def describe(pause: Pause) -> str:
    """Return a sentence about a pause in force, with what to do."""
    place = f" in {pause.project}" if pause.project else ""
    until = ""
    if pause.until:
        until = f" until {datetime.fromtimestamp(pause.until / 1000, UTC).astimezone():%Y-%m-%d %H:%M}"
    option = f" --project {pause.project}" if pause.project else ""
    return f"capture is paused{place}{until}: clankers-ctl capture resume{option}"


def _covers_time(pause: Pause, at: int) -> bool:
    return pause.since <= at and (pause.until is None or at < pause.until)


def _is_in(db: Db, path: str | None, project: str) -> bool:
    """Tell whether a path belongs to the project of a folder: is below it, or in a worktree or another clone."""
    if not path or not path.startswith("/"):
        return False
    if path == project or path.startswith(f"{project.rstrip('/')}/"):
        return True
    folder, paused = find_folder(path), find_folder(project)
    if folder.path == project or (folder.repository is not None and folder.repository == paused.repository):
        return True
    project_id = match_folder(db, folder).project_id
    return project_id is not None and project_id == match_folder(db, paused).project_id


@handles(CapturePause)
async def capture_pause(daemon: "Daemon", request: CapturePause) -> PauseReport:
    project = None
    if request.project is not None:
        if not request.project.startswith("/"):
            raise InvalidParams("invalid params: project must be the absolute path of a folder - at `$.project`")
        project = (await anyio.to_thread.run_sync(find_folder, request.project)).path
    await anyio.to_thread.run_sync(daemon.pauses.add, project, request.seconds)
    log.info("capture paused", project=project, seconds=request.seconds)
    return PauseReport(daemon.pauses.active())


@handles(CaptureResume)
async def capture_resume(daemon: "Daemon", request: CaptureResume) -> PauseReport:
    paused: list[str] | None = None
    if request.project:
        if any(pause.project is None for pause in daemon.pauses.active()):
            raise Conflict("capture is paused everywhere, not only in this project: clankers-ctl capture resume")
        paused = await daemon.store.read(
            lambda db: [each for each in daemon.pauses.projects() if _is_in(db, request.project, each)]
        )
    ended = await anyio.to_thread.run_sync(daemon.pauses.end, paused)
    log.info("capture resumed", project=request.project, ended=ended)
    return PauseReport(daemon.pauses.active(), ended)
