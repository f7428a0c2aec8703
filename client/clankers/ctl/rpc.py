"""`clankers-ctl rpc`: call any method of the daemon."""

import difflib
import sys
from typing import Any

import click
import msgspec

from clankers.ctl.command import Ctl, common_options, without_place
from clankers.ctl.output import print_json
from clankers_protocol.wire import Method, methods


def _complete_methods(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a method."""
    return [name for name in methods() if name.startswith(incomplete)]


@click.command()
@click.argument("method", shell_complete=_complete_methods)
@click.argument("params", metavar="[JSON]", default="{}")
@common_options
def rpc(ctl: Ctl, method: str, params: str) -> None:
    """Call any METHOD of the daemon with parameters in JSON.

    Prints the result as JSON. docs/rpc.md lists all methods. `-` reads the parameters from standard input.

    \b
    Examples:
      clankers-ctl rpc daemon.status
      clankers-ctl rpc session.list '{"limit": 3}'
      echo '{"query": "flaky test"}' | clankers-ctl rpc search -
    """
    print_json(ctl.call(_parse_request(ctl, method, sys.stdin.read() if params == "-" else params)))


def _parse_request(ctl: Ctl, method: str, params: str) -> Method[Any]:
    declared = methods().get(method)
    if declared is None:
        near = difflib.get_close_matches(method, methods(), n=5, cutoff=0.4)
        hint = f" Similar ones are {', '.join(near)}." if near else ""
        raise click.UsageError(f"There is no method {method}.{hint} docs/rpc.md lists all of them.")
    try:
        request: Method[Any] = msgspec.json.decode(params, type=declared)
    except msgspec.ValidationError as error:
        message = str(error) if ctl.json else without_place(str(error))
        raise click.UsageError(f"The parameters of {method} are wrong: {message}") from error
    except msgspec.DecodeError as error:
        raise click.UsageError(f"The parameters are not JSON: {error}") from error
    return request
