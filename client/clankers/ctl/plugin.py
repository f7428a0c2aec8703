"""`clankers-ctl plugin`: install the plugins that connect Claude Code and OpenCode to the daemon."""

import json
import os
import sys
from collections.abc import Callable
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import click

import clankers
from clankers.ctl.command import Ctl, json_option
from clankers.ctl.edits import (
    Edits,
    FileState,
    explain_os_errors,
    file_state,
    nested_object,
    read_json_object,
    remove_key,
)
from clankers.ctl.output import echo, print_json
from clankers.ctl.service_managers import path_environment
from clankers_protocol.harnesses import WITH_PLUGIN
from clankers_protocol.paths import default_paths
from clankers_protocol.wire import Wire

EXIT_NOT_INSTALLED = 3
PLUGIN = "clankers"
MARKETPLACE = "clankers-local"


def hook_command() -> list[str]:
    """Return the fastest command that runs a hook."""
    return _program("clankers.hook")


def mcp_command() -> list[str]:
    """Return the fastest command that runs the MCP server."""
    return _program("clankers.mcp")


def _program(module: str) -> list[str]:
    """Return a command that runs `main` of a module: this interpreter, isolated and without the site module."""
    packages = str(Path(clankers.__file__).parents[1])
    variables = "".join(f"os.environ.setdefault({name!r},{value!r});" for name, value in path_environment().items())
    program = f"import os,sys;sys.path.insert(0,{packages!r});{variables}from {module} import main;main()"
    return [sys.executable, "-I", "-S", "-c", program]


class PluginStatus(Wire):
    """State of the plugin of a harness and of each of its files."""

    harness: str
    state: str
    files: list[FileState]


