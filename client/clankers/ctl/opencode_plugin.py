"""The plugin of OpenCode: one file in its plugin folder, and a skill."""

import os
from importlib.resources import files as package_files
from pathlib import Path

from clankers.ctl.agent_texts import command_templates, skill_file
from clankers.ctl.file_plugin import FilePlugin
from clankers.ctl.plugin_files import hook_command, mcp_command, with_constants
from clankers.ctl.service_managers import path_environment


class OpenCode(FilePlugin):
    """OpenCode: the file also provides the MCP server and the commands."""

    name = "opencode"
    signature = b"// clankers for OpenCode"

    def __init__(self) -> None:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
        super().__init__(Path(os.environ.get("OPENCODE_CONFIG_DIR") or config), "plugin/clankers.js")

    def files(self) -> dict[Path, bytes]:
        text = (package_files("clankers.ctl") / "plugins" / self.name / "clankers.js").read_text("utf-8")
        constants = {
            "HOOK": hook_command(),
            "MCP": mcp_command(),
            "ENVIRONMENT": path_environment(),
            "COMMANDS": command_templates(),
        }
        beside = {self.home / name: content for name, content in skill_file().items()}
        return {self.path: with_constants(text, constants), **beside}
