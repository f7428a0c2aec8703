"""The plugin of Copilot CLI: a local marketplace, which Copilot loads the plugin from without a copy.

The MCP server is an entry of its own: Copilot runs the server of a plugin in the plugin's folder, where it does not
know the project. Commands are skills: Copilot reads the commands of a plugin as such, too.
"""

import json
import os
import shlex
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from clankers.ctl.agent_texts import command_skills, skill_file
from clankers.ctl.edits import Edits, are_made, nested_object, read_json_object, remove_key
from clankers.ctl.plugin_files import (
    MARKETPLACE,
    PLUGIN,
    PLUGIN_ID,
    disable_in_settings,
    encode_json,
    hook_command,
    marketplace_catalog,
    mcp_command,
    read_package_folder,
)
from clankers_protocol.paths import default_paths


class Copilot:
    """Copilot CLI: hooks and skills in a plugin, named and enabled in the user's settings, and the MCP server."""

    name = "copilot"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("COPILOT_HOME") or Path.home() / ".copilot").expanduser()
        self.settings = self.home / "settings.json"
        self.servers = self.home / "mcp-config.json"
        self.data = self.home / "plugin-data" / MARKETPLACE

    def install(self, edits: Edits) -> None:
        self._enable(read_json_object(self.settings))  # raises before anything is written if they cannot be edited
        self._register(read_json_object(self.servers))
        edits.expect_folder(self.data.parent)  # Copilot makes it when it loads the plugin
        for path, content in self.files().items():
            edits.write(path, content)
        edits.edit_json(self.settings, self._enable, f"enabled {PLUGIN_ID} from {self.folder}")
        edits.edit_json(self.servers, self._register, f"registered the MCP server {PLUGIN}")

    def uninstall(self, edits: Edits) -> None:
        edits.revert_json(self.settings, disable_in_settings)
        edits.revert_json(self.servers, lambda content: remove_key(content, "mcpServers", PLUGIN))
        edits.remove(self.data)
        for path in self.files():
            edits.remove(path)

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file of the marketplace and its plugin, with absolute paths of commands."""
        contents = read_package_folder(package_files("clankers.ctl") / "plugins" / self.name)
        contents |= skill_file() | command_skills()
        contents["hooks/hooks.json"] = encode_json(self._with_hook_command(json.loads(contents["hooks/hooks.json"])))
        placed = {self.folder / PLUGIN / name: content for name, content in contents.items()}
        placed[self.folder / ".claude-plugin" / "marketplace.json"] = encode_json(marketplace_catalog())
        return placed

    def is_enabled(self) -> bool:
        """Return True if the settings name the marketplace and enable the plugin, and the MCP server is registered."""
        return are_made({self.settings: self._enable, self.servers: self._register})

    def note(self) -> str | None:
        """Say nothing: Copilot CLI loads the plugin when it starts."""
        return None

    def _enable(self, settings: dict[str, Any]) -> None:
        source = {"source": "directory", "path": str(self.folder)}
        nested_object(settings, "extraKnownMarketplaces", self.settings)[MARKETPLACE] = {"source": source}
        nested_object(settings, "enabledPlugins", self.settings)[PLUGIN_ID] = True

    def _register(self, servers: dict[str, Any]) -> None:
        command, *arguments = mcp_command()
        server = {"type": "local", "command": command, "args": arguments, "tools": ["*"]}
        nested_object(servers, "mcpServers", self.servers)[PLUGIN] = server

    def _with_hook_command(self, description: dict[str, Any]) -> dict[str, Any]:
        """Return the hooks with the fastest command, which adds the name of the event and the folder of sessions."""
        for event, hooks in description["hooks"].items():
            fields = json.dumps({"hookEventName": event, "copilotHome": str(self.home)})
            for hook in hooks:
                _, *arguments = shlex.split(hook["bash"])
                hook["bash"] = shlex.join([*hook_command(), *arguments, f"--with={fields}"])
        return description
