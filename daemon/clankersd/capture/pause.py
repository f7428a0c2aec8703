"""Pauses of capture. Nothing that happens during one is stored, whether hooks, upserts or transcripts report it.

The pauses are in a file, so that they survive a restart and hooks can read them while the daemon is away. Past pauses
are kept for a while, because transcripts may be read after them.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import structlog

from clankers_protocol.capture import CapturePause, CaptureResume, Pause, PauseReport
from clankers_protocol.errors import Conflict, InvalidParams
from clankers_protocol.safe_writes import write_file
from clankersd import clock
from clankersd.projects import find_folder
from clankersd.safe_files import UnsafeFile, read_regular
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

FILE_NAME = "capture-pauses.json"
MAX_FILE_BYTES = 1024 * 1024
MAX_PAUSES = 1000
KEPT_MS = 90 * 24 * 3_600_000
"""Time for which an ended pause is remembered."""

log = structlog.get_logger(component="capture")


class Pauses:
    """All pauses, the ended ones too."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._pauses: list[Pause] = []
        try:
            data = read_regular(self._path, max_bytes=MAX_FILE_BYTES, owner=os.geteuid())
            self._pauses = msgspec.json.decode(data, type=list[Pause])
        except FileNotFoundError:
            pass
        except (OSError, UnsafeFile, msgspec.MsgspecError) as error:
            log.error("pauses not read", path=str(self._path), problem=str(error))

    def active(self) -> list[Pause]:
        """List the pauses in force now."""
        now = clock.now()
        return [pause for pause in self._pauses if _covers_time(pause, now)]

    def find(self, at: int, project: str | None) -> Pause | None:
        """Return the pause that covers this time, and this project if it is a pause of one; None if there is none."""
        for pause in self._pauses:
            if _covers_time(pause, at) and (pause.project is None or _is_in(project, pause.project)):
                return pause
        return None

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

    def end(self, project: str | None) -> int:
        """End the pause of a project, or all pauses; return how many there were."""
        ended = self._end(lambda pause: project is None or pause.project == project)
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


def _is_in(path: str | None, project: str) -> bool:
    if not path or not path.startswith("/"):
        return False
    return path == project or path.startswith(f"{project.rstrip('/')}/") or find_folder(path).path == project


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
    project = request.project and (await anyio.to_thread.run_sync(find_folder, request.project)).path
    if project is not None and any(pause.project is None for pause in daemon.pauses.active()):
        raise Conflict("capture is paused everywhere, not only in this project: clankers-ctl capture resume")
    ended = await anyio.to_thread.run_sync(daemon.pauses.end, project)
    log.info("capture resumed", project=project, ended=ended)
    return PauseReport(daemon.pauses.active(), ended)
