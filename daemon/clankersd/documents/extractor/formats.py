"""Extract the text of documents: one extractor per kind. Runs in the extraction process, which has limits.

An extractor yields parts of the text in order. A part may carry metadata that applies from there on (a page number).
"""

import codecs
import csv
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import chain
from pathlib import PurePath
from typing import Any, BinaryIO

from clankers_protocol.documents import SUFFIXES
from clankersd.documents.code import LANGUAGES
from clankersd.documents.files import ExtractionError

BLOCK_BYTES = 64 * 1024
MAX_PDF_PAGES = 5_000
MAX_JSON_DEPTH = 100
MAX_UNPACKED_BYTES = 200 * 1024 * 1024
MAX_ZIP_ENTRIES = 10_000
MAX_CHARACTERS = 200_000_000
MAX_TABLE_DEPTH = 10
MAX_LINE_CHARACTERS = 16 * 1024 * 1024
MAX_CSV_FIELD_CHARACTERS = 1024 * 1024
MAX_INVALID_SHARE = 0.1
"""Share of characters that may be invalid UTF-8 before a file is not considered text."""

_MISSING_PACKAGE = "{kind} needs the package {package}: pip install 'clankers[documents]'"


@dataclass
class Part:
    """Some text, and metadata that applies from here on."""

    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class DocumentProperties:
    """Properties that an extractor finds besides the text."""

    title: str | None = None


Extractor = Callable[[BinaryIO, DocumentProperties], Iterator[Part]]


def detect_kind(name: str, beginning: bytes) -> str:
    """Detect the kind of document by its first bytes, else by the suffix of its name; raises ExtractionError."""
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
    """Return the programming language by file name suffix, if there is a grammar for it."""
    return LANGUAGES.get(PurePath(name).suffix.lower().removeprefix("."))


def extract(file: BinaryIO, kind: str, name: str, properties: DocumentProperties) -> Iterator[Part]:
    """Yield the text of the document without characters that cannot be stored; raises ExtractionError."""
    parts = _extract_csv(file, name) if kind == "csv" else _EXTRACTORS[kind](file, properties)
    characters = 0
    for part in parts:
        text = part.text.replace("\r\n", "\n").replace("\x00", "")
        part.text = text.encode("utf-8", "replace").decode()
        characters += len(part.text)
        if characters > MAX_CHARACTERS:
            raise ExtractionError(f"it has more than {MAX_CHARACTERS:,} characters")
        yield part


def _extract_text(file: BinaryIO, _: DocumentProperties) -> Iterator[Part]:
    for text in _decode(file):
        yield Part(text)


def _decode(file: BinaryIO) -> Iterator[str]:
    """Decode UTF-8, or UTF-16 with a byte order mark; a carriage return is never separated from its newline."""
    beginning = file.read(4)
    utf16 = beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if utf16 else "utf-8-sig")("replace")
    length, invalid, carriage_return = 0, 0, ""
    block = beginning
    while block:
        if not utf16 and b"\x00" in block:
            raise ExtractionError("it is not text: it contains a zero byte")
        text = carriage_return + decoder.decode(block)
        carriage_return = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r")
        length, invalid = length + len(text), invalid + text.count("\ufffd")
        if invalid > length * MAX_INVALID_SHARE + 1:
            raise ExtractionError("it is not text in UTF-8")
        yield text
        block = file.read(BLOCK_BYTES)
    yield carriage_return + decoder.decode(b"", final=True)


class _Lines:
    """Iterate over the lines of a decoded file, for the csv module."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)
        self._rest = ""

    def __next__(self) -> str:
        while "\n" not in self._rest:
            more = next(self._texts, None)
            if more is None:
                break
            if len(self._rest) > MAX_LINE_CHARACTERS:
                raise ExtractionError("it has a line of more than 16 MiB")
            self._rest += more
        line, newline, self._rest = self._rest.partition("\n")
        if not line and not newline:
            raise StopIteration
        return line + newline

    def __iter__(self) -> "_Lines":
        return self


def _extract_csv(file: BinaryIO, name: str) -> Iterator[Part]:
    """Yield each row as a line of `column: value` pairs, so that every line is understood by itself."""
    lines = _Lines(_decode(file))
    first = next(lines, "")
    delimiter = "\t" if name.lower().endswith(".tsv") else max(",;\t|", key=first.count)
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    try:
        rows = csv.reader(chain([first], lines), delimiter=delimiter)
        names = next(rows, [])
        for row in rows:
            values = []
            for column, value in enumerate(row):
                key = names[column].strip() if column < len(names) else f"column {column + 1}"
                if value.strip():
                    values.append(f"{key}: {' '.join(value.split())}")
            if values:
                yield Part(f"{', '.join(values)}\n")
        if rows.line_num <= 1 and any(names):
            yield Part(", ".join(names))
    except csv.Error as error:
        raise ExtractionError(f"its CSV is broken: {error}") from error


def _extract_json(file: BinaryIO, _: DocumentProperties) -> Iterator[Part]:
    """Yield each value as a line with its path, so that every line is understood by itself."""
    text = "".join(_decode(file))
    _check_json_depth(text)
    try:
        values = [json.loads(text, parse_constant=str)]
    except ValueError as error:
        try:  # one value per line
            values = [json.loads(line, parse_constant=str) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise ExtractionError(f"its JSON is broken: {error}") from error
    if not values:
        raise ExtractionError("there is no text in it")
    for number, value in enumerate(values):
        prefix = f"[{number}]" if len(values) > 1 else ""
        for path, leaf in _leaves(value, prefix):
            yield Part(f"{path}: {leaf}\n" if path else f"{leaf}\n")


def _check_json_depth(text: str) -> None:
    """Reject deep nesting, which could exhaust the parser's stack, by counting brackets outside of strings."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        if match[0] in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise ExtractionError(f"its JSON is nested deeper than {MAX_JSON_DEPTH} levels")
        elif match[0] in "]}":
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


