"""The plugin of pi: an extension, prompt templates and a skill in its folder."""

import json
import os
from importlib.resources import files as package_files
from pathlib import Path

from clankers.ctl.agent_texts import markdown_commands, skill_file
from clankers.ctl.file_plugin import FilePlugin
from clankers.ctl.plugin_files import hook_command, relay_command, with_constants


class Pi(FilePlugin):
    """pi: the extension also provides the tools; commands and skill are files beside it."""

    name = "pi"
    signature = b"// clankers for pi"

    def __init__(self) -> None:
        home = Path(os.environ.get("PI_CODING_AGENT_DIR") or Path.home() / ".pi" / "agent").expanduser()
        super().__init__(home, "extensions/clankers.ts")

    def files(self) -> dict[Path, bytes]:
        text = (package_files("clankers.ctl") / "plugins" / self.name / "clankers.ts").read_text("utf-8")
        offline = json.loads((package_files("clankers") / "mcp_offline.json").read_text("utf-8"))
        tools = offline["tools/list"]["tools"]
        extension = with_constants(text, {"HOOK": hook_command(), "MCP": relay_command(), "TOOLS": tools})
        beside = skill_file() | markdown_commands("prompts", "clankers-")
        return {self.path: extension, **{self.home / name: content for name, content in beside.items()}}
