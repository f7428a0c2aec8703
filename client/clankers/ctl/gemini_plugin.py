"""The plugin of Gemini CLI: an extension, which is a folder in ~/.gemini/extensions."""

import json
import os
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import click

from clankers.ctl.edits import Edits, read_json_object
from clankers.ctl.plugin_files import (
    PLUGIN,
    encode_json,
    hook_command,
    mcp_command,
    read_package_folder,
    with_hook_command,
)
from clankers_protocol.paths import default_paths


class Gemini:
    """Gemini CLI: an extension folder with hooks, MCP server, commands and skill. No other file is changed."""

    name = "gemini"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini"
        self.extension = self.home / "extensions" / PLUGIN

    def install(self, edits: Edits) -> None:
        if self.extension.exists() and not self.is_enabled():
            raise click.ClickException(
                f"{self.extension} is not an extension of clankers. Move it away first. Nothing was changed."
            )
        for path, content in self.files().items():
            edits.write(path, content)

    def uninstall(self, edits: Edits) -> None:
        if self.is_enabled():
            edits.remove(self.extension)

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file of the extension, with absolute paths of commands."""
        contents = read_package_folder(package_files("clankers.ctl") / "plugins" / self.name)
        contents["hooks/hooks.json"] = encode_json(with_hook_command(json.loads(contents["hooks/hooks.json"])))
        manifest: dict[str, Any] = json.loads(contents["gemini-extension.json"])
        command, *arguments = mcp_command()
        manifest["mcpServers"] = {PLUGIN: {"command": command, "args": arguments}}
        contents["gemini-extension.json"] = encode_json(manifest)
        return {self.extension / name: content for name, content in contents.items()}

    def is_enabled(self) -> bool:
        """Return True if our extension is in the folder where Gemini CLI looks for extensions."""
        try:
            manifest = read_json_object(self.extension / "gemini-extension.json")
        except (OSError, click.ClickException):
            return False
        return manifest.get("name") == PLUGIN and PLUGIN in (manifest.get("mcpServers") or {})

    def note(self) -> str | None:
        """Say nothing: Gemini CLI loads the extension when it starts."""
        return None

    def consent(self) -> str:
        """Describe what Gemini CLI will run, which it would ask about if it installed the extension itself."""
        hooks = json.loads(self.files()[self.extension / "hooks" / "hooks.json"])["hooks"]
        return (
            f"Gemini CLI will load the extension {self.extension}:\n"
            f"  at {', '.join(hooks)} it runs the hook {hook_command()[0]} … clankers.hook gemini\n"
            f"  and for each session the MCP server {mcp_command()[0]} … clankers.mcp\n"
            "Both only talk to the clankers daemon on this machine."
        )
