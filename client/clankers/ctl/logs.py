"""`clankers-ctl logs`: the daemon's log, read from its files, so it works when the daemon does not."""

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
OWN_PLACE = ("timestamp", "level", "component", "message")
"""What stands at the beginning of a line; everything else follows as key=value."""

EVERY = 0.25
"""Seconds between two looks at a followed file."""


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on as lines are written, across midnight too.")
@click.option("--lines", "-n", type=click.IntRange(0), default=50, show_default=True, help="How many lines.")
@click.option("--level", type=click.Choice(list(SEVERITY)), default="debug", help="Only this level and worse.")
@click.option("--log-path", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the daemon logs.")
@common_options
def logs(ctl: Ctl, follow: bool, lines: int, level: str, log_path: Path | None) -> None:
    """Show the daemon's log; the daemon need not run.

    With --json, lines are printed as they stand in the file.

    \b
    Examples:
      clankers-ctl logs
      clankers-ctl logs -f --level warn
      clankers-ctl logs -n 1000 --json | jq 'select(.component == "rpc")'
    """
    folder = log_path or default_paths().logs
    files = [DailyFile(path) for path in _daily(folder)]
    wanted = SEVERITY[level]
    if not files and not follow:
        raise click.ClickException(f"There is no log in {folder}.")
    for line in last_lines(files, lines, wanted):
        _print_line(line, ctl.json)
    if follow:
        with suppress(KeyboardInterrupt):
            for line in _coming_lines(folder, files[-1] if files else None):
                if _severity(line) >= wanted:
                    _print_line(line, ctl.json)


class DailyFile:
    """A log file, read from where reading has come to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def lines(self) -> Iterator[str]:
        """The lines not read before; one that is still being written is left for the next time."""
        with suppress(FileNotFoundError), self.path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line.decode(errors="replace").rstrip("\n")


def last_lines(files: list[DailyFile], count: int, wanted: int) -> list[str]:
    """The last lines of at least this severity, oldest first. The newest file is always read to its end."""
    found: list[str] = []
    for file in reversed(files):
        fitting = (line for line in file.lines() if _severity(line) >= wanted)
        found = [*deque(fitting, maxlen=count - len(found)), *found]
        if len(found) == count:
            break
    return found


def _coming_lines(folder: Path, current: DailyFile | None) -> Iterator[str]:
    while True:
        # Looked for first: once there is a newer file, nothing is added to the current one.
        newer = [path for path in _daily(folder) if current is None or path.name > current.path.name]
        if current:
            yield from current.lines()
        if newer:
            current = DailyFile(newer[0])
        else:
            time.sleep(EVERY)


def _daily(folder: Path) -> list[Path]:
    """The log files, oldest first."""
    return sorted(folder.glob("clankers-????-??-??.jsonl"))


def _entry(line: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict):
            return entry
    return None


def _severity(line: str) -> int:
    """How bad it is; what cannot be read counts as worst, so that it is seen."""
    level = str((_entry(line) or {}).get("level")).lower()
    return SEVERITY.get(level, len(SEVERITY))


def _print_line(line: str, as_it_stands: bool) -> None:
    entry = _entry(line)
    if as_it_stands or entry is None:
        (echo_json if as_it_stands else echo)(line)
        return
    level = str(entry.get("level", "")).lower()
    facts = {key: value for key, value in entry.items() if key not in OWN_PLACE}
    blocks = [facts.pop(key) for key, value in list(facts.items()) if "\n" in str(value)]
    told = " ".join(f"{one_line(key)}={one_line(_text(value))}" for key, value in facts.items())
    parts = [
        click.style(_local(entry.get("timestamp")), dim=True),
        click.style(f"{one_line(level):8}", fg=COLOURS.get(level)),
        click.style(one_line(str(entry.get("component") or "")), fg="cyan"),
        one_line(str(entry.get("message", ""))),
        click.style(told, dim=True) if told else "",
    ]
    echo_styled(" ".join(part for part in parts if part))
    for block in blocks:
        secho(indent(plain(str(block)).rstrip("\n"), "    "), dim=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _local(timestamp: Any) -> str:
    with suppress(ValueError):
        return datetime.fromisoformat(str(timestamp)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return one_line(str(timestamp or ""))
