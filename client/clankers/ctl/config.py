"""`clankers-ctl config`."""

import json
import subprocess
import sys
import tomllib
from contextlib import suppress
from typing import Any

import click
import msgspec

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.output import Column, echo, note, one_line, print_json, print_table, secho
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import DaemonConfig, DaemonConfigure, IgnoredSetting, Settings
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
        settings = ctx.ensure_object(Ctl).call(DaemonConfig(), timeout=1, start=False).settings
        return [setting.key for setting in settings if setting.key.startswith(incomplete)]
    return []


@click.group()
def config() -> None:
    """Show and change the settings of the daemon.

    \b
    Examples:
      clankers-ctl config show
      clankers-ctl config get log_level
      clankers-ctl config set log_level debug
      clankers-ctl config unset log_level
    """


@config.command()
@common_options
def show(ctl: Ctl) -> None:
    """Show the current settings and the origin of each. Without a running daemon, those that it would start with.

    \b
    Examples:
      clankers-ctl config show
      clankers-ctl config show --json | jq '.settings[] | select(.origin != "default")'
    """
    settings = read_settings(ctl)
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


def read_settings(ctl: Ctl) -> Settings:
    """Return the settings of the running daemon, or those that it would start with."""
    try:
        return ctl.call(DaemonConfig(), start=False)
    except DaemonUnavailable as error:
        if not error.is_absent:
            raise
        return _run_clankersd(ctl, "--show-config")


def _run_clankersd(ctl: Ctl, *options: str) -> Settings:
    """Have clankersd itself read or change the settings: only it can check them."""
    from clankers.ctl.service import clankersd_path  # rarely needed

    command = [str(clankersd_path()), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own program
    if done.returncode:
        raise click.ClickException(done.stderr.strip().removeprefix("clankersd: "))
    if sys.stderr.isatty() and not ctl.json:
        echo("The daemon is not running. It will start with these settings.", err=True)
    return msgspec.json.decode(done.stdout, type=Settings)


@config.command()
@click.argument("key", shell_complete=_complete_keys)
@common_options
def get(ctl: Ctl, key: str) -> None:
    """Print the value of one setting. Lists and numbers are printed as JSON.

    \b
    Examples:
      clankers-ctl config get log_level
      clankers-ctl config get watch_roots --json | jq .value
    """
    settings = read_settings(ctl).settings
    setting = next((setting for setting in settings if setting.key == key), None)
    if setting is None:
        import difflib  # only needed for a mistake

        near = difflib.get_close_matches(key, [each.key for each in settings], 3, 0.5)
        advice = f"did you mean {' or '.join(near)}?" if near else "`clankers-ctl config show` lists them."
        raise click.ClickException(f"There is no setting {key!r}; {advice}")
    ctl.report(setting, _text(setting.value))


@config.command(name="set")
@click.argument("key", shell_complete=_complete_keys)
@click.argument("value")
@common_options
def set_(ctl: Ctl, key: str, value: str) -> None:
    """Write a setting to the file and apply it. Numbers, true and false are parsed; quote them to store text.

    A list is written with commas or as a TOML array. Without a running daemon, the setting is checked and written, and
    applies when it starts. Settings of the index take effect in the background: `clankers-ctl jobs` shows the progress.

    \b
    Examples:
      clankers-ctl config set log_level debug
      clankers-ctl config set index_sources files,sessions,tools
      clankers-ctl config set watch_roots '["~/src/shop", "~/notes"]'
    """
    _configure(ctl, key, parse_value(value))


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
      $EDITOR "$(clankers-ctl config path)" && clankers-ctl daemon restart
    """
    config_path = str(default_paths().config)
    with suppress(DaemonUnavailable, TimeoutError):
        config_path = ctl.call(
            DaemonConfig(), timeout=2, start=False
        ).path  # the daemon may have been started with --config
    ctl.report({"path": config_path}, config_path)


def parse_value(text: str) -> str | int | float | bool | list[str]:
    """Parse a number, boolean, quoted string or list of strings as TOML; return any other text unchanged."""
    with suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"value = {text}")["value"]
        if isinstance(value, str | int | float):
            return value
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return text


def _configure(ctl: Ctl, key: str, value: str | int | float | bool | list[str] | None) -> None:
    try:
        settings = ctl.call(DaemonConfigure(key, value), start=False)
    except DaemonUnavailable as error:
        if not error.is_absent:
            raise
        settings = _run_clankersd(ctl, "--set-config", key, json.dumps(value))
    if ctl.json:
        print_json(settings)
        return
    setting = next((setting for setting in settings.settings if setting.key == key), None)
    if setting is None:
        return
    echo(f"{key} = {_text(setting.value)} ({setting.origin})")
    for ignored in (one for one in settings.ignored if one.key == key):
        _warn_ignored(ignored)
    if setting.origin in ("environment", "flag"):
        echo(f"The {setting.origin} overrides the file, so the new value in the file has no effect yet.", err=True)
    for hint in settings.notes:
        echo(one_line(hint), err=True)


def _text(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
