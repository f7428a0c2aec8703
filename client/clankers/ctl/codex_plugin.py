"""The plugin of Codex CLI: a local marketplace, entries in config.toml, and the copy that Codex keeps of a plugin."""

import json
import os
import re
import selectors
import shutil
import subprocess
import time
import tomllib
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import click

from clankers.ctl.agent_texts import command_skills, skill_file
from clankers.ctl.edits import Edits, read_text
from clankers.ctl.plugin_files import (
    MARKETPLACE,
    PLUGIN,
    PLUGIN_ID,
    encode_json,
    mcp_command,
    read_package_folder,
    with_hook_command,
)
from clankers_protocol.paths import default_paths

VERSION = "1.0.0"
"""Version of the plugin. Codex keeps its copy in a folder of this name, and ties trust to the content of the copy."""

APP_SERVER_SECONDS = 15
HOW_TO_TRUST = "start `codex` and review the hooks of clankers when it asks, or enter /hooks there and press t"
UNTRUSTED = ("modified", "untrusted")
"""States of a hook in which Codex does not run it."""

_EMPTY_STATE = re.compile(r"^\[hooks\.state\]\s*(?=^\[|\Z)", re.MULTILINE)
_TABLE = re.compile(r"^\s*\[{1,2}\s*(.+?)\s*\]{1,2}\s*(?:#.*)?$")


