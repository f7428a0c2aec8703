"""The plugin of OpenClaw: a folder of ours, which OpenClaw's configuration names and grants access."""

import json
import os
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import click

from clankers.ctl.agent_texts import command_skills, skill_file
from clankers.ctl.edits import Edits, nested_object, read_if_exists, read_json_object, remove_key
from clankers.ctl.plugin_files import PLUGIN, encode_json, hook_command, mcp_command, read_package_folder
from clankers.ctl.service_managers import path_environment
from clankers_protocol.paths import default_paths

TRANSPORT_EXPORTS = ("Daemon", "Outbox", "closers", "expandHome", "withoutThrowing", "writeLog")


class OpenClaw:
    """OpenClaw: a plugin folder, loaded by an entry in its configuration that also holds the owner's consent.

    With `takes_memory_slot` the plugin replaces OpenClaw's own memory and serves its two tools.
    """

    name = "openclaw"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.plugin = self.folder / PLUGIN
        self.home = Path(os.environ.get("OPENCLAW_STATE_DIR") or Path.home() / ".openclaw").expanduser()
        self.config = Path(os.environ.get("OPENCLAW_CONFIG_PATH") or self.home / "openclaw.json").expanduser()
        self.takes_memory_slot = self._has_memory_slot()

    def install(self, edits: Edits) -> None:
        self._enable(read_json_object(self.config))  # raises before anything is written if it cannot be edited
        for path, content in self.files().items():
            edits.write(path, content)
        edits.edit_json(self.config, self._enable, f"loaded {self.plugin}")

    def uninstall(self, edits: Edits) -> None:
        earlier_slot = _memory_slot(edits.original_json(self.config))

        def disable(config: dict[str, Any]) -> None:
            self._disable(config, earlier_slot)

        edits.revert_json(self.config, disable)
        for path in self.files():
            edits.remove(path)
        for copy in sorted(self.config.parent.glob(f"{self.config.name}.*")):  # OpenClaw's own: .last-good, .bak
            if str(self.plugin).encode() in (read_if_exists(copy) or b""):
                edits.revert_json(copy, disable)

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file of the plugin; its connection to the daemon is that of OpenCode's.

        Its commands are skills: commands of OpenClaw are programs.
        """
        plugins = package_files("clankers.ctl") / "plugins"
        contents = read_package_folder(plugins / self.name)
        contents["transport.js"] = _transport((plugins / "opencode" / "clankers.js").read_text("utf-8")).encode()
        contents |= skill_file() | command_skills()
        manifest = json.loads(contents["openclaw.plugin.json"])
        command, *arguments = mcp_command()
        manifest["mcpServers"] = {PLUGIN: {"transport": "stdio", "command": command, "args": arguments}}
        if self.takes_memory_slot:
            manifest["kind"] = "memory"
        contents["openclaw.plugin.json"] = encode_json(manifest)
        if self.takes_memory_slot:
            contents["index.js"] = _set_constant(contents["index.js"].decode(), "TAKES_MEMORY_SLOT", True).encode()
        return {self.plugin / name: content for name, content in contents.items()}

    def is_enabled(self) -> bool:
        """Return True if the configuration loads our folder and grants what the plugin needs."""
        try:
            config, wanted = read_json_object(self.config), read_json_object(self.config)
            self._enable(wanted)
        except (OSError, click.ClickException):
            return False
        return wanted == config

    def note(self) -> str | None:
        """Say that OpenClaw must be restarted, which reads its plugins only at its start."""
        return "Restart the gateway of OpenClaw to load the plugin: openclaw gateway restart"

    def consent(self) -> str:
        """Describe what OpenClaw will run and grant, which it would ask about if it installed the plugin itself."""
        text = (
            f"OpenClaw will load the plugin {self.plugin} into its gateway. In {self.config} it is granted:\n"
            "  allowConversationAccess: it reads your prompts, answers and tool calls\n"
            "  allowPromptInjection: it adds what is recalled to your prompts\n"
            "It brings the MCP server of clankers and skills that say how to use it.\n"
            "It only talks to the clankers daemon on this machine."
        )
        if self.takes_memory_slot:
            text += "\nIt takes the memory slot: memory_search and memory_get are answered by clankers."
        return text

    def _has_memory_slot(self) -> bool:
        try:
            return _memory_slot(read_json_object(self.config)) == PLUGIN
        except (OSError, click.ClickException):
            return False

    def _enable(self, config: dict[str, Any]) -> None:
        plugins = nested_object(config, "plugins", self.config)
        paths = nested_object(plugins, "load", self.config).setdefault("paths", [])
        if not isinstance(paths, list):
            raise click.ClickException(f"{self.config}: plugins.load.paths is not a list. Correct it first.")
        if str(self.plugin) not in paths:
            paths.append(str(self.plugin))
        allowed = plugins.get("allow")
        if isinstance(allowed, list) and PLUGIN not in allowed:
            allowed.append(PLUGIN)
        entry = nested_object(nested_object(plugins, "entries", self.config), PLUGIN, self.config)
        entry["enabled"] = True
        nested_object(entry, "hooks", self.config).update(allowConversationAccess=True, allowPromptInjection=True)
        if self.takes_memory_slot:
            nested_object(plugins, "slots", self.config)["memory"] = PLUGIN

    def _disable(self, config: dict[str, Any], earlier_slot: str | None) -> None:
        plugins = config.get("plugins")
        if not isinstance(plugins, dict):
            return
        loaded, allowed = plugins.get("load"), plugins.get("allow")
        paths = loaded.get("paths") if isinstance(loaded, dict) else None
        if isinstance(paths, list) and str(self.plugin) in paths:
            paths.remove(str(self.plugin))
            if not paths:
                remove_key(config, "plugins", "load", "paths")
        if isinstance(allowed, list) and PLUGIN in allowed:
            allowed.remove(PLUGIN)
        remove_key(config, "plugins", "entries", PLUGIN)
        slots = plugins.get("slots")
        if isinstance(slots, dict) and slots.get("memory") == PLUGIN:
            if earlier_slot:
                slots["memory"] = earlier_slot
            else:
                remove_key(config, "plugins", "slots", "memory")


def _memory_slot(config: dict[str, Any]) -> str | None:
    """Return the plugin that has the memory slot; None if the configuration does not say."""
    plugins = config.get("plugins")
    slots = plugins.get("slots") if isinstance(plugins, dict) else None
    return slots.get("memory") if isinstance(slots, dict) else None


def _transport(source: str) -> str:
    """Return the part of OpenCode's plugin that talks to the daemon, as a module for OpenClaw's."""
    start, end = source.index("import { spawn }"), source.index("// --- Messages and tools of sessions")
    commands_start, commands_end = (
        source.index("const FORWARDED_EVENTS"),
        source.index("// --- Paths, as in clankers.hook"),
    )
    module = source[start:commands_start] + source[commands_end:end]
    constants = {"HARNESS": "openclaw", "HOOK": hook_command(), "ENVIRONMENT": path_environment()}
    for name, value in constants.items():
        module = _set_constant(module, name, value)
    header = "// Sends events to the clankers daemon on this machine, and spools them while it is away.\n"
    return f"{header}{module}export {{ {', '.join(TRANSPORT_EXPORTS)} }}\n"


def _set_constant(source: str, name: str, value: Any) -> str:
    start = source.index(f"const {name} = ")
    return f"{source[:start]}const {name} = {json.dumps(value)}{source[source.index(chr(10), start) :]}"
