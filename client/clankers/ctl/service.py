"""`clankers-ctl service`: the daemon as a service of this user, under systemd or launchd."""

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
from clankers.ctl.edits import explain_os_errors
from clankers.ctl.output import echo, print_json
from clankers.ctl.service_managers import Command, Manager, platform_manager
from clankers_protocol.paths import default_paths
from clankers_protocol.safe_writes import write_file


def clankersd_path() -> Path:
    """The daemon's command: the one installed with this program, else the one in PATH."""
    beside = Path(sys.executable).with_name("clankersd")
    if beside.is_file():
        return beside
    if found := shutil.which("clankersd"):
        return Path(found).absolute()
    raise click.ClickException(f"There is no clankersd in {beside.parent} nor in PATH. Install clankers first.")


@dataclass
class Report:
    """What was done, and what is left to do."""

    manager: str
    files: list[dict[str, str]] = field(default_factory=list)
    ran: list[dict[str, Any]] = field(default_factory=list)
    left_to_run: list[str] = field(default_factory=list)
    problem: str | None = None

    def run(self, commands: list[Command]) -> None:
        """Run the commands up to the first that fails."""
        for command in commands:
            if self.problem:
                self.left_to_run.append(shlex.join(command))
                continue
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own
            self.ran.append({"command": shlex.join(command), "exitCode": done.returncode})
            if done.returncode:
                said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
                self.problem = f"{shlex.join(command)}: {said}"

    def leave(self, commands: list[Command]) -> None:
        """Say that the commands are left to run."""
        self.left_to_run += [shlex.join(command) for command in commands]

    def show(self, as_json: bool) -> None:
        """Print the report; exit 1 when there was a problem."""
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
        lines = [
            line
            for file in self.files
            for line in (f"{file['action']} {file['path']}", *file.get("text", "").splitlines())
        ]
        lines += [f"ran {step['command']}" for step in self.ran]
        if self.problem:
            lines.append(f"Problem: {self.problem}")
        if self.left_to_run:
            lines += ["Left to run:", *(f"  {command}" for command in self.left_to_run)]
        return "\n".join(lines)


@click.group()
def service() -> None:
    """Run the daemon as a service of this user (systemd or launchd).

    \b
    Examples:
      clankers-ctl service install
      clankers-ctl service status --json
    """


@service.command()
@click.option("--dry-run", is_flag=True, help="Show the files and commands; change nothing.")
@click.option("--no-start", is_flag=True, help="Install only; the service starts at the next login.")
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def install(ctl: Ctl, dry_run: bool, no_start: bool) -> None:
    """Install the service, or bring it up to date, and start it. Doing it again changes nothing.

    CLANKERS_…_PATH variables that are set now are written into the service.

    \b
    Examples:
      clankers-ctl service install
      clankers-ctl service install --dry-run
      CLANKERS_DATA_PATH=/data clankers-ctl service install --no-start
    """
    here = platform_manager()
    report = Report(here.name)
    texts = here.files(clankersd_path())
    changed = [path for path, text in texts.items() if _content(path) != text]
    for path, text in texts.items():
        _write(report, path, text, path in changed, dry_run)
    if not dry_run:
        for folder in here.folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    commands = here.installing(bool(changed), not no_start)
    if dry_run or not here.reachable():
        report.leave(commands)
    elif not no_start and (stray := _stray(here)):
        report.problem = f"a daemon outside the service already runs (process {stray}): stop it first"
        report.leave([["kill", stray], *commands])
    else:
        report.run(commands)
    report.show(ctl.json)


@service.command()
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def uninstall(ctl: Ctl, dry_run: bool) -> None:
    """Stop the service and remove its files. The database stays.

    \b
    Examples:
      clankers-ctl service uninstall
      clankers-ctl service uninstall --dry-run
    """
    here = platform_manager()
    report = Report(here.name)
    present = [place for place in here.places if _content(place) is not None]
    talk = bool(present) and not dry_run and here.reachable()
    if talk:
        report.run(here.uninstalling())
    for place in [*here.places, *(left for left in here.leftovers if left.exists())]:
        _remove(report, place, dry_run)
    if not dry_run:
        for folder in here.folders:
            _remove_empty(folder)
    if talk:
        report.run(here.forgetting())
    report.show(ctl.json)


@service.command()
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def status(ctl: Ctl) -> None:
    """Show whether the service is installed, up to date and running. Exits 3 when it is not installed.

    \b
    Examples:
      clankers-ctl service status
      clankers-ctl service status --json | jq .state
    """
    here = platform_manager()
    files = unit_file_states(here)
    installed = all(file["is"] != "missing" for file in files)
    state = here.state() if here.reachable() else {}
    if ctl.json:
        print_json({"manager": here.name, "installed": installed, "files": files, "state": state})
    else:
        for file in files:
            echo(f"{file['is']} {file['path']}")
        for key, value in state.items():
            echo(f"{key}: {value}")
        if not state:
            echo(f"{here.name} cannot be asked here." if installed else "Not installed.")
    sys.exit(0 if installed else 3)


def _write(report: Report, path: Path, text: bytes, changed: bool, dry_run: bool) -> None:
    if not changed:
        report.files.append({"path": str(path), "action": "unchanged"})
    elif dry_run:
        report.files.append({"path": str(path), "action": "would write", "text": text.decode()})
    else:
        with explain_os_errors():
            write_file(path, text)
        report.files.append({"path": str(path), "action": "wrote"})


def _remove(report: Report, path: Path, dry_run: bool) -> None:
    present = _content(path) is not None
    if dry_run:
        report.files.append({"path": str(path), "action": "would remove" if present else "absent"})
        return
    # `systemctl disable` removes these, but there may be no manager to ask.
    for folder in path.parent.glob("*.wants"):
        (folder / path.name).unlink(missing_ok=True)
        _remove_empty(folder)
    path.unlink(missing_ok=True)
    _remove_empty(path.parent)
    report.files.append({"path": str(path), "action": "removed" if present else "absent"})


def _remove_empty(folder: Path) -> None:
    """Remove the folder and those above it, up to the first that holds anything."""
    with suppress(OSError):
        while folder != Path.home():
            folder.rmdir()
            folder = folder.parent


def unit_file_states(here: Manager) -> list[dict[str, str]]:
    """Which files the service has, and whether each is current, outdated or missing."""
    texts = here.files(clankersd_path())
    return [{"path": str(path), "is": _compared(path, text)} for path, text in texts.items()]


def _compared(path: Path, text: bytes) -> str:
    found = _content(path)
    return "missing" if found is None else "current" if found == text else "outdated"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _stray(here: Manager) -> str | None:
    """The process that listens on the socket though the manager does not keep it."""
    if here.listens():
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(default_paths().socket))
        except OSError:
            return None
        return _peer(probe)


def _peer(connection: socket.socket) -> str:
    if sys.platform == "darwin":
        local_peerpid = 2  # LOCAL_PEERPID at level SOL_LOCAL (0); Python has no names for them
        return str(connection.getsockopt(0, local_peerpid))
    return str(int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder))
