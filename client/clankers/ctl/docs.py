"""`clankers-ctl docs`: add, list, show and remove documents."""

import base64
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast, get_args

import click

from clankers.ctl.command import (
    EXIT_PROBLEM,
    Ctl,
    common_options,
    normalize_project,
    yes_option,
)
from clankers.ctl.formatting import format_bytes, format_time, plural
from clankers.ctl.ids import display_ids
from clankers.ctl.index import absolute_path
from clankers.ctl.jobs import exit_unless_done, job_duration, run_job
from clankers.ctl.output import (
    Column,
    confirm,
    echo,
    echo_styled,
    one_line,
    plain,
    print_facts,
    print_json,
    print_table,
    secho,
)
from clankers_protocol.admin import Job
from clankers_protocol.documents import (
    SUFFIXES,
    ChunkList,
    Document,
    DocumentChunk,
    DocumentDelete,
    DocumentGet,
    DocumentIngest,
    DocumentIngestMany,
    DocumentList,
    DocumentPage,
    DocumentText,
    Ingest,
    Kind,
    Strategy,
)
from clankers_protocol.errors import NotFound

INGEST_TIMEOUT_SECONDS = 3600
MAX_DOCUMENTS_PER_JOB = 10_000
IGNORED_FOLDERS = frozenset(("node_modules", "__pycache__", "venv"))
"""Folders that are skipped, in addition to hidden ones."""

PREVIEW_LINES = 20

COLUMNS = [
    Column("Id", style="cyan"),
    Column("Added"),
    Column("Title", min_width=24),
    Column("Kind", optional=True),
    Column("Chunks", align_right=True, optional=True),
    Column("Size", align_right=True, optional=True),
    Column("Source", min_width=16, truncate_start=True, optional=True),
]


