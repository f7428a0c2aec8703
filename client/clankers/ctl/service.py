"""`clankers-ctl service`: run the daemon as a user service of systemd or launchd."""

import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from clankers.ctl.command import Ctl, json_option
from clankers.ctl.edits import FileChange, FileState, explain_os_errors, file_state, read_if_exists
from clankers.ctl.output import echo, print_json
from clankers.ctl.service_managers import Command, Manager, platform_manager
from clankers_protocol.paths import default_paths
from clankers_protocol.safe_writes import write_file

EXIT_NOT_INSTALLED = 3


def clankersd_path() -> Path:
    """Return the path of clankersd: the one installed with this program, otherwise the one in PATH."""
    beside = Path(sys.executable).with_name("clankersd")
    if beside.is_file():
        return beside
    if found := shutil.which("clankersd"):
        return Path(found).absolute()
    raise click.ClickException(f"There is no clankersd in {beside.parent} or in PATH. Install clankers first.")


@dataclass
class Report:
    """Files changed, commands run, and commands left to run."""

    manager: str
    files: list[FileChange] = field(default_factory=list)
    ran: list[dict[str, Any]] = field(default_factory=list)
    left_to_run: list[str] = field(default_factory=list)
    problem: str | None = None

    def run(self, commands: list[Command]) -> None:
        """Run the commands in order; after one fails, the rest is left to run."""
        for command in commands:
            if self.problem:
                self.left_to_run.append(shlex.join(command))
                continue
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
            self.ran.append({"command": shlex.join(command), "exitCode": done.returncode})
            if done.returncode:
                output = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
                self.problem = f"{shlex.join(command)}: {output}"

    def leave_to_run(self, commands: list[Command]) -> None:
        """Report the commands as left to run."""
        self.left_to_run += [shlex.join(command) for command in commands]

    def show(self, as_json: bool) -> None:
        """Print the report; exit with 1 if there was a problem."""
        if as_json:
            print_json(self._facts())
        else:
            echo(self._text())
        if self.problem:
            sys.exit(1)

    def _facts(self) -> dict[str, Any]:
        return {
            "ok": self.problem is None,
            "manager": self.manager,
            "files": self.files,
            "ran": self.ran,
            "leftToRun": self.left_to_run,
            "problem": self.problem,
        }

    def _text(self) -> str:
        lines: list[str] = []
        for file in self.files:
            lines.append(f"{file.action} {file.path}")
            lines += (file.text or "").splitlines()
        lines += [f"ran {step['command']}" for step in self.ran]
        if self.problem:
            lines.append(f"Problem: {self.problem}")
        if self.left_to_run:
            lines += ["Left to run:", *(f"  {command}" for command in self.left_to_run)]
        return "\n".join(lines)


@click.group()
def service() -> None:
    """Run the daemon as a user service of systemd or launchd.

    \b
    Examples:
      clankers-ctl service install
      clankers-ctl service status --json
    """


@service.command()
@click.option("--dry-run", is_flag=True, help="Show the files and commands that would be used; change nothing.")
@click.option("--no-start", is_flag=True, help="Do not start the service now; it starts at the next login.")
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def install(ctl: Ctl, dry_run: bool, no_start: bool) -> None:
    """Install or update the service, and start it. Running this again changes nothing.

    CLANKERS_…_PATH environment variables that are set now are written into the service.

    \b
    Examples:
      clankers-ctl service install
      clankers-ctl service install --dry-run
      CLANKERS_DATA_PATH=/data clankers-ctl service install --no-start
    """
    install_service(dry_run=dry_run, start=not no_start).show(ctl.json)


def install_service(*, dry_run: bool, start: bool) -> Report:
    """Write the files of the service and run the commands that load it; raises if there is no service manager."""
    manager = platform_manager()
    if not dry_run and not manager.is_usable():
        raise click.ClickException(no_manager(manager))
    report = Report(manager.name)
    texts = manager.files(clankersd_path())
    changed = [path for path, text in texts.items() if read_if_exists(path) != text]
    for path, text in texts.items():
        _write(report, path, text, path in changed, dry_run)
    if not dry_run:
        for folder in manager.required_folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    commands = manager.install_commands(bool(changed), start)
    if dry_run or not manager.is_reachable():
        report.leave_to_run(commands)
    elif start and (stray := _stray_daemon(manager)):
        report.problem = f"a daemon outside the service is already running (process {stray}): stop it first"
        report.leave_to_run([["kill", stray], *commands])
    else:
        report.run(commands)
    return report


