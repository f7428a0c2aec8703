"""`clankers-ctl config`."""

import json
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.output import Column, echo, one_line, print_json, print_table, secho
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import DaemonConfig, DaemonConfigure, IgnoredSetting, Settings
from clankers_protocol.paths import default_paths

COLUMNS = [
    Column("Key", style="cyan"),
    Column("Value", min_width=16),
    Column("From", optional=True),
    Column("Meaning", min_width=16, wrap=True, optional=True, style="dim"),
]


def _keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The settings that begin like this, for the shell to complete."""
    with suppress(Exception):  # a shell has no use for an error while someone types
        known = ctx.ensure_object(Ctl).call(DaemonConfig(), timeout=1).settings
        return [setting.key for setting in known if setting.key.startswith(incomplete)]
    return []


@click.group()
def config() -> None:
    """See and change the daemon's settings.

    \b
    Examples:
      clankers-ctl config show
      clankers-ctl config set log_level debug
      clankers-ctl config unset log_level
    """


@config.command()
@common_options
def show(ctl: Ctl) -> None:
    """Show the settings in force and where each comes from; those in the file, if the daemon does not run.

    \b
    Examples:
      clankers-ctl config show
      clankers-ctl config show --json | jq '.settings[] | select(.origin != "default")'
    """
    try:
        settings = ctl.call(DaemonConfig())
    except DaemonUnavailable:
        _show_file(ctl, default_paths().config)
        return
    if ctl.json:
        print_json(settings)
    else:
        _print_settings(settings)


def _print_settings(settings: Settings) -> None:
    rows = [
        [setting.key, _text(setting.value), setting.origin, one_line(setting.help)] for setting in settings.settings
    ]
    print_table(COLUMNS, rows)
    for ignored in settings.ignored:
        _warn_ignored(ignored)
    echo(f"File: {settings.path}", err=True)


def _warn_ignored(ignored: IgnoredSetting) -> None:
    told = f"Ignored {one_line(ignored.key)} from {one_line(ignored.source)}: {one_line(ignored.reason)}"
    secho(told, fg="yellow", err=True)


def _show_file(ctl: Ctl, path: Path) -> None:
    """What the file says: only the daemon knows what that means."""
    try:
        found = dict(_flat(tomllib.loads(path.read_text())))
    except FileNotFoundError:
        found = {}
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    echo("The daemon does not run: this is what the file says, unchecked.", err=True)
    settings = [{"key": key, "value": value, "origin": "file"} for key, value in found.items()]
    if ctl.json:
        print_json({"path": str(path), "checked": False, "settings": settings})
    elif found:
        print_table(COLUMNS[:2], [[one_line(key), _text(value)] for key, value in found.items()])
    else:
        echo(f"{path} sets nothing: everything is at its default.")


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@config.command(name="set")
@click.argument("key", shell_complete=_keys)
@click.argument("value")
@common_options
def set_(ctl: Ctl, key: str, value: str) -> None:
    """Set a key in the file and apply it. Numbers, true and false are taken as such; quotes make them text.

    \b
    Examples:
      clankers-ctl config set log_level debug
      clankers-ctl config set log_level '"debug"'
    """
    _configure(ctl, key, parse_scalar(value))


@config.command()
@click.argument("key", shell_complete=_keys)
@common_options
def unset(ctl: Ctl, key: str) -> None:
    """Remove a key from the file, so that its default holds again.

    \b
    Examples:
      clankers-ctl config unset log_level
    """
    _configure(ctl, key, None)


@config.command()
@common_options
def path(ctl: Ctl) -> None:
    """Print where the settings are kept.

    \b
    Examples:
      clankers-ctl config path
      $EDITOR "$(clankers-ctl config path)" && kill -HUP "$(pgrep clankersd)"
    """
    place = str(default_paths().config)
    with suppress(DaemonUnavailable, TimeoutError):
        place = ctl.call(DaemonConfig(), timeout=2).path  # it may have been started with --config
    if ctl.json:
        print_json({"path": place})
    else:
        echo(place)


def parse_scalar(text: str) -> str | int | float | bool:
    """The value as TOML reads it, if that is a number, a truth or a quoted text; else the text itself."""
    with suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"value = {text}")["value"]
        if isinstance(value, str | int | float):
            return value
    return text


def _configure(ctl: Ctl, key: str, value: str | int | float | bool | None) -> None:
    settings = ctl.call(DaemonConfigure(key, value))
    if ctl.json:
        print_json(settings)
        return
    now = next((setting for setting in settings.settings if setting.key == key), None)
    if now is None:
        return
    echo(f"{key} = {_text(now.value)} ({now.origin})")
    for ignored in settings.ignored:
        if ignored.key == key:
            _warn_ignored(ignored)
    if now.origin in ("environment", "flag"):
        echo(f"The {now.origin} overrides the file, so this holds once it no longer does.", err=True)


def _text(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
