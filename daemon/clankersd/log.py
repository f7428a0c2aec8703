"""structlog to daily files of JSON lines, and readable on a terminal."""

import logging
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO

import anyio
import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from clankersd.redaction import redact_all

LEVELS = {"debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40}
_NAME = re.compile(r"clankers-(\d{4}-\d{2}-\d{2})\.jsonl")


class DailyFile:
    """Appends lines to the file of the day. A line that cannot be written is dropped, never raised."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dropped = 0
        self._file: IO[bytes] | None = None
        self._until = 0.0

    def write(self, line: bytes) -> None:
        try:
            self._current().write(line + b"\n")
        except OSError:  # a full disk must not end the daemon; `health` says what is wrong with it
            self.dropped += 1
            self._until = 0.0

    def _current(self) -> IO[bytes]:
        if self._file is None or time.time() >= self._until:
            self._open(datetime.now().astimezone())
        assert self._file
        return self._file

    def _open(self, now: datetime) -> None:
        self.close()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"clankers-{now:%Y-%m-%d}.jsonl"
        self._file = path.open("ab", buffering=0)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        self._until = midnight.timestamp()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove_older_than(self, days: int, today: date) -> list[str]:
        """Delete our own daily files from before so many days; other files are left alone."""
        removed = []
        for path in sorted(self.folder.glob("clankers-*.jsonl")) if self.folder.exists() else []:
            dated = _NAME.fullmatch(path.name)
            if dated and _is_day(dated[1]) and date.fromisoformat(dated[1]) < today - timedelta(days=days):
                path.unlink(missing_ok=True)
                removed.append(path.name)
        return removed


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def configure(file: DailyFile, level: str) -> None:
    """Send every event to the file, and to the terminal where there is one."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact,
            _to_file(file),
            structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else _drop,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(logging.WARNING)


def _redact(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Keep secrets out of the log: clients write to it, and errors quote what was sent."""
    cleaned, _ = redact_all(dict(event))
    assert isinstance(cleaned, dict)
    return cleaned


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


def _drop(_logger: WrappedLogger, _name: str, _event: EventDict) -> EventDict:
    raise structlog.DropEvent


class _Forward(logging.Handler):
    """What libraries log, through structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(component=record.name)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        log.log(LEVELS[level], record.getMessage(), exc_info=record.exc_info)


async def clean_up_daily(file: DailyFile, days: Callable[[], int]) -> None:
    """Delete old log files now and every day."""
    log = structlog.get_logger(component="log")
    while True:
        removed = file.remove_older_than(days(), datetime.now(UTC).astimezone().date())
        if removed:
            log.info("removed old logs", files=removed)
        await anyio.sleep(24 * 60 * 60)
