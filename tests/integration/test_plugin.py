"""`clankers-ctl plugin`: install a plugin, and uninstall it without a trace."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import Ran, ctl
from helpers.daemon import DaemonProcess

PLUGINS = Path(__file__).parents[2] / "client" / "plugins"
ODD = b'{\n\t"model": "opus",\n\t"permissions": {"allow": ["Bash"]},   "hooks": {} }'


class Machine:
    """A user's home with harnesses in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.daemon = DaemonProcess(home)
        self.daemon.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CLANKERS_", "XDG_", "CLAUDE", "OPENCODE"))
        } | {"HOME": str(home)}
        self.settings = home / ".claude" / "settings.json"
        self.opencode = home / ".config" / "opencode"

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


@pytest.fixture
def machine(home: Path) -> Machine:
    return Machine(home)


def settings_of(machine: Machine) -> dict[str, Any]:
    return dict(json.loads(machine.settings.read_bytes()))


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# --- Claude Code

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


@pytest.mark.parametrize("before", BEFORE)
def test_plugin_uninstall_restores_every_file_byte_for_byte(machine: Machine, before: bytes | None) -> None:
    if before is not None:
        write(machine.settings, before)
        machine.settings.chmod(0o600)
    snapshot = machine.everything()

    assert machine.plugin("install", "claude-code").code == 0
    assert settings_of(machine)["enabledPlugins"]["clankers@clankers-local"] is True
    assert machine.everything() != snapshot

    assert machine.plugin("uninstall", "claude-code").code == 0
    assert machine.everything() == snapshot


def test_plugin_install_again_changes_nothing(machine: Machine) -> None:
    write(machine.settings, ODD)
    snapshot = machine.everything()
    machine.plugin("install", "claude-code")
    installed = machine.everything()
    steps = machine.plugin("install", "claude-code", "--json").json["steps"]
    assert {step["action"] for step in steps} == {"unchanged"}
    assert machine.everything() == installed
    machine.plugin("uninstall", "claude-code")
    assert machine.everything() == snapshot


def test_plugin_uninstall_keeps_later_changes_of_others(machine: Machine) -> None:
    write(machine.settings, ODD)
    machine.plugin("install", "claude-code")
    changed = settings_of(machine) | {"model": "haiku"}
    machine.settings.write_text(json.dumps(changed))
    machine.plugin("uninstall", "claude-code")
    assert settings_of(machine) == {"model": "haiku", "permissions": {"allow": ["Bash"]}, "hooks": {}}


def test_plugin_uninstall_removes_entries_in_claude_codes_registries(machine: Machine) -> None:
    registries = machine.home / ".claude" / "plugins"
    other = b'{"other": {"source": {"source": "github", "repo": "a/b"}}}'
    write(registries / "known_marketplaces.json", other)
    snapshot = machine.everything()
    machine.plugin("install", "claude-code")
    noted = json.loads(other) | {"clankers-local": {"source": {}}}
    (registries / "known_marketplaces.json").write_text(json.dumps(noted, indent=2))
    installed = {"version": 2, "plugins": {"clankers@clankers-local": [{"scope": "user"}]}}
    write(registries / "installed_plugins.json", json.dumps(installed).encode())
    write(registries / "cache" / "clankers-local" / "clankers" / "0.1.0" / "x", b"copy")
    machine.plugin("uninstall", "claude-code")
    (registries / "cache").rmdir()  # Claude Code's own, and empty
    assert machine.everything() == snapshot


def test_plugin_install_does_not_write_through_a_planted_link(machine: Machine) -> None:
    precious = machine.home / "precious"
    precious.write_text("as it was")
    planted = machine.settings.with_name(".settings.json.clankers")
    planted.parent.mkdir()
    planted.symlink_to(precious)
    assert machine.plugin("install", "claude-code").code == 0
    assert precious.read_text() == "as it was"

    machine.plugin("uninstall", "claude-code")
    project = machine.home / "project"
    (project / ".git").mkdir(parents=True)
    (project / "settings.json").symlink_to(precious)
    precious.write_text("{}")
    refused = machine.plugin("install", "claude-code", CLAUDE_CONFIG_DIR=str(project))
    assert refused.code == 1
    assert "it is a link, and it lies in the repository" in refused.err
    assert precious.read_text() == "{}"


def test_plugin_install_edits_settings_behind_a_link(machine: Machine) -> None:
    real = machine.home / "dotfiles" / "claude.json"
    write(real, ODD)
    machine.settings.parent.mkdir()
    machine.settings.symlink_to(real)
    snapshot = machine.everything()
    machine.plugin("install", "claude-code")
    assert machine.settings.is_symlink()
    assert b"clankers@clankers-local" in real.read_bytes()
    machine.plugin("uninstall", "claude-code")
    assert machine.everything() == snapshot


@pytest.mark.parametrize("broken", [b"{not json", b"[1]", b'{"a": 1,}', b'{"enabledPlugins": []}'])
def test_plugin_install_does_not_touch_invalid_settings(machine: Machine, broken: bytes) -> None:
    write(machine.settings, broken)
    snapshot = machine.everything()
    ran = machine.plugin("install", "claude-code")
    assert ran.code == 1
    assert str(machine.settings) in ran.err
    assert machine.everything() == snapshot
    machine.plugin("uninstall", "claude-code")
    assert machine.everything() == snapshot


