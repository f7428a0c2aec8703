"""`clankers-ctl model`: which embedder makes the vectors, and fetching one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import urlsplit

import click

from clankers.ctl.command import Ctl, common_options
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
from clankers.ctl.output import Column, confirm, console, echo, one_line, print_json, print_table
from clankers_protocol.admin import DaemonConfig, DaemonConfigure, Setting
from clankers_protocol.paths import default_paths
from clankers_protocol.search import IndexStatus, Model, ModelList, Reindex

if TYPE_CHECKING:
    from rich.text import Text

REMOTE = ("openai", "ollama", "gemini")
ITS_OWN = ("embedder_url", "embedder_key_file", "embedder_dims", "embedder_weight")
"""Settings that are meant for one embedder: another would be misled by them, or be sent a key that is not its."""


@click.group()
def model() -> None:
    """See, change and fetch what makes vectors of texts, for the search by meaning.

    \b
    Examples:
      clankers-ctl model list
      clankers-ctl model pull arctic-embed-s
      clankers-ctl model use arctic-embed-s
    """


@model.command(name="list")
@common_options
def list_(ctl: Ctl) -> None:
    """List the embedders that could be used, and what the others lack.

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


def _row(each: Model) -> list["str | Text"]:
    from rich.text import Text  # slow to load

    mark = "●" if each.in_use else "○" if each.available else "✗"
    style = "" if each.available else "yellow"
    return [
        Text(mark, "red" if each.in_use and not each.available else "green" if each.available else "dim"),
        each.embedder,
        one_line(_short(each) or "–"),
        str(each.dims or ""),
        Text(("in use; " if each.in_use else "") + one_line(each.note), style),
    ]


def _short(each: Model) -> str:
    """A model's name; of one that was pulled, that of its folder."""
    folder = Path(each.model)
    return folder.name if each.embedder == "onnx" and folder.parent.name == "models" else each.model


# -- use


