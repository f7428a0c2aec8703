"""`clankers-ctl config`."""

import json
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.output import Column, echo, note, one_line, print_json, print_table, secho
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import DaemonConfig, DaemonConfigure, IgnoredSetting
from clankers_protocol.paths import default_paths

COLUMNS = [
    Column("Key", style="cyan"),
    Column("Value", min_width=16),
    Column("From", optional=True),
    Column("Meaning", min_width=16, wrap=True, optional=True, style="dim"),
]


def _complete_keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a setting."""
    with suppress(Exception):  # completion must not print errors while someone types
        settings = ctx.ensure_object(Ctl).call(DaemonConfig(), timeout=1).settings
        return [setting.key for setting in settings if setting.key.startswith(incomplete)]
    return []


@click.group()
def config() -> None:
    """Show and change the settings of the daemon.

    \b
    Examples:
      clankers-ctl config show
      clankers-ctl config set log_level debug
      clankers-ctl config unset log_level
    """


@config.command()
@common_options
def show(ctl: Ctl) -> None:
    """Show the current settings and the origin of each. Without a running daemon, show the settings file.

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
        return
    rows = [
        [setting.key, _text(setting.value), setting.origin, one_line(setting.help)] for setting in settings.settings
    ]
    print_table(COLUMNS, rows)
    for ignored in settings.ignored:
        _warn_ignored(ignored)
    note(f"File: {settings.path}")


def _warn_ignored(ignored: IgnoredSetting) -> None:
    setting = f"{one_line(ignored.key)} from {one_line(ignored.source)}"
    secho(f"Ignored {setting}: {one_line(ignored.reason)}", fg="yellow", err=True)


def _show_file(ctl: Ctl, path: Path) -> None:
    """Print the settings in the file without checking them, which only the daemon can do."""
    try:
        values = dict(_flatten(tomllib.loads(path.read_text())))
    except FileNotFoundError:
        values = {}
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    echo("The daemon is not running. These are the settings in the file, unchecked.", err=True)
    if ctl.json:
        settings = [{"key": key, "value": value, "origin": "file"} for key, value in values.items()]
        print_json({"path": str(path), "checked": False, "settings": settings})
    elif values:
        print_table(COLUMNS[:2], [[one_line(key), _text(value)] for key, value in values.items()])
    else:
        echo(f"{path} contains no settings. Every setting has its default value.")


def _flatten(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@config.command(name="set")
@click.argument("key", shell_complete=_complete_keys)
@click.argument("value")
@common_options
def set_(ctl: Ctl, key: str, value: str) -> None:
    """Write a setting to the file and apply it. Numbers, true and false are parsed; quote them to store text.

    \b
    Examples:
      clankers-ctl config set log_level debug
      clankers-ctl config set log_level '"debug"'
    """
    _configure(ctl, key, parse_scalar(value))


@config.command()
@click.argument("key", shell_complete=_complete_keys)
@common_options
def unset(ctl: Ctl, key: str) -> None:
    """Remove a setting from the file, which restores its default value.

    \b
    Examples:
      clankers-ctl config unset log_level
    """
    _configure(ctl, key, None)


@config.command()
@common_options
def path(ctl: Ctl) -> None:
    """Print the path of the settings file.

    \b
    Examples:
      clankers-ctl config path
      $EDITOR "$(clankers-ctl config path)" && kill -HUP "$(pgrep clankersd)"
    """
    config_path = str(default_paths().config)
    with suppress(DaemonUnavailable, TimeoutError):
        config_path = ctl.call(DaemonConfig(), timeout=2).path  # the daemon may have been started with --config
    if ctl.json:
        print_json({"path": config_path})
    else:
        echo(config_path)


def parse_scalar(text: str) -> str | int | float | bool:
    """Parse a number, boolean or quoted string as TOML; return any other text unchanged."""
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
    setting = next((setting for setting in settings.settings if setting.key == key), None)
    if setting is None:
        return
    echo(f"{key} = {_text(setting.value)} ({setting.origin})")
    for ignored in settings.ignored:
        if ignored.key == key:
            _warn_ignored(ignored)
    if setting.origin in ("environment", "flag"):
        echo(f"The {setting.origin} overrides the file, so the new value in the file has no effect yet.", err=True)


def _text(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
