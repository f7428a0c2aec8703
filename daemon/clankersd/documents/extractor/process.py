"""The extraction process: extracts and chunks one document after the other, isolated from the daemon.

A hostile file can at worst end this process, and the daemon then rejects that file. Tasks are read from standard input
and results written to standard output. The process opens only the file named by the task, writes none, and its memory
and time are limited.
"""

import io
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from clankersd.documents import chunkers
from clankersd.documents.code import chunk_code, parser_for
from clankersd.documents.extractor.formats import DocumentProperties, Part, detect_kind, detect_language, extract
from clankersd.documents.extractor.records import (
    Done,
    Failed,
    Message,
    Task,
    Window,
    WindowMetadata,
    build_records,
)
from clankersd.documents.files import ExtractionError, open_regular, sha256_of
from clankersd.index.chunker import HEADING, lines_of
from clankersd.processes.child import limit_resources, read_messages, write_message
from clankersd.redaction.engine import redact, redact_all

MAX_MEMORY_BYTES = 1024 * 1024 * 1024
MAX_OPEN_FILES = 64
WINDOW_CHARACTERS = 256 * 1024
"""Text that is chunked at a time. Chunks do not span windows."""

ALARM_GRACE_SECONDS = 10
"""The daemon stops waiting after the task's time limit; the alarm ends the process if the daemon is gone by then."""

HEAD_BYTES = 4096
"""Beginning of a document that its kind and title are detected in."""

MAX_TITLE_CHARACTERS = 100
KINDS_TITLED_BY_FILE = ("code", "csv", "json")
"""Kinds whose first line is not a title."""

_MISSING_GRAMMARS = "the strategy code needs more packages: pip install 'clankers[code]'"


def main() -> None:
    """Process tasks until standard input ends."""
    limit_resources(
        {
            resource.RLIMIT_AS: MAX_MEMORY_BYTES,
            resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
            resource.RLIMIT_FSIZE: 0,  # it writes no file
        }
    )
    tasks = sys.stdin.buffer
    with suppress(BrokenPipeError, KeyboardInterrupt):
        for data in read_messages(tasks):
            task = msgspec.msgpack.decode(data, type=Task)
            body = tasks.read(task.size) if task.path is None else b""
            signal.alarm(task.seconds + ALARM_GRACE_SECONDS)
            for message in process_task(task, body):
                write_message(sys.stdout.buffer, msgspec.msgpack.encode(message))
            signal.alarm(0)


def process_task(task: Task, body: bytes) -> Iterator[Message]:
    """Yield the windows of a document and Done, or Failed if it cannot be extracted."""
    try:
        with io.BytesIO(body) if task.path is None else open_regular(task.path, task.max_bytes) as file:
            yield from _extract_windows(task, file)
    except ExtractionError as error:
        yield Failed(str(error))
    except OSError as error:
        yield Failed(error.strerror or str(error))
    except MemoryError:
        yield Failed(f"it needs more than {MAX_MEMORY_BYTES // 1024 // 1024} MiB of memory")
    except RecursionError:
        yield Failed("it is nested too deep")
    except Exception as error:
        yield Failed(f"it cannot be read: {type(error).__name__}: {error}")


def _extract_windows(task: Task, file: BinaryIO) -> Iterator[Message]:
    head = file.read(HEAD_BYTES)
    file.seek(0)
    kind = task.kind or detect_kind(task.name, head)
    strategy = _choose_strategy(task, kind)
    properties, title, characters, records = DocumentProperties(), "", 0, 0
    redacted: Counter[str] = Counter()
    for window in _split_windows(extract(file, kind, task.name, properties), redacted):
        if not title:  # the first heading among the first 20 lines, else the first line
            lines = [line.strip() for line in lines_of(window.text[:HEAD_BYTES]) if line.strip()]
            first_line = lines[0] if lines else ""
            title = next((line for line in lines[:20] if HEADING.match(line)), first_line).strip("# \t")
        characters = window.offset + len(window.text)
        _chunk_window(window, task, strategy, records)
        records += len(window.records)
        yield window
    if not characters:
        raise ExtractionError("there is no text in it" + (": it may be scanned pages" if kind == "pdf" else ""))
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    title = "" if kind in KINDS_TITLED_BY_FILE else properties.title or title
    title = " ".join(redact(title)[0].split())
    if len(title) > MAX_TITLE_CHARACTERS:
        at_word = title[:MAX_TITLE_CHARACTERS].rpartition(" ")[0]
        title = f"{at_word or title[:MAX_TITLE_CHARACTERS]} …"
    yield Done(kind, strategy, title, sha256_of(file), size, characters, dict(redacted))


