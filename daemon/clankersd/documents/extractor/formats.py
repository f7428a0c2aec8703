"""From bytes to text: one extractor per kind of document. Runs in a process of its own, with limits.

An extractor yields parts of the text in order; a part may bring facts that hold from there on (a page's number).
"""

import codecs
import csv
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import PurePath
from typing import Any, BinaryIO

from clankers_protocol.documents import SUFFIXES
from clankersd.documents.code import LANGUAGES
from clankersd.documents.files import ExtractionError

BLOCK_BYTES = 64 * 1024
MAX_PDF_PAGES = 5_000
MOST_DEPTH = 100
MOST_UNPACKED = 200 * 1024 * 1024
MOST_ENTRIES = 10_000
MOST_CHARACTERS = 200_000_000
MOST_TABLES_IN_TABLES = 10
SPOILT = 0.1
"""The share of characters that may be no UTF-8 before a text counts as none."""

_MISSING = "{what} needs the package {package}: pip install 'clankers[documents]'"


@dataclass
class Part:
    """Some text, and what is known of what follows from here."""

    text: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class DocumentProperties:
    """What an extractor learns beside the text."""

    title: str | None = None


Extractor = Callable[[BinaryIO, DocumentProperties], Iterator[Part]]


def detect_kind(name: str, beginning: bytes) -> str:
    """What kind of document it is, by its first bytes where they tell, else by the name."""
    if beginning.startswith(b"%PDF-"):
        return "pdf"
    if beginning.startswith(b"PK\x03\x04"):
        return "docx"
    if beginning.startswith(b"\xd0\xcf\x11\xe0"):
        raise ExtractionError("it is an encrypted or an old Word file: save it as an unprotected .docx")
    suffix = PurePath(name.partition("?")[0]).suffix.lower().removeprefix(".")
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    start = beginning[:512].lstrip().lower()
    return "html" if start.startswith((b"<!doctype html", b"<html")) else "text"


def detect_language(name: str) -> str | None:
    """The language of source code, where there may be a grammar for it."""
    return LANGUAGES.get(PurePath(name).suffix.lower().removeprefix("."))


def extract(file: BinaryIO, kind: str, name: str, found: DocumentProperties) -> Iterator[Part]:
    """The text of the document, part by part, without what cannot be stored; raises ExtractionError."""
    characters = 0
    for part in _EXTRACTORS[kind](file, found) if kind != "csv" else _csv(file, name):
        part.text = _cleaned(part.text)
        characters += len(part.text)
        if characters > MOST_CHARACTERS:
            raise ExtractionError(f"it has more than {MOST_CHARACTERS:,} characters")
        yield part


def _cleaned(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\x00", "").encode("utf-8", "replace").decode()


def _text(file: BinaryIO, _: DocumentProperties) -> Iterator[Part]:
    for text in _decoded(file):
        yield Part(text)


def _decoded(file: BinaryIO) -> Iterator[str]:
    """The text of a file in UTF-8, or in UTF-16 with its mark; a carriage return is never parted from its newline."""
    beginning = file.read(4)
    utf16 = beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if utf16 else "utf-8-sig")("replace")
    length, spoilt, held = 0, 0, ""
    for block in _blocks(file, beginning):
        if not utf16 and b"\x00" in block:
            raise ExtractionError("it is not text: it holds a zero byte")
        text = held + decoder.decode(block)
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix(held) if held else text
        length, spoilt = length + len(text), spoilt + text.count("\ufffd")
        if spoilt > length * SPOILT + 1:
            raise ExtractionError("it is not text in UTF-8")
        yield text
    yield held + decoder.decode(b"", final=True)


def _blocks(file: BinaryIO, beginning: bytes) -> Iterator[bytes]:
    block = beginning
    while block:
        yield block
        block = file.read(BLOCK_BYTES)


