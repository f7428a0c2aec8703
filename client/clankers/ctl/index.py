"""`clankers-ctl index` and `clankers-ctl reindex`."""

import os
import sys
from pathlib import Path
from typing import Literal, cast, get_args

import click

from clankers.ctl.command import EXIT_FAILED, EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.jobs import run_job
from clankers.ctl.output import bar, echo, echo_styled, one_line, print_facts, print_json, secho
from clankers_protocol.admin import Job
from clankers_protocol.search import (
    FilesStatus,
    GenerationStatus,
    IndexAdd,
    IndexRemove,
    IndexReport,
    IndexStatus,
    IndexSync,
    Reindex,
    Synced,
)

Embedder = Literal["static", "onnx", "openai", "ollama", "gemini", "none"]

PATIENCE = 3600
"""Seconds that comparing the files may take: there may be many, on a slow disk."""

SYNCED = [
    ("added", "green"),
    ("changed", "yellow"),
    ("removed", "red"),
    ("moved", "cyan"),
    ("unchanged", None),
]


@click.group()
def index() -> None:
    """See and feed the search index.

    \b
    Examples:
      clankers-ctl index status
      clankers-ctl index add ~/notes
      clankers-ctl index sync
    """


@index.command()
@common_options
def status(ctl: Ctl) -> None:
    """Show what is indexed, how freshly, and what is in the way.

    \b
    Examples:
      clankers-ctl index status
      clankers-ctl index status --json | jq .live.pending
    """
    report = ctl.call(IndexStatus())
    if ctl.json:
        print_json(report)
    else:
        _print_status(report)


def _print_status(report: IndexReport) -> None:
    if report.vectors == "ready":
        secho("● ready: searches by words and by meaning", fg="green", bold=True)
    else:
        secho(f"● searches by words alone: {one_line(report.vectors)}", fg="yellow", bold=True)
    print_facts(
        [
            ("chunks", _chunks(report)),
            ("model", _model(report.live) if report.live else None),
            ("vectors", _vectors(report.live, report.in_memory) if report.live else None),
            ("building", _building(report.building) if report.building else None),
            ("rate", f"{report.rate:,.1f} chunks a second" if report.rate else None),
            ("to be cut", plural(report.backlog, "text") if report.backlog else None),
            ("cache", plural(report.cache_entries, "vector")),
            ("last error", report.last_error and one_line(report.last_error)),
            ("files", _files(report.files)),
            ("", report.files.problem and one_line(report.files.problem)),
            *(("" if place else "watched", one_line(path)) for place, path in enumerate(report.files.watched)),
        ]
    )


def _chunks(report: IndexReport) -> str:
    counts = ", ".join(f"{count:,} of {name}" for name, count in report.chunks.items()) or "none yet"
    live = report.live
    return f"{counts}; up to {live.chunk_tokens} tokens, {live.chunk_overlap} shared" if live else counts


def _model(made: GenerationStatus) -> str | None:
    if made.provider == "none":
        return None
    dims = f", {made.dims} dimensions" if made.dims else ""
    return f"{made.provider}: {one_line(made.model)}{dims}"


def _vectors(made: GenerationStatus, in_memory: bool) -> str | None:
    if made.provider == "none":
        return None
    failed = f", {made.failed:,} failed" if made.failed else ""
    return f"{made.vectors:,}, {made.pending:,} pending{failed}{', held in memory' if in_memory else ''}"


def _building(made: GenerationStatus) -> str:
    total = made.vectors + made.pending + made.failed
    part = made.vectors / total if total else 0.0
    progress = f"{bar(part, 20)} {part:.0%} ({made.vectors:,} of {total:,})"
    return f"{_model(made) or 'without vectors'} {progress if total else ''}".rstrip()


