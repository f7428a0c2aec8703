"""The one place that knows how output looks: JSON, CSV or tables that fit; colours on terminals only."""

import csv
import io
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from clankers_protocol.terminal import escape_json, sanitize

if TYPE_CHECKING:  # rich takes longer to load than most commands take
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

COLUMN_GAP = 2
WIDE_TERMINAL_COLUMNS = 120
"""From this width on a list shows whole ids."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What makes a spreadsheet take a cell of CSV for a formula."""


def echo(message: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text that may hold anything; nothing in it reaches the terminal as a command."""
    click.echo(sanitize(str(message)), err=err, nl=nl)


def secho(message: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print such text in colour."""
    click.secho(sanitize(str(message)), err=err, nl=nl, **style)


def echo_styled(message: str) -> None:
    """Print text whose parts were sanitised before they were styled."""
    click.echo(message)


def echo_json(text: str, *, nl: bool = True) -> None:
    """Print JSON: exactly as it is, unless a terminal would get characters that it must not."""
    _echo_exactly(sanitize(escape_json(text)) if sys.stdout.isatty() else text, nl=nl)


def confirm(question: str, **options: Any) -> bool:
    """Ask a question that may hold anything."""
    return click.confirm(sanitize(question), err=True, **options)


def print_json(value: Any) -> None:
    """A value or struct as it travels on the wire, indented."""
    echo_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, safe: bool = False) -> None:
    """Rows under a header line; NULL is empty. Exact where it is piped; with `safe`, no cell is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (columns, *rows):
        writer.writerow(map(_defused, row) if safe else row)
    _echo_exactly(sanitize(text.getvalue()) if sys.stdout.isatty() else text.getvalue(), nl=False)


def _echo_exactly(text: str, *, nl: bool) -> None:
    click.echo(text, nl=nl, color=True)  # else click removes what looks like a colour from what is piped


def _defused(cell: Any) -> Any:
    """Put an apostrophe before what a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def console(*, stderr: bool = False) -> "Console":
    """Where people read. What is piped is as wide as it needs to be, unless COLUMNS says otherwise."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Sanitises what it prints, whoever made it; only its own control codes pass."""

        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else sanitize(text), style, control)

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    wide = None if terminal or os.environ.get("COLUMNS") else 10_000
    return SafeConsole(stderr=stderr, width=wide, highlight=False, markup=False, emoji=False, soft_wrap=False)


def plain(text: str) -> str:
    """The text without anything that would command the terminal: control characters become visible signs."""
    return sanitize(text)


def one_line(text: str) -> str:
    """The text, safe to show, in one line."""
    return " ".join(plain(text).split())


def shorten_ids(ids: list[str], length: int = 8) -> list[str]:
    """The ids cut to so many characters, or to as many more as tell them apart."""
    while len({name[:length] for name in ids}) < len(set(ids)):
        length += 1
    return [name[:length] for name in ids]


def display_ids(ids: list[str]) -> list[str]:
    """The ids as a list shows them: whole where there is room."""
    return ids if console().width >= WIDE_TERMINAL_COLUMNS else shorten_ids(ids)


@dataclass(frozen=True)
class Column:
    """Where room is short, `optional` columns are left out, last first; then others are cut to their `least`.

    One that `wraps` goes on in the next line instead of being cut; one that `keeps_end` loses its beginning.
    """

    name: str
    align_right: bool = False
    min_width: int | None = None
    wrap: bool = False
    truncate_start: bool = False
    optional: bool = False
    style: str = ""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence["str | Text"]]) -> None:
    """A table that fits the terminal."""
    from rich.table import Table

    out = console()
    widths = column_widths(columns, _natural(columns, rows), out.width)
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold")
    for place, width in widths.items():
        column = columns[place]
        table.add_column(
            column.name,
            width=width,
            justify="right" if column.align_right else "left",
            style=column.style,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    for row in rows:
        table.add_row(*(_cut(columns[place], row[place], width) for place, width in widths.items()))
    out.print(table)


def fits_terminal(columns: Sequence[Column], rows: Sequence[Sequence["str | Text"]]) -> bool:
    """Whether the terminal is wide enough for all columns, however much they are cut."""
    widths = column_widths(columns, _natural(columns, rows), 0)
    return sum(widths.values()) + COLUMN_GAP * (len(columns) - 1) <= console().width


def column_widths(columns: Sequence[Column], natural: Sequence[int], room: int) -> dict[int, int]:
    """The places of the columns that stay, each with its width."""
    least = [min(width, column.min_width or width) for column, width in zip(columns, natural, strict=True)]
    kept = list(range(len(columns)))
    for place in reversed(range(len(columns))):
        if columns[place].optional and sum(least[k] + COLUMN_GAP for k in kept) - COLUMN_GAP > room:
            kept.remove(place)
    spare = room - sum(least[k] + COLUMN_GAP for k in kept) + COLUMN_GAP
    widths = {place: least[place] for place in kept}
    for place in sorted(kept, key=lambda k: natural[k]):
        # The narrow ones get all they want first; what they leave is for the wide ones.
        waiting = sum(natural[k] > widths[k] for k in kept)
        grown = min(natural[place] - widths[place], max(spare, 0) // waiting) if waiting else 0
        widths[place] += grown
        spare -= grown
    return widths


def print_facts(facts: Iterable[tuple[str, "str | Text | None"]]) -> None:
    """Names and values in two columns; facts without a value are left out."""
    from rich.table import Table

    table = Table.grid(padding=(0, COLUMN_GAP, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value is not None:
            table.add_row(name, _cell(value))
    console().print(table)


def bar(fraction: float, width: int) -> str:
    """A bar of eighths of a character; anything above nothing shows."""
    eighths = max(round(fraction * width * 8), 1 if fraction > 0 else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _natural(columns: Sequence[Column], rows: Sequence[Sequence["str | Text"]]) -> list[int]:
    from rich.cells import cell_len

    return [
        max(cell_len(column.name), *(cell_len(str(row[place])) for row in rows), 0)
        for place, column in enumerate(columns)
    ]


def _cut(column: Column, value: "str | Text", width: int) -> "Text":
    from rich.cells import cell_len

    text = str(value)
    if not column.truncate_start or cell_len(text) <= width:
        return _cell(value)
    while cell_len(text) >= width:
        text = text[1:]
    return _cell(f"…{text}")


def _cell(value: "str | Text") -> "Text":
    from rich.text import Text

    return Text(sanitize(value)) if isinstance(value, str) else value
