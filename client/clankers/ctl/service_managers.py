"""Service managers that run the daemon: the user manager of systemd, and the per-user domain of launchd."""

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
"""Environment variables that move the daemon's files. A service does not inherit them, so they are written into it."""

Command = list[str]


class Manager(Protocol):
    """The service manager of a platform."""

    name: str
    paths: list[Path]
    """Files that define the service."""
    required_folders: list[Path]
    """Folders that must exist before the service can start."""
    leftovers: list[Path]
    """Files that the service leaves behind."""

    def files(self, clankersd: Path) -> dict[Path, bytes]:
        """Return the content of each of `paths`."""
        ...

    def is_reachable(self) -> bool:
        """Return True if the service manager is running and answers."""
        ...

    def is_usable(self) -> bool:
        """Return True if the service manager exists on this machine, even if it cannot be reached from here."""
        ...

    def install_commands(self, changed: bool, start: bool) -> list[Command]:
        """Return the commands to run after the files are written."""
        ...

    def start_commands(self) -> list[Command]:
        """Return the commands that start the installed service."""
        ...

    def stop_commands(self) -> list[Command]:
        """Return the commands that stop the service until it is started, or until the next login."""
        ...

    def uninstall_commands(self) -> list[Command]:
        """Return the commands to run before the files are removed."""
        ...

    def cleanup_commands(self) -> list[Command]:
        """Return the commands to run after the files are removed."""
        ...

    def state(self) -> dict[str, str]:
        """Return the state of the service; empty if the manager does not know the service."""
        ...

    def owns_socket(self) -> bool:
        """Return True if the manager itself listens on the socket."""
        ...


class Systemd:
    """The user manager of systemd."""

    name = "systemd"

    def __init__(self) -> None:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self.folder = config / "systemd" / "user"
        self.paths = [self.folder / unit for unit in UNITS]
        self.required_folders: list[Path] = []
        self.leftovers: list[Path] = []

    def files(self, clankersd: Path) -> dict[Path, bytes]:
        variables = _absolute_path_environment().items()
        replacements = {
            "@CLANKERSD@": _quote(str(clankersd)),
            "@ENVIRONMENT@\n": "".join(f"Environment={_quote(f'{name}={value}')}\n" for name, value in variables),
            "@SOCKET@": str(default_paths().socket).replace("%", "%%"),
        }
        contents = {}
        for path in self.paths:
            text = _template("systemd", path.name)
            for placeholder, value in replacements.items():
                text = text.replace(placeholder, value)
            contents[path] = text.encode()
        return contents

    def is_usable(self) -> bool:
        return Path("/run/systemd/system").is_dir() or self.is_reachable()

    def is_reachable(self) -> bool:
        return _succeeds(["systemctl", "--user", "show-environment"])

    def install_commands(self, changed: bool, start: bool) -> list[Command]:
        # A socket unit adopts a new path only while its service is stopped.
        stop = [["systemctl", "--user", "stop", *UNITS]] if changed and start and self.state() else []
        enable = ["systemctl", "--user", "enable", *(["--now"] if start else []), *UNITS]
        return [["systemctl", "--user", "daemon-reload"], *stop, enable]

    def start_commands(self) -> list[Command]:
        return [["systemctl", "--user", "start", *UNITS]]

    def stop_commands(self) -> list[Command]:
        return [["systemctl", "--user", "stop", *UNITS]]

    def uninstall_commands(self) -> list[Command]:
        return [["systemctl", "--user", "disable", "--now", *UNITS]]

    def cleanup_commands(self) -> list[Command]:
        return [["systemctl", "--user", "daemon-reload"]]

    def state(self) -> dict[str, str]:
        properties = "LoadState,ActiveState,SubState,UnitFileState,MainPID,NRestarts,Result"
        output = _output(["systemctl", "--user", "show", UNITS[1], f"--property={properties}"])
        state = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        return {} if state.get("LoadState") == "not-found" else state

    def owns_socket(self) -> bool:
        return _succeeds(["systemctl", "--user", "is-active", UNITS[0]])


class Launchd:
    """The per-user domain of launchd."""

    name = "launchd"

    def __init__(self) -> None:
        self.plist = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.paths = [self.plist]
        # launchd creates no folders, and cannot bind the socket without this one.
        self.required_folders = [default_paths().socket.parent]
        self.leftovers = [default_paths().data / "launchd.log"]
        self.domain = f"gui/{os.getuid()}"

    def files(self, clankersd: Path) -> dict[Path, bytes]:
        agent = plistlib.loads(_template("launchd", self.plist.name).encode())
        agent["ProgramArguments"] = [str(clankersd)]
        agent["EnvironmentVariables"] = _absolute_path_environment()
        agent["Sockets"]["rpc"]["SockPathName"] = str(default_paths().socket)
        agent["StandardErrorPath"] = str(self.leftovers[0])
        return {self.plist: plistlib.dumps(agent, sort_keys=False)}

    def is_usable(self) -> bool:
        return shutil.which("launchctl") is not None

    def is_reachable(self) -> bool:
        return _succeeds(["launchctl", "print", self.domain])

    def install_commands(self, changed: bool, start: bool) -> list[Command]:
        if not start:
            return []
        loaded = bool(self.state())
        unload = [["launchctl", "bootout", f"{self.domain}/{LABEL}"]] if loaded and changed else []
        load = [["launchctl", "bootstrap", self.domain, str(self.plist)]] if changed or not loaded else []
        return [*unload, ["launchctl", "enable", f"{self.domain}/{LABEL}"], *load]

    def start_commands(self) -> list[Command]:
        if not self.state():
            return [["launchctl", "bootstrap", self.domain, str(self.plist)]]
        return [["launchctl", "kickstart", f"{self.domain}/{LABEL}"]]

    def stop_commands(self) -> list[Command]:
        return [["launchctl", "bootout", f"{self.domain}/{LABEL}"]] if self.state() else []

    def uninstall_commands(self) -> list[Command]:
        return [["launchctl", "bootout", f"{self.domain}/{LABEL}"]] if self.state() else []

    def cleanup_commands(self) -> list[Command]:
        return []

    def state(self) -> dict[str, str]:
        output = _output(["launchctl", "print", f"{self.domain}/{LABEL}"])
        pairs = (line.strip().split(" = ", 1) for line in output.splitlines() if " = " in line)
        return {key: value for key, value in pairs if key in ("state", "pid", "runs", "last exit code")}

    def owns_socket(self) -> bool:
        return bool(self.state())


def platform_manager() -> Manager:
    """Return the service manager of this platform."""
    return Launchd() if sys.platform == "darwin" else Systemd()


def path_environment() -> dict[str, str]:
    """Return the environment variables set now that move the daemon's files."""
    return {name: os.environ[name] for name in PATH_VARIABLES if os.environ.get(name)}


def _absolute_path_environment() -> dict[str, str]:
    return {name: str(Path(value).expanduser().absolute()) for name, value in path_environment().items()}


def _template(folder: str, name: str) -> str:
    return (package_files("clankers.ctl") / folder / name).read_text()


def _quote(value: str) -> str:
    """Quote a word for a systemd unit, so that specifiers in it are taken literally."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _succeeds(command: Command) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  # our own command


def _output(command: Command) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  # our own command
