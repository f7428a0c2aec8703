"""`clankers-ctl plugin`: what connects Claude Code and OpenCode to the daemon."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import click

import clankers
from clankers.ctl.command import Ctl, json_option
from clankers.ctl.edits import Edits, explained, parsed, table, without
from clankers.ctl.managers import CARRIED
from clankers.ctl.output import echo, print_json
from clankers_protocol.harnesses import WITH_PLUGIN
from clankers_protocol.paths import default_paths

NOT_INSTALLED = 3
PLUGIN = "clankers"
MARKETPLACE = "clankers-local"


def hook_command() -> list[str]:
    """How a hook is started quickest: this very interpreter, without what Python loads for anybody else."""
    packages = str(Path(clankers.__file__).parents[1])
    told = "".join(f"os.environ.setdefault({name!r},{value!r});" for name, value in carried().items())
    program = f"import os,sys;sys.path.insert(0,{packages!r});{told}from clankers.hook import main;main()"
    return [sys.executable, "-I", "-S", "-c", program]


def carried() -> dict[str, str]:
    """Variables that move the daemon's files: a harness may be started where they are not set."""
    return {name: os.environ[name] for name in CARRIED if os.environ.get(name)}


def mcp_command() -> str:
    """The MCP server's command: the one installed with this program, else the one in PATH."""
    beside = Path(sys.executable).with_name("clankers-mcp")
    return str(beside) if beside.is_file() else shutil.which("clankers-mcp") or "clankers-mcp"


class ClaudeCode:
    """A local marketplace with the plugin in it, which the user's settings name and enable."""

    name = "claude-code"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        self.settings = self.home / "settings.json"

    def install(self, edits: Edits) -> None:
        self._enable(parsed(self.settings))  # what cannot be edited shows before anything is written
        for place, content in self.files().items():
            edits.write(place, content)
        for registry in self._registries():
            edits.remember(registry)
        edits.change(self.settings, self._enable, f"enabled {PLUGIN}@{MARKETPLACE} from {self.folder}")

    def uninstall(self, edits: Edits) -> None:
        edits.take_back(self.settings, self._disable)
        for registry, keys in self._registries().items():
            edits.take_back(registry, lambda content, keys=keys: without(content, *keys))  # type: ignore[misc]
        edits.remove(self.home / "plugins" / "cache" / MARKETPLACE)
        for place in self.files():
            edits.remove(place)

    def files(self) -> dict[Path, bytes]:
        """What belongs into our folder, with full paths for commands."""
        source = package_files("clankers.ctl") / "plugins" / self.name
        plugin = self.folder / PLUGIN
        contents = {plugin / name: _resource(source, name) for name in _names(source)}
        contents[plugin / "hooks" / "hooks.json"] = _json(
            self._hooks(json.loads(_resource(source, "hooks/hooks.json")))
        )
        server = {"command": mcp_command()} | ({"env": carried()} if carried() else {})
        contents[plugin / ".mcp.json"] = _json({"mcpServers": {"clankers": server}})
        catalog = {
            "name": MARKETPLACE,
            "description": "The plugin of the clankers daemon on this machine.",
            "owner": {"name": "The clankers authors"},
            "plugins": [{"name": PLUGIN, "source": f"./{PLUGIN}", "description": "The local memory of your agents."}],
        }
        contents[self.folder / ".claude-plugin" / "marketplace.json"] = _json(catalog)
        return contents

    def enabled(self) -> bool:
        """Whether the settings name and enable the plugin."""
        try:
            settings = parsed(self.settings)
            wanted = parsed(self.settings)
            self._enable(wanted)
        except (OSError, click.ClickException):
            return False
        return wanted == settings

    def _hooks(self, described: dict[str, Any]) -> dict[str, Any]:
        command, *arguments = hook_command()
        for groups in described["hooks"].values():
            for hook in (hook for group in groups for hook in group["hooks"]):
                hook["command"], hook["args"] = command, [*arguments, *hook["args"]]
        return described

    def _enable(self, settings: dict[str, Any]) -> None:
        source = {"source": "directory", "path": str(self.folder)}
        table(settings, "extraKnownMarketplaces", self.settings)[MARKETPLACE] = {"source": source}
        table(settings, "enabledPlugins", self.settings)[f"{PLUGIN}@{MARKETPLACE}"] = True

    def _disable(self, settings: dict[str, Any]) -> None:
        without(settings, "extraKnownMarketplaces", MARKETPLACE)
        without(settings, "enabledPlugins", f"{PLUGIN}@{MARKETPLACE}")

    def _registries(self) -> dict[Path, tuple[str, ...]]:
        """Where Claude Code itself notes marketplaces and plugins that its settings name, and under which keys."""
        return {
            self.home / "plugins" / "known_marketplaces.json": (MARKETPLACE,),
            self.home / "plugins" / "installed_plugins.json": ("plugins", f"{PLUGIN}@{MARKETPLACE}"),
        }


