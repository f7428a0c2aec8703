"""`clankers-ctl docs`: hand documents over, see them, take them back."""

import base64
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast, get_args

import click

from clankers.ctl.command import EXIT_FAILED, EXIT_PROBLEM, Ctl, common_options, project_option
from clankers.ctl.formatting import format_bytes, format_duration, format_time, plural
from clankers.ctl.index import absolute_path
from clankers.ctl.jobs import run_job
from clankers.ctl.output import (
    Column,
    confirm,
    display_ids,
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

PATIENCE = 3600
AT_ONCE = 10_000
IGNORED = frozenset(("node_modules", "__pycache__", "venv"))
"""Folders that are never meant; those whose name begins with a dot neither."""

FEW_LINES = 20

COLUMNS = [
    Column("Id", style="cyan"),
    Column("Added"),
    Column("Title", min_width=24),
    Column("Kind", optional=True),
    Column("Chunks", align_right=True, optional=True),
    Column("Size", align_right=True, optional=True),
    Column("Source", min_width=16, truncate_start=True, optional=True),
]


def _metadata(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [value.partition("=") for value in values]
    if wrong := next((name + equals for name, equals, _ in pairs if not equals or not name), None):
        raise click.BadParameter(f"{wrong!r} is not KEY=VALUE.")
    return {name: value for name, _, value in pairs} or None


@click.group()
def docs() -> None:
    """Hand documents over to be found again, see them, take them back.

    \b
    Examples:
      clankers-ctl docs add ~/papers report.pdf
      clankers-ctl docs list
      clankers-ctl docs show 0199c5a2
    """


@docs.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@project_option
@click.option("--strategy", type=click.Choice(get_args(Strategy)), help="How to cut it, if not as its kind suggests.")
@click.option("--chunk-tokens", type=click.IntRange(32, 4000), help="How long a chunk may be.")
@click.option("--overlap", type=click.IntRange(0, 1000), help="What consecutive chunks share.")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="What it is, if its name does not tell.")
@click.option("--source", help="The name of what is piped, as its URL; of a file it is the path.")
@click.option("--title", help="The title, if not the one found in it.")
@click.option(
    "--meta", "metadata", multiple=True, metavar="KEY=VALUE", callback=_metadata, help="Something to filter by."
)
@common_options
def add(ctl: Ctl, paths: tuple[str, ...], **options: Any) -> None:
    """Add files, the files of folders, or what is piped (-). Unchanged ones are skipped, changed ones updated.

    Of a folder every file of a known kind is added, also in folders below; links and hidden ones are left out.
    Exits 4 when a file could not be added; the others are.

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
        raise click.UsageError("--source names what is piped: a file is known by its path.")
    found = list(dict.fromkeys(file for path in paths for file in files_at(path)))
    if not found:
        raise click.ClickException("There are no files of a known kind there.")
    jobs = [_ingested(ctl, found[at : at + AT_ONCE], options) for at in range(0, len(found), AT_ONCE)]
    _print_added(ctl, jobs)


def _add_piped(ctl: Ctl, options: dict[str, Any]) -> None:
    data = base64.b64encode(sys.stdin.buffer.read()).decode()
    added = ctl.call(DocumentIngest(data=data, **options), timeout=PATIENCE)
    if ctl.json:
        print_json(added)
    else:
        document = added.document
        echo(f"{one_line(document.title)}: {added.outcome}, {plural(document.chunks, 'chunk')}.")


def files_at(path: str) -> Iterator[str]:
    """The file at `path`, or those below it that are documents."""
    whole = absolute_path(path)
    if not Path(whole).is_dir():
        if not Path(whole).exists():
            raise click.ClickException(f"There is no {path}.")
        yield whole
        return
    for folder, below, names in os.walk(whole):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in IGNORED)
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix.lower().removeprefix(".") in SUFFIXES and not name.startswith(".") and not file.is_symlink():
                yield str(file)


def _ingested(ctl: Ctl, paths: list[str], options: dict[str, Any]) -> Job:
    documents = [Ingest(path=path, **options) for path in paths]
    return run_job(ctl, DocumentIngestMany(documents))


def _print_added(ctl: Ctl, jobs: list[Job]) -> None:
    if ctl.json:
        print_json(jobs[0] if len(jobs) == 1 else jobs)
    if broken := next((job for job in jobs if job.state != "done"), None):
        secho(
            f"{broken.kind} {broken.state}{f': {one_line(broken.error)}' if broken.error else ''}", fg="red", err=True
        )
        sys.exit(EXIT_FAILED)
    results = [cast(dict[str, Any], job.result) for job in jobs]
    failed = [one for result in results for one in result["failed"]]
    if not ctl.json:
        _print_counts(jobs, results, len(failed))
    for one in failed:
        secho(f"  {one_line(one['source'])}: {one_line(one['error'])}", fg="red", err=True)
    sys.exit(EXIT_PROBLEM if failed else 0)


def _print_counts(jobs: list[Job], results: list[dict[str, Any]], failed: int) -> None:
    colours = (("stored", "green"), ("updated", "yellow"), ("unchanged", None))
    totals = [(sum(result[name] for result in results), name, colour) for name, colour in colours]
    totals.append((failed, "failed", "red"))
    told = [click.style(f"{count:,} {name}", fg=colour) for count, name, colour in totals if count]
    took = sum((job.finished_at or job.created_at) - job.created_at for job in jobs) / 1000
    echo_styled(f"{', '.join(told)} in {format_duration(took)}.")


@docs.command("list")
@project_option
@click.option("--source", help="Only those whose source begins so: a folder, a site.")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="Only of this kind.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@click.option("--all", "everything", is_flag=True, help="All of them, not just the newest.")
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
    page = _all_pages(ctl, request) if everything else ctl.call(request)
    if ctl.json:
        print_json(page)
    elif not page.documents:
        echo("No documents.", err=True)
    else:
        _print_documents(page)


def _all_pages(ctl: Ctl, request: DocumentList) -> DocumentPage:
    return DocumentPage([one for page in ctl.pages(request) for one in page.documents], None)


def _print_documents(page: DocumentPage) -> None:
    ids = display_ids([one.id for one in page.documents])
    print_table(COLUMNS, [_row(shown, one) for shown, one in zip(ids, page.documents, strict=True)])
    if page.cursor:
        echo("There are more: --limit N or --all shows them.", err=True)


def _row(shown: str, one: Document) -> list[str]:
    unfinished = "" if one.complete else " (unfinished)"
    return [
        one_line(shown),
        format_time(one.created_at),
        one_line(one.title) + unfinished,
        one.kind,
        f"{one.chunks:,}",
        format_bytes(one.bytes),
        one_line(one.source),
    ]


@docs.command()
@click.argument("document", metavar="ID|SOURCE")
@click.option("--text", "whole", is_flag=True, help="The whole text and nothing else.")
@click.option("--chunks", "cut", is_flag=True, help="The chunks it was cut into, with their ids.")
@common_options
def show(ctl: Ctl, document: str, whole: bool, cut: bool) -> None:
    """Show a document, by its id (or a beginning of it) or its source: a path, a URL.

    \b
    Examples:
      clankers-ctl docs show 0199c5a2
      clankers-ctl docs show ~/papers/report.pdf --text | less
      clankers-ctl docs show 0199c5a2 --chunks
    """
    found = _found(ctl, document)
    if cut:
        _print_chunks(ctl, list(chunks_of(ctl, found.document.id)))
    elif whole:
        _print_text(ctl, found)
    elif ctl.json:
        print_json(found)
    else:
        _print_document(found)


def _found(ctl: Ctl, given: str) -> DocumentText:
    """The document that is meant."""
    with suppress(NotFound):
        return ctl.call(DocumentGet(id=given))
    with suppress(NotFound):
        return ctl.call(DocumentGet(source=given))
    with suppress(NotFound):
        return ctl.call(DocumentGet(source=absolute_path(given)))
    raise NotFound(f"document not found: {given}")


def chunks_of(ctl: Ctl, document_id: str) -> Iterator[DocumentChunk]:
    """All chunks of a document, fetched as they are read."""
    for page in ctl.pages(ChunkList(document_id)):
        yield from page.chunks


def _print_text(ctl: Ctl, found: DocumentText) -> None:
    parts = [found.text]
    while found.next_offset is not None:
        found = ctl.call(DocumentGet(id=found.document.id, offset=found.next_offset))
        parts.append(found.text)
    if ctl.json:
        print_json({"document": found.document, "text": "".join(parts)})
    else:
        echo(plain("".join(parts)))


def _print_document(found: DocumentText) -> None:
    one = found.document
    secho(one_line(one.title), bold=True)
    print_facts(
        [
            ("id", one.id),
            ("source", one_line(one.source)),
            ("kind", f"{one.kind}, {format_bytes(one.bytes)}, {plural(one.characters, 'character')}"),
            ("chunks", f"{plural(one.chunks, 'chunk')}, cut: {one.strategy}"),
            ("project", one.project_path and one_line(one.project_path)),
            ("added", format_time(one.created_at)),
            ("updated", format_time(one.updated_at) if one.updated_at != one.created_at else None),
            ("unfinished", None if one.complete else "it was cut off while it was stored: add it again"),
            *((f"meta.{name}", one_line(str(value))) for name, value in one.metadata.items()),
        ]
    )
    lines = plain(found.text).splitlines()
    echo()
    echo("\n".join(lines[:FEW_LINES]))
    if len(lines) > FEW_LINES or found.next_offset is not None:
        echo("… --text shows all of it.", err=True)


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
        [str(one.index), one.id, _lines(one), ("  " if one.parent_id else "") + one_line(one.content)] for one in chunks
    ]
    print_table(columns, rows)


def _lines(chunk: DocumentChunk) -> str:
    if chunk.start_line is None:
        return ""
    return f"{chunk.start_line}" if chunk.end_line == chunk.start_line else f"{chunk.start_line}-{chunk.end_line}"


@docs.command()
@click.argument("documents", nargs=-1, required=True, metavar="ID|SOURCE…")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def rm(ctl: Ctl, documents: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Remove documents and all that is known of them. The files themselves stay. Asks first.

    \b
    Examples:
      clankers-ctl docs rm 0199c5a2 --dry-run
      clankers-ctl docs rm ~/papers/report.pdf --yes
    """
    found = {one.id: one for one in (_found(ctl, given).document for given in documents)}
    planned = [ctl.call(DocumentDelete(one, dry_run=True)) for one in found]
    told = [
        f"{one_line(found[one.id].title)} ({plural(one.chunks, 'chunk')}, {plural(one.edges, 'edge')})"
        for one in planned
    ]
    if not dry_run and not yes:
        confirm(f"Remove {', '.join(told)}?", abort=True)
    removed = planned if dry_run else [ctl.call(DocumentDelete(one)) for one in found]
    if ctl.json:
        print_json(removed)
    else:
        echo(f"{'Would remove' if dry_run else 'Removed'} {', '.join(told)}.")
