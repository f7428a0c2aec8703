"""The process that takes documents apart: whatever a hostile file does to it, the daemon only loses the file.

It reads tasks from its standard input and writes what it finds to its standard output, each message with its length
before it. It opens no file but the one it is told to, writes none, and may use so much memory and time.
"""

import io
import os
import resource
import signal
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from clankersd.capture.redaction import redact, redact_all
from clankersd.documents import chunkers
from clankersd.documents.code import chunk_code, parser_for
from clankersd.documents.extractor.formats import DocumentProperties, Part, detect_kind, detect_language, extract
from clankersd.documents.extractor.records import Done, Failed, Message, Task, Window, build_records
from clankersd.documents.files import ExtractionError, open_regular, sha256_of
from clankersd.index.chunker import HEADING, lines_of

MEMORY = 1024 * 1024 * 1024
WINDOW = 256 * 1024
"""Characters that are cut at a time. Where windows meet, chunks end."""

GRACE = 10
"""Seconds. Whoever waits gives up first; the alarm is for when nobody waits any more."""

BEGINNING = 4096
LONGEST_TITLE = 100
NAMED_BY_FILE = ("code", "csv", "json")
"""Kinds whose first line is no title."""

_NEEDS_CODE = "to cut code by its syntax needs more packages: pip install 'clankers[code]'"


def main() -> None:
    """Work until there is nobody to work for."""
    _limit()
    tasks, out = sys.stdin.buffer, sys.stdout.buffer
    with suppress(BrokenPipeError, KeyboardInterrupt):
        while head := tasks.read(4):
            task = msgspec.msgpack.decode(tasks.read(struct.unpack(">I", head)[0]), type=Task)
            body = tasks.read(task.size) if task.path is None else b""
            signal.alarm(task.seconds + GRACE)
            for message in _answers(task, body):
                _send(out, message)
            signal.alarm(0)


def _limit() -> None:
    """No more memory and open files than the work needs, and no file written at all."""
    limits = {
        resource.RLIMIT_AS: MEMORY,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        with suppress(ValueError, OSError):  # a system may not know one, or have a lower one already
            resource.setrlimit(what, (most, most))


def _send(out: BinaryIO, message: Message) -> None:
    data = msgspec.msgpack.encode(message)
    out.write(struct.pack(">I", len(data)) + data)
    out.flush()


def _answers(task: Task, body: bytes) -> Iterator[Message]:
    try:
        with _opened(task, body) as file:
            yield from _taken_apart(task, file)
    except ExtractionError as refusal:
        yield Failed(str(refusal))
    except OSError as error:
        yield Failed(error.strerror or str(error))
    except MemoryError:
        yield Failed(f"it needs more than {MEMORY // 1024 // 1024} MiB of memory")
    except RecursionError:
        yield Failed("it is nested too deep")
    except Exception as error:
        yield Failed(f"it cannot be read: {type(error).__name__}: {error}")


def _opened(task: Task, body: bytes) -> BinaryIO:
    if task.path is None:
        return io.BytesIO(body)
    return open_regular(task.path, task.max_bytes)


def _taken_apart(task: Task, file: BinaryIO) -> Iterator[Message]:
    beginning = file.read(BEGINNING)
    file.seek(0)
    kind = task.kind or detect_kind(task.name, beginning)
    strategy = _strategy(task, kind)
    found, title, characters, records = DocumentProperties(), "", 0, 0
    redacted: Counter[str] = Counter()
    for window in _windows(extract(file, kind, task.name, found), redacted):
        title = title or _title_in(window.text)
        characters = window.offset + len(window.text)
        _cut(window, task, strategy, records)
        records += len(window.records)
        yield window
    if not characters:
        raise ExtractionError(
            "there is no text in it" if kind != "pdf" else "there is no text in it: it may be scanned pages"
        )
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    named = "" if kind in NAMED_BY_FILE else found.title or title
    yield Done(kind, strategy, _shortened(redact(named)[0]), sha256_of(file), size, characters, dict(redacted))


def _shortened(title: str) -> str:
    line = " ".join(title.split())
    if len(line) <= LONGEST_TITLE:
        return line
    return f"{line[:LONGEST_TITLE].rpartition(' ')[0] or line[:LONGEST_TITLE]} …"


def _strategy(task: Task, kind: str) -> str:
    """As asked for, or as suits the kind; code without a grammar is cut like text unless syntax was asked for."""
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
            raise ExtractionError(_NEEDS_CODE) from error
    if task.strategy == "code" and language is None:
        raise ExtractionError(f"there is no grammar for {task.name!r}: its name must end like that of source code")
    return "recursive"


def _cut(window: Window, task: Task, strategy: str, before: int) -> None:
    text = window.text
    if strategy == "semantic":
        window.sentences = [
            (one.start, one.end, one.size) for one in chunkers.split_sentences(text, 0, len(text), task.tokens)
        ]
        return
    if strategy == "code":
        spans = chunk_code(text, str(detect_language(task.name)), task.tokens)
    elif strategy == "markdown":
        spans = chunkers.chunk_markdown(text, task.tokens, task.overlap)
    elif strategy == "parentChild":
        spans = chunkers.chunk_parent_child(text, task.parent_tokens, task.tokens, task.overlap)
    else:
        spans = chunkers.chunk_recursive(text, task.tokens, task.overlap)
    window.records = build_records(window, spans, before)


def _windows(parts: Iterator[Part], redacted: Counter[str]) -> Iterator[Window]:
    """The text in stretches that end at a paragraph or a line, without its secrets, which are counted."""
    text, offset, line = "", 0, 1
    facts: list[tuple[int, dict[str, Any]]] = []
    for part in parts:
        if part.facts:
            facts.append((len(text), part.facts))
        text += part.text
        while len(text) >= WINDOW:
            end = _good_end(text)
            window = _without_secrets(Window(text[:end], offset, line, facts), redacted)
            yield window
            offset, line = offset + len(window.text), line + window.text.count("\n")
            facts = _continued(facts, end)
            text = text[end:]
    if text.strip() or offset:
        yield _without_secrets(Window(text, offset, line, facts), redacted)


def _without_secrets(window: Window, redacted: Counter[str]) -> Window:
    """Redacted from fact to fact, so that each fact still stands where it belongs."""
    text, facts = "", []
    begins = [(0, {}), *window.facts]
    ends = [*(at for at, _ in window.facts), len(window.text)]
    for (start, fact), end in zip(begins, ends, strict=True):
        if fact:
            cleaned, _ = redact_all(fact)
            assert isinstance(cleaned, dict)
            facts.append((len(text), cleaned))
        clean, found = redact(window.text[start:end])
        text += clean
        redacted.update(found)
    return Window(text, window.offset, window.line, facts)


def _continued(facts: list[tuple[int, dict[str, Any]]], end: int) -> list[tuple[int, dict[str, Any]]]:
    """What is known, as seen from `end` on."""
    known: dict[str, Any] = {}
    for at, one in facts:
        known |= one if at <= end else {}
    return [(0, known), *((at - end, one) for at, one in facts if at > end)] if facts else []


def _good_end(text: str) -> int:
    for mark in ("\n\n", "\n", " "):
        at = text.rfind(mark, WINDOW // 2, WINDOW)
        if at >= 0:
            return at + len(mark)
    return WINDOW


def _title_in(text: str) -> str:
    """The first heading among the first lines, else the first line."""
    first = [line.strip() for line in list(lines_of(text[:BEGINNING])) if line.strip()]
    heading = next((line for line in first[:20] if HEADING.match(line)), None)
    return (heading or (first[0] if first else "")).strip("# \t")


if __name__ == "__main__":
    main()
