"""Base of plugins that are a program in a folder of the harness, with files beside it, and change no other file."""

from abc import ABC, abstractmethod
from pathlib import Path

import click

from clankers.ctl.edits import Edits
from clankers_protocol.paths import default_paths


class FilePlugin(ABC):
    """A plugin whose program, at `path` below `home`, begins with `signature`, by which it is recognised as ours."""

    name: str
    signature: bytes

    def __init__(self, home: Path, path: str) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = home
        self.path = home / path

    def install(self, edits: Edits) -> None:
        if self.path.exists() and not self.is_enabled():
            raise click.ClickException(
                f"{self.path} is not a file of clankers. Move it away first. Nothing was changed."
            )
        for path, content in self.files().items():
            edits.write(path, content)

    def uninstall(self, edits: Edits) -> None:
        if self.is_enabled():
            for path in self.files():
                edits.remove(path)

    @abstractmethod
    def files(self) -> dict[Path, bytes]:
        """Return the content of each file, with absolute paths of commands."""

    def note(self) -> str | None:
        """Say nothing: the files are the same for every version, and the harness loads them when it starts."""
        return None

    def is_enabled(self) -> bool:
        """Return True if our program is in the folder where the harness looks for such programs."""
        try:
            return self.path.read_bytes().startswith(self.signature)
        except OSError:
            return False
