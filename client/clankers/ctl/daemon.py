"""`clankers-ctl daemon`: start, stop and restart the daemon, as a service where one is installed."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import click

from clankers.autostart import STARTED_RECENTLY, forget_start, is_managed_service, start_daemon
from clankers.client import Client
from clankers.ctl.command import EXIT_NOT_RUNNING, Ctl, common_options
from clankers.ctl.formatting import format_duration
from clankers.ctl.output import echo, print_json
from clankers.hook import ForeignSocket, refuse_foreign_socket
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import DaemonStatus, Health, StatusReport
from clankers_protocol.paths import default_paths
from clankers_protocol.wire import Wire

START_SECONDS = 30.0
RECENT_START_SECONDS = 5.0
"""Time to wait for a daemon that somebody else has just started; it may also have failed already."""

STOP_SECONDS = 30.0
POLL_SECONDS = 0.05


class DaemonState(Wire):
    """State of the daemon's process."""

    running: bool
    socket_path: str
    service: bool
    pid: int | None = None
    version: str | None = None
    uptime_seconds: float | None = None


@click.group()
def daemon() -> None:
    """Start, stop and restart the daemon.

    If a service of systemd or launchd is installed, it is used. Otherwise the daemon is started as hooks start it: in
    the background, with the settings file but without CLANKERS_… variables other than paths (docs/security.md).

    \b
    Examples:
      clankers-ctl daemon start
      clankers-ctl daemon status
    """


@daemon.command()
@common_options
def start(ctl: Ctl) -> None:
    """Start the daemon and wait until it answers. Does nothing if it is running.

    \b
    Examples:
      clankers-ctl daemon start
    """
    was_running = find_daemon(ctl) is not None
    if not was_running:
        start_and_wait(ctl)
    _print_state(ctl, _state(ctl), "is already running" if was_running else "started")


@daemon.command()
@common_options
def stop(ctl: Ctl) -> None:
    """Stop the daemon and wait until it has ended. Requests in progress are finished first.

    The next hook or command starts it again, unless `hook_autostart` is false.

    \b
    Examples:
      clankers-ctl daemon stop
      clankers-ctl config set hook_autostart false && clankers-ctl daemon stop
    """
    pid = _stop(ctl)
    if ctl.json:
        print_json({"stopped": pid is not None, "pid": pid})
    elif pid is None:
        echo("clankersd is not running.")
    else:
        echo(f"clankersd stopped (process {pid}).")


