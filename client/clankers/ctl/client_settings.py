"""`clankers-ctl client-settings`: settings that plugins and programs store in the daemon."""

import click
import msgspec

from clankers.ctl.command import EXIT_FAILED, Ctl, common_options
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.output import Column, echo, one_line, print_json
from clankers_protocol.client_config import ConfigDelete, ConfigGet, ConfigList, ConfigSet

COLUMNS = [
    Column("Namespace", style="cyan"),
    Column("Key"),
    Column("Value", min_width=16),
    Column("Changed", optional=True),
]


@click.group("client-settings")
def client_settings() -> None:
    """Show and change the settings that plugins and programs keep in the daemon.

    The settings of the daemon itself are `clankers-ctl config`.

    \b
    Examples:
      clankers-ctl client-settings list
      clankers-ctl client-settings set my-plugin theme '"dark"'
    """


@client_settings.command("list")
@click.argument("namespace", required=False)
@click.option("--prefix", default="", help="Only keys that begin with this.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Show at most this many.")
@common_options
def list_settings(ctl: Ctl, namespace: str | None, prefix: str, limit: int) -> None:
    """List settings of all clients, or of one NAMESPACE.

    \b
    Examples:
      clankers-ctl client-settings list my-plugin
    """
    page = ctl.call(ConfigList(namespace=namespace, prefix=prefix, limit=limit))
    rows = []
    for entry in page.entries:
        value = one_line(msgspec.json.encode(entry.value).decode())
        rows.append([one_line(entry.namespace), one_line(entry.key), value, format_time(entry.updated_at)])
    ctl.report_page(page, "settings", COLUMNS, lambda: rows)


@client_settings.command()
@click.argument("namespace")
@click.argument("key")
@click.pass_context
@common_options
def get(ctl: Ctl, context: click.Context, namespace: str, key: str) -> None:
    """Print the value of a setting as JSON. Exits with 1 if it is not set.

    \b
    Examples:
      clankers-ctl client-settings get my-plugin theme
    """
    entry = ctl.call(ConfigGet(namespace, key))
    if entry is None:
        if ctl.json:
            print_json(None)
        echo(f"{key} is not set in {namespace}.", err=True)
        context.exit(EXIT_FAILED)
    print_json(entry if ctl.json else entry.value)


@client_settings.command("set")
@click.argument("namespace")
@click.argument("key")
@click.argument("value", metavar="JSON")
@common_options
def set_(ctl: Ctl, namespace: str, key: str, value: str) -> None:
    """Set a setting to a JSON value. Text that is not JSON is stored as a string.

    \b
    Examples:
      clankers-ctl client-settings set my-plugin theme dark
      clankers-ctl client-settings set my-plugin limits '{"results": 5}'
    """
    try:
        parsed = msgspec.json.decode(value)
    except msgspec.DecodeError:
        parsed = value
    entry = ctl.call(ConfigSet(namespace, key, parsed))
    ctl.report(entry, f"{one_line(entry.key)} is {one_line(msgspec.json.encode(entry.value).decode())}")


@client_settings.command()
@click.argument("namespace")
@click.argument("key")
@common_options
def delete(ctl: Ctl, namespace: str, key: str) -> None:
    """Delete a setting.

    \b
    Examples:
      clankers-ctl client-settings delete my-plugin theme
    """
    removed = ctl.call(ConfigDelete(namespace, key))
    ctl.report(removed, f"Deleted {plural(removed.deleted, 'setting')}.")
