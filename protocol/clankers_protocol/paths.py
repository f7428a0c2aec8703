"""File locations shared by the daemon and its clients."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOCKET_NAME = "dxta-clankers.sock"


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


def default_paths(environ: Mapping[str, str] = os.environ) -> Paths:
    """Return the paths of the current user. Each CLANKERS_…_PATH variable overrides one of them."""
    home = Path(environ.get("HOME") or Path.home())
    is_mac = sys.platform == "darwin"
    data_root = environ.get("CLANKERS_DATA_PATH") or environ.get("XDG_DATA_HOME", "").strip()
    data_default = home / ("Library/Application Support" if is_mac else ".local/share")
    data = (Path(data_root).expanduser() if data_root else data_default) / "clankers"
    config_root = environ.get("XDG_CONFIG_HOME", "").strip()
    config_default = home / ("Library/Application Support" if is_mac else ".config")
    config = (Path(config_root).expanduser() if config_root else config_default) / "clankers" / "clankers.toml"

    def chosen(variable: str, default: Path) -> Path:
        given = environ.get(variable)
        return Path(given).expanduser().absolute() if given else default.absolute()

    return Paths(
        data=data.absolute(),
        database=chosen("CLANKERS_DB_PATH", data / "clankers.db"),
        socket=chosen("CLANKERS_SOCKET_PATH", data / SOCKET_NAME),
        logs=chosen("CLANKERS_LOG_PATH", data / "logs"),
        config=chosen("CLANKERS_CONFIG_PATH", config),
    )