def _files(files: FilesStatus) -> str:
    synced = f", compared {format_time(files.last_sync)}" if files.last_sync else ""
    dirty = "; changes wait to be indexed" if files.dirty else ""
    watching = {"off": "no paths are watched"}.get(files.mode, files.mode)
    return f"{plural(files.files, 'file')}, {watching}{synced}{dirty}"


@index.command()
@common_options
def sync(ctl: Ctl) -> None:
    """Compare all watched files with the index now. Exits 4 when a file could not be indexed.

    \b
    Examples:
      clankers-ctl index sync
      clankers-ctl index sync --json | jq .failed
    """
    _print_synced(ctl, ctl.call(IndexSync(), timeout=PATIENCE))


@index.command()
@click.argument("path", type=click.Path(exists=True))
@common_options
def add(ctl: Ctl, path: str) -> None:
    """Watch and index a markdown file, or the markdown files of a folder.

    \b
    Examples:
      clankers-ctl index add ~/notes
      clankers-ctl index add docs/decisions.md
    """
    _print_synced(ctl, ctl.call(IndexAdd(absolute_path(path)), timeout=PATIENCE))


@index.command()
@click.argument("path", type=click.Path())
@common_options
def remove(ctl: Ctl, path: str) -> None:
    """No longer watch a path that was added, and forget its files. The files themselves stay.

    \b
    Examples:
      clankers-ctl index remove ~/notes
    """
    _print_synced(ctl, ctl.call(IndexRemove(absolute_path(path)), timeout=PATIENCE))


def absolute_path(path: str) -> str:
    """The path as seen from anywhere; `..` goes, symlinks stay."""
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100  # Path has no such thing


def _print_synced(ctl: Ctl, synced: Synced) -> None:
    if ctl.json:
        print_json(synced)
    else:
        counts = [(getattr(synced, name), name, colour) for name, colour in SYNCED]
        told = [click.style(f"{count:,} {name}", fg=colour) for count, name, colour in counts if count]
        echo_styled(f"{', '.join(told) or 'No files'} in {format_duration(synced.seconds)}.")
        for failure in synced.failed:
            secho(f"  not indexed: {one_line(failure)}", fg="red", err=True)
    sys.exit(EXIT_PROBLEM if synced.failed else 0)


@click.command()
@click.option("--embedder", type=click.Choice(get_args(Embedder)), help="Change to this embedder first.")
@click.option("--model", help="Its model, or the folder of an ONNX model.")
@common_options
def reindex(ctl: Ctl, embedder: str | None, model: str | None) -> None:
    """Build the index anew beside the live one, which is searched meanwhile. Ctrl-C stops it.

    `clankers-ctl model use` does the same, after a look at what is there.

    \b
    Examples:
      clankers-ctl reindex
      clankers-ctl reindex --embedder ollama --model nomic-embed-text
    """
    if model is not None and embedder is None:
        raise click.UsageError("--model needs --embedder.")
    if model is not None and embedder == "onnx":
        model = absolute_path(model)
    print_reindexed(ctl, run_job(ctl, Reindex(cast(Embedder | None, embedder), model)))


def print_reindexed(ctl: Ctl, job: Job) -> None:
    """Tell what a reindex came to. Exits 1 unless it was done, 4 when parts have no vector."""
    if ctl.json:
        print_json(job)
    if job.state != "done":
        secho(f"{job.kind} {job.state}{f': {one_line(job.error)}' if job.error else ''}", fg="red", err=True)
        sys.exit(EXIT_FAILED)
    result = job.result or {}
    failed = int(result.get("failed") or 0)
    if not ctl.json:
        took = format_duration(((job.finished_at or job.created_at) - job.created_at) / 1000)
        echo(f"{plural(int(result.get('chunks') or 0), 'chunk')} indexed anew in {took}.")
    if failed:
        secho(
            f"{plural(failed, 'chunk')} can be found by words alone: `clankers-ctl index status` says why.",
            fg="yellow",
            err=True,
        )
    sys.exit(EXIT_PROBLEM if failed else 0)
