"""File locations shared by the daemon and its clients."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

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
    root = environ.get("CLANKERS_DATA_PATH")
    data = Path(root).expanduser() / "clankers" if root else platformdirs.user_data_path("clankers", False)

    def chosen(variable: str, default: Path) -> Path:
        given = environ.get(variable)
        return Path(given).expanduser().absolute() if given else default.absolute()

    return Paths(
        data=data.absolute(),
        database=chosen("CLANKERS_DB_PATH", data / "clankers.db"),
        socket=chosen("CLANKERS_SOCKET_PATH", data / SOCKET_NAME),
        logs=chosen("CLANKERS_LOG_PATH", data / "logs"),
        config=chosen("CLANKERS_CONFIG_PATH", platformdirs.user_config_path("clankers", False) / "clankers.toml"),
    )