class _HtmlParser(HTMLParser):
    """Convert HTML to markdown: headings, lists, tables and code are preserved; scripts and styles are dropped."""

    SKIPPED = frozenset(("script", "style", "template", "noscript", "svg"))
    BLOCKS = frozenset(
        ("address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt", "fieldset", "figure",
         "footer", "form", "header", "hr", "main", "nav", "ol", "p", "section", "summary", "table", "ul")
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._out: list[str] = []
        self._skip_depth = 0
        self._in_title = False
        self._in_code = False

    def take_text(self) -> str:
        """Return the text since the last call."""
        text, self._out = "".join(self._out), []
        return re.sub(r"\n{3,}", "\n\n", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = not self._skip_depth  # an SVG may have a title too
        elif tag == "body":
            self._skip_depth = 0
        elif tag in self.SKIPPED:
            self._skip_depth += 1
        elif tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._out.append(f"\n\n{'#' * int(tag[1])} ")
        elif tag in ("br", "tr"):
            self._out.append("\n")
        elif tag == "li":
            self._out.append("\n- ")
        elif tag == "pre":
            self._in_code = True
            self._out.append("\n\n```\n")
        elif tag in self.BLOCKS:
            self._out.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self.SKIPPED:
            self._skip_depth = max(0, self._skip_depth - 1)
        elif tag == "pre":
            self._in_code = False
            self._out.append("\n```\n\n")
        elif tag in ("td", "th"):
            self._out.append(" | ")
        elif tag in self.BLOCKS or tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._out.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._skip_depth:
            self._out.append(data if self._in_code else re.sub(r"\s+", " ", data))


def _extract_html(file: BinaryIO, properties: DocumentProperties) -> Iterator[Part]:
    parser = _HtmlParser()
    for text in _decode(file):
        parser.feed(text)
        yield Part(parser.take_text())
    parser.close()
    properties.title = " ".join(parser.title.split()) or None
    yield Part(parser.take_text())


def _extract_pdf(file: BinaryIO, properties: DocumentProperties) -> Iterator[Part]:
    try:
        import pypdf
        from pypdf.errors import DependencyError, PyPdfError
    except ImportError as error:
        raise ExtractionError(_MISSING_PACKAGE.format(kind="a PDF", package="pypdf")) from error
    try:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ExtractionError("it is encrypted: remove its password first")
        if len(reader.pages) > MAX_PDF_PAGES:
            raise ExtractionError(f"it has {len(reader.pages):,} pages, more than {MAX_PDF_PAGES:,}")
        properties.title = (reader.metadata.title if reader.metadata else None) or None
        for number, page in enumerate(reader.pages, 1):
            yield Part(f"{page.extract_text()}\n\n", {"page": number})
    except DependencyError as error:
        raise ExtractionError(f"it is encrypted: remove its protection first ({error})") from error
    except (PyPdfError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ExtractionError(f"it is not a PDF that can be read: {error}") from error


def _extract_docx(file: BinaryIO, properties: DocumentProperties) -> Iterator[Part]:
    _check_zip(file)
    try:
        import docx
    except ImportError as error:
        raise ExtractionError(_MISSING_PACKAGE.format(kind="a DOCX", package="python-docx")) from error
    try:
        document = docx.Document(file)
        properties.title = document.core_properties.title or None
        for text in _docx_blocks(document, 0):
            yield Part(f"{text}\n\n")
    except (ValueError, KeyError, SyntaxError, AttributeError, zipfile.BadZipFile) as error:
        raise ExtractionError(f"it is not a DOCX that can be read: {error}") from error


def _check_zip(file: BinaryIO) -> None:
    """Reject zip bombs, encrypted files and other zip files before anything is unpacked."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ExtractionError(f"it is not a DOCX that can be read: {error}") from error
    if len(entries) > MAX_ZIP_ENTRIES or sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise ExtractionError(
            f"it would unpack to more than {MAX_UNPACKED_BYTES // 1024 // 1024} MiB or {MAX_ZIP_ENTRIES:,} files"
        )
    if any(entry.flag_bits & 1 for entry in entries):
        raise ExtractionError("it is encrypted: remove its password first")
    if not any(entry.filename == "word/document.xml" for entry in entries):
        raise ExtractionError("it is a ZIP file but not a DOCX")
    file.seek(0)


def _docx_blocks(container: Any, depth: int) -> Iterator[str]:
    """Yield paragraphs and tables in order; headings become markdown headings."""
    for block in container.iter_inner_content():
        if hasattr(block, "rows"):
            if depth >= MAX_TABLE_DEPTH:
                continue
            lines = []
            for row in block.rows:
                cells = {cell._tc: cell for cell in row.cells}  # a merged cell is listed several times
                lines.append(" | ".join(" ".join(_docx_blocks(cell, depth + 1)) for cell in cells.values()))
            yield "\n".join(lines)
        elif text := block.text.strip():
            style = (block.style.name or "") if block.style is not None else ""
            heading = re.fullmatch(r"Heading ([1-6])", style)
            level = 1 if style == "Title" else int(heading[1]) if heading else 0
            yield f"{'#' * level} {text}" if level else text


_EXTRACTORS: dict[str, Extractor] = {
    "text": _extract_text, "markdown": _extract_text, "code": _extract_text, "html": _extract_html,
    "json": _extract_json, "pdf": _extract_pdf, "docx": _extract_docx,
}  # fmt: skip