class _Lines:
    """A decoded file as csv wants it: line by line."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)
        self._rest = ""

    def __next__(self) -> str:
        while "\n" not in self._rest:
            more = next(self._texts, None)
            if more is None:
                break
            if len(self._rest) > 16 * 1024 * 1024:
                raise ExtractionError("it has a line of more than 16 MiB")
            self._rest += more
        line, newline, self._rest = self._rest.partition("\n")
        if not line and not newline:
            raise StopIteration
        return line + newline

    def __iter__(self) -> "_Lines":
        return self


def _csv(file: BinaryIO, name: str) -> Iterator[Part]:
    """Each row as a line that says what its values are."""
    lines = _Lines(_decoded(file))
    first = next(lines, "")
    delimiter = "\t" if name.lower().endswith(".tsv") else max(",;\t|", key=first.count)
    csv.field_size_limit(1024 * 1024)
    try:
        rows = csv.reader(_prepended(first, lines), delimiter=delimiter)
        names = next(rows, [])
        for row in rows:
            pairs = [(names[at] if at < len(names) else f"column {at + 1}", value) for at, value in enumerate(row)]
            line = ", ".join(f"{key.strip()}: {' '.join(value.split())}" for key, value in pairs if value.strip())
            if line:
                yield Part(f"{line}\n")
        if rows.line_num <= 1 and any(names):
            yield Part(", ".join(names))
    except csv.Error as error:
        raise ExtractionError(f"its CSV is broken: {error}") from error


def _prepended(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _json(file: BinaryIO, _: DocumentProperties) -> Iterator[Part]:
    """Each value as a line with its path, so that a line tells by itself what it is."""
    text = "".join(_decoded(file))
    _refuse_deep(text)
    try:
        values = [json.loads(text, parse_constant=str)]
    except ValueError as whole:
        values = _json_lines(text, whole)
    several = len(values) > 1
    for number, value in enumerate(values):
        for path, leaf in _leaves(value, f"[{number}]" if several else ""):
            yield Part(f"{path}: {leaf}\n" if path else f"{leaf}\n")


def _json_lines(text: str, whole: ValueError) -> list[Any]:
    try:
        values = [json.loads(line, parse_constant=str) for line in text.splitlines() if line.strip()]
    except ValueError:
        raise ExtractionError(f"its JSON is broken: {whole}") from whole
    if not values:
        raise ExtractionError("there is no text in it")
    return values


def _refuse_deep(text: str) -> None:
    """Count brackets outside of strings before a parser has to."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        if found[0] in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise ExtractionError(f"its JSON is nested deeper than {MOST_DEPTH} levels")
        elif found[0] in "]}":
            depth -= 1


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{number}]")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


