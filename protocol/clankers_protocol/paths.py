"""File locations shared by the daemon and its clients."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOCKET_NAME = "dxta-clankers.sock"
MAX_SOCKET_PATH_BYTES = 103  # macOS's limit; Linux allows 107


@dataclass(frozen=True)
class Paths:
    """Locations of the daemon's files."""

    data: Path
    database: Path
    socket: Path
    logs: Path
    config: Path

    @property
    def spool(self) -> Path:
        return self.data / "spool"

    @property
    def backups(self) -> Path:
        return self.data / "backups"


@dataclass(frozen=True)
class UserFolders:
    """The user's folders for the data and the settings of programs."""

    data: Path
    config: Path


def user_folders(environ: Mapping[str, str] = os.environ) -> UserFolders:
    """Return the folders that platformdirs finds, too; a client has no time to load it, and a test compares both."""
    home = Path(environ.get("HOME") or Path.home())
    is_mac = sys.platform == "darwin"
    data = environ.get("XDG_DATA_HOME", "").strip()
    config = environ.get("XDG_CONFIG_HOME", "").strip()
    return UserFolders(
        data=Path(data) if data else home / ("Library/Application Support" if is_mac else ".local/share"),
        config=Path(config) if config else home / ("Library/Application Support" if is_mac else ".config"),
    )


def default_paths(environ: Mapping[str, str] = os.environ, folders: UserFolders | None = None) -> Paths:
    """Return the paths of the current user. Each CLANKERS_…_PATH variable overrides one of them."""
    folders = folders or user_folders(environ)
    root = environ.get("CLANKERS_DATA_PATH")
    data = (Path(root) if root else folders.data).expanduser() / "clankers"

    def chosen(variable: str, default: Path) -> Path:
        given = environ.get(variable)
        return Path(given or default).expanduser().absolute()

    return Paths(
        data=data.absolute(),
        database=chosen("CLANKERS_DB_PATH", data / "clankers.db"),
        socket=chosen("CLANKERS_SOCKET_PATH", data / SOCKET_NAME),
        logs=chosen("CLANKERS_LOG_PATH", data / "logs"),
        config=chosen("CLANKERS_CONFIG_PATH", folders.config / "clankers" / "clankers.toml"),
    )
