"""What keeps the daemon running on each platform: the user manager of systemd, the user's domain of launchd."""

import os
import plistlib
import shutil
import subprocess
import sys
from importlib.resources import files as package_files
from pathlib import Path
from typing import Protocol

from clankers_protocol.paths import default_paths

LABEL = "dev.clankers.clankersd"
UNITS = ("clankersd.socket", "clankersd.service")

PATH_VARIABLES = (
    "CLANKERS_DATA_PATH",
    "CLANKERS_DB_PATH",
    "CLANKERS_SOCKET_PATH",
    "CLANKERS_LOG_PATH",
    "CLANKERS_CONFIG_PATH",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
)
"""Variables that move the daemon's files: a service does not see this shell's, so it is told."""

Command = list[str]


class Manager(Protocol):
    """What keeps the daemon running on this platform."""

    name: str
    places: list[Path]
    folders: list[Path]
    """What must be there before it can start."""
    leftovers: list[Path]
    """What it leaves behind."""

    def files(self, clankersd: Path) -> dict[Path, bytes]:
        """The text of each of `places`."""
        ...

    def reachable(self) -> bool:
        """Whether there is a manager here to talk to."""
        ...

    def installing(self, changed: bool, start: bool) -> list[Command]:
        """What to run once the files are there."""
        ...

    def uninstalling(self) -> list[Command]:
        """What to run before the files go."""
        ...

    def forgetting(self) -> list[Command]:
        """What to run once the files are gone."""
        ...

    def state(self) -> dict[str, str]:
        """What the manager says of the service; empty when it knows none."""
        ...

    def listens(self) -> bool:
        """Whether the manager itself holds the socket."""
        ...


class Systemd:
    """The user manager of systemd."""

    name = "systemd"

    def __init__(self) -> None:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self.folder = config / "systemd" / "user"
        self.places = [self.folder / unit for unit in UNITS]
        self.folders: list[Path] = []
        self.leftovers: list[Path] = []

    def files(self, clankersd: Path) -> dict[Path, bytes]:
        environment = "\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in _carried().items())
        filled = {
            "@CLANKERSD@": _quoted(str(clankersd)),
            "@ENVIRONMENT@\n": f"{environment}\n" if environment else "",
            "@SOCKET@": str(default_paths().socket).replace("%", "%%"),
        }
        return {place: _filled(_template("systemd", place.name), filled) for place in self.places}

    def reachable(self) -> bool:
        return _succeeds(["systemctl", "--user", "show-environment"])

    def installing(self, changed: bool, start: bool) -> list[Command]:
        # A socket unit takes up a new path only when its service stands still.
        stop = [["systemctl", "--user", "stop", *UNITS]] if changed and start and self.state() else []
        enable = ["systemctl", "--user", "enable", *(["--now"] if start else []), *UNITS]
        return [["systemctl", "--user", "daemon-reload"], *stop, enable]

    def uninstalling(self) -> list[Command]:
        return [["systemctl", "--user", "disable", "--now", *UNITS]]

    def forgetting(self) -> list[Command]:
        return [["systemctl", "--user", "daemon-reload"]]

    def state(self) -> dict[str, str]:
        shown = "LoadState,ActiveState,SubState,UnitFileState,MainPID,NRestarts,Result"
        said = _output(["systemctl", "--user", "show", UNITS[1], f"--property={shown}"])
        state = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        return {} if state.get("LoadState") == "not-found" else state

    def listens(self) -> bool:
        return _succeeds(["systemctl", "--user", "is-active", UNITS[0]])


class Launchd:
    """The per-user domain of launchd."""

    name = "launchd"

    def __init__(self) -> None:
        self.place = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.places = [self.place]
        # launchd makes no folders: without this one it could not bind the socket.
        self.folders = [default_paths().socket.parent]
        self.leftovers = [default_paths().data / "launchd.log"]
        self.domain = f"gui/{os.getuid()}"

    def files(self, clankersd: Path) -> dict[Path, bytes]:
        agent = plistlib.loads(_template("launchd", self.place.name).encode())
        agent["ProgramArguments"] = [str(clankersd)]
        agent["EnvironmentVariables"] = _carried()
        agent["Sockets"]["rpc"]["SockPathName"] = str(default_paths().socket)
        agent["StandardErrorPath"] = str(self.leftovers[0])
        return {self.place: plistlib.dumps(agent, sort_keys=False)}

    def reachable(self) -> bool:
        return _succeeds(["launchctl", "print", self.domain])

    def installing(self, changed: bool, start: bool) -> list[Command]:
        if not start:
            return []
        loaded = bool(self.state())
        leave = [["launchctl", "bootout", f"{self.domain}/{LABEL}"]] if loaded and changed else []
        load = [["launchctl", "bootstrap", self.domain, str(self.place)]] if changed or not loaded else []
        return [*leave, ["launchctl", "enable", f"{self.domain}/{LABEL}"], *load]

    def uninstalling(self) -> list[Command]:
        return [["launchctl", "bootout", f"{self.domain}/{LABEL}"]] if self.state() else []

    def forgetting(self) -> list[Command]:
        return []

    def state(self) -> dict[str, str]:
        said = _output(["launchctl", "print", f"{self.domain}/{LABEL}"])
        pairs = (line.strip().split(" = ", 1) for line in said.splitlines() if " = " in line)
        return {key: value for key, value in pairs if key in ("state", "pid", "runs", "last exit code")}

    def listens(self) -> bool:
        return bool(self.state())


def platform_manager() -> Manager:
    """What this platform has."""
    return Launchd() if sys.platform == "darwin" else Systemd()


def _carried() -> dict[str, str]:
    """The variables that move files, as absolute as the service needs them."""
    given = {name: os.environ[name] for name in PATH_VARIABLES if os.environ.get(name)}
    return {name: str(Path(value).expanduser().absolute()) for name, value in given.items()}


def _template(folder: str, name: str) -> str:
    return (package_files("clankers.ctl") / folder / name).read_text()


def _filled(template: str, values: dict[str, str]) -> bytes:
    for placeholder, value in values.items():
        template = template.replace(placeholder, value)
    return template.encode()


def _quoted(value: str) -> str:
    """A word as systemd reads it back: in quotes, with its specifiers taken literally."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _succeeds(command: Command) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  # our own


def _output(command: Command) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  # our own
