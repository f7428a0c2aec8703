"""Text extraction: the text of every kind of document, and the reason if one cannot be read."""

import io
import json
import zipfile
from pathlib import Path

import pytest
from helpers.sample_files import bomb, deep_json, docx, pdf

from clankersd.documents.extractor import formats as module
from clankersd.documents.extractor import process
from clankersd.documents.extractor.formats import DocumentProperties, detect_kind, extract
from clankersd.documents.extractor.records import Done, Failed, Record, Task, Window
from clankersd.documents.files import ExtractionError, open_regular


def text_of(data: bytes, kind: str, name: str = "a") -> str:
    return "".join(part.text for part in extract(io.BytesIO(data), kind, name, DocumentProperties()))


def extracted(data: bytes, name: str = "", kind: str | None = None, strategy: str | None = None) -> list[object]:
    task = Task(name, None, len(data), kind, strategy, 100, 0, 400, 10_000_000, 60)
    return list(process.process_task(task, data))


def records(messages: list[object]) -> list[Record]:
    return [record for message in messages if isinstance(message, Window) for record in message.records]


@pytest.mark.parametrize(
    ("name", "beginning", "kind"),
    [
        ("notes.txt", b"x", "text"), ("README.md", b"# x", "markdown"), ("a.HTML", b"<p>", "html"),
        ("https://example.com/page.html?q=1", b"", "html"), ("rows.tsv", b"", "csv"), ("x.jsonl", b"", "json"),
        ("main.rs", b"", "code"), ("query.sql", b"", "code"), ("noname", b"%PDF-1.7", "pdf"),
        ("report.txt", b"PK\x03\x04", "docx"), ("noname", b"<!DOCTYPE html><p>", "html"), ("noname", b"plain", "text"),
    ],
)  # fmt: skip
def test_kind_is_detected_by_the_first_bytes_or_the_name(name: str, beginning: bytes, kind: str) -> None:
    assert detect_kind(name, beginning) == kind


def test_text_is_decoded_from_utf_8_and_from_utf_16_with_a_mark() -> None:
    for coding in ("utf-8", "utf-8-sig", "utf-16"):
        assert text_of("Grüße\r\n你好 🙂".encode(coding), "text") == "Grüße\n你好 🙂"


@pytest.mark.parametrize("at", [module.BLOCK_BYTES - 1, module.BLOCK_BYTES, module.BLOCK_BYTES + 3])
def test_text_line_end_across_blocks_is_normalized(at: int) -> None:
    assert text_of(b"x" * at + b"\r\ny", "text") == "x" * at + "\ny"


def test_html_becomes_markdown_without_scripts() -> None:
    page = """<html><head><title>My  page</title><style>p {}</style></head><body><h2>Head</h2><p>One <b>two</b>.</p>
    <script>alert("no")</script><ul><li>first<li>second</ul><pre>code
      here</pre><table><tr><td>a</td><td>b</td></tr></table>&amp; done</body></html>"""
    found = DocumentProperties()
    text = "".join(part.text for part in extract(io.BytesIO(page.encode()), "html", "", found))
    assert found.title == "My page"
    assert "## Head" in text
    assert "One two." in text
    assert "- first" in text
    assert "```\ncode\n      here\n```" in text
    assert "a | b" in text
    assert "& done" in text
    assert "alert" not in text
    assert "p {}" not in text


@pytest.mark.parametrize(
    ("data", "name", "text"),
    [
        (b"name,city\nAnn,Oslo\nBen,\n", "a.csv", "name: Ann, city: Oslo\nname: Ben\n"),
        (b"name;city\nAnn;Oslo, NO\n", "a.csv", "name: Ann, city: Oslo, NO\n"),
        (b"a\tb\n1\t2\n", "a.tsv", "a: 1, b: 2\n"),
        (b'a,b\n"x\ny",2,3\n', "a.csv", "a: x y, b: 2, column 3: 3\n"),
        (b"only,head\n", "a.csv", "only, head"),
    ],
)
def test_csv_rows_become_lines_of_names_and_values(data: bytes, name: str, text: str) -> None:
    assert text_of(data, "csv", name) == text


def test_json_values_become_lines_with_their_path() -> None:
    data = json.dumps({"user": {"name": "Ann", "tags": ["a", 1, None, True]}, "empty": {}}).encode()
    assert text_of(data, "json") == (
        "user.name: Ann\nuser.tags[0]: a\nuser.tags[1]: 1\nuser.tags[2]: null\nuser.tags[3]: true\nempty: {}\n"
    )
    assert text_of(b'{"a": 1}\n{"a": 2}\n', "json") == "[0].a: 1\n[1].a: 2\n"