class _Html(HTMLParser):
    """HTML as markdown: headings, lists, tables and code stay recognisable; scripts and styles go."""

    SILENT = frozenset(("script", "style", "template", "noscript", "svg"))
    BLOCKS = frozenset(
        ("address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt", "fieldset", "figure",
         "footer", "form", "header", "hr", "main", "nav", "ol", "p", "section", "summary", "table", "ul")
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._out: list[str] = []
        self._silent = 0
        self._in_title = False
        self._code = False

    def taken(self) -> str:
        """What has come since the last time."""
        text, self._out = "".join(self._out), []
        return re.sub(r"\n{3,}", "\n\n", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = not self._silent  # a drawing may have one too
        elif tag == "body":
            self._silent = 0
        elif tag in self.SILENT:
            self._silent += 1
        elif tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._out.append(f"\n\n{'#' * int(tag[1])} ")
        elif tag in ("br", "tr"):
            self._out.append("\n")
        elif tag == "li":
            self._out.append("\n- ")
        elif tag == "pre":
            self._code = True
            self._out.append("\n\n```\n")
        elif tag in self.BLOCKS:
            self._out.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self.SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "pre":
            self._code = False
            self._out.append("\n```\n\n")
        elif tag in ("td", "th"):
            self._out.append(" | ")
        elif tag in self.BLOCKS or tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._out.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._silent:
            self._out.append(data if self._code else re.sub(r"\s+", " ", data))


def _html(file: BinaryIO, found: DocumentProperties) -> Iterator[Part]:
    parser = _Html()
    for text in _decoded(file):
        parser.feed(text)
        yield Part(parser.taken())
    parser.close()
    found.title = " ".join(parser.title.split()) or None
    yield Part(parser.taken())


def _pdf(file: BinaryIO, found: DocumentProperties) -> Iterator[Part]:
    try:
        import pypdf
        from pypdf.errors import DependencyError, PyPdfError
    except ImportError as error:
        raise ExtractionError(_MISSING.format(what="a PDF", package="pypdf")) from error
    try:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ExtractionError("it is encrypted: remove its password first")
        if len(reader.pages) > MAX_PDF_PAGES:
            raise ExtractionError(f"it has {len(reader.pages):,} pages, more than {MAX_PDF_PAGES:,}")
        found.title = (reader.metadata.title if reader.metadata else None) or None
        for number, page in enumerate(reader.pages, 1):
            yield Part(f"{page.extract_text()}\n\n", {"page": number})
    except DependencyError as error:
        raise ExtractionError(f"it is encrypted: remove its protection first ({error})") from error
    except (PyPdfError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ExtractionError(f"it is not a PDF that can be read: {error}") from error


def _docx(file: BinaryIO, found: DocumentProperties) -> Iterator[Part]:
    _refuse_bombs(file)
    try:
        import docx
    except ImportError as error:
        raise ExtractionError(_MISSING.format(what="a DOCX", package="python-docx")) from error
    try:
        document = docx.Document(file)
        found.title = document.core_properties.title or None
        for text in _blocks_of(document, 0):
            yield Part(f"{text}\n\n")
    except (ValueError, KeyError, SyntaxError, AttributeError, zipfile.BadZipFile) as error:
        raise ExtractionError(f"it is not a DOCX that can be read: {error}") from error


def _refuse_bombs(file: BinaryIO) -> None:
    """Look at what would be unpacked before anything is."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ExtractionError(f"it is not a DOCX that can be read: {error}") from error
    if len(entries) > MOST_ENTRIES or sum(entry.file_size for entry in entries) > MOST_UNPACKED:
        raise ExtractionError(
            f"it would unpack to more than {MOST_UNPACKED // 1024 // 1024} MiB or {MOST_ENTRIES:,} files"
        )
    if any(entry.flag_bits & 1 for entry in entries):
        raise ExtractionError("it is encrypted: remove its password first")
    if not any(entry.filename == "word/document.xml" for entry in entries):
        raise ExtractionError("it is a ZIP file but not a DOCX")
    file.seek(0)


def _blocks_of(container: Any, depth: int) -> Iterator[str]:
    """Paragraphs and tables in their order; headings as markdown has them."""
    for block in container.iter_inner_content():
        if hasattr(block, "rows"):
            if depth < MOST_TABLES_IN_TABLES:
                yield "\n".join(_row_of(row, depth) for row in block.rows)
        elif text := block.text.strip():
            yield f"{_hashes(block)}{text}"


def _row_of(row: Any, depth: int) -> str:
    cells = {cell._tc: cell for cell in row.cells}  # a merged cell stands there several times
    return " | ".join(" ".join(_blocks_of(cell, depth + 1)) for cell in cells.values())


def _hashes(paragraph: Any) -> str:
    style = (paragraph.style.name or "") if paragraph.style is not None else ""
    level = re.fullmatch(r"Heading ([1-6])", style)
    return f"{'#' * int(level[1])} " if level else "# " if style == "Title" else ""


_EXTRACTORS: dict[str, Extractor] = {
    "text": _text, "markdown": _text, "code": _text, "html": _html, "json": _json, "pdf": _pdf, "docx": _docx,
}  # fmt: skip
