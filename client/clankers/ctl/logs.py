"""`clankers-ctl logs`: read the daemon's log files, also when the daemon is not running."""

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from textwrap import indent
from typing import Any

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.output import echo, echo_json, echo_styled, one_line, plain, secho
from clankers_protocol.paths import default_paths

SEVERITY = {"debug": 0, "info": 1, "warn": 2, "warning": 2, "error": 3, "critical": 4}
COLOURS = {"debug": "bright_black", "info": "green", "warn": "yellow", "warning": "yellow", "error": "red"}
LEADING_FIELDS = ("timestamp", "level", "component", "message")
"""Printed at the start of a line; all other fields follow as key=value."""

POLL_SECONDS = 0.25


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they are written, also after midnight.")
@click.option(
    "--lines", "-n", type=click.IntRange(0), default=50, show_default=True, metavar="N", help="Show the last N lines."
)
@click.option("--level", type=click.Choice(list(SEVERITY)), default="debug", help="Only show this level and above.")
@click.option(
    "--log-path", type=click.Path(path_type=Path), metavar="FOLDER", help="Read the log files in this folder."
)
@common_options
def logs(ctl: Ctl, follow: bool, lines: int, level: str, log_path: Path | None) -> None:
    """Show the log of the daemon. Works without a running daemon.

    With --json, lines are printed as they are in the file.

    \b
    Examples:
      clankers-ctl logs
      clankers-ctl logs -f --level warn
      clankers-ctl logs -n 1000 --json | jq 'select(.component == "rpc")'
    """
    folder = log_path or default_paths().logs
    files = [DailyFile(path) for path in _daily_files(folder)]
    min_severity = SEVERITY[level]
    if not files and not follow:
        raise click.ClickException(f"There is no log in {folder}.")
    for line in last_lines(files, lines, min_severity):
        _print_line(line, raw=ctl.json)
    if follow:
        with suppress(KeyboardInterrupt):
            for line in _follow(folder, files[-1] if files else None):
                if _severity(line) >= min_severity:
                    _print_line(line, raw=ctl.json)


class DailyFile:
    """A log file of one day, and the position up to which it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def lines(self) -> Iterator[str]:
        """Yield lines not read before. A line that is still being written is left for the next call."""
        with suppress(FileNotFoundError), self.path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line.decode(errors="replace").rstrip("\n")


def last_lines(files: list[DailyFile], count: int, min_severity: int) -> list[str]:
    """Return the last lines of at least this severity, oldest first. Always reads the newest file to its end."""
    last: list[str] = []
    for file in reversed(files):
        matching = (line for line in file.lines() if _severity(line) >= min_severity)
        last = [*deque(matching, maxlen=count - len(last)), *last]
        if len(last) == count:
            break
    return last


def _follow(folder: Path, current: DailyFile | None) -> Iterator[str]:
    while True:
        # List the files first: once a newer one exists, nothing is added to the current one.
        newer = [path for path in _daily_files(folder) if current is None or path.name > current.path.name]
        if current:
            yield from current.lines()
        if newer:
            current = DailyFile(newer[0])
        else:
            time.sleep(POLL_SECONDS)


def _daily_files(folder: Path) -> list[Path]:
    """List the log files, oldest first."""
    return sorted(folder.glob("clankers-????-??-??.jsonl"))


def _parse(line: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict):
            return entry
    return None


def _severity(line: str) -> int:
    """Return the severity of a line. A line that cannot be parsed counts as most severe, so that it is shown."""
    level = str((_parse(line) or {}).get("level")).lower()
    return SEVERITY.get(level, len(SEVERITY))


def _print_line(line: str, *, raw: bool) -> None:
    if raw:
        echo_json(line)
        return
    entry = _parse(line)
    if entry is None:
        echo(line)
        return
    level = str(entry.get("level", "")).lower()
    facts = {key: value for key, value in entry.items() if key not in LEADING_FIELDS}
    blocks = [facts.pop(key) for key, value in list(facts.items()) if "\n" in str(value)]
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in facts.items()
    }
    pairs = " ".join(f"{one_line(key)}={one_line(text)}" for key, text in texts.items())
    parts = [
        click.style(_local_time(entry.get("timestamp")), dim=True),
        click.style(f"{one_line(level):8}", fg=COLOURS.get(level)),
        click.style(one_line(str(entry.get("component") or "")), fg="cyan"),
        one_line(str(entry.get("message", ""))),
        click.style(pairs, dim=True) if pairs else "",
    ]
    echo_styled(" ".join(part for part in parts if part))
    for block in blocks:
        secho(indent(plain(str(block)).rstrip("\n"), "    "), dim=True)


def _local_time(timestamp: Any) -> str:
    with suppress(ValueError):
        return datetime.fromisoformat(str(timestamp)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return one_line(str(timestamp or ""))