@model.command()
@click.argument("target", metavar="EMBEDDER|NAME|FOLDER")
@click.option("--model", "name", metavar="MODEL", help="The model to ask openai, ollama or gemini for.")
@click.option("--url", help="Where openai, ollama or gemini is, if not at its usual address.")
@click.option("--key-file", type=click.Path(exists=True, dir_okay=False), help="A file (mode 0600) with its API key.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def use(ctl: Ctl, target: str, name: str | None, url: str | None, key_file: str | None, yes: bool) -> None:
    """Change the embedder, and build the index anew with it. Asks first. Ctrl-C leaves all as it was.

    It is static, openai, ollama, gemini or none, the name of a model that was pulled, or the folder of an ONNX model.

    \b
    Examples:
      clankers-ctl model use arctic-embed-s
      clankers-ctl model use ~/models/e5-small
      clankers-ctl model use ollama --model nomic-embed-text
      clankers-ctl model use static --yes
    """
    models = ctl.call(ModelList())
    chosen = _chosen(models, target, name)
    if chosen.embedder not in REMOTE and (name or url or key_file):
        raise click.UsageError(f"--model, --url and --key-file are for {', '.join(REMOTE)}.")
    own = {"embedder_url": url, "embedder_key_file": key_file and absolute_path(key_file)}
    settings = _settings(ctl)
    if chosen.in_use and not any(own.values()) and _is_ready(ctl, chosen):
        echo("That is in use already: `clankers-ctl reindex` builds its index anew.", err=True)
        if ctl.json:
            print_json(None)
        return
    if not chosen.available and not chosen.in_use and not any(own.values()):
        raise click.ClickException(f"{chosen.embedder} cannot be used: {one_line(chosen.note)}")
    if not yes:
        _ask(ctl, chosen, url)
    _use(ctl, chosen, {key: value for key, value in own.items() if value}, settings)


def _chosen(models: list[Model], target: str, name: str | None) -> Model:
    """The one of `models` that is meant, or one that is not among them yet."""
    listed = [each for each in models if target in (each.embedder, _short(each)) and each.model]
    if target in REMOTE and name and name != listed[0].model:
        return Model(target, name, None, False, listed[0].available, listed[0].note)
    if target in get_args(Embedder) and target != "onnx":
        return next(each for each in models if each.embedder == target)
    if len(listed) == 1:
        return listed[0]
    if target == "onnx":
        raise click.UsageError("Say which model: its folder, or a name that `clankers-ctl model list` shows.")
    return _at(models, absolute_path(target), target)


def _at(models: list[Model], folder: str, target: str) -> Model:
    known = next(
        (each for each in models if each.embedder == "onnx" and absolute_path(each.model or "-") == folder), None
    )
    if known:
        return known
    path = Path(folder)
    if not path.is_dir():
        fetching = f": `clankers-ctl model pull {target}` fetches it" if target in MODEL_ALIASES else ""
        names = ", ".join(each for each in get_args(Embedder) if each != "onnx")
        raise click.ClickException(f"{target!r} is no embedder ({names}) and no model's folder{fetching}.")
    for pattern in ("*.onnx", "tokenizer.json"):
        if not any(file for place in (path, path / "onnx") for file in place.glob(pattern)):
            raise click.ClickException(f"There is no {pattern} in {folder}: it holds no ONNX sentence encoder.")
    return Model("onnx", folder, None, False, True, "")


def _settings(ctl: Ctl) -> dict[str, Setting]:
    """What is set; raises when that cannot be changed from here."""
    settings = {setting.key: setting for setting in ctl.call(DaemonConfig()).settings}
    for key in ("embedder", "embedder_model", *ITS_OWN):
        if settings[key].origin in ("environment", "flag"):
            raise click.ClickException(
                f"{key} is set by the daemon's {settings[key].origin}, which beats what is set here: unset it there."
            )
    return settings


def _is_ready(ctl: Ctl, chosen: Model) -> bool:
    return chosen.embedder == "none" or ctl.call(IndexStatus()).vectors == "ready"


def _ask(ctl: Ctl, chosen: Model, url: str | None) -> None:
    chunks = sum(ctl.call(IndexStatus()).chunks.values())
    echo(f"Change to {_named(chosen)}.", err=True)
    if chosen.embedder != "none":
        echo(
            f"{plural(chunks, 'chunk')} will be embedded again; until that is done, search is by words alone.",
            err=True,
        )
    if host := url and urlsplit(url).hostname:
        echo(f"Your texts are sent to {host}.", err=True)
    elif chosen.embedder in REMOTE:
        echo(f"It {one_line(chosen.note)}.", err=True)
    confirm("Go on?", abort=True)


def _named(chosen: Model) -> str:
    return f"{chosen.embedder} {one_line(_short(chosen))}".rstrip()


def _use(ctl: Ctl, chosen: Model, own: dict[str, str], settings: dict[str, Setting]) -> None:
    """Change the settings and build the index; unless all of that succeeds, change them back."""
    default = chosen.embedder in ("static", "none")
    before = {key: settings[key].value if settings[key].origin == "file" else None for key in ITS_OWN}
    same = settings["embedder"].value == chosen.embedder  # then what else is set was meant for it
    changed = {key: own.get(key) for key in ITS_OWN if key in own or (before[key] is not None and not same)}
    try:
        if changed:
            _configure(ctl, changed)
        job = run_job(ctl, Reindex(cast(Embedder, chosen.embedder), None if default else chosen.model))
    except BaseException:
        _restore(ctl, settings, changed)
        raise
    if job.state != "done":
        _restore(ctl, settings, changed)
    elif not ctl.json:
        echo(f"Now in use: {_named(chosen)}.")
    print_reindexed(ctl, job)


def _restore(ctl: Ctl, settings: dict[str, Setting], changed: dict[str, Any]) -> None:
    keys = ("embedder_model", *changed, "embedder")
    _configure(ctl, {key: settings[key].value if settings[key].origin == "file" else None for key in keys})
    echo(f"Still in use: {settings['embedder'].value}.", err=True)


def _configure(ctl: Ctl, values: dict[str, Any]) -> None:
    """Set them one by one, without an embedder meanwhile: it would see one's address with another's key."""
    ctl.call(DaemonConfigure("embedder", "none"))
    for key, value in values.items():
        ctl.call(DaemonConfigure(key, value))


# -- pull


@model.command()
@click.argument("name")
@click.option(
    "--from", "base", metavar="URL", default=DEFAULT_HUB_URL, show_default=True, help="The hub, or a mirror of it."
)
@click.option("--quantized", is_flag=True, help="The weights in 8 bits: a quarter of the size, nearly as good.")
@click.option(
    "--max-size",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="Fetch no more.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def pull(ctl: Ctl, name: str, base: str, quantized: bool, max_size: int, yes: bool) -> None:
    """Download an ONNX sentence encoder: the only command that downloads anything. Asks first.

    NAME is arctic-embed-s, minilm or bge-small, or OWNER/NAME of any repository with model.onnx and tokenizer.json.

    \b
    Examples:
      clankers-ctl model pull arctic-embed-s
      clankers-ctl model pull bge-small --yes && clankers-ctl model use bge-small --yes
      clankers-ctl model pull intfloat/e5-small-v2 --from https://hub.example.org
    """
    try:
        planned = plan_pull(name, default_paths().data / "models", base, quantized, max_size * 2**20)
        if planned.folder.exists():
            found: list[FetchedFile] = []
            echo(f"{planned.folder} is here already: remove it to fetch it again.", err=True)
        else:
            _announce(planned)
            if not yes:
                confirm("Download?", abort=True)
            with _progress(ctl) as seen:
                found = fetch_model(planned, seen)
    except PullFailed as error:
        raise click.ClickException(str(error)) from error
    _print_pulled(ctl, planned, found)


def _announce(planned: PullPlan) -> None:
    echo(f"Files of {planned.repository} from {planned.url}", err=True)
    for wanted in planned.wanted:
        first, *others = wanted.names
        instead = f" (or {', '.join(others)})" if others else "" if wanted.needed else " (if there is one)"
        echo(f"  {first}{instead}", err=True)
    echo(f"  {planned.weights[0]}_data (if there is one)", err=True)
    echo(f"into {planned.folder}, at most {format_bytes(planned.most)} in all.", err=True)


@contextmanager
def _progress(ctl: Ctl) -> Iterator[ProgressCallback]:
    """A bar on a terminal, else nothing."""
    if ctl.json or not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # slow to load

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda name, done, total: progress.update(task, completed=done, total=total, description=name)


def _print_pulled(ctl: Ctl, planned: PullPlan, found: list[FetchedFile]) -> None:
    if ctl.json:
        print_json({"folder": str(planned.folder), "source": planned.url, "files": [asdict(file) for file in found]})
        return
    if found:
        columns = [Column("File"), Column("Size", align_right=True), Column("SHA-256", min_width=16, style="dim")]
        print_table(columns, [[file.path, format_bytes(file.size), file.sha256] for file in found])
        echo(f"Fetched into {planned.folder}")
    echo(f"Next: clankers-ctl model use {planned.folder.name}")