@daemon.command()
@common_options
def restart(ctl: Ctl) -> None:
    """Stop the daemon if it is running, and start it. If the settings file has an error, nothing is stopped.

    \b
    Examples:
      clankers-ctl daemon restart
    """
    from clankers.ctl.service import clankersd_path  # slow to load

    command = [str(clankersd_path()), "--show-config"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own program
    if checked.returncode:
        raise click.ClickException(f"Not restarted: {checked.stderr.strip().removeprefix('clankersd: ')}")
    _stop(ctl)
    start_and_wait(ctl)
    _print_state(ctl, _state(ctl), "restarted")


@daemon.command()
@common_options
def status(ctl: Ctl) -> None:
    """Show whether the daemon is running. Exits with 3 if it is not.

    \b
    Examples:
      clankers-ctl daemon status
      clankers-ctl daemon status --json | jq .pid
    """
    state = _state(ctl)
    _print_state(ctl, state, "is running" if state.running else "is not running")
    sys.exit(0 if state.running else EXIT_NOT_RUNNING)


def start_for_command(ctl: Ctl, error: DaemonUnavailable) -> None:
    """Start the daemon for a command that found none; raises `error`, or one that says more, if it does not answer.

    A daemon is started only at the default socket, and never in the place of another user's.
    """
    path = default_paths().socket
    if ctl.socket is not None and ctl.socket.absolute() != path:
        raise error
    if path.is_symlink() or (path.exists() and path.lstat().st_uid != os.geteuid()):
        raise error
    started = start_daemon()
    if isinstance(started, str) and started != STARTED_RECENTLY:
        raise error
    if started == STARTED_RECENTLY and path.exists():
        # It was killed since: a daemon that fails to start leaves no socket. If somebody else was faster, ours ends.
        start_daemon(forced=True)
    _wait_until_it_answers(path, started)
    if sys.stderr.isatty():
        echo("The daemon was not running and has been started.", err=True)


def start_and_wait(ctl: Ctl) -> None:
    """Start the daemon, by its service if one is installed, and wait until it answers."""
    path = default_paths().socket
    if ctl.socket is not None and ctl.socket.absolute() != path:
        raise click.ClickException(f"Only the daemon at {path} can be started. To use another path, run clankersd.")
    if is_managed_service():
        from clankers.ctl.service_managers import platform_manager  # rarely needed

        _run_commands(platform_manager().start_commands())
        _wait_until_it_answers(path, None)
        return
    started = start_daemon(forced=True)
    if isinstance(started, str) and started != STARTED_RECENTLY:
        raise click.ClickException(f"The daemon cannot be started: {started}.")
    _wait_until_it_answers(path, started)


def _stop(ctl: Ctl) -> int | None:
    """Stop the daemon; return the process id that it had, or None if there was none."""
    pid = find_daemon(ctl)
    if is_managed_service() and ctl.socket is None:
        from clankers.ctl.service_managers import platform_manager  # rarely needed

        _run_commands(platform_manager().stop_commands())
    elif pid is not None:
        os.kill(pid, signal.SIGTERM)
    if pid is None:
        return None
    deadline = time.monotonic() + STOP_SECONDS
    while _is_alive(pid):
        if time.monotonic() > deadline:
            raise click.ClickException(f"Process {pid} did not end within {STOP_SECONDS:g} s: clankers-ctl logs")
        time.sleep(POLL_SECONDS)
    forget_start()
    return pid


def _run_commands(commands: list[list[str]]) -> None:
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
        if done.returncode:
            output = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
            raise click.ClickException(f"{' '.join(command)}: {output}")


def find_daemon(ctl: Ctl) -> int | None:
    """Return the process id of the daemon that listens on the socket; None if nobody does."""
    from clankers.ctl.service import peer_pid  # rarely needed

    path = str(ctl.socket or default_paths().socket)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
            refuse_foreign_socket(probe, path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except (ForeignSocket, OSError) as error:
            raise DaemonUnavailable.at(path, str(error)) from error
        return int(peer_pid(probe))


def _is_alive(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # in case it is our own child
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):  # there is no /proc on macOS
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()  # an ended process that its parent ignores
    return True


def _wait_until_it_answers(path: Path, child: int | str | None) -> None:
    """Wait until the daemon has answered a request; raises if its process ends, or if it takes too long."""
    deadline = time.monotonic() + (START_SECONDS if child != STARTED_RECENTLY else RECENT_START_SECONDS)
    log = default_paths().logs / "hook.log"
    while True:
        try:
            with Client(path, timeout=START_SECONDS) as client:
                client.call(Health())
        except (DaemonUnavailable, TimeoutError) as error:
            if isinstance(child, int) and os.waitpid(child, os.WNOHANG) != (0, 0):
                raise DaemonUnavailable(f"The daemon ended while it started: {_last_line(log)} (see {log})") from error
            if time.monotonic() > deadline:
                reason = f"The daemon was started, but does not answer: {_last_line(log)} (see {log})"
                raise DaemonUnavailable(reason) from error
            time.sleep(POLL_SECONDS)
        else:
            return


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("clankersd: ") if lines else "it gave no reason"


def _state(ctl: Ctl) -> DaemonState:
    path, service = str(ctl.socket or default_paths().socket), is_managed_service()
    pid = find_daemon(ctl)
    if pid is None:
        return DaemonState(False, path, service)
    report: StatusReport = ctl.call(DaemonStatus(), start=False)
    return DaemonState(True, path, service, report.pid, report.version, report.uptime_seconds)


def _print_state(ctl: Ctl, state: DaemonState, what: str) -> None:
    if ctl.json:
        print_json(state)
        return
    details = ""
    if state.running and state.uptime_seconds is not None:
        details = f": version {state.version}, process {state.pid}, up {format_duration(state.uptime_seconds)}"
    manager = " as a service" if state.service and state.running else ""
    echo(f"clankersd {what}{manager}{details}.")
