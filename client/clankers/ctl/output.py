"""Output of all commands: JSON, CSV, and tables that fit the terminal; colours on terminals only."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from clankers.ctl.text import Text, apply_style, cell_len, render_row
from clankers_protocol.terminal import clusters, escape_json, sanitize

if TYPE_CHECKING:  # rich takes longer to load than most commands take
    from rich.console import Console as RichConsole
    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment

COLUMN_GAP = 2
DEFAULT_WIDTH_COLUMNS = 80
NARROWEST_COLUMNS = 4
"""Width of a text column that is shown at all."""

PIPED_WIDTH_COLUMNS = 10_000
WIDE_TERMINAL_COLUMNS = 120
"""Terminals at least this wide show full ids in lists."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters that make a spreadsheet treat a CSV cell as a formula."""


def echo(message: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print untrusted text; control sequences in it do not reach the terminal."""
    click.echo(sanitize(str(message)), err=err, nl=nl)


def secho(message: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print untrusted text in colour."""
    click.secho(sanitize(str(message)), err=err, nl=nl, **style)


def echo_styled(message: str) -> None:
    """Print text whose parts were sanitised before styling."""
    click.echo(message)


def echo_json(text: str, *, nl: bool = True) -> None:
    """Print JSON with unsafe characters escaped, which means the same."""
    _echo_exactly(sanitize(escape_json(text)), nl=nl)


def confirm(question: str, **options: Any) -> bool:
    """Ask a yes-or-no question that may contain untrusted text."""
    return click.confirm(sanitize(question), err=True, **options)


def print_json(value: Any) -> None:
    """Print a value or struct in its wire format, indented."""
    echo_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, safe: bool = False) -> None:
    """Print rows below a header line; NULL is empty. Unchanged when piped; `safe` defuses spreadsheet formulas."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (columns, *rows):
        writer.writerow([_defuse_formula(cell) for cell in row] if safe else row)
    _echo_exactly(sanitize(text.getvalue()) if sys.stdout.isatty() else text.getvalue(), nl=False)


def _echo_exactly(text: str, *, nl: bool) -> None:
    click.echo(text, nl=nl, color=True)  # otherwise click strips ANSI sequences from piped output


def _defuse_formula(cell: Any) -> Any:
    """Put an apostrophe before a cell that a spreadsheet would treat as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


class Console:
    """Prints sanitised text, in colour on terminals that have it. Piped output is as wide as needed."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.stderr = stderr
        self.is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
        has_colour = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.color_system = "standard" if has_colour else None

    @property
    def width(self) -> int:
        """Width in columns: COLUMNS if it is set, else that of the terminal."""
        if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns):
            return int(columns)
        if not self.is_terminal:
            return PIPED_WIDTH_COLUMNS
        for stream in (0, 1, 2):
            try:
                if columns_found := os.get_terminal_size(stream).columns:
                    return columns_found
            except OSError:
                continue
        return DEFAULT_WIDTH_COLUMNS

    def print(self, *values: Any, sep: str = " ", end: str = "\n", style: str = "", width: int | None = None) -> None:
        """Print values, wrapped at the width."""
        text = Text()
        for index, value in enumerate(values):
            text.append(sep if index else "").append(Text.of(value))
        if style:
            text = Text(text.plain, style)
        lines = text.wrap(self, width or self.width) if values else []
        self.write("\n".join(line.render() for line in lines) + end)

    def write(self, rendered: str) -> None:
        """Print text that is rendered already."""
        click.echo(rendered, nl=False, err=self.stderr, color=self.color_system is not None)


def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output, or of standard error."""
    return Console(stderr=stderr)


