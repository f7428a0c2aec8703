"""`clankers-ctl model`: list, switch and download embedding models."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import cast, get_args
from urllib.parse import urlsplit

import click

from clankers.ctl.command import Ctl, common_options, yes_option
from clankers.ctl.formatting import format_bytes, plural
from clankers.ctl.hub import (
    DEFAULT_HUB_URL,
    MODEL_ALIASES,
    FetchedFile,
    ProgressCallback,
    PullFailed,
    PullPlan,
    fetch_model,
    plan_pull,
)
from clankers.ctl.index import Embedder, absolute_path, print_reindexed
from clankers.ctl.jobs import run_job
from clankers.ctl.output import Column, confirm, echo, one_line, print_json, print_table, rich_console
from clankers.ctl.text import Text
from clankers_protocol.admin import DaemonConfig, Setting
from clankers_protocol.paths import default_paths
from clankers_protocol.search import IndexStatus, Model, ModelList, Reindex

REMOTE = ("openai", "ollama", "gemini")
EMBEDDER_SETTINGS = (
    "embedder_url", "embedder_key_file", "embedder_dims", "embedder_weight", "embedder_fallback",
    "embedder_fallback_model", "embedder_fallback_url", "embedder_fallback_key_file",
)  # fmt: skip
"""Settings of one embedder that must not apply to another, which would be sent the wrong key, for example."""


@click.group()
def model() -> None:
    """List, switch and download embedding models.

    \b
    Examples:
      clankers-ctl model list
      clankers-ctl model pull arctic-embed-s
      clankers-ctl model use arctic-embed-s
    """


@model.command(name="list")
@common_options
def list_(ctl: Ctl) -> None:
    """List the embedders that are available, and what the others need.

    \b
    Examples:
      clankers-ctl model list
      clankers-ctl model list --json | jq '.[] | select(.inUse)'
    """
    models = ctl.call(ModelList())
    if ctl.json:
        print_json(models)
        return
    columns = [
        Column(""),
        Column("Embedder", style="cyan"),
        Column("Model", min_width=12, truncate_start=True),
        Column("Dims", align_right=True, optional=True),
        Column("Note", min_width=20, wrap=True),
    ]
    print_table(columns, [_row(each) for each in models])


def _row(each: Model) -> list[str | Text]:
    if each.available:
        mark, mark_style = ("●" if each.in_use else "○"), "green"
    else:
        mark, mark_style = ("●", "red") if each.in_use else ("✗", "dim")
    return [
        Text(mark, mark_style),
        each.embedder,
        one_line(_short_name(each) or "–"),
        str(each.dims or ""),
        Text(("in use; " if each.in_use else "") + one_line(each.note), "" if each.available else "yellow"),
    ]


def _short_name(each: Model) -> str:
    """Return the name of a model; for a downloaded model, the name of its folder."""
    folder = Path(each.model)
    return folder.name if each.embedder == "onnx" and folder.parent.name == "models" else each.model


# -- use


@model.command()
@click.argument("target", metavar="EMBEDDER|NAME|FOLDER")
@click.option("--model", "name", metavar="MODEL", help="Model to use with openai, ollama or gemini.")
@click.option("--url", help="Address of openai, ollama or gemini, if not the default one.")
@click.option("--key-file", type=click.Path(exists=True, dir_okay=False), help="File (mode 0600) with the API key.")
@yes_option
@common_options
def use(ctl: Ctl, target: str, name: str | None, url: str | None, key_file: str | None, yes: bool) -> None:
    """Switch to another embedder and rebuild the index with it. Asks for confirmation first. Ctrl-C undoes the switch.

    The embedder is tried first; if it does not answer within seconds, nothing is changed. SIGTERM and closing the
    terminal undo the switch, too.

    Specify static, openai, ollama, gemini or none, the name of a downloaded model, or the folder of an ONNX model.

    \b
    Examples:
      clankers-ctl model use arctic-embed-s
      clankers-ctl model use ~/models/e5-small
      clankers-ctl model use ollama --model nomic-embed-text
      clankers-ctl model use static --yes
    """
    models = ctl.call(ModelList())
    chosen = _choose(models, target, name)
    if chosen.embedder not in REMOTE and (name or url or key_file):
        raise click.UsageError(f"--model, --url and --key-file can only be used with {', '.join(REMOTE)}.")
    given = {"embedder_url": url, "embedder_key_file": absolute_path(key_file) if key_file else None}
    new_settings = {key: value for key, value in given.items() if value}
    settings = _changeable_settings(ctl)
    if chosen.in_use and not new_settings:
        is_ready = chosen.embedder == "none" or ctl.call(IndexStatus()).vectors == "ready"
        if is_ready:
            echo("This embedder is already in use. To rebuild its index, run `clankers-ctl reindex`.", err=True)
            if ctl.json:
                print_json(None)
            return
    if not chosen.available and not chosen.in_use and not new_settings:
        raise click.ClickException(f"{chosen.embedder} cannot be used: {one_line(chosen.note)}")
    if not yes:
        _confirm_switch(ctl, chosen, url)
    _switch(ctl, chosen, new_settings, settings)


def _choose(models: list[Model], target: str, name: str | None) -> Model:
    """Return the model that `target` specifies; it may be one that is not in `models` yet."""
    listed = [each for each in models if target in (each.embedder, _short_name(each)) and each.model]
    if target in REMOTE and name and name != listed[0].model:
        return Model(target, name, None, False, listed[0].available, listed[0].note)
    if target in get_args(Embedder) and target != "onnx":
        return next(each for each in models if each.embedder == target)
    if len(listed) == 1:
        return listed[0]
    if target == "onnx":
        raise click.UsageError("Specify a model: its folder, or a name from `clankers-ctl model list`.")
    return _onnx_model(models, absolute_path(target), target)


def _onnx_model(models: list[Model], folder: str, target: str) -> Model:
    known = next(
        (each for each in models if each.embedder == "onnx" and absolute_path(each.model or "-") == folder), None
    )
    if known:
        return known
    path = Path(folder)
    if not path.is_dir():
        names = ", ".join(each for each in get_args(Embedder) if each != "onnx")
        advice = f" To download it, run `clankers-ctl model pull {target}`." if target in MODEL_ALIASES else ""
        raise click.ClickException(f"{target!r} is not an embedder ({names}) or the folder of a model.{advice}")
    for pattern in ("*.onnx", "tokenizer.json"):
        if not [*path.glob(pattern), *(path / "onnx").glob(pattern)]:
            raise click.ClickException(f"There is no {pattern} in {folder}: it is not an ONNX sentence encoder.")
    return Model("onnx", folder, None, False, True, "")


def _changeable_settings(ctl: Ctl) -> dict[str, Setting]:
    """Return the settings; raises if those of the embedder are overridden and cannot be changed from here."""
    settings = {setting.key: setting for setting in ctl.call(DaemonConfig()).settings}
    for key in ("embedder", "embedder_model", *EMBEDDER_SETTINGS):
        if settings[key].origin in ("environment", "flag"):
            raise click.ClickException(
                f"{key} is set by the daemon's {settings[key].origin}, which overrides this command. Unset it there."
            )
    return settings


def _confirm_switch(ctl: Ctl, chosen: Model, url: str | None) -> None:
    chunks = sum(ctl.call(IndexStatus()).chunks.values())
    echo(f"Switch to {_full_name(chosen)}.", err=True)
    if chosen.embedder != "none":
        reembedding = f"{plural(chunks, 'chunk')} will be embedded again"
        echo(f"{reembedding}; until this is finished, only keyword search is available.", err=True)
    if host := url and urlsplit(url).hostname:
        echo(f"Your texts will be sent to {host}.", err=True)
    elif chosen.embedder in REMOTE:
        echo(f"It {one_line(chosen.note)}.", err=True)
    confirm("Continue?", abort=True)


def _full_name(chosen: Model) -> str:
    return f"{chosen.embedder} {one_line(_short_name(chosen))}".rstrip()


def _switch(ctl: Ctl, chosen: Model, new_settings: dict[str, str], settings: dict[str, Setting]) -> None:
    """Have the daemon switch to the embedder. It changes nothing if the embedder does not answer, and restores the
    settings if the switch fails or is cancelled."""
    is_same_embedder = settings["embedder"].value == chosen.embedder
    changed: dict[str, str | int | float | None] = dict(new_settings)
    for key in EMBEDDER_SETTINGS:
        if key not in changed and settings[key].origin == "file" and not is_same_embedder:
            changed[key] = None  # it was meant for the other embedder
    has_one_model = chosen.embedder in ("static", "none")
    model_name = None if has_one_model else chosen.model
    job = run_job(ctl, Reindex(cast(Embedder, chosen.embedder), model_name, changed))
    if job.state != "done":
        echo(f"Still in use: {settings['embedder'].value}.", err=True)
    elif not ctl.json:
        echo(f"Now in use: {_full_name(chosen)}.")
    print_reindexed(ctl, job)


# -- pull


@model.command()
@click.argument("name")
@click.option(
    "--from",
    "base",
    metavar="URL",
    default=DEFAULT_HUB_URL,
    show_default=True,
    help="Address of the hub or of a mirror.",
)
@click.option("--quantized", is_flag=True, help="Download 8-bit weights: a quarter of the size, nearly as good.")
@click.option(
    "--max-size",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="Download at most this much.",
)
@yes_option
@common_options
def pull(ctl: Ctl, name: str, base: str, quantized: bool, max_size: int, yes: bool) -> None:
    """Download an ONNX sentence encoder. Asks for confirmation first. No other command downloads anything.

    NAME is arctic-embed-s, minilm, bge-small, or OWNER/NAME of any repository with model.onnx and tokenizer.json.

    \b
    Examples:
      clankers-ctl model pull arctic-embed-s
      clankers-ctl model pull bge-small --yes && clankers-ctl model use bge-small --yes
      clankers-ctl model pull intfloat/e5-small-v2 --from https://hub.example.org
    """
    try:
        planned = plan_pull(name, default_paths().data / "models", base, quantized, max_size * 2**20)
        files: list[FetchedFile] = []
        if planned.folder.exists():
            echo(f"{planned.folder} already exists. To download the model again, remove it first.", err=True)
        else:
            _print_plan(planned)
            if not yes:
                confirm("Download?", abort=True)
            with _progress_bar(ctl) as progress:
                files = fetch_model(planned, progress)
    except PullFailed as error:
        raise click.ClickException(str(error)) from error
    _print_pulled(ctl, planned, files)


def _print_plan(planned: PullPlan) -> None:
    echo(f"Files of {planned.repository} from {planned.url}:", err=True)
    for wanted in planned.wanted:
        first, *others = wanted.names
        note = ""
        if others:
            note = f" (or {', '.join(others)})"
        elif not wanted.required:
            note = " (if it exists)"
        echo(f"  {first}{note}", err=True)
    echo(f"  {planned.weights[0]}_data (if it exists)", err=True)
    echo(f"Target folder: {planned.folder}; at most {format_bytes(planned.max_bytes)} in total.", err=True)


@contextmanager
def _progress_bar(ctl: Ctl) -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    if ctl.json or not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # slow to load

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=rich_console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda name, done, total: progress.update(task, completed=done, total=total, description=name)


def _print_pulled(ctl: Ctl, planned: PullPlan, files: list[FetchedFile]) -> None:
    if ctl.json:
        print_json({"folder": str(planned.folder), "source": planned.url, "files": [asdict(file) for file in files]})
        return
    if files:
        columns = [Column("File"), Column("Size", align_right=True), Column("SHA-256", min_width=16, style="dim")]
        print_table(columns, [[file.path, format_bytes(file.size), file.sha256] for file in files])
        echo(f"Downloaded into {planned.folder}.")
    echo(f"Next: clankers-ctl model use {planned.folder.name}")