class OpenCode:
    """One file in OpenCode's plugin folder; it brings the MCP server and the commands along."""

    name = "opencode"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
        self.home = Path(os.environ.get("OPENCODE_CONFIG_DIR") or config)
        self.place = self.home / "plugin" / "clankers.js"

    def install(self, edits: Edits) -> None:
        if self.place.exists() and not self._is_ours():
            raise click.ClickException(f"{self.place} is not ours: move it away first. Nothing was changed.")
        for place, content in self.files().items():
            edits.write(place, content)

    def uninstall(self, edits: Edits) -> None:
        if self._is_ours():
            edits.remove(self.place)

    def files(self) -> dict[Path, bytes]:
        """The plugin, with full paths for commands."""
        text = _resource(package_files("clankers.ctl") / "plugins" / self.name, "clankers.js").decode()
        for line, value in (("HOOK", hook_command()), ("MCP", [mcp_command()]), ("ENVIRONMENT", carried())):
            start = text.index(f"const {line} = ")
            text = f"{text[:start]}const {line} = {json.dumps(value)}{text[text.index(chr(10), start) :]}"
        return {self.place: text.encode()}

    def enabled(self) -> bool:
        """Whether the file is where OpenCode looks for plugins."""
        return self._is_ours()

    def _is_ours(self) -> bool:
        try:
            return self.place.read_bytes().startswith(b"// clankers for OpenCode")
        except OSError:
            return False


HARNESSES: dict[str, Callable[[], ClaudeCode | OpenCode]] = {plugin.name: plugin for plugin in (ClaudeCode, OpenCode)}

harness_argument = click.argument("harness", type=click.Choice(WITH_PLUGIN))
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be changed; change nothing.")


@click.group()
def plugin() -> None:
    """Connect a harness to the daemon: Claude Code, OpenCode.

    Any other harness can be wired by hand with `clankers-hook generic`: see docs/plugins.md.

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
    """Install the plugin of a harness, or bring it up to date. Doing it again changes nothing.

    What is edited is kept, so that uninstalling can put it back. CLANKERS_…_PATH variables that are set now are
    written into the plugin. Sessions that are running already take it up when they are started again.

    \b
    Examples:
      clankers-ctl plugin install claude-code --dry-run
      clankers-ctl plugin install opencode
    """
    here = HARNESSES[harness]()
    edits = Edits(here.folder, dry_run)
    with explained():
        try:
            here.install(edits)
        finally:
            if edits.steps:
                edits.save()  # what was done before it failed can be taken back too
    _show(ctl, harness, edits)


@plugin.command()
@harness_argument
@dry_run_option
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def uninstall(ctl: Ctl, harness: str, dry_run: bool) -> None:
    """Take the plugin of a harness out, and put its files back as they were. What was captured stays.

    \b
    Examples:
      clankers-ctl plugin uninstall claude-code
      clankers-ctl plugin uninstall opencode --dry-run
    """
    here = HARNESSES[harness]()
    edits = Edits(here.folder, dry_run)
    with explained():
        if edits.installed or here.enabled():
            here.uninstall(edits)
            edits.forget()
    _show(ctl, harness, edits)


@plugin.command()
@click.argument("harness", type=click.Choice(WITH_PLUGIN), required=False)
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def status(ctl: Ctl, harness: str | None) -> None:
    """Show which plugins are installed and up to date. Exits 3 when the one that is named is not.

    \b
    Examples:
      clankers-ctl plugin status
      clankers-ctl plugin status claude-code --json | jq .plugins[0].state
    """
    plugins = [standing(HARNESSES[name]()) for name in ([harness] if harness else HARNESSES)]
    if ctl.json:
        print_json({"plugins": plugins, "hook": hook_command()})
    else:
        for found in plugins:
            echo(f"{found['harness']}: {found['state']}")
            for file in found["files"]:
                echo(f"  {file['is']} {file['path']}")
    sys.exit(NOT_INSTALLED if harness and plugins[0]["state"] != "installed" else 0)


def standing(here: ClaudeCode | OpenCode) -> dict[str, Any]:
    """Whether the plugin of a harness is installed, up to date and enabled, and what each of its files is."""
    files = [{"path": str(path), "is": _compared(path, content)} for path, content in here.files().items()]
    states = {file["is"] for file in files}
    if states == {"missing"} and not here.enabled():
        return {"harness": here.name, "state": "not installed", "files": []}
    state = "installed" if states == {"current"} else "outdated: install it again"
    return {"harness": here.name, "state": state if here.enabled() else "not enabled: install it again", "files": files}


def _compared(path: Path, content: bytes) -> str:
    try:
        return "current" if path.read_bytes() == content else "outdated"
    except OSError:
        return "missing"


def _show(ctl: Ctl, harness: str, edits: Edits) -> None:
    if ctl.json:
        print_json({"ok": True, "harness": harness, "steps": edits.steps})
        return
    for step in edits.steps:
        echo(f"{step['action']} {step['path']}" + (f" ({step['detail']})" if "detail" in step else ""))
    if not edits.steps:
        echo(f"The plugin of {harness} is not installed.")


def _names(folder: Any, prefix: str = "") -> list[str]:
    names: list[str] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        names += _names(entry, f"{name}/") if entry.is_dir() else [name]
    return sorted(names)


def _resource(folder: Any, name: str) -> bytes:
    content: bytes = folder.joinpath(*name.split("/")).read_bytes()
    return content


def _json(content: Any) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