def no_manager(manager: Manager) -> str:
    """Explain that there is no service manager, and what to do instead."""
    return (
        f"{manager.name} does not run services for you here, so nothing was installed. You do not need a service: "
        "hooks and clankers-ctl start the daemon when they need it. To start it now, run `clankers-ctl daemon start`. "
        "To use another supervisor, have it run `clankersd`."
    )


@service.command()
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def uninstall(ctl: Ctl, dry_run: bool) -> None:
    """Stop the service and remove its files. The database is not touched.

    \b
    Examples:
      clankers-ctl service uninstall
      clankers-ctl service uninstall --dry-run
    """
    manager = platform_manager()
    report = Report(manager.name)
    is_installed = any(read_if_exists(path) is not None for path in manager.paths)
    run_commands = is_installed and not dry_run and manager.is_reachable()
    if run_commands:
        report.run(manager.uninstall_commands())
    for path in [*manager.paths, *(leftover for leftover in manager.leftovers if leftover.exists())]:
        _remove(report, path, dry_run)
    if not dry_run:
        for folder in manager.required_folders:
            _remove_empty(folder)
    if run_commands:
        report.run(manager.cleanup_commands())
    report.show(ctl.json)


@service.command()
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def status(ctl: Ctl) -> None:
    """Show whether the service is installed, up to date and running. Exits with 3 if it is not installed.

    \b
    Examples:
      clankers-ctl service status
      clankers-ctl service status --json | jq .state
    """
    manager = platform_manager()
    files = unit_file_states(manager)
    installed = all(file.state != "missing" for file in files)
    state = manager.state() if manager.is_reachable() else {}
    if ctl.json:
        print_json({"manager": manager.name, "installed": installed, "files": files, "state": state})
    else:
        for file in files:
            echo(f"{file.state} {file.path}")
        for key, value in state.items():
            echo(f"{key}: {value}")
        if not state:
            available = manager.is_usable()
            missing = f"{manager.name} is not available here; hooks and clankers-ctl start the daemon."
            echo("Not installed." if available else missing)
    sys.exit(0 if installed else EXIT_NOT_INSTALLED)


def _write(report: Report, path: Path, text: bytes, changed: bool, dry_run: bool) -> None:
    if not changed:
        report.files.append(FileChange("unchanged", str(path)))
    elif dry_run:
        report.files.append(FileChange("would write", str(path), text=text.decode()))
    else:
        with explain_os_errors():
            write_file(path, text)
        report.files.append(FileChange("wrote", str(path)))


def _remove(report: Report, path: Path, dry_run: bool) -> None:
    present = read_if_exists(path) is not None
    if dry_run:
        report.files.append(FileChange("would remove" if present else "absent", str(path)))
        return
    # `systemctl disable` removes these links, but systemd may not be reachable.
    for folder in path.parent.glob("*.wants"):
        (folder / path.name).unlink(missing_ok=True)
        _remove_empty(folder)
    path.unlink(missing_ok=True)
    _remove_empty(path.parent)
    report.files.append(FileChange("removed" if present else "absent", str(path)))


def _remove_empty(folder: Path) -> None:
    """Remove the folder and its parents, up to the first one that is not empty."""
    with suppress(OSError):
        while folder != Path.home():
            folder.rmdir()
            folder = folder.parent


def unit_file_states(manager: Manager) -> list[FileState]:
    """Return the files of the service, each with its state: current, outdated or missing."""
    return [file_state(path, text) for path, text in manager.files(clankersd_path()).items()]


def _stray_daemon(manager: Manager) -> str | None:
    """Return the process id of a daemon that runs outside the service."""
    if manager.owns_socket():
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(default_paths().socket))
        except OSError:
            return None
        return peer_pid(probe)


def peer_pid(connection: socket.socket) -> str:
    """Return the process id of the other end of a connection."""
    if sys.platform == "darwin":
        local_peerpid = 2  # LOCAL_PEERPID at level SOL_LOCAL (0); Python has no names for them
        return str(connection.getsockopt(0, local_peerpid))
    return str(int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder))
