"""Documents of every kind, made on the spot."""

import io
import zipfile
from pathlib import Path


def pdf(*pages: str, title: str = "", password: str = "") -> bytes:
    """A PDF with a text on each page, as simple as a PDF can be."""
    from pypdf import PdfReader, PdfWriter

    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    kids = []
    for text in pages:
        shown = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        stream = f"BT /F1 12 Tf 72 720 Td ({shown}) Tj ET".encode("latin-1")
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        kids.append(len(objects) + 1)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R /Resources << /Font << /F1 "
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>" % len(objects)
        )
    listed = b" ".join(b"%d 0 R" % kid for kid in kids)
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (listed, len(kids))
    whole = _numbered(objects)
    if not title and not password:
        return whole
    writer, out = PdfWriter(clone_from=PdfReader(io.BytesIO(whole))), io.BytesIO()
    writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password)
    writer.write(out)
    return out.getvalue()


def _numbered(objects: list[bytes]) -> bytes:
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table) + trailer


def docx(*paragraphs: str, heading: str = "", table: list[list[str]] | None = None) -> bytes:
    import docx as word

    document, out = word.Document(), io.BytesIO()
    if heading:
        document.add_heading(heading, 1)
    for text in paragraphs:
        document.add_paragraph(text)
    if table:
        made = document.add_table(0, len(table[0]))
        for row in table:
            for cell, value in zip(made.add_row().cells, row, strict=True):
                cell.text = value
    document.save(out)
    return out.getvalue()


def bomb(unpacked: int) -> bytes:
    """A DOCX that is small only until it is unpacked."""
    out = io.BytesIO()
    archive = zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("word/document.xml", "w") as entry:
        for _ in range(unpacked // (1024 * 1024)):
            entry.write(b" " * 1024 * 1024)
    return out.getvalue()


def deep_json(depth: int) -> str:
    return "[" * depth + "]" * depth


def mixed(folder: Path, count: int) -> list[Path]:
    """So many documents of all kinds, each with a word of its own (`mark<number>`)."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = (_text, _markdown, _html, _csv, _json, _python)
    paths = []
    for number in range(count):
        if number % 200 == 7:
            name, data = f"{number:05}.pdf", pdf(f"A page that speaks of mark{number} and nothing else.")
        elif number % 200 == 107:
            name, data = f"{number:05}.docx", docx(f"A paragraph that speaks of mark{number}.", heading="Report")
        else:
            name, text = makers[number % len(makers)](number)
            data = text.encode()
        paths.append(folder / name)
        paths[-1].write_bytes(data)
    return paths


def _text(number: int) -> tuple[str, str]:
    return f"{number:05}.txt", f"Notes on mark{number}.\n\nThey say little, but they are notes.\n"


def _markdown(number: int) -> tuple[str, str]:
    return f"{number:05}.md", f"# Chapter {number}\n\nIt is about mark{number}.\n\n## More\n\nAnd about other things.\n"


def _html(number: int) -> tuple[str, str]:
    page = f"<html><head><title>Page {number}</title></head><body><h1>Page</h1><p>mark{number}</p></body></html>"
    return f"{number:05}.html", page


def _csv(number: int) -> tuple[str, str]:
    return f"{number:05}.csv", f"name,value\nmark{number},1\nother,2\n"


def _json(number: int) -> tuple[str, str]:
    return f"{number:05}.json", f'{{"id": {number}, "tags": ["mark{number}", "json"]}}'


def _python(number: int) -> tuple[str, str]:
    return f"{number:05}.py", f'def run() -> str:\n    """What it runs."""\n    return "mark{number}"\n'
