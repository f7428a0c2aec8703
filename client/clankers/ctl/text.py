"""Styled text for terminals. It does what commands need of `rich`, which takes longer to load than most of them run."""

from collections.abc import Iterable, Sequence
from typing import Any

from clankers_protocol.terminal import sanitize

_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_CODES = {"bold": "1", "dim": "2", "italic": "3", "underline": "4", "reverse": "7"} | {
    colour: str(30 + number) for number, colour in enumerate(_COLOURS)
}
"""ANSI codes of the words of a style."""


def cell_len(text: str) -> int:
    """Return the number of terminal cells that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len as measure  # only needed for wide characters

    return measure(text)


def apply_style(text: str, style: str) -> str:
    """Wrap a text in the codes of a style such as "bold red"."""
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


class Text:
    """Text whose pieces have styles."""

    def __init__(self, text: str = "", style: str = "") -> None:
        self.pieces: list[tuple[str, str]] = [(text, style)] if text else []

    @classmethod
    def of(cls, value: Any) -> "Text":
        """Make a Text from a string, or from a `rich` text, of which only the base style is used."""
        if isinstance(value, cls):
            return value
        return cls(str(value), str(getattr(value, "style", "")))

    def __str__(self) -> str:
        return self.plain

    @property
    def plain(self) -> str:
        """The text without styles."""
        return "".join(text for text, _ in self.pieces)

    def append(self, text: "str | Text", style: str = "") -> "Text":
        """Add text at the end; return the text itself."""
        if isinstance(text, Text):
            self.pieces += text.pieces
        elif text:
            self.pieces.append((text, style))
        return self

    def rstrip(self) -> None:
        """Remove white space at the end."""
        while self.pieces:
            text, style = self.pieces.pop()
            if stripped := text.rstrip():
                self.pieces.append((stripped, style))
                return

    def truncate(self, width: int, *, overflow: str = "ellipsis") -> None:
        """Shorten the text to a width, with an ellipsis at its end."""
        if cell_len(self.plain) > width:
            kept = self._slice(0, _fitting(self.plain, 0, width - 1))
            self.pieces = [*kept.pieces, ("…", kept.pieces[-1][1] if kept.pieces else "")]

    def wrap(self, _console: Any, width: int, *, overflow: str = "fold") -> list["Text"]:
        """Split the text into lines of at most `width` cells: at spaces, and within words that are longer."""
        lines: list[Text] = []
        start = 0
        for line in self.plain.replace("\t", " ").split("\n"):
            for first, last in _breaks(line, max(width, 1)):
                lines.append(self._slice(start + first, start + last))
            start += len(line) + 1
        return lines

    def render(self) -> str:
        """Return the sanitised text with the codes of its styles."""
        return "".join(apply_style(sanitize(text), style) for text, style in self.pieces)

    def _slice(self, start: int, end: int) -> "Text":
        result, position = Text(), 0
        for text, style in self.pieces:
            part = text[max(start - position, 0) : max(end - position, 0)]
            position += len(text)
            if part:
                result.pieces.append((part, style))
        return result


def _breaks(line: str, width: int) -> Iterable[tuple[int, int]]:
    """Yield the start and end of each line into which `line` is wrapped."""
    start = 0
    while cell_len(line[start:]) > width:
        end = _fitting(line, start, width)
        space = line.rfind(" ", start, end + 1)
        if space > start and line[start:space].strip():
            end = space
        yield start, end
        start = end
        while start < len(line) and line[start] == " ":
            start += 1
    yield start, len(line)


def _fitting(line: str, start: int, width: int) -> int:
    """Return the end of the longest part from `start` that fits into `width` cells; at least one character."""
    end = min(start + max(width, 1), len(line))
    while end > start + 1 and cell_len(line[start:end]) > width:
        end -= 1
    return end


def render_row(cells: Sequence[list[str]], widths: Sequence[int], right: Sequence[bool], styles: Sequence[str]) -> str:
    """Lay out the lines of each cell side by side, each padded to its width."""
    lines = []
    for index in range(max(map(len, cells), default=0)):
        parts = []
        for lines_of_cell, width, is_right, style in zip(cells, widths, right, styles, strict=True):
            text = lines_of_cell[index] if index < len(lines_of_cell) else ""
            padding = " " * (width - cell_len(text))
            parts.append((padding, apply_style(text, style)) if is_right else (apply_style(text, style), padding))
        line = "  ".join("".join(part) for part in parts)
        lines.append(line.rstrip(" "))
    return "\n".join(lines)