class ClaudeCode:
    """Claude Code: a local marketplace with the plugin, named and enabled in the user's settings."""

    name = "claude-code"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        self.settings = self.home / "settings.json"

    def install(self, edits: Edits) -> None:
        self._enable(read_json_object(self.settings))  # raises before anything is written if they cannot be edited
        for path, content in self.files().items():
            edits.write(path, content)
        for registry in self._registries():
            edits.save_original(registry)
        edits.edit_json(self.settings, self._enable, f"enabled {PLUGIN}@{MARKETPLACE} from {self.folder}")

    def uninstall(self, edits: Edits) -> None:
        edits.revert_json(self.settings, self._disable)
        for registry, keys in self._registries().items():
            edits.revert_json(registry, lambda content, keys=keys: remove_key(content, *keys))  # type: ignore[misc]
        edits.remove(self.home / "plugins" / "cache" / MARKETPLACE)
        for path in self.files():
            edits.remove(path)

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file of the plugin, with absolute paths of commands."""
        source = package_files("clankers.ctl") / "plugins" / self.name
        plugin = self.folder / PLUGIN
        contents = {plugin / name: content for name, content in _package_files(source).items()}
        hooks_path = plugin / "hooks" / "hooks.json"
        contents[hooks_path] = _json(self._with_hook_command(json.loads(contents[hooks_path])))
        command, *arguments = mcp_command()
        server = {"command": command, "args": arguments}
        contents[plugin / ".mcp.json"] = _json({"mcpServers": {"clankers": server}})
        catalog = {
            "name": MARKETPLACE,
            "description": "The plugin of the clankers daemon on this machine.",
            "owner": {"name": "The clankers authors"},
            "plugins": [{"name": PLUGIN, "source": f"./{PLUGIN}", "description": "The local memory of your agents."}],
        }
        contents[self.folder / ".claude-plugin" / "marketplace.json"] = _json(catalog)
        return contents

    def is_enabled(self) -> bool:
        """Return True if the settings name and enable the plugin."""
        try:
            settings = read_json_object(self.settings)
            wanted = read_json_object(self.settings)
            self._enable(wanted)
        except (OSError, click.ClickException):
            return False
        return wanted == settings

    def _with_hook_command(self, description: dict[str, Any]) -> dict[str, Any]:
        command, *arguments = hook_command()
        for groups in description["hooks"].values():
            for hook in (hook for group in groups for hook in group["hooks"]):
                hook["command"], hook["args"] = command, [*arguments, *hook["args"]]
        return description

    def _enable(self, settings: dict[str, Any]) -> None:
        source = {"source": "directory", "path": str(self.folder)}
        nested_object(settings, "extraKnownMarketplaces", self.settings)[MARKETPLACE] = {"source": source}
        nested_object(settings, "enabledPlugins", self.settings)[f"{PLUGIN}@{MARKETPLACE}"] = True

    def _disable(self, settings: dict[str, Any]) -> None:
        remove_key(settings, "extraKnownMarketplaces", MARKETPLACE)
        remove_key(settings, "enabledPlugins", f"{PLUGIN}@{MARKETPLACE}")

    def _registries(self) -> dict[Path, tuple[str, ...]]:
        """Return the files in which Claude Code itself records marketplaces and plugins, with our keys in them."""
        return {
            self.home / "plugins" / "known_marketplaces.json": (MARKETPLACE,),
            self.home / "plugins" / "installed_plugins.json": ("plugins", f"{PLUGIN}@{MARKETPLACE}"),
        }


class OpenCode:
    """OpenCode: one file in its plugin folder, which also provides the MCP server and the commands."""

    name = "opencode"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
        self.home = Path(os.environ.get("OPENCODE_CONFIG_DIR") or config)
        self.path = self.home / "plugin" / "clankers.js"

    def install(self, edits: Edits) -> None:
        if self.path.exists() and not self.is_enabled():
            raise click.ClickException(
                f"{self.path} is not a file of clankers. Move it away first. Nothing was changed."
            )
        for path, content in self.files().items():
            edits.write(path, content)

    def uninstall(self, edits: Edits) -> None:
        if self.is_enabled():
            edits.remove(self.path)

    def files(self) -> dict[Path, bytes]:
        """Return the content of the plugin file, with absolute paths of commands."""
        text = (package_files("clankers.ctl") / "plugins" / self.name / "clankers.js").read_text("utf-8")
        constants = {"HOOK": hook_command(), "MCP": mcp_command(), "ENVIRONMENT": path_environment()}
        for name, value in constants.items():
            start = text.index(f"const {name} = ")
            end = text.index("\n", start)
            text = f"{text[:start]}const {name} = {json.dumps(value)}{text[end:]}"
        return {self.path: text.encode()}

    def is_enabled(self) -> bool:
        """Return True if our file is in the folder where OpenCode looks for plugins."""
        try:
            return self.path.read_bytes().startswith(b"// clankers for OpenCode")
        except OSError:
            return False


HARNESSES: dict[str, Callable[[], ClaudeCode | OpenCode]] = {plugin.name: plugin for plugin in (ClaudeCode, OpenCode)}

harness_argument = click.argument("harness", type=click.Choice(WITH_PLUGIN))
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be changed; change nothing.")


@click.group()
def plugin() -> None:
    """Connect a harness (Claude Code or OpenCode) to the daemon.

    You can connect any other harness with `clankers-hook generic`; see docs/plugins.md.

    \b
    Examples:
      clankers-ctl plugin install claude-code
      clankers-ctl plugin status
    """


@plugin.command()
@harness_argument
@dry_run_option
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def install(ctl: Ctl, harness: str, dry_run: bool) -> None:
    """Install or update the plugin of a harness. Running this again changes nothing.

    The original content of each edited file is saved, so that `plugin uninstall` can restore it. CLANKERS_…_PATH
    environment variables that are set now are written into the plugin. Restart running sessions to load the plugin.

    \b
    Examples:
      clankers-ctl plugin install claude-code --dry-run
      clankers-ctl plugin install opencode
    """
    target = HARNESSES[harness]()
    edits = Edits(target.folder, dry_run)
    with explain_os_errors():
        try:
            target.install(edits)
        finally:
            if edits.steps:
                edits.save()  # so that a failed installation can be undone, too
    _print_steps(ctl, harness, edits)


@plugin.command()
@harness_argument
@dry_run_option
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def uninstall(ctl: Ctl, harness: str, dry_run: bool) -> None:
    """Remove the plugin of a harness and restore the files it edited. Captured data is not deleted.

    \b
    Examples:
      clankers-ctl plugin uninstall claude-code
      clankers-ctl plugin uninstall opencode --dry-run
    """
    target = HARNESSES[harness]()
    edits = Edits(target.folder, dry_run)
    with explain_os_errors():
        if edits.is_installed() or target.is_enabled():
            target.uninstall(edits)
            edits.discard()
    _print_steps(ctl, harness, edits)


@plugin.command()
@click.argument("harness", type=click.Choice(WITH_PLUGIN), required=False)
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def status(ctl: Ctl, harness: str | None) -> None:
    """Show which plugins are installed and up to date.

    With HARNESS, exits with 3 unless its plugin is installed, up to date and enabled.

    \b
    Examples:
      clankers-ctl plugin status
      clankers-ctl plugin status claude-code --json | jq .plugins[0].state
    """
    plugins = [plugin_status(HARNESSES[name]()) for name in ([harness] if harness else HARNESSES)]
    if ctl.json:
        print_json({"plugins": plugins, "hook": hook_command()})
    else:
        for each in plugins:
            echo(f"{each.harness}: {each.state}")
            for file in each.files:
                echo(f"  {file.state} {file.path}")
    sys.exit(EXIT_NOT_INSTALLED if harness and plugins[0].state != "installed" else 0)


def plugin_status(target: ClaudeCode | OpenCode) -> PluginStatus:
    """Return whether the plugin is installed, up to date and enabled, and the state of each of its files."""
    files = [file_state(path, content) for path, content in target.files().items()]
    states = {file.state for file in files}
    if target.is_enabled():
        state = "installed" if states == {"current"} else "outdated: install it again"
    elif states == {"missing"}:
        state, files = "not installed", []
    else:
        state = "not enabled: install it again"
    return PluginStatus(target.name, state, files)


def _print_steps(ctl: Ctl, harness: str, edits: Edits) -> None:
    if ctl.json:
        print_json({"ok": True, "harness": harness, "steps": edits.steps})
        return
    for step in edits.steps:
        echo(f"{step.action} {step.path}" + (f" ({step.detail})" if step.detail else ""))
    if not edits.steps:
        echo(f"The plugin of {harness} is not installed.")


def _package_files(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    """Return the content of each file below a folder of the package, by relative path."""
    contents: dict[str, bytes] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            contents |= _package_files(entry, f"{name}/")
        else:
            contents[name] = entry.read_bytes()
    return contents


def _json(content: Any) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
