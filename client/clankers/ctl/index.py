"""`clankers-ctl index` and `clankers-ctl reindex`."""

import os
import sys
from pathlib import Path
from typing import Literal, cast, get_args

import click

from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.jobs import exit_unless_done, job_duration, run_job
from clankers.ctl.output import bar, echo_styled, one_line, print_facts, print_json, secho
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

SYNC_TIMEOUT_SECONDS = 3600
"""Comparing many files on a slow disk takes long."""

OUTCOME_COLOURS = {"added": "green", "changed": "yellow", "removed": "red", "moved": "cyan", "unchanged": None}


@click.group()
def index() -> None:
    """Show the state of the index; add and remove watched files.

    \b
    Examples:
      clankers-ctl index status
      clankers-ctl index add ~/notes
      clankers-ctl index sync
    """


@index.command()
@common_options
def status(ctl: Ctl) -> None:
    """Show what is indexed, what is pending, and the last error.

    \b
    Examples:
      clankers-ctl index status
      clankers-ctl index status --json | jq .live.pending
    """
    report = ctl.call(IndexStatus())
    ctl.report(report, _print_status)


def _print_status(report: IndexReport) -> None:
    if report.vectors == "ready":
        secho("● ready: keyword and vector search", fg="green", bold=True)
    else:
        secho(f"● keyword search only: {one_line(report.vectors)}", fg="yellow", bold=True)
    print_facts(
        [
            ("chunks", _chunks(report)),
            ("model", _model(report.live) if report.live else None),
            ("vectors", _vectors(report.live, report.in_memory) if report.live else None),
            ("building", _building(report.building) if report.building else None),
            ("rate", f"{report.rate:,.1f} chunks a second" if report.rate else None),
            ("to be chunked", plural(report.backlog, "text") if report.backlog else None),
            ("cache", plural(report.cache_entries, "vector")),
            ("fallback", report.fallback and one_line(report.fallback)),
            ("last error", report.last_error and one_line(report.last_error)),
            ("files", _files(report.files)),
            ("", report.files.problem and one_line(report.files.problem)),
            *(("" if index else "watched", one_line(path)) for index, path in enumerate(report.files.watched)),
        ]
    )


def _chunks(report: IndexReport) -> str:
    counts = ", ".join(f"{count:,} of {name}" for name, count in report.chunks.items()) or "none yet"
    live = report.live
    if live is None:
        return counts
    return f"{counts}; up to {live.chunk_tokens} tokens each, {live.chunk_overlap} of them overlapping"


def _model(generation: GenerationStatus) -> str | None:
    if generation.provider == "none":
        return None
    dims = f", {generation.dims} dimensions" if generation.dims else ""
    return f"{generation.provider}: {one_line(generation.model)}{dims}"


def _vectors(generation: GenerationStatus, in_memory: bool) -> str | None:
    if generation.provider == "none":
        return None
    failed = f", {generation.failed:,} failed" if generation.failed else ""
    return f"{generation.vectors:,}, {generation.pending:,} pending{failed}{', held in memory' if in_memory else ''}"


def _building(generation: GenerationStatus) -> str:
    total = generation.vectors + generation.pending + generation.failed
    name = _model(generation) or "without vectors"
    if not total:
        return name
    fraction = generation.vectors / total
    return f"{name} {bar(fraction, 20)} {fraction:.0%} ({generation.vectors:,} of {total:,})"


def _files(files: FilesStatus) -> str:
    synced = f", synced {format_time(files.last_sync)}" if files.last_sync else ""
    dirty = "; changes are waiting to be indexed" if files.dirty else ""
    watching = "no paths are watched" if files.mode == "off" else files.mode
    return f"{plural(files.files, 'file')}, {watching}{synced}{dirty}"


@index.command()
@common_options
def sync(ctl: Ctl) -> None:
    """Bring the index up to date with all watched files now. Exits with 4 if a file cannot be indexed.

    \b
    Examples:
      clankers-ctl index sync
      clankers-ctl index sync --json | jq .failed
    """
    _print_synced(ctl, ctl.call(IndexSync(), timeout=SYNC_TIMEOUT_SECONDS))


@index.command()
@click.argument("path", type=click.Path(exists=True))
@common_options
def add(ctl: Ctl, path: str) -> None:
    """Index and watch markdown files: one file, or all in a folder.

    \b
    Examples:
      clankers-ctl index add ~/notes
      clankers-ctl index add docs/decisions.md
    """
    _print_synced(ctl, ctl.call(IndexAdd(absolute_path(path)), timeout=SYNC_TIMEOUT_SECONDS))


@index.command()
@click.argument("path", type=click.Path())
@common_options
def remove(ctl: Ctl, path: str) -> None:
    """Stop watching a path, and remove its files from the index. The files themselves are not deleted.

    \b
    Examples:
      clankers-ctl index remove ~/notes
    """
    _print_synced(ctl, ctl.call(IndexRemove(absolute_path(path)), timeout=SYNC_TIMEOUT_SECONDS))


def absolute_path(path: str) -> str:
    """Make a path absolute: resolve `~` and `..`, but not symlinks."""
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100  # Path.resolve would follow symlinks


def _print_synced(ctl: Ctl, synced: Synced) -> None:
    if ctl.json:
        print_json(synced)
    else:
        counts = []
        for outcome, colour in OUTCOME_COLOURS.items():
            if count := getattr(synced, outcome):
                counts.append(click.style(f"{count:,} {outcome}", fg=colour))
        echo_styled(f"{', '.join(counts) or 'No files'} in {format_duration(synced.seconds)}.")
        for failure in synced.failed:
            secho(f"  not indexed: {one_line(failure)}", fg="red", err=True)
    sys.exit(EXIT_PROBLEM if synced.failed else 0)


@click.command()
@click.option("--embedder", type=click.Choice(get_args(Embedder)), help="Switch to this embedder first.")
@click.option("--model", help="Model of the embedder, or the folder of an ONNX model.")
@common_options
def reindex(ctl: Ctl, embedder: str | None, model: str | None) -> None:
    """Rebuild the index. The current index stays searchable until the new one is ready. Ctrl-C cancels the rebuild.

    To switch to another embedder, prefer `clankers-ctl model use`, which checks first that the embedder is available.

    \b
    Examples:
      clankers-ctl reindex
      clankers-ctl reindex --embedder ollama --model nomic-embed-text
    """
    if model is not None and embedder is None:
        raise click.UsageError("--model requires --embedder.")
    if model is not None and embedder == "onnx":
        model = absolute_path(model)
    print_reindexed(ctl, run_job(ctl, Reindex(cast(Embedder | None, embedder), model)))


def print_reindexed(ctl: Ctl, job: Job) -> None:
    """Report the result of a reindex. Exits with 1 unless it succeeded, with 4 if some chunks have no vector."""
    exit_unless_done(ctl, job)
    result = job.result or {}
    failed = int(result.get("failed") or 0)
    ctl.report(job, f"Reindexed {plural(int(result.get('chunks') or 0), 'chunk')} in {job_duration(job)}.")
    if failed:
        warning = f"{plural(failed, 'chunk')} can only be found by keyword search."
        secho(f"{warning} Run `clankers-ctl index status` to see why.", fg="yellow", err=True)
    sys.exit(EXIT_PROBLEM if failed else 0)
