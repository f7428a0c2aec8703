"""The plugin as Claude Code itself judges it."""

import os
import subprocess
from pathlib import Path

from e2e.harnesses import PLUGINS, claude_binary
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess


def validate(home: Path, folder: Path) -> None:
    environ = {"HOME": str(home), "TMPDIR": str(home), "PATH": os.environ["PATH"], "DISABLE_AUTOUPDATER": "1"}
    done = subprocess.run(
        [str(claude_binary()), "plugin", "validate", "--strict", str(folder)],
        env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugin_is_valid_as_it_stands(home: Path) -> None:
    validate(home, PLUGINS / "claude-code")


def test_what_is_installed_is_valid_as_a_plugin_and_as_a_marketplace(home: Path) -> None:
    daemon = DaemonProcess(home, HOME=str(home), CLAUDE_CONFIG_DIR=str(home / "claude"))
    assert ctl(daemon, "plugin", "install", "claude-code").code == 0
    installed = home / "clankers" / "plugins" / "claude-code"
    validate(home, installed)
    validate(home, installed / "clankers")