def can_run_full_screen() -> bool:
    """Return whether a person is at a terminal that can move its cursor."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def rich_console(*, stderr: bool = False) -> "RichConsole":
    """Make a `rich` console, which sanitises its output, for progress bars and trees."""
    from rich.console import Console as PlainRichConsole
    from rich.segment import Segment

    class SafeConsole(PlainRichConsole):
        """Sanitises everything it prints; only its own control codes pass."""

        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else sanitize(text), style, control)

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal or os.environ.get("COLUMNS") else PIPED_WIDTH_COLUMNS
    return SafeConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def plain(text: str) -> str:
    """Replace control characters by visible signs, so that text cannot control the terminal."""
    return sanitize(text)


def note(message: str) -> None:
    """Print a remark about the output to a person at a terminal: to a pipe, only errors and hints go."""
    if sys.stderr.isatty():
        secho(message, err=True, dim=True)


def cut(text: str, max_characters: int) -> str:
    """Cut a text to what is seen as so many characters, the last of them an ellipsis."""
    parts = clusters(text)
    return text if len(parts) <= max_characters else f"{''.join(parts[: max_characters - 1])}…"


def one_line(text: str) -> str:
    """Sanitise text and join its lines and spaces into one line."""
    return " ".join(plain(text).split())


@dataclass(frozen=True)
class Column:
    """A table column.

    On a narrow terminal, `optional` columns are dropped, last first; then others shrink to their `min_width`. With
    `wrap` a long value continues on the next line instead of being truncated; with `truncate_start` it loses its
    beginning.
    """

    name: str
    align_right: bool = False
    min_width: int | None = None
    wrap: bool = False
    truncate_start: bool = False
    optional: bool = False
    style: str = ""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a table that fits the terminal."""
    out = console()
    widths = column_widths(columns, _natural_widths(columns, rows), out.width)
    while sum(widths.values()) + COLUMN_GAP * (len(widths) - 1) > out.width and max(widths.values()) > 1:
        widths[max(widths, key=lambda index: widths[index])] -= 1  # even the minimum does not fit
    shown = [columns[index] for index in widths]
    right = [column.align_right for column in shown]
    names = [_fit(column, Text(column.name), width) for column, width in zip(shown, widths.values(), strict=True)]
    lines = [render_row(names, list(widths.values()), right, ["bold"] * len(shown))]
    for row in rows:
        values = [Text.of(row[index]) for index in widths]
        cells, styles = [], []
        for column, value, width in zip(shown, values, widths.values(), strict=True):
            cells.append(_fit(column, value, width))
            styles.append(next((style for _, style in value.pieces if style), column.style))
        lines.append(render_row(cells, list(widths.values()), right, styles))
    out.write("\n".join(lines) + "\n")


def fits_terminal(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> bool:
    """Return True if the terminal is wide enough for all columns at their minimum width."""
    widths = column_widths(columns, _natural_widths(columns, rows), 0)
    return sum(widths.values()) + COLUMN_GAP * (len(columns) - 1) <= console().width


def column_widths(columns: Sequence[Column], natural: Sequence[int], room: int) -> dict[int, int]:
    """Return the indexes of the columns that fit into `room`, each with its width."""
    minimum = [min(width, column.min_width or width) for column, width in zip(columns, natural, strict=True)]
    visible = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if columns[index].optional and sum(minimum[i] + COLUMN_GAP for i in visible) - COLUMN_GAP > room:
            visible.remove(index)
    spare = room - sum(minimum[i] + COLUMN_GAP for i in visible) + COLUMN_GAP
    # On a very narrow terminal, texts are cut further; ids and numbers never are, because a part of one is useless.
    for index in sorted(visible, key=lambda i: -minimum[i]):
        if columns[index].min_width is not None and room > 0 > spare:
            cut = min(-spare, max(minimum[index] - NARROWEST_COLUMNS, 0))
            minimum[index] -= cut
            spare += cut
    widths = {index: minimum[index] for index in visible}
    # Narrow columns get their full width first; wide columns share the rest.
    for index in sorted(visible, key=lambda i: natural[i]):
        waiting = sum(natural[i] > widths[i] for i in visible)
        if waiting:
            growth = min(natural[index] - widths[index], max(spare, 0) // waiting)
            widths[index] += growth
            spare -= growth
    return widths


def print_facts(facts: Iterable[tuple[str, str | Text | None]]) -> None:
    """Print names and values in two columns; facts without a value are skipped."""
    out = console()
    present = [(name, Text.of(value)) for name, value in facts if value is not None]
    margin = max((cell_len(name) for name, _ in present), default=0) + COLUMN_GAP
    for name, value in present:
        for line in value.wrap(out, max(out.width - margin, 1)):
            padded = apply_style(name, "dim") + " " * (margin - cell_len(name))
            out.write(f"{padded}{line.render()}".rstrip(" ") + "\n")
            name = ""  # only the first line has the name


def bar(fraction: float, width: int) -> str:
    """Draw a bar with a resolution of an eighth of a character; anything above zero is visible."""
    eighths = max(round(fraction * width * 8), 1 if fraction > 0 else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _natural_widths(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> list[int]:
    return [
        max(cell_len(column.name), *(cell_len(sanitize(str(row[index]))) for row in rows), 0)
        for index, column in enumerate(columns)
    ]


def _fit(column: Column, value: Text, width: int) -> list[str]:
    """Return the lines of a cell: wrapped, or shortened at its end or its start."""
    text = Text(sanitize(value.plain))
    if column.wrap:
        return [line.plain.rstrip() for line in text.wrap(None, width)]
    if column.truncate_start and cell_len(text.plain) > width:
        parts = clusters(text.plain)
        while parts and cell_len("".join(parts)) >= width:
            parts.pop(0)
        return [f"…{''.join(parts)}"]
    text.pieces = [(" ".join(text.plain.split("\n")), "")]
    text.truncate(width)
    return [text.plain]


@contextmanager
def progress_bar(as_json: bool, description: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if standard error is a terminal; yield the function that updates it."""
    if as_json or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # slow to load

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=rich_console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
