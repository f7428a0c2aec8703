"""Common parts of the plugins of all harnesses: their names, their commands and the files of the package."""

import json
import os
import shlex
import sys
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import clankers
from clankers.ctl.edits import remove_key
from clankers.ctl.service_managers import path_environment
from clankers.hook import socket_path

SHELL = "/bin/sh"
PLUGIN = "clankers"
MARKETPLACE = "clankers-local"
PLUGIN_ID = f"{PLUGIN}@{MARKETPLACE}"


def hook_command() -> list[str]:
    """Return the fastest command that runs a hook."""
    return _program("clankers.hook")


def mcp_command() -> list[str]:
    """Return the fastest command that runs the MCP server for a session, in which few call a tool."""
    script = Path(clankers.__file__).with_name("mcp_start.sh")
    return [SHELL, str(script), socket_path(), *relay_command()] if os.access(SHELL, os.X_OK) else relay_command()


def relay_command() -> list[str]:
    """Return the fastest command that runs the MCP server for a single call."""
    return _program("clankers.mcp")


def _program(module: str) -> list[str]:
    """Return a command that runs `main` of a module: this interpreter, isolated and without the site module."""
    packages = str(Path(clankers.__file__).parents[1])
    variables = "".join(f"os.environ.setdefault({name!r},{value!r});" for name, value in path_environment().items())
    program = f"import os,sys;sys.path.insert(0,{packages!r});{variables}from {module} import main;main()"
    return [sys.executable, "-I", "-S", "-c", program]


def with_hook_command(description: dict[str, Any]) -> dict[str, Any]:
    """Return hooks that a shell runs, with the fastest command instead of the program's name."""
    for hook in (hook for groups in description["hooks"].values() for group in groups for hook in group["hooks"]):
        _, *arguments = shlex.split(hook["command"])
        hook["command"] = shlex.join([*hook_command(), *arguments])
    return description


def with_constants(text: str, constants: dict[str, Any]) -> bytes:
    """Return a program in JavaScript with these values in the lines that declare its constants."""
    for name, value in constants.items():
        start = text.index(f"const {name} = ")
        end = text.index("\n", start)
        text = f"{text[:start]}const {name} = {json.dumps(value)}{text[end:]}"
    return text.encode()


def marketplace_catalog() -> dict[str, Any]:
    """Return the description of a local marketplace with our plugin in a folder of its name."""
    plugin = {"name": PLUGIN, "source": f"./{PLUGIN}", "description": "The local memory of your agents."}
    return {
        "name": MARKETPLACE,
        "description": "The plugin of the clankers daemon on this machine.",
        "owner": {"name": "The clankers authors"},
        "plugins": [plugin],
    }


def disable_in_settings(settings: dict[str, Any]) -> None:
    """Remove our marketplace and our plugin from the settings of a harness."""
    remove_key(settings, "extraKnownMarketplaces", MARKETPLACE)
    remove_key(settings, "enabledPlugins", PLUGIN_ID)


def read_package_folder(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    """Return the content of each file below a folder of the package, by relative path."""
    contents: dict[str, bytes] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            contents |= read_package_folder(entry, f"{name}/")
        else:
            contents[name] = entry.read_bytes()
    return contents


def encode_json(content: Any) -> bytes:
    """Encode a file of a plugin."""
    return f"{json.dumps(content, indent=2)}\n".encode()
