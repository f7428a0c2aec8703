"""What all commands share: --socket and --json, the connection, and how each error ends the program."""

import atexit
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import click
import msgspec

from clankers.client import Client
from clankers.ctl.output import confirm, echo, print_json, secho
from clankers.messages import BadReply, DaemonUnavailable, Result
from clankers_protocol.errors import RpcError
from clankers_protocol.terminal import sanitize
from clankers_protocol.wire import Method

EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3
EXIT_PROBLEM = 4


class Page(Protocol):
    """A part of a long answer; with its cursor one asks for the next."""

    cursor: str | None


SomePage = TypeVar("SomePage", bound=Page)


@dataclass
class Ctl:
    """What the command line said to all commands, and the one connection they use."""

    socket: Path | None = None
    json: bool = False

    @cached_property
    def client(self) -> Client:
        client = Client(self.socket, name="clankers-ctl", timeout=30)
        atexit.register(client.close)
        return client

    def call(self, request: Method[Result], *, timeout: float | None = None) -> Result:
        """The daemon's answer."""
        return self.client.call(request, timeout=timeout)

    def pages(self, request: Method[SomePage]) -> Iterator[SomePage]:
        """The daemon's answer and all that follow it, fetched as they are read."""
        while True:
            page = self.call(request)
            yield page
            if page.cursor is None:
                return
            request = msgspec.structs.replace(request, cursor=page.cursor)


def _set_socket(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value:
        context.ensure_object(Ctl).socket = value


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.ensure_object(Ctl).json = value


socket_option = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    expose_value=False,
    is_eager=True,  # what completes other arguments asks the daemon
    callback=_set_socket,
    help="The daemon's socket, when it is not in its usual place.",
)

json_option = click.option(
    "--json", is_flag=True, expose_value=False, is_eager=True, callback=_set_json, help="Print JSON."
)


def normalize_project(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """A folder as sessions name it; anything else is taken for a project's id."""
    return str(Path(os.path.abspath(value))) if value and Path(value).is_dir() else value  # noqa: PTH100  # `..` goes, symlinks stay


project_option = click.option(
    "--project",
    metavar="FOLDER",
    callback=normalize_project,
    help="Only sessions in this folder (or project, by its id).",
)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --json and --socket, and hand it the `Ctl` they make."""
    passing = click.make_pass_decorator(Ctl, ensure=True)
    return json_option(socket_option(passing(command)))


def deletion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--dry-run and --yes of a command that deletes."""
    dry_run = click.option("--dry-run", is_flag=True, help="Say what would be deleted; delete nothing.")
    return dry_run(click.option("--yes", is_flag=True, help="Do not ask.")(command))


def confirm_and_delete(
    ctl: Ctl, what: str, planned: Result, deletion: Method[Result], *, dry_run: bool, yes: bool
) -> None:
    """Delete after asking, or on a dry run only tell what was `planned`."""
    if not dry_run and not yes:
        confirm(f"Delete {what}?", abort=True)
    deleted = planned if dry_run else ctl.call(deletion)
    if ctl.json:
        print_json(deleted)
    else:
        echo(f"{'Would delete' if dry_run else 'Deleted'} {what}.")


class Root(click.Group):
    """The program: what goes wrong in any command is said in a line on stderr, and told by the exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of their use, not of the alphabet

    def invoke(self, ctx: click.Context) -> Any:
        ctx.ensure_object(Ctl)  # so that commands write into this one, and it is known here what they were told
        try:
            return super().invoke(ctx)
        except DaemonUnavailable as error:
            fail(ctx, EXIT_NOT_RUNNING, str(error))
        except RpcError as error:
            fail(ctx, EXIT_FAILED, error.message, error.code, error.data)
        except (TimeoutError, BadReply) as error:
            fail(ctx, EXIT_FAILED, str(error))
        except click.UsageError as error:
            raise click.UsageError(sanitize(error.format_message()), error.ctx) from error
        except click.ClickException as error:
            fail(ctx, EXIT_FAILED, error.format_message())


def fail(ctx: click.Context, exit_code: int, message: str, code: int | None = None, data: Any = None) -> NoReturn:
    """End the program with an error."""
    if ctx.ensure_object(Ctl).json:
        print_json({"error": {"code": code, "message": message, "data": data}})
    secho(f"Error: {message}", err=True, fg="red")
    ctx.exit(exit_code)
