"""Common parts of the plugins of all harnesses: their names, their commands and the files of the package."""

import json
import shlex
import sys
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import clankers
from clankers.ctl.service_managers import path_environment

PLUGIN = "clankers"
MARKETPLACE = "clankers-local"
PLUGIN_ID = f"{PLUGIN}@{MARKETPLACE}"


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


def with_hook_command(description: dict[str, Any]) -> dict[str, Any]:
    """Return hooks that a shell runs, with the fastest command instead of the program's name."""
    for hook in (hook for groups in description["hooks"].values() for group in groups for hook in group["hooks"]):
        _, *arguments = shlex.split(hook["command"])
        hook["command"] = shlex.join([*hook_command(), *arguments])
    return description


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
