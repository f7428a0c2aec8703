"""A home with harnesses in it, for tests of `clankers-ctl plugin`."""

import os
from pathlib import Path
from typing import Any

from helpers.ctl import Ran, ctl
from helpers.daemon import DaemonProcess

PLUGINS = Path(__file__).parents[2] / "client" / "plugins"
HARNESS_VARIABLES = ("CLANKERS_", "XDG_", "CLAUDE", "OPENCODE", "CODEX", "COPILOT", "GEMINI", "PI_", "QWEN")
ODD = b'{\n\t"model": "opus",\n\t"permissions": {"allow": ["Bash"]},   "hooks": {} }'

BEFORE = [
    None,
    b"{}",
    b"",
    ODD,
    b'{"enabledPlugins": {}, "extraKnownMarketplaces": {}}\n\n',
    b'{"enabledPlugins": {"other@market": true, "clankers@clankers-local": false}}',
    '{"name": "n\u00e4\u00efve \\u00e9"}\r\n'.encode(),
    b'{"half": "\\ud800"}',
]
"""Contents of a settings file that must come back as they were; None if there is no file."""


class HarnessHome:
    """A user's home with harnesses in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.daemon = DaemonProcess(home)
        self.daemon.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(
                ("CLANKERS_", "XDG_", "CLAUDE", "OPENCODE", "CODEX", "COPILOT", "GEMINI", "PI_", "QWEN")
            )
        } | {"HOME": str(home), "CLANKERS_HOOK_AUTOSTART": "false"}
        self.claude("2.1.325 (Claude Code)")
        self.settings = home / ".claude" / "settings.json"
        self.opencode = home / ".config" / "opencode"

    def claude(self, version: str) -> None:
        """Put a Claude Code into PATH that tells this version, and nothing else."""
        program = self.home / "bin" / "claude"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho '{version}'\n")
        program.chmod(0o755)
        self.daemon.environ["PATH"] = f"{program.parent}:/usr/bin:/bin"

    def plugin(self, *words: str, **environ: Any) -> Ran:
        return ctl(self.daemon, "plugin", *words, **environ)

    def everything(self) -> dict[str, Any]:
        """Every file with its content and mode, every folder, every link."""
        found: dict[str, Any] = {}
        for path in sorted(self.home.rglob("*")):
            name = str(path.relative_to(self.home))
            if path.is_symlink():
                found[name] = path.readlink()
            else:
                found[name] = (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        return found


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