def test_plugin_dry_run_reports_and_changes_nothing(machine: Machine) -> None:
    write(machine.settings, ODD)
    snapshot = machine.everything()
    told = machine.plugin("install", "claude-code", "--dry-run").out
    assert f"would edit {machine.settings}" in told
    assert machine.everything() == snapshot
    machine.plugin("install", "claude-code")
    installed = machine.everything()
    assert f"would restore {machine.settings}" in machine.plugin("uninstall", "claude-code", "--dry-run").out
    assert machine.everything() == installed


def test_plugin_install_respects_claude_config_dir(machine: Machine) -> None:
    elsewhere = machine.home / "elsewhere"
    machine.plugin("install", "claude-code", CLAUDE_CONFIG_DIR=str(elsewhere))
    assert (elsewhere / "settings.json").exists()
    assert not machine.settings.exists()


def installed_hooks(machine: Machine) -> dict[str, Any]:
    (found,) = machine.home.rglob("plugins/claude-code/clankers/hooks/hooks.json")
    return dict(json.loads(found.read_bytes())["hooks"])


def test_plugin_hooks_run_and_send_their_event(machine: Machine) -> None:
    """Each as the harness runs it: no shell, no PATH, somewhere else."""
    machine.plugin("install", "claude-code")
    spool = machine.home / ".local" / "share" / "clankers" / "spool"
    hooks = installed_hooks(machine)
    for number, (event, (group,)) in enumerate(hooks.items()):
        (hook,) = group["hooks"]
        payload = {"hook_event_name": event, "session_id": "s"}
        environ = {"HOME": str(machine.home), "CLANKERS_HOOK_AUTOSTART": "false"}
        done = subprocess.run(
            [hook["command"], *hook["args"]], input=json.dumps(payload), env=environ, cwd="/",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        kept = sorted(spool.glob("*.json"))
        assert len(kept) == number + 1
        sent = json.loads(kept[-1].read_bytes())
        assert (sent["harness"], sent["event"]) == ("claude-code", payload)


def test_plugin_hooks_contain_the_path_variables(machine: Machine) -> None:
    machine.plugin("install", "claude-code", CLANKERS_DATA_PATH=str(machine.home / "data"))
    (hook,) = installed_hooks(machine)["Stop"][0]["hooks"]
    subprocess.run(
        [hook["command"], *hook["args"]], input=b"{}", check=True, timeout=60,
        env={"HOME": str(machine.home), "CLANKERS_HOOK_AUTOSTART": "false"},
    )  # fmt: skip
    assert len(list((machine.home / "data" / "clankers" / "spool").glob("*.json"))) == 1


def test_plugin_hooks_recall_only_at_start_and_prompt(machine: Machine) -> None:
    machine.plugin("install", "claude-code")
    recalling = {
        event for event, (group,) in installed_hooks(machine).items() if "--recall" in group["hooks"][0]["args"]
    }
    assert recalling == {"SessionStart", "UserPromptSubmit"}


# --- OpenCode


@pytest.mark.parametrize("existing", ["", ".config", ".config/opencode/plugin"])
def test_plugin_of_opencode_is_one_file(machine: Machine, existing: str) -> None:
    (machine.home / existing).mkdir(parents=True, exist_ok=True)
    snapshot = machine.everything()
    machine.plugin("install", "opencode")
    text = (machine.opencode / "plugin" / "clankers.js").read_text()
    assert text.startswith("// clankers for OpenCode")
    assert '"clankers-hook"' not in text
    assert machine.plugin("status", "opencode").code == 0
    machine.plugin("uninstall", "opencode")
    assert machine.everything() == snapshot


def test_plugin_install_does_not_overwrite_a_foreign_file(machine: Machine) -> None:
    write(machine.opencode / "plugin" / "clankers.js", b"export const Mine = 1")
    ran = machine.plugin("install", "opencode")
    assert ran.code == 1
    machine.plugin("uninstall", "opencode")
    assert (machine.opencode / "plugin" / "clankers.js").read_bytes() == b"export const Mine = 1"


# --- Status


def test_plugin_status_shows_installed_and_outdated(machine: Machine) -> None:
    assert machine.plugin("status", "claude-code").code == 3
    machine.plugin("install", "claude-code")
    assert machine.plugin("status", "claude-code").code == 0
    (hooks,) = machine.home.rglob("clankers/hooks/hooks.json")
    hooks.write_text("{}")
    (claude, opencode) = machine.plugin("status", "--json").json["plugins"]
    assert (claude["state"], opencode["state"]) == ("outdated: install it again", "not installed")
    machine.plugin("install", "claude-code")
    machine.settings.unlink()
    assert machine.plugin("status", "claude-code").out.startswith("claude-code: not enabled")


def test_plugin_uninstall_reports_that_nothing_is_installed(machine: Machine) -> None:
    snapshot = machine.everything()
    for harness in ("claude-code", "opencode"):
        ran = machine.plugin("uninstall", harness)
        assert (ran.code, ran.out) == (0, f"The plugin of {harness} is not installed.\n")
    assert machine.everything() == snapshot


def test_plugin_in_the_repository_sends_the_same_events(machine: Machine) -> None:
    """It is what `--plugin-dir` takes, with its commands in PATH."""
    machine.plugin("install", "claude-code")
    described = json.loads((PLUGINS / "claude-code" / "hooks" / "hooks.json").read_bytes())["hooks"]
    assert list(described) == list(installed_hooks(machine))
    assert {hook["command"] for groups in described.values() for hook in groups[0]["hooks"]} == {"clankers-hook"}