def _choose_strategy(task: Task, kind: str) -> str:
    """Return the requested strategy, or the default of the kind.

    Code without an installed grammar is chunked like text, unless the strategy code was requested.
    """
    if task.strategy not in (None, "code"):
        return str(task.strategy)
    if task.strategy is None and kind != "code":
        return "markdown" if kind in ("markdown", "html", "docx") else "recursive"
    language = detect_language(task.name)
    try:
        if language is not None and parser_for(language):
            return "code"
    except ImportError as error:
        if task.strategy == "code":
            raise ExtractionError(_MISSING_GRAMMARS) from error
    if task.strategy == "code" and language is None:
        raise ExtractionError(f"there is no grammar for {task.name!r}: its name must end like that of source code")
    return "recursive"


def _chunk_window(window: Window, task: Task, strategy: str, records_before: int) -> None:
    text = window.text
    if strategy == "semantic":
        sentences = chunkers.split_sentences(text, 0, len(text), task.tokens)
        window.sentences = [(sentence.start, sentence.end, sentence.size) for sentence in sentences]
        return
    if strategy == "code":
        spans = chunk_code(text, str(detect_language(task.name)), task.tokens)
    elif strategy == "markdown":
        spans = chunkers.chunk_markdown(text, task.tokens, task.overlap)
    elif strategy == "parentChild":
        spans = chunkers.chunk_parent_child(text, task.parent_tokens, task.tokens, task.overlap)
    else:
        spans = chunkers.chunk_recursive(text, task.tokens, task.overlap)
    window.records = build_records(window, spans, records_before)


def _split_windows(parts: Iterator[Part], redacted: Counter[str]) -> Iterator[Window]:
    """Join the parts into windows that end at a paragraph or a line; redact them and count the redactions."""
    text, offset, line = "", 0, 1
    metadata: WindowMetadata = []
    for part in parts:
        if part.metadata:
            metadata.append((len(text), part.metadata))
        text += part.text
        while len(text) >= WINDOW_CHARACTERS:
            end = WINDOW_CHARACTERS
            for separator in ("\n\n", "\n", " "):
                at = text.rfind(separator, WINDOW_CHARACTERS // 2, WINDOW_CHARACTERS)
                if at >= 0:
                    end = at + len(separator)
                    break
            window = _redact_window(Window(text[:end], offset, line, metadata), redacted)
            yield window
            offset, line = offset + len(window.text), line + window.text.count("\n")
            current: dict[str, Any] = {}  # what applies where the next window begins
            for at, values in metadata:
                if at <= end:
                    current |= values
            later = [(at - end, values) for at, values in metadata if at > end]
            metadata = [(0, current), *later] if metadata else []
            text = text[end:]
    if text.strip() or offset:
        yield _redact_window(Window(text, offset, line, metadata), redacted)


def _redact_window(window: Window, redacted: Counter[str]) -> Window:
    """Redact text and metadata, section by section, so that metadata offsets still fit the redacted text."""
    text = ""
    metadata: WindowMetadata = []
    sections = [(0, {}), *window.metadata]
    ends = [*(at for at, _ in window.metadata), len(window.text)]
    for (start, values), end in zip(sections, ends, strict=True):
        if values:
            clean_values, _ = redact_all(values)
            assert isinstance(clean_values, dict)
            metadata.append((len(text), clean_values))
        clean_text, counts = redact(window.text[start:end])
        text += clean_text
        redacted.update(counts)
    return Window(text, window.offset, window.line, metadata)


if __name__ == "__main__":
    main()
