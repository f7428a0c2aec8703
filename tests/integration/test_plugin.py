"""`clankers-ctl plugin`: install a plugin, and uninstall it without a trace."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.harness_home import BEFORE, ODD, PLUGINS, write
from helpers.harness_home import HarnessHome as Machine


@pytest.fixture
def machine(home: Path) -> Machine:
    return Machine(home)


def settings_of(machine: Machine) -> dict[str, Any]:
    return dict(json.loads(machine.settings.read_bytes()))


# --- Claude Code


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


def test_plugin_install_takes_back_the_declaration_of_the_marketplace(machine: Machine) -> None:
    declared = {"clankers-local": {"source": {"source": "directory", "path": "/elsewhere"}}}
    write(machine.settings, json.dumps({"extraKnownMarketplaces": declared | {"other": {}}}).encode())
    machine.plugin("install", "claude-code")
    assert settings_of(machine)["extraKnownMarketplaces"] == {"other": {}}  # Claude Code checks each in every session
    assert machine.plugin("status", "claude-code", "--json").json["plugins"][0]["state"] == "installed"


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
    assert machine.everything() == snapshot


@pytest.mark.parametrize(
    "before", [None, b'{\n  "numStartups": 3,\n  "pluginUsage": {\n    "other@market": {}\n  }\n}']
)
def test_plugin_uninstall_removes_what_claude_code_records_and_makes(machine: Machine, before: bytes | None) -> None:
    state = machine.home / ".claude.json"
    if before:
        write(state, before)
    snapshot = machine.everything()
    machine.plugin("install", "claude-code")
    used: dict[str, Any] = json.loads(before) if before else {"numStartups": 3}
    used.setdefault("pluginUsage", {})["clankers@clankers-local"] = {"usageCount": 17}
    state.write_text(json.dumps(used, indent=2))
    plugins = machine.home / ".claude" / "plugins"
    for folder in ("data/clankers-clankers-local", "marketplaces", "cache/clankers-local/clankers/0.1.0"):
        (plugins / folder).mkdir(parents=True)
    write(machine.home / ".cache/claude-cli-nodejs/-src-shop/mcp-logs-plugin-clankers-clankers/1.jsonl", b"{}")
    machine.plugin("uninstall", "claude-code")
    (machine.home / ".cache").rmdir()  # not only Claude Code's
    left = machine.everything()
    assert json.loads(left.pop(".claude.json")[1]) == (json.loads(before) if before else {"numStartups": 3})
    snapshot.pop(".claude.json", None)
    assert left == snapshot
    if before:
        assert state.read_bytes() == before


def test_plugin_uninstall_keeps_folders_that_were_there_before(machine: Machine) -> None:
    for folder in ("data", "marketplaces", "cache"):
        (machine.home / ".claude" / "plugins" / folder).mkdir(parents=True)
    snapshot = machine.everything()
    machine.plugin("install", "claude-code")
    machine.plugin("uninstall", "claude-code")
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


CORE = {
    "SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "SubagentStop", "Stop", "SessionEnd",
}  # fmt: skip
WITHOUT_MODEL_SWITCH = {*CORE, "PostCompact", "StopFailure"}


@pytest.mark.parametrize(
    ("version", "events", "takes_arguments"),
    [
        ("2.0.77 (Claude Code)", CORE, False),
        ("2.1.22 (Claude Code)", CORE, False),
        ("2.1.200 (Claude Code)", WITHOUT_MODEL_SWITCH, True),
        ("2.1.259 (Claude Code)", WITHOUT_MODEL_SWITCH, True),
        ("2.1.260 (Claude Code)", {*WITHOUT_MODEL_SWITCH, "PostModelSwitch"}, True),
        ("what?", CORE, False),
    ],
)
def test_plugin_hooks_are_those_that_the_installed_version_knows(
    machine: Machine, version: str, events: set[str], takes_arguments: bool
) -> None:
    machine.claude(version)
    note = machine.plugin("install", "claude-code", "--json").json["note"]
    assert version.partition(" ")[0] in note or "was not found" in note
    hooks = installed_hooks(machine)
    assert hooks.keys() == events
    hook = hooks["Stop"][0]["hooks"][0]
    assert ("args" in hook) == takes_arguments
    command = [hook["command"], *hook["args"]] if takes_arguments else ["/bin/sh", "-c", hook["command"]]
    environ = {"HOME": str(machine.home), "CLANKERS_HOOK_AUTOSTART": "false"}
    done = subprocess.run(command, input=b"{}", env=environ, capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert len(list(machine.home.rglob("spool/*.json"))) == 1


def test_plugin_status_says_when_the_harness_was_upgraded(machine: Machine) -> None:
    machine.claude("2.1.200 (Claude Code)")
    machine.plugin("install", "claude-code")
    assert machine.plugin("status", "claude-code").code == 0
    machine.claude("2.1.325 (Claude Code)")
    assert machine.plugin("status", "claude-code").out.startswith("claude-code: outdated: install it again")
    machine.plugin("install", "claude-code")
    assert "PostModelSwitch" in installed_hooks(machine)


def test_plugin_install_has_an_outdated_copy_of_claude_code_replaced(machine: Machine) -> None:
    """Older versions run the copy that they made, and make another when it is gone."""
    machine.plugin("install", "claude-code")
    plugins = machine.home / ".claude" / "plugins"
    copy = plugins / "cache" / "clankers-local" / "clankers" / "0.1.0"
    write(copy / "hooks" / "hooks.json", b"{}")
    installed = {"version": 2, "plugins": {"clankers@clankers-local": [{}], "other@market": [{}]}}
    write(plugins / "installed_plugins.json", json.dumps(installed).encode())
    machine.plugin("install", "claude-code")
    assert not copy.exists()
    assert json.loads((plugins / "installed_plugins.json").read_bytes())["plugins"] == {"other@market": [{}]}


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
def test_plugin_of_opencode_is_one_file_and_a_skill(machine: Machine, existing: str) -> None:
    (machine.home / existing).mkdir(parents=True, exist_ok=True)
    snapshot = machine.everything()
    machine.plugin("install", "opencode")
    text = (machine.opencode / "plugin" / "clankers.js").read_text()
    assert text.startswith("// clankers for OpenCode")
    assert '"clankers-hook"' not in text
    assert (machine.opencode / "skills" / "clankers-memory" / "SKILL.md").exists()
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
    states = {each["harness"]: each["state"] for each in machine.plugin("status", "--json").json["plugins"]}
    others = dict.fromkeys(("codex", "copilot", "gemini", "openclaw", "opencode", "pi", "qwen"), "not installed")
    assert states == {"claude-code": "outdated: install it again", **others}
    machine.plugin("install", "claude-code")
    machine.settings.unlink()
    assert machine.plugin("status", "claude-code").out.startswith("claude-code: not enabled")


def test_plugin_status_proves_that_hooks_ran(machine: Machine) -> None:
    """A file that exists proves nothing: an event since the installation does."""
    machine.daemon.environ |= {"CLANKERS_DATA_PATH": str(machine.home), "CLANKERS_HOOK_AUTOSTART": "false"}
    machine.plugin("install", "claude-code")

    def told() -> tuple[int, str, str]:
        ran = machine.plugin("status", "claude-code", "--json")
        [status] = ran.json["plugins"]
        return ran.code, status["hooks"], status["explanation"]

    assert told() == (0, "unknown", "the daemon does not answer, so it is not known whether its hooks run")
    transcript = machine.home / ".claude" / "projects" / "-src" / "s.jsonl"
    write(transcript, b"")
    os.utime(transcript, (1, 1))
    with machine.daemon.start().connect() as connection:
        try:
            assert told()[:2] == (0, "unused")
            later = time.time() + 3600
            os.utime(transcript, (later, later))
            code, hooks, explanation = told()
            assert (code, hooks) == (4, "silent")
            assert "none of its hooks has run" in explanation
            doctor = ctl(machine.daemon, "doctor", "--json").json["checks"]
            [finding] = [check for check in doctor if check["name"] == "plugin claude-code"]
            assert (finding["state"], "none of its hooks has run" in finding["finding"]) == ("problem", True)
            event = {"hook_event_name": "SessionStart", "session_id": "s", "source": "startup"}
            at = int(later * 1000)
            connection.call("hook.event", harness="claude-code", event=event, at=at)
            assert told()[:2] == (0, "ran")
        finally:
            machine.daemon.close()


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