def _metadata_callback(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Parse --meta."""
    metadata = {}
    for pair in values:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE.")
        metadata[key] = value
    return metadata or None


@click.group()
def docs() -> None:
    """Add documents to the search index, list, show and remove them.

    \b
    Examples:
      clankers-ctl docs add ~/papers report.pdf
      clankers-ctl docs list
      clankers-ctl docs show 0199c5a2
    """


@docs.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Assign the documents to this project: a folder, or its name or id.",
)
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    help="Split documents into chunks this way.  [default: by kind]",
)
@click.option("--chunk-tokens", type=click.IntRange(32, 4000), help="Limit chunks to this many tokens.")
@click.option("--overlap", type=click.IntRange(0, 1000), help="Share this many tokens between consecutive chunks.")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="Set the file type.  [default: by file name]")
@click.option("--source", help="Name of a document read from standard input, such as its URL.")
@click.option("--title", help="Set the title.  [default: the title found in the document]")
@click.option(
    "--meta",
    "metadata",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_metadata_callback,
    help="Add metadata that searches can filter by. Can be repeated.",
)
@common_options
def add(ctl: Ctl, paths: tuple[str, ...], **options: Any) -> None:
    """Add files, the files in folders, or standard input (-). Updates changed files and skips unchanged ones.

    For a folder, adds every file of a known type in it and in its subfolders, except links and hidden files. If some
    files cannot be added, adds the others and exits with 4.

    \b
    Examples:
      clankers-ctl docs add report.pdf ~/papers --project .
      clankers-ctl docs add src --strategy code --meta team=core
      curl -s https://example.com/guide.html | clankers-ctl docs add - --source https://example.com/guide.html
    """
    if paths == ("-",):
        _add_piped(ctl, options)
        return
    if options["source"]:
        raise click.UsageError("--source is only for standard input (-): the source of a file is its path.")
    files = list(dict.fromkeys(file for path in paths for file in files_at(path)))
    if not files:
        raise click.ClickException("There are no files of a known type.")
    jobs = []
    for start in range(0, len(files), MAX_DOCUMENTS_PER_JOB):
        batch = files[start : start + MAX_DOCUMENTS_PER_JOB]
        jobs.append(run_job(ctl, DocumentIngestMany([Ingest(path=path, **options) for path in batch])))
    _print_added(ctl, jobs)


def _add_piped(ctl: Ctl, options: dict[str, Any]) -> None:
    data = base64.b64encode(sys.stdin.buffer.read()).decode()
    added = ctl.call(DocumentIngest(data=data, **options), timeout=INGEST_TIMEOUT_SECONDS)
    if ctl.json:
        print_json(added)
    else:
        document = added.document
        echo(f"{one_line(document.title)}: {added.outcome}, {plural(document.chunks, 'chunk')}.")


def files_at(path: str) -> Iterator[str]:
    """Yield the file at `path`, or the documents below it if it is a folder."""
    full_path = absolute_path(path)
    if not Path(full_path).is_dir():
        if not Path(full_path).exists():
            raise click.ClickException(f"There is no {path}.")
        yield full_path
        return
    for folder, subfolders, names in os.walk(full_path):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name not in IGNORED_FOLDERS)
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix.lower().removeprefix(".") in SUFFIXES and not name.startswith(".") and not file.is_symlink():
                yield str(file)


def _print_added(ctl: Ctl, jobs: list[Job]) -> None:
    exit_unless_done(ctl, *jobs)
    if ctl.json:
        print_json(jobs[0] if len(jobs) == 1 else jobs)
    results = [cast(dict[str, Any], job.result) for job in jobs]
    failures = [failure for result in results for failure in result["failed"]]
    if not ctl.json:
        colours = {"stored": "green", "updated": "yellow", "unchanged": None}
        counts = []
        for outcome, colour in colours.items():
            if count := sum(result[outcome] for result in results):
                counts.append(click.style(f"{count:,} {outcome}", fg=colour))
        if failures:
            counts.append(click.style(f"{len(failures):,} failed", fg="red"))
        echo_styled(f"{', '.join(counts)} in {job_duration(*jobs)}.")
    for failure in failures:
        secho(f"  {one_line(failure['source'])}: {one_line(failure['error'])}", fg="red", err=True)
    sys.exit(EXIT_PROBLEM if failures else 0)


@docs.command("list")
@click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Only list documents of this project: a folder, or its name or id.",
)
@click.option("--source", help="Only list documents whose source starts with this: a folder, a site.")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="Only list documents of this type.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Show at most this many.")
@click.option("--all", "everything", is_flag=True, help="List all documents.")
@common_options
def list_(ctl: Ctl, project: str | None, source: str | None, kind: Kind | None, limit: int, everything: bool) -> None:
    """List documents, newest first.

    \b
    Examples:
      clankers-ctl docs list --project .
      clankers-ctl docs list --source ~/papers --kind pdf --all --json
    """
    prefix = absolute_path(source) if source and (source.startswith("~") or Path(source).exists()) else source
    request = DocumentList(project, prefix, kind, 1000 if everything else limit)
    if everything:
        page = DocumentPage([document for each in ctl.pages(request) for document in each.documents], None)
    else:
        page = ctl.call(request)

    def rows() -> list[list[str]]:
        ids = display_ids(ctl, "document", [document.id for document in page.documents])
        return [_row(shown, document) for shown, document in zip(ids, page.documents, strict=True)]

    ctl.report_page(page, "documents", COLUMNS, rows, more="--limit N or --all")


def _row(shown: str, document: Document) -> list[str]:
    unfinished = "" if document.complete else " (unfinished)"
    return [
        one_line(shown),
        format_time(document.created_at),
        one_line(document.title) + unfinished,
        document.kind,
        f"{document.chunks:,}",
        format_bytes(document.bytes),
        one_line(document.source),
    ]


@docs.command()
@click.argument("document", metavar="ID|SOURCE")
@click.option("--text", "full_text", is_flag=True, help="Print only the full text.")
@click.option("--chunks", "as_chunks", is_flag=True, help="List the chunks of the document, with their ids.")
@common_options
def show(ctl: Ctl, document: str, full_text: bool, as_chunks: bool) -> None:
    """Show a document. Specify its id, the start of its id, or its source (a path or URL).

    \b
    Examples:
      clankers-ctl docs show 0199c5a2
      clankers-ctl docs show ~/papers/report.pdf --text | less
      clankers-ctl docs show 0199c5a2 --chunks
    """
    found = _find_document(ctl, document)
    if as_chunks:
        _print_chunks(ctl, list(chunks_of(ctl, found.document.id)))
    elif full_text:
        _print_text(ctl, found)
    else:
        ctl.report(found, _print_document)


def _find_document(ctl: Ctl, id_or_source: str) -> DocumentText:
    """Find a document by its id or source; a source may be a relative path."""
    with suppress(NotFound):
        return ctl.call(DocumentGet(id=id_or_source))
    with suppress(NotFound):
        return ctl.call(DocumentGet(source=id_or_source))
    with suppress(NotFound):
        return ctl.call(DocumentGet(source=absolute_path(id_or_source)))
    raise NotFound(f"document not found: {id_or_source}")


def chunks_of(ctl: Ctl, document_id: str) -> Iterator[DocumentChunk]:
    """Yield all chunks of a document; pages are fetched when needed."""
    for page in ctl.pages(ChunkList(document_id)):
        yield from page.chunks


def _print_text(ctl: Ctl, found: DocumentText) -> None:
    parts = [found.text]
    while found.next_offset is not None:
        found = ctl.call(DocumentGet(id=found.document.id, offset=found.next_offset))
        parts.append(found.text)
    ctl.report({"document": found.document, "text": "".join(parts)}, plain("".join(parts)))


def _print_document(found: DocumentText) -> None:
    document = found.document
    secho(one_line(document.title), bold=True)
    print_facts(
        [
            ("id", document.id),
            ("source", one_line(document.source)),
            ("kind", f"{document.kind}, {format_bytes(document.bytes)}, {plural(document.characters, 'character')}"),
            ("chunks", f"{plural(document.chunks, 'chunk')}, strategy {document.strategy}"),
            ("project", document.project_path and one_line(document.project_path)),
            ("added", format_time(document.created_at)),
            ("updated", format_time(document.updated_at) if document.updated_at != document.created_at else None),
            ("unfinished", None if document.complete else "storing it was interrupted; add it again"),
            *((f"meta.{name}", one_line(str(value))) for name, value in document.metadata.items()),
        ]
    )
    lines = plain(found.text).splitlines()
    echo("\n".join(["", *lines[:PREVIEW_LINES]]))
    if len(lines) > PREVIEW_LINES or found.next_offset is not None:
        echo("… Use --text to see the full text.", err=True)


def _print_chunks(ctl: Ctl, chunks: list[DocumentChunk]) -> None:
    if ctl.json:
        print_json(chunks)
        return
    columns = [
        Column("#", align_right=True, style="dim"),
        Column("Id", style="cyan"),
        Column("Lines", align_right=True, optional=True),
        Column("Text", min_width=24),
    ]
    rows = [
        [str(chunk.index), chunk.id, _lines(chunk), ("  " if chunk.parent_id else "") + one_line(chunk.content)]
        for chunk in chunks
    ]
    print_table(columns, rows)


def _lines(chunk: DocumentChunk) -> str:
    if chunk.start_line is None:
        return ""
    return f"{chunk.start_line}" if chunk.end_line == chunk.start_line else f"{chunk.start_line}-{chunk.end_line}"


@docs.command()
@click.argument("documents", nargs=-1, required=True, metavar="ID|SOURCE…")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@yes_option
@common_options
def rm(ctl: Ctl, documents: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Remove documents from the database. Asks for confirmation first. The files themselves are not deleted.

    \b
    Examples:
      clankers-ctl docs rm 0199c5a2 --dry-run
      clankers-ctl docs rm ~/papers/report.pdf --yes
    """
    titles: dict[str, str] = {}
    for id_or_source in documents:
        found = _find_document(ctl, id_or_source).document
        titles[found.id] = one_line(found.title)
    planned = [ctl.call(DocumentDelete(document_id, dry_run=True)) for document_id in titles]
    described = ", ".join(
        f"{titles[plan.id]} ({plural(plan.chunks, 'chunk')}, {plural(plan.edges, 'edge')})" for plan in planned
    )
    if not dry_run and not yes:
        confirm(f"Remove {described}?", abort=True)
    removed = planned if dry_run else [ctl.call(DocumentDelete(document_id)) for document_id in titles]
    ctl.report(removed, f"{'Would remove' if dry_run else 'Removed'} {described}.")
