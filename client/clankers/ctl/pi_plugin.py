"""The plugin of pi: an extension, prompt templates and a skill in its folder."""

import json
import os
from importlib.resources import files as package_files
from pathlib import Path

import click

from clankers.ctl.agent_texts import markdown_commands, skill_file
from clankers.ctl.edits import Edits
from clankers.ctl.plugin_files import hook_command, mcp_command, with_constants
from clankers_protocol.paths import default_paths

SIGNATURE = b"// clankers for pi"


class Pi:
    """pi: one file in its extensions folder, which also provides the tools; commands and skill are files beside it."""

    name = "pi"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("PI_CODING_AGENT_DIR") or Path.home() / ".pi" / "agent").expanduser()
        self.path = self.home / "extensions" / "clankers.ts"

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

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file, with absolute paths of commands."""
        text = (package_files("clankers.ctl") / "plugins" / self.name / "clankers.ts").read_text("utf-8")
        offline = json.loads((package_files("clankers") / "mcp_offline.json").read_text("utf-8"))
        tools = offline["tools/list"]["tools"]
        extension = with_constants(text, {"HOOK": hook_command(), "MCP": mcp_command(), "TOOLS": tools})
        beside = skill_file() | markdown_commands("prompts", "clankers-")
        return {self.path: extension, **{self.home / name: content for name, content in beside.items()}}

    def note(self) -> str | None:
        """Say nothing: pi loads the extension when it starts."""
        return None

    def is_enabled(self) -> bool:
        """Return True if our file is in the folder where pi looks for extensions."""
        try:
            return self.path.read_bytes().startswith(SIGNATURE)
        except OSError:
            return False