class Codex:
    """Codex CLI: hooks, MCP server and skill in one plugin. Codex runs its hooks once the user has trusted them."""

    name = "codex"

    def __init__(self) -> None:
        self.folder = default_paths().data / "plugins" / self.name
        self.home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
        self.config = self.home / "config.toml"
        self.cache = self.home / "plugins" / "cache" / MARKETPLACE

    def install(self, edits: Edits) -> None:
        self._enable(read_text(self.config))  # raises before anything is written if it cannot be edited
        for path, content in self.files().items():
            edits.write(path, content)
        edits.edit_text(self.config, self._enable, f"enabled {PLUGIN_ID} from {self.folder}")

    def uninstall(self, edits: Edits) -> None:
        edits.revert_text(self.config, self._disable)
        edits.remove(self.cache)
        edits.remove(self.home / "plugins" / "data" / f"{PLUGIN}-{MARKETPLACE}")
        for path in self.files():
            edits.remove(path)

    def files(self) -> dict[Path, bytes]:
        """Return the content of each file: the marketplace with the plugin, and Codex's copy of the plugin."""
        contents = read_package_folder(package_files("clankers.ctl") / "plugins" / self.name)
        contents |= skill_file() | command_skills()
        contents["hooks/hooks.json"] = encode_json(with_hook_command(json.loads(contents["hooks/hooks.json"])))
        command, *arguments = mcp_command()
        contents[".mcp.json"] = encode_json({"mcpServers": {PLUGIN: {"command": command, "args": arguments}}})
        source = {"source": "local", "path": f"./plugins/{PLUGIN}"}
        catalog = {"name": MARKETPLACE, "plugins": [{"name": PLUGIN, "source": source}]}
        placed = {self.folder / ".agents" / "plugins" / "marketplace.json": encode_json(catalog)}
        for name, content in contents.items():
            placed[self.folder / "plugins" / PLUGIN / name] = content
            placed[self.cache / PLUGIN / VERSION / name] = content
        return placed

    def is_enabled(self) -> bool:
        """Return True if config.toml names the marketplace and enables the plugin."""
        try:
            config = tomllib.loads(read_text(self.config))
        except (OSError, tomllib.TOMLDecodeError, click.ClickException):
            return False
        market = _nested(config, "marketplaces", MARKETPLACE)
        return market.get("source") == str(self.folder) and _nested(config, "plugins", PLUGIN_ID).get("enabled") is True

    def note(self) -> str:
        """Say how to trust the hooks, which only the user can."""
        try:
            features = _nested(tomllib.loads(read_text(self.config)), "features")
        except (OSError, tomllib.TOMLDecodeError):
            features = {}
        off = (
            " Plugins are turned off: remove `plugins = false` from config.toml."
            if not features.get("plugins", True)
            else ""
        )
        return (
            f"Codex runs no hook that you have not trusted, and does not say so: {HOW_TO_TRUST}. Until then nothing is "
            f"captured. `clankers-ctl plugin status codex` shows whether they are trusted.{off}"
        )

    def trust(self) -> str | None:
        """Ask Codex whether the user has trusted our hooks: trusted, untrusted or modified; None if it does not say."""
        states = {hook.get("trustStatus") for hook in self._list_hooks() if hook.get("pluginId") == PLUGIN_ID}
        for state in UNTRUSTED:
            if state in states:
                return state
        return "trusted" if states else None

    def _list_hooks(self) -> list[dict[str, Any]]:
        program = shutil.which("codex")
        has_run = any(self.home.glob("*.sqlite"))  # asked before its first run, Codex would fill its folder
        if program is None or not has_run:
            return []
        requests: list[dict[str, Any]] = [
            {"id": 0, "method": "initialize", "params": {"clientInfo": {"name": PLUGIN, "version": VERSION}}},
            {"method": "initialized"},
            {"id": 1, "method": "hooks/list", "params": {"cwds": [str(Path.home())]}},
        ]
        try:
            with subprocess.Popen(  # noqa: S603  # the user's own Codex
                [program, "app-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as server:
                try:
                    assert server.stdin is not None
                    assert server.stdout is not None
                    server.stdin.write("".join(f"{json.dumps(request)}\n" for request in requests).encode())
                    server.stdin.flush()
                    reply = _read_reply(server.stdout.fileno(), 1)
                finally:
                    server.kill()
        except OSError:
            return []
        folders = reply.get("data") if isinstance(reply, dict) else None
        listed = (
            [folder.get("hooks") for folder in folders if isinstance(folder, dict)] if isinstance(folders, list) else []
        )
        return [hook for hooks in listed if isinstance(hooks, list) for hook in hooks if isinstance(hook, dict)]

    def _enable(self, config: str) -> str:
        """Add our entries at the end, as Codex itself does."""
        config = self._disable(config, keep_trust=True)
        entries = (
            f'[marketplaces.{MARKETPLACE}]\nsource_type = "local"\nsource = {json.dumps(str(self.folder))}\n\n'
            f'[plugins."{PLUGIN_ID}"]\nenabled = true\n'
        )
        gap = "" if not config or config.endswith("\n\n") else "\n" if config.endswith("\n") else "\n\n"
        try:
            tomllib.loads(config)
            tomllib.loads(f"{config}{gap}{entries}")
        except tomllib.TOMLDecodeError as error:
            raise click.ClickException(
                f"{self.config} cannot be edited ({error}). Correct it first. Nothing was changed."
            ) from error
        return f"{config}{gap}{entries}"

    def _disable(self, config: str, *, keep_trust: bool = False) -> str:
        """Remove our tables, and with them what the user trusted."""
        ours = [f"marketplaces.{MARKETPLACE}", f'plugins."{PLUGIN_ID}"']
        if not keep_trust:
            ours.append(f'hooks.state."{PLUGIN_ID}:')
        kept: list[str] = []
        is_ours = False
        for line in config.splitlines(keepends=True):
            if table := _TABLE.match(line):
                is_ours = table[1].startswith(tuple(ours))
            if not is_ours:
                kept.append(line)
        remaining = "".join(kept)
        has_state = "hooks.state." in remaining
        if remaining != config and not keep_trust and not has_state:  # Codex made the table for our entries
            remaining = _EMPTY_STATE.sub("", remaining)
        return remaining


def _nested(content: dict[str, Any], *keys: str) -> dict[str, Any]:
    found: Any = content
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _read_reply(descriptor: int, number: int) -> Any:
    """Read lines until the reply of this number; None if it does not come in time."""
    deadline = time.monotonic() + APP_SERVER_SECONDS
    buffered = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left) or not (piece := os.read(descriptor, 65536)):
                return None
            *lines, buffered = (buffered + piece).split(b"\n")
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:
                    continue
                if isinstance(message, dict) and message.get("id") == number:
                    return message.get("result")
    return None
