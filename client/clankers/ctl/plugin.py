"""`clankers-ctl plugin`: install the plugins that connect harnesses to the daemon."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import click

from clankers.ctl.codex_plugin import HOW_TO_TRUST, UNTRUSTED, Codex
from clankers.ctl.command import EXIT_PROBLEM, Ctl, json_option, yes_option
from clankers.ctl.copilot_plugin import Copilot
from clankers.ctl.edits import (
    Edits,
    FileState,
    are_made,
    explain_os_errors,
    file_state,
    nested_object,
    read_if_exists,
    read_json_object,
    remove_key,
)
from clankers.ctl.formatting import format_duration
from clankers.ctl.gemini_plugin import Gemini, Qwen
from clankers.ctl.openclaw_plugin import OpenClaw
from clankers.ctl.opencode_plugin import OpenCode
from clankers.ctl.output import confirm, echo, print_json
from clankers.ctl.pi_plugin import Pi
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
from clankers.messages import BadReply, DaemonUnavailable
from clankers_protocol.capture import CaptureReport, CaptureStatus
from clankers_protocol.errors import RpcError
from clankers_protocol.harnesses import WITH_PLUGIN
from clankers_protocol.paths import default_paths
from clankers_protocol.wire import Wire

EXIT_NOT_INSTALLED = 3

CAPTURE_STATUS_SECONDS = 5
HOOK_GRACE_MS = 60_000
"""A session that was running during the installation has no hooks, and goes on writing its files for a while."""

_PROGRAM = re.compile(r"""["']?(/[^"'\n]*?)["']?,?\s+(?:"args":\s*\[\s*)?["']?-I["']?[\s,]""")
"""The interpreter in a command: in a list of words, as `command` and `args`, or in a line for a shell."""

VERSION_SECONDS = 20
Version = tuple[int, int, int]

CLAUDE_HOOKS_SINCE: dict[str, Version] = {
    "PostCompact": (2, 1, 200),
    "StopFailure": (2, 1, 200),
    "PostModelSwitch": (2, 1, 260),
}
"""Versions of Claude Code that are known to have a hook; all have the others. Older ones reject a file with a hook that
they do not know. What these hooks report is in the transcript, too."""

CLAUDE_ARGUMENTS_SINCE: Version = (2, 1, 200)
"""Versions of Claude Code that run a hook without a shell, given as a command and its arguments."""


@cache
def claude_version() -> Version | None:
    """Ask the installed Claude Code for its version; None if it is not found."""
    places = [Path.home() / ".local" / "bin" / "claude", Path.home() / ".claude" / "local" / "claude"]
    program = shutil.which("claude") or next((str(path) for path in places if path.is_file()), None)
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix="clankers-") as folder:  # some versions write a log when they are asked
        try:
            done = subprocess.run(  # noqa: S603  # the user's own Claude Code
                [program, "--version"],
                env=os.environ | {"CLAUDE_CONFIG_DIR": folder},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=VERSION_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


class PluginStatus(Wire):
    """State of the plugin of a harness and of each of its files.

    `hooks` is "ran" if an event has arrived since `installedAt`, "silent" if the harness was used since and none has,
    "unused" if it was not used since, and "unknown" if the daemon does not say. `explanation` says so in a sentence.
    `trust` is what Codex CLI says of its hooks: "trusted", "untrusted" or "modified".
    """

    harness: str
    state: str
    files: list[FileState]
    installed_at: int | None = None
    hooks: str = "unknown"
    explanation: str | None = None
    trust: str | None = None


class ClaudeCode:
    """Claude Code: a local marketplace with the plugin, registered and enabled for the user."""

    name = "claude-code"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        self.settings = self.home / "settings.json"
        self.marketplaces = self.home / "plugins" / "known_marketplaces.json"
        self.installed = self.home / "plugins" / "installed_plugins.json"
        self.state = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home()) / ".claude.json"

    def install(self, edits: Edits) -> None:
        self._enable(read_json_object(self.settings))  # raises before anything is written if they cannot be edited
        self._register(read_json_object(self.marketplaces))
        plugins = self.home / "plugins"
        for name in ("cache", "data", "marketplaces"):
            edits.expect_folder(plugins / name)  # Claude Code makes them when it loads its first plugin
        for path, content in self.files().items():
            edits.write(path, content)
        edits.save_original(self.installed)
        edits.edit_json(self.marketplaces, self._register, f"registered {self.folder}")
        edits.edit_json(self.settings, self._enable, f"enabled {PLUGIN_ID}")
        if not self._is_copy_current():
            edits.remove(plugins / "cache" / MARKETPLACE)
            edits.edit_json(
                self.installed, lambda content: remove_key(content, "plugins", PLUGIN_ID), "to copy it again"
            )

    def uninstall(self, edits: Edits) -> None:
        edits.revert_json(self.settings, disable_in_settings)
        edits.revert_json(self.marketplaces, lambda content: remove_key(content, MARKETPLACE))
        edits.revert_json(self.installed, lambda content: remove_key(content, "plugins", PLUGIN_ID))
        edits.revert_json(self.state, lambda content: remove_key(content, "pluginUsage", PLUGIN_ID))
        edits.remove(self.home / "plugins" / "cache" / MARKETPLACE)
        edits.remove(self.home / "plugins" / "data" / f"{PLUGIN}-{MARKETPLACE}")
        for logs in self.server_logs():
            edits.remove(logs)
            edits.remove_if_empty(logs.parent, logs.parents[1])
        for path in self.files():
            edits.remove(path)

    def server_logs(self) -> list[Path]:
        """Return the folders in which Claude Code logs what our MCP server says, one for each project."""
        caches = Path.home() / "Library" / "Caches" if sys.platform == "darwin" else Path.home() / ".cache"
        caches = Path(os.environ.get("XDG_CACHE_HOME") or caches)
        return sorted((caches / "claude-cli-nodejs").glob(f"*/mcp-logs-plugin-{PLUGIN}-{PLUGIN}"))

    def note(self) -> str:
        """Say for which version of Claude Code the plugin is."""
        found = claude_version()
        if found is None:
            return (
                "Claude Code was not found in PATH, so the plugin has only the hooks that every version knows. "
                "Install it again when Claude Code is there."
            )
        return f"The hooks are those of Claude Code {'.'.join(map(str, found))}."

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file of the plugin, with absolute paths of commands."""
        source = package_files("clankers.ctl") / "plugins" / self.name
        plugin = self.folder / PLUGIN
        contents = {plugin / name: content for name, content in read_package_folder(source).items()}
        hooks_path = plugin / "hooks" / "hooks.json"
        contents[hooks_path] = encode_json(self._with_hook_command(json.loads(contents[hooks_path])))
        command, *arguments = mcp_command()
        server = {"command": command, "args": arguments}
        contents[plugin / ".mcp.json"] = encode_json({"mcpServers": {"clankers": server}})
        contents[self.folder / ".claude-plugin" / "marketplace.json"] = encode_json(marketplace_catalog())
        return contents

    def is_enabled(self) -> bool:
        """Return True if the settings enable the plugin and Claude Code knows where it is."""
        return are_made({self.settings: self._enable, self.marketplaces: self._register})

    def _with_hook_command(self, description: dict[str, Any]) -> dict[str, Any]:
        """Return the hooks that the installed version knows, in the form that it takes."""
        version = claude_version() or (0, 0, 0)
        known = {
            event: groups
            for event, groups in description["hooks"].items()
            if version >= CLAUDE_HOOKS_SINCE.get(event, version)
        }
        for hook in (hook for groups in known.values() for group in groups for hook in group["hooks"]):
            command, *arguments = hook_command()
            arguments += hook.pop("args")
            if version >= CLAUDE_ARGUMENTS_SINCE:
                hook["command"], hook["args"] = command, arguments
            else:
                hook["command"] = shlex.join([command, *arguments])
        return description | {"hooks": known}

    def _enable(self, settings: dict[str, Any]) -> None:
        """Enable the plugin. The marketplace is not declared: Claude Code checks declared ones in every session."""
        nested_object(settings, "enabledPlugins", self.settings)[PLUGIN_ID] = True
        declared = settings.get("extraKnownMarketplaces")
        if isinstance(declared, dict) and MARKETPLACE in declared:  # by an earlier version of this command
            remove_key(settings, "extraKnownMarketplaces", MARKETPLACE)

    def _register(self, marketplaces: dict[str, Any]) -> None:
        """Record the marketplace as Claude Code does; older versions do so only after a question on the terminal."""
        entry = nested_object(marketplaces, MARKETPLACE, self.marketplaces)
        entry |= {"source": {"source": "directory", "path": str(self.folder)}, "installLocation": str(self.folder)}
        entry.setdefault("lastUpdated", time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()))

    def _is_copy_current(self) -> bool:
        """Return False if Claude Code has a copy of another version of our files. Newer versions make no copy."""
        plugin = self.folder / PLUGIN
        contents = {
            path.relative_to(plugin): text for path, text in self.files().items() if path.is_relative_to(plugin)
        }
        copies = (self.home / "plugins" / "cache" / MARKETPLACE / PLUGIN).glob("*/")
        return all(read_if_exists(copy / name) == text for copy in copies for name, text in contents.items())


Target = ClaudeCode | Codex | Copilot | Gemini | OpenClaw | OpenCode | Pi | Qwen
HARNESSES: dict[str, Callable[[], Target]] = {
    plugin.name: plugin for plugin in (ClaudeCode, Codex, Copilot, Gemini, OpenClaw, OpenCode, Pi, Qwen)
}

harness_argument = click.argument("harness", type=click.Choice(WITH_PLUGIN))
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be changed; change nothing.")


@click.group()
def plugin() -> None:
    """Connect a harness, such as Claude Code or Codex CLI, to the daemon.

    You can connect any other harness with `clankers-hook generic`; see docs/plugins.md.

    \b
    Examples:
      clankers-ctl plugin install claude-code
      clankers-ctl plugin status
    """


@plugin.command()
@harness_argument
@click.option("--memory-slot", is_flag=True, help="Serve the memory of OpenClaw, too, instead of its own.")
@dry_run_option
@yes_option
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def install(ctl: Ctl, harness: str, memory_slot: bool, dry_run: bool, yes: bool) -> None:
    """Install or update the plugin of a harness. Running this again changes nothing.

    The original content of each edited file is saved, so that `plugin uninstall` can restore it. CLANKERS_…_PATH
    environment variables that are set now are written into the plugin. Restart running sessions to load the plugin.
    Asks before it adds an extension to Gemini CLI or Qwen Code or a plugin to OpenClaw, which otherwise would ask
    themselves. The hooks of Codex CLI run once you have trusted them there.

    \b
    Examples:
      clankers-ctl plugin install claude-code --dry-run
      clankers-ctl plugin install opencode
      clankers-ctl plugin install gemini --yes
      clankers-ctl plugin install openclaw --memory-slot
    """
    target = HARNESSES[harness]()
    if memory_slot:
        if not isinstance(target, OpenClaw):
            raise click.UsageError(f"{harness} has no memory slot: --memory-slot is for openclaw.")
        target.takes_memory_slot = True
    if isinstance(target, (Gemini, OpenClaw)) and not (yes or dry_run or target.is_enabled()):
        if ctl.json:
            raise click.UsageError(
                "With --json, install cannot ask you to agree to the plugin. Add --yes or --dry-run."
            )
        echo(target.consent())
        confirm("Install it?", abort=True)
    _print_steps(ctl, harness, install_plugin(target, dry_run=dry_run), target.note())


def install_plugin(target: Target, *, dry_run: bool) -> Edits:
    """Install or update the plugin of a harness; return what was changed."""
    edits = Edits(target.folder, dry_run)
    with explain_os_errors():
        try:
            target.install(edits)
            edits.remove_former(target.files())
        finally:
            if edits.steps:
                edits.save()  # so that a failed installation can be undone, too
    return edits


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
            edits.remove_former([])
            edits.discard()
    _print_steps(ctl, harness, edits)


@plugin.command()
@click.argument("harness", type=click.Choice(WITH_PLUGIN), required=False)
@json_option
@click.make_pass_decorator(Ctl, ensure=True)
def status(ctl: Ctl, harness: str | None) -> None:
    """Show which plugins are installed and up to date, and whether hooks have run.

    With HARNESS, exits with 3 unless its plugin is installed, up to date and enabled, and with 4 if the harness was
    used since and no event has arrived, or if Codex CLI does not run the hooks because you have not trusted them.

    \b
    Examples:
      clankers-ctl plugin status
      clankers-ctl plugin status claude-code --json | jq .plugins[0].state
    """
    try:
        report = ctl.call(CaptureStatus(), timeout=CAPTURE_STATUS_SECONDS)
    except (DaemonUnavailable, TimeoutError, BadReply, RpcError):
        report = None
    plugins = [plugin_status(HARNESSES[name](), report) for name in ([harness] if harness else HARNESSES)]
    if ctl.json:
        print_json({"plugins": plugins, "hook": hook_command()})
    else:
        for each in plugins:
            echo(f"{each.harness}: {each.state}" + (f"; {each.explanation}" if each.explanation else ""))
            for file in each.files:
                echo(f"  {file.state} {file.path}")
    if harness and plugins[0].state != "installed":
        sys.exit(EXIT_NOT_INSTALLED)
    is_problem = plugins[0].hooks == "silent" or plugins[0].trust in UNTRUSTED
    sys.exit(EXIT_PROBLEM if harness and is_problem else 0)


def plugin_status(target: Target, report: CaptureReport | None) -> PluginStatus:
    """Return whether the plugin is installed, up to date and enabled, and whether its hooks have run."""
    files = [file_state(path, content) for path, content in target.files().items()]
    states = {file.state for file in files}
    if target.is_enabled():
        state = "installed" if states == {"current"} else "outdated: install it again"
        if lost := find_lost_program(target.files()):
            state = f"broken: {lost}, which its hooks run, is gone. Install it again"
    elif states == {"missing"}:
        return PluginStatus(target.name, "not installed", [])
    else:
        state = "not enabled: install it again"
    found = PluginStatus(target.name, state, files, Edits(target.folder).installed_at)
    found.hooks, found.explanation = _hooks_ran(target.name, found.installed_at, report)
    if isinstance(target, Codex) and report is not None and found.hooks != "ran":
        found.trust = target.trust()
        if found.trust in UNTRUSTED:
            found.explanation = f"its hooks are {found.trust}, so that Codex does not run them: {HOW_TO_TRUST}"
    return found


def find_lost_program(files: Iterable[Path]) -> str | None:
    """Return the interpreter that installed files start and that is not there any more; None if all are there.

    A virtualenv that was moved or made again elsewhere leaves such files. The harness runs nothing then, and is silent.
    """
    for path in files:
        with suppress(OSError):
            for found in _PROGRAM.finditer(path.read_text("utf-8", "replace")):
                if not Path(found[1]).exists():
                    return found[1]
    return None


def _hooks_ran(name: str, installed_at: int | None, report: CaptureReport | None) -> tuple[str, str]:
    """Return whether events have arrived since the installation, and a sentence that says so."""
    if report is None:
        return "unknown", "the daemon does not answer, so it is not known whether its hooks run"
    capture = next((each for each in report.harnesses if each.harness == name), None)
    last = capture.last_event_at if capture and capture.events else None
    since = installed_at or 0
    if last and last >= since:
        return "ran", f"its last event came {format_duration(max(time.time() - last / 1000, 0))} ago"
    used = capture.last_activity_at if capture else None
    if used and used >= since + HOOK_GRACE_MS:
        return "silent", f"{name} was used since, but none of its hooks has run: restart its sessions, then see its log"
    return "unused", f"{name} was not used since, so no hook has run yet"


def _print_steps(ctl: Ctl, harness: str, edits: Edits, note: str | None = None) -> None:
    if ctl.json:
        print_json({"ok": True, "harness": harness, "steps": edits.steps, "note": note})
        return
    for step in edits.steps:
        echo(f"{step.action} {step.path}" + (f" ({step.detail})" if step.detail else ""))
    if not edits.steps:
        echo(f"The plugin of {harness} is not installed.")
    if note:
        echo(note)