def test_pdf_has_a_title_and_page_numbers() -> None:
    messages = extracted(pdf("First page here.", "Second page here.", title="The report"), "x.pdf")
    assert isinstance(messages[-1], Done)
    assert (messages[-1].title, messages[-1].kind) == ("The report", "pdf")
    assert [record.metadata for record in records(messages)] == [{"page": 1}]
    messages = extracted(pdf("Alpha " * 60, "Beta " * 60), "x.pdf")
    pages = {record.content.split()[0]: record.metadata["page"] for record in records(messages)}
    assert pages == {"Alpha": 1, "Beta": 2}


def test_docx_headings_and_tables_become_markdown() -> None:
    data = docx("Some words.", heading="Intro", table=[["a", "b"], ["c", "d"]])
    assert text_of(data, "docx") == "# Intro\n\nSome words.\n\na | b\nc | d\n\n"


@pytest.mark.parametrize(
    ("data", "name", "reason"),
    [
        (b"", "a.txt", "no text"),
        (b" \n \n", "a.txt", "no text"),
        (b"abc\x00def", "a.txt", "zero byte"),
        (bytes(range(128, 255)) * 20, "a.txt", "not text in UTF-8"),
        (b"%PDF-1.4 nonsense", "a.pdf", "not a PDF"),
        (pdf("secret", password="x"), "a.pdf", "encrypted"),
        (pdf(""), "a.pdf", "scanned"),
        (b"PK\x03\x04 nonsense", "a.docx", "not a DOCX"),
        (bomb(250 * 1024 * 1024), "a.docx", "unpack"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 600, "a.docx", "encrypted or an old Word"),
        (deep_json(200_000).encode(), "a.json", "deeper than 100"),
        (b'{"a": ', "a.json", "JSON is broken"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a.json", "JSON is broken"),
        (b'a,b\n"' + b"x" * 2_000_000, "a.csv", "CSV is broken"),
    ],
)
def test_unreadable_documents_fail_with_a_reason(data: bytes, name: str, reason: str) -> None:
    last = extracted(data, name)[-1]
    assert isinstance(last, Failed)
    assert reason in last.reason


def test_zip_that_is_not_a_docx_is_rejected() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("notes.txt", "hello")
    last = extracted(out.getvalue(), "a.docx")[-1]
    assert isinstance(last, Failed)
    assert "not a DOCX" in last.reason


def test_pdf_with_too_many_pages_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PDF_PAGES", 2)
    with pytest.raises(ExtractionError, match="3 pages"):
        text_of(pdf("a", "b", "c"), "pdf")


@pytest.mark.parametrize(("kind", "package", "data"), [("pdf", "pypdf", pdf("a")), ("docx", "docx", docx("a"))])
def test_missing_package_is_named_with_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, package: str, data: bytes
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ExtractionError, match=r"pip install 'clankers\[documents\]'"):
        text_of(data, kind)


def test_code_without_a_grammar_is_chunked_like_text_unless_strategy_code_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tree_sitter_python", None)
    source = b"def f():\n    return 1\n"
    assert isinstance(done := extracted(source, "a.py")[-1], Done)
    assert (done.kind, done.strategy) == ("code", "recursive")
    assert isinstance(failed := extracted(source, "a.py", strategy="code")[-1], Failed)
    assert "clankers[code]" in failed.reason
    assert isinstance(failed := extracted(source, "a.unknown", strategy="code")[-1], Failed)
    assert "no grammar" in failed.reason


def test_long_text_is_chunked_in_windows_with_exact_offsets() -> None:
    lines = [f"Line {number} tells about thing{number}." for number in range(20_000)]
    text = "\n".join(lines)
    messages = extracted(text.encode(), "a.txt")
    windows = [message for message in messages if isinstance(message, Window)]
    assert len(windows) > 1
    assert "".join(window.text for window in windows) == text
    for record in records(messages):
        assert record.start is not None
        assert record.start_line is not None
        assert record.end_line is not None
        assert text[record.start : record.end] == record.content
        assert record.content == "\n".join(lines[record.start_line - 1 : record.end_line])


def test_open_regular_rejects_everything_but_regular_files(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("hello")
    with open_regular(str(file), 10) as opened:
        assert opened.read() == b"hello"
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(ExtractionError, match="link"):
        open_regular(str(tmp_path / "link"), 10)
    __import__("os").mkfifo(tmp_path / "pipe")
    with pytest.raises(ExtractionError, match="regular"):
        open_regular(str(tmp_path / "pipe"), 10)
    with pytest.raises(ExtractionError, match="regular"):
        open_regular(str(tmp_path), 10)
    with pytest.raises(ExtractionError, match="larger"):
        open_regular(str(file), 4)
    with pytest.raises(FileNotFoundError):
        open_regular(str(tmp_path / "none"), 4)
