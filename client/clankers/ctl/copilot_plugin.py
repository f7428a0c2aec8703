"""The plugin of Copilot CLI: a local marketplace, which Copilot loads the plugin from without a copy."""

import json
import os
import shlex
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import click

from clankers.ctl.agent_texts import markdown_commands, skill_file
from clankers.ctl.edits import Edits, read_json_object
from clankers.ctl.plugin_files import (
    PLUGIN,
    PLUGIN_ID,
    disable_in_settings,
    enable_in_settings,
    encode_json,
    hook_command,
    marketplace_catalog,
    mcp_command,
    read_package_folder,
)
from clankers_protocol.paths import default_paths


class Copilot:
    """Copilot CLI: hooks, MCP server, commands and skill in one plugin, named and enabled in the user's settings."""

    name = "copilot"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("COPILOT_HOME") or Path.home() / ".copilot").expanduser()
        self.settings = self.home / "settings.json"

    def install(self, edits: Edits) -> None:
        self._enable(read_json_object(self.settings))  # raises before anything is written if they cannot be edited
        for path, content in self.files().items():
            edits.write(path, content)
        edits.edit_json(self.settings, self._enable, f"enabled {PLUGIN_ID} from {self.folder}")

    def uninstall(self, edits: Edits) -> None:
        edits.revert_json(self.settings, disable_in_settings)
        for path in self.files():
            edits.remove(path)

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file of the marketplace and its plugin, with absolute paths of commands."""
        contents = read_package_folder(package_files("clankers.ctl") / "plugins" / self.name)
        contents |= skill_file() | markdown_commands("commands")
        contents["hooks/hooks.json"] = encode_json(self._with_hook_command(json.loads(contents["hooks/hooks.json"])))
        command, *arguments = mcp_command()
        contents[".mcp.json"] = encode_json({"mcpServers": {PLUGIN: {"command": command, "args": arguments}}})
        placed = {self.folder / PLUGIN / name: content for name, content in contents.items()}
        placed[self.folder / ".claude-plugin" / "marketplace.json"] = encode_json(marketplace_catalog())
        return placed

    def is_enabled(self) -> bool:
        """Return True if the settings name the marketplace and enable the plugin."""
        try:
            settings, wanted = read_json_object(self.settings), read_json_object(self.settings)
            self._enable(wanted)
        except (OSError, click.ClickException):
            return False
        return wanted == settings

    def note(self) -> str | None:
        """Say nothing: Copilot CLI loads the plugin when it starts."""
        return None

    def _enable(self, settings: dict[str, Any]) -> None:
        enable_in_settings(settings, self.folder, self.settings)

    def _with_hook_command(self, description: dict[str, Any]) -> dict[str, Any]:
        """Return the hooks with the fastest command, which adds the name of the event and the folder of sessions."""
        for event, hooks in description["hooks"].items():
            fields = json.dumps({"hookEventName": event, "copilotHome": str(self.home)})
            for hook in hooks:
                _, *arguments = shlex.split(hook["bash"])
                hook["bash"] = shlex.join([*hook_command(), *arguments, f"--with={fields}"])
        return description
