"""Logging: structlog events as JSON lines in daily files, and as readable text on a terminal."""

import logging
import os
import re
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import IO

import anyio
import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from clankers_protocol.terminal import sanitize
from clankersd import clock

LEVELS = {"debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40}
Redact = Callable[[EventDict], EventDict]

_NAME = re.compile(r"clankers-(\d{4}-\d{2}-\d{2})\.jsonl")


class DailyFile:
    """Appends lines to the file of the day. A line that cannot be written is dropped, never raised."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dropped = 0
        self._file: IO[bytes] | None = None
        self._day = (0.0, 0.0)
        """Start and end of the open file's day, in seconds since 1970."""

    def write(self, line: bytes) -> None:
        try:
            self._current().write(line + b"\n")
        except OSError:  # a full disk must not end the daemon; `health` reports it
            self.dropped += 1
            self._day = (0.0, 0.0)

    def _current(self) -> IO[bytes]:
        start, end = self._day
        if self._file is None or not start <= clock.now() / 1000 < end:  # also when the clock was set back
            self._open(clock.local_time())
        assert self._file
        return self._file

    def _open(self, now: datetime) -> None:
        self.close()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"clankers-{now:%Y-%m-%d}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
        midnight = now.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)  # a day may have 23 hours
        self._day = (midnight.timestamp(), (midnight + timedelta(days=1)).timestamp())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove_older_than(self, days: int, today: date) -> list[str]:
        """Delete our own daily files that are more than `days` old; other files are left alone.

        If no file of an earlier day would remain, none is deleted: the clock may have jumped forward. Once there are
        files of two days the old ones are deleted.
        """
        dated = {path: day for path in self.folder.glob("clankers-*.jsonl") if (day := _day_of(path.name))}
        old = sorted(path for path, day in dated.items() if day < today - timedelta(days=days))
        if all(path in old for path, day in dated.items() if day < today):
            return []
        for path in old:
            path.unlink(missing_ok=True)
        return [path.name for path in old]


def _day_of(name: str) -> date | None:
    dated = _NAME.fullmatch(name)
    try:
        return date.fromisoformat(dated[1]) if dated else None
    except ValueError:
        return None


def configure(file: DailyFile, level: str, redact: Redact) -> None:
    """Send every event, redacted, to the file, and to the terminal if stderr is one.

    Redaction keeps secrets out of the log: clients write to it, and errors quote what was sent.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda _logger, _name, event: redact(event),
            _to_file(file),
            _sanitize_for_terminal if sys.stderr.isatty() else _drop,
            structlog.dev.ConsoleRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_StructlogHandler()]
    root.setLevel(logging.WARNING)


def _to_file(file: DailyFile) -> Callable[[WrappedLogger, str, EventDict], EventDict]:
    def write(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
        line = {
            "timestamp": event.get("timestamp"),
            "level": event.get("level"),
            "component": event.get("component", "daemon"),
            "message": event.get("event"),
        }
        file.write(msgspec.json.encode(line | {k: v for k, v in event.items() if k != "event"}, enc_hook=repr))
        return event

    return write


def _sanitize_for_terminal(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Remove control sequences that clients and files may have supplied; other values are shown by their repr."""
    return {sanitize(key): sanitize(value) if isinstance(value, str) else value for key, value in event.items()}


def _drop(_logger: WrappedLogger, _name: str, _event: EventDict) -> EventDict:
    raise structlog.DropEvent


class _StructlogHandler(logging.Handler):
    """Forwards the log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(component=record.name)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        log.log(LEVELS[level], record.getMessage(), exc_info=record.exc_info)


async def remove_old_logs(file: DailyFile, get_days: Callable[[], int]) -> None:
    """Delete old log files now and every 24 hours."""
    log = structlog.get_logger(component="log")
    while True:
        removed = file.remove_older_than(get_days(), clock.local_time().date())
        if removed:
            log.info("old logs removed", files=removed)
        await anyio.sleep(24 * 60 * 60)
