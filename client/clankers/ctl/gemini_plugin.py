"""The plugins of Gemini CLI and of Qwen Code, its fork: an extension, which is a folder in their extensions folder."""

import json
import os
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import click

from clankers.ctl.agent_texts import skill_file, toml_commands
from clankers.ctl.edits import Edits, read_json_object
from clankers.ctl.plugin_files import (
    PLUGIN,
    encode_json,
    hook_command,
    mcp_command,
    read_package_folder,
    relay_command,
    with_hook_command,
)
from clankers_protocol.paths import default_paths


class Gemini:
    """Gemini CLI: an extension folder with hooks, MCP server, commands and skill. No other file is changed."""

    name = "gemini"
    title = "Gemini CLI"
    manifest = "gemini-extension.json"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = self.find_home()
        self.extension = self.home / "extensions" / PLUGIN

    def find_home(self) -> Path:
        """Return the folder with the settings of the harness."""
        return Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini"

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
        contents |= skill_file() | toml_commands(f"commands/{PLUGIN}")
        contents["hooks/hooks.json"] = encode_json(with_hook_command(json.loads(contents["hooks/hooks.json"])))
        manifest: dict[str, Any] = json.loads(contents[self.manifest])
        command, *arguments = mcp_command()
        manifest["mcpServers"] = {PLUGIN: {"command": command, "args": arguments}}
        contents[self.manifest] = encode_json(manifest)
        return {self.extension / name: content for name, content in contents.items()}

    def is_enabled(self) -> bool:
        """Return True if our extension is in the folder where the harness looks for extensions."""
        try:
            manifest = read_json_object(self.extension / self.manifest)
        except (OSError, click.ClickException):
            return False
        return manifest.get("name") == PLUGIN and PLUGIN in (manifest.get("mcpServers") or {})

    def note(self) -> str | None:
        """Say nothing: the harness loads the extension when it starts."""
        return None

    def consent(self) -> str:
        """Describe what the harness will run, which it would ask about if it installed the extension itself."""
        hooks = json.loads(self.files()[self.extension / "hooks" / "hooks.json"])["hooks"]
        return (
            f"{self.title} will load the extension {self.extension}:\n"
            f"  at {', '.join(hooks)} it runs the hook {hook_command()[0]} … clankers.hook {self.name}\n"
            f"  and for each session the MCP server {relay_command()[0]} … clankers.mcp\n"
            "Both only talk to the clankers daemon on this machine."
        )


class Qwen(Gemini):
    """Qwen Code: the same kind of extension. Qwen Code lists the extensions that it has loaded in a file of its own."""

    name = "qwen"
    title = "Qwen Code"
    manifest = "qwen-extension.json"

    def find_home(self) -> Path:
        return Path(os.environ.get("QWEN_HOME") or Path.home() / ".qwen").expanduser()

    @property
    def loaded(self) -> Path:
        """Return the file in which Qwen Code lists extensions."""
        return self.home / "extension-store" / "state.json"

    def install(self, edits: Edits) -> None:
        super().install(edits)
        edits.save_original(self.loaded)

    def uninstall(self, edits: Edits) -> None:
        super().uninstall(edits)
        edits.revert_json(self.loaded, _forget_extension)


def _forget_extension(state: dict[str, Any]) -> None:
    listed = state.get("extensions")
    if isinstance(listed, dict):
        ours = [key for key, each in listed.items() if isinstance(each, dict) and each.get("name") == PLUGIN]
        for key in ours:
            del listed[key]
