"""Shared by all commands: --socket and --json, the connection to the daemon, error reporting and exit codes."""

import atexit
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import click
import msgspec
from click.exceptions import NoArgsIsHelpError

from clankers.client import Client
from clankers.ctl.lazy import LazyGroup
from clankers.ctl.output import Column, confirm, echo, print_json, print_table, secho
from clankers.ctl.text import Text
from clankers.messages import BadReply, DaemonUnavailable, Result
from clankers_protocol.admin import StatusReport
from clankers_protocol.errors import RpcError
from clankers_protocol.paths import Paths
from clankers_protocol.projects import ProjectShow
from clankers_protocol.terminal import sanitize
from clankers_protocol.wire import Method

EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3
EXIT_PROBLEM = 4


_PLACE = re.compile(r" - at `\$[^`]*?(?:\.(?P<field>\w+))?(?:\[[^\]]*\])*`")
"""Place of an error in the request, as the daemon reports it: "- at `$.id`"."""


class Page(Protocol):
    """One page of a long answer; its cursor requests the next page."""

    cursor: str | None


PageT = TypeVar("PageT", bound=Page)
ResultT = TypeVar("ResultT")
Rows = Callable[[], Sequence[Sequence[str | Text]]]


@dataclass
class Ctl:
    """Options shared by all commands, and the connection to the daemon."""

    socket: Path | None = None
    json: bool = False
    may_start: bool = field(default_factory=lambda: "_CLANKERS_CTL_COMPLETE" not in os.environ)
    """True if a command that finds no daemon may start one: once, and not while the shell completes a word."""

    @cached_property
    def client(self) -> Client:
        client = Client(self.socket, name="clankers-ctl", timeout=30)
        atexit.register(client.close)
        return client

    def call(self, request: Method[Result], *, timeout: float | None = None, start: bool = True) -> Result:
        """Send a request to the daemon and return its answer. If no daemon runs, start it first, as hooks do."""
        try:
            return self.client.call(request, timeout=timeout)
        except DaemonUnavailable as error:
            if not (start and self.may_start and error.is_absent):
                raise
            self.may_start = False
            from clankers.ctl.daemon import start_for_command  # rarely needed

            start_for_command(self, error)
        return self.client.call(request, timeout=timeout)

    def report(self, result: ResultT, shown: str | Callable[[ResultT], None]) -> None:
        """Print the result of a command: as JSON if that was asked for, else as this text or by this function."""
        if self.json:
            print_json(result)
        elif isinstance(shown, str):
            echo(shown)
        else:
            shown(result)

    def report_page(
        self, page: Page, noun: str, columns: Sequence[Column], rows: Rows, more: str = "--limit N"
    ) -> None:
        """Print a page of a list: as JSON if that was asked for, else as a table; `more` shows the rest of the list."""
        if self.json:
            print_json(page)
        elif table := rows():
            print_table(columns, table)
            if page.cursor:
                echo(f"There are more {noun}. Use {more} to see them.", err=True)
        else:
            echo(f"No {noun}.", err=True)

    def pages(self, request: Method[PageT]) -> Iterator[PageT]:
        """Yield every page of an answer; each page is fetched when it is needed."""
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
    is_eager=True,  # shell completion of other arguments connects to the daemon
    callback=_set_socket,
    help="Connect to the daemon at this socket instead of the default one.",
)

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")

json_option = click.option(
    "--json", is_flag=True, expose_value=False, is_eager=True, callback=_set_json, help="Print the result as JSON."
)


def normalize_project(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Turn a folder into an absolute path, and anything else into the id of the project that it means.

    Raises NotFound, which lists similar names, if there is no such folder and no such project.
    """
    if not value:
        return value
    path = os.path.abspath(os.path.expanduser(value))  # noqa: PTH100, PTH111  # resolves `..` but not symlinks, unlike Path.resolve
    if Path(path).is_dir():
        return path
    is_path = value.startswith(("/", "~", "./", "../"))
    return ctx.ensure_object(Ctl).call(ProjectShow(path if is_path else value)).id


def project_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: A002  # as click has it
    """Make the option --project; `help` says what it does in its command."""
    full_help = f"{help}: a folder, or its name or id."
    return click.option("--project", metavar="PROJECT", callback=normalize_project, help=full_help)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json and --socket to a command, and pass it the `Ctl` they set up."""
    pass_ctl = click.make_pass_decorator(Ctl, ensure=True)
    return json_option(socket_option(pass_ctl(command)))


def deletion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --dry-run and --yes to a command that deletes."""
    dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
    return dry_run_option(yes_option(command))


def confirm_and_delete(
    ctl: Ctl, what: str, planned: Result, deletion: Method[Result], *, dry_run: bool, yes: bool
) -> None:
    """Delete after confirmation. On a dry run, only report what was `planned`."""
    if not dry_run and not yes:
        confirm(f"Delete {what}?", abort=True)
    deleted = planned if dry_run else ctl.call(deletion)
    ctl.report(deleted, f"{'Would delete' if dry_run else 'Deleted'} {what}.")


def daemon_paths(status: StatusReport) -> Paths:
    """Return the paths that a running daemon uses; it may have been started with others than the defaults."""
    paths = (status.data_path, status.db_path, status.socket_path, status.log_path, status.config_path)
    return Paths(*map(Path, paths))


class Root(LazyGroup):
    """The top-level command: reports any error as one line on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.ensure_object(Ctl)  # commands share this object, so `fail` sees whether --json was given
        try:
            return super().invoke(ctx)
        except DaemonUnavailable as error:
            fail(ctx, EXIT_NOT_RUNNING, str(error))
        except RpcError as error:
            fail(ctx, EXIT_FAILED, error.message, error.code, error.data)
        except (TimeoutError, BadReply) as error:
            fail(ctx, EXIT_FAILED, str(error))
        except NoArgsIsHelpError:
            raise  # its message is the help of a group of commands
        except click.UsageError as error:
            message = sanitize(error.format_message())
            print_json_error(ctx, message)
            raise click.UsageError(message, error.ctx) from error
        except click.ClickException as error:
            fail(ctx, EXIT_FAILED, error.format_message())


def without_place(message: str) -> str:
    """Remove the place in the JSON of a request from an error; a field that the error does not name follows it."""
    found = _PLACE.search(message)
    if found is None:
        return message
    rest = message[: found.start()] + message[found.end() :]
    field = re.sub(r"(?<=[a-z])([A-Z])", r" \1", found["field"] or "").lower()
    if not field or field == "id" or re.search(rf"\b{re.escape(field)}\b", rest, re.IGNORECASE):
        return rest
    return f"{rest} ({field})" if found.end() == len(message) else rest


def print_json_error(ctx: click.Context, message: str, code: int | None = None, data: Any = None) -> None:
    """Print an error on standard output if JSON was asked for."""
    if ctx.ensure_object(Ctl).json:
        print_json({"error": {"code": code, "message": message, "data": data}})


def fail(ctx: click.Context, exit_code: int, message: str, code: int | None = None, data: Any = None) -> NoReturn:
    """Report an error and exit with `exit_code`."""
    print_json_error(ctx, message, code, data)
    secho(f"Error: {without_place(message)}", err=True, fg="red")
    ctx.exit(exit_code)
