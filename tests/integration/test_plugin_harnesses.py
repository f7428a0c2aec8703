"""`clankers-ctl plugin` for Codex CLI, Gemini CLI, Qwen Code, Copilot CLI and pi, and the texts for agents of all."""

import json
import os
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess
from helpers.harness_home import BEFORE, ODD, PLUGINS, write
from helpers.harness_home import HarnessHome as Machine


@pytest.fixture
def machine(home: Path) -> Machine:
    return Machine(home)


# --- Codex CLI

CODEX_CONFIGS = [
    None,
    b"",
    b'model = "gpt-5.5"\n[features]\napps = false',
    b'# mine\r\nmodel = "x"\r\n\r\n[plugins."other@market"]\r\nenabled = true\r\n\r\n\r\n',
    b'[marketplaces.clankers-local]\nsource = "/elsewhere"\n\n[mcp_servers.x]\ncommand = "y"\n',
]
TRUSTED = (
    '\n[hooks.state]\n\n[hooks.state."clankers@clankers-local:hooks/hooks.json:stop:0:0"]\ntrusted_hash = "sha256:1"\n'
)


@pytest.mark.parametrize("before", CODEX_CONFIGS)
def test_codex_plugin_uninstall_restores_every_file_byte_for_byte(machine: Machine, before: bytes | None) -> None:
    config = machine.home / ".codex" / "config.toml"
    if before is not None:
        write(config, before)
    snapshot = machine.everything()
    installed = machine.plugin("install", "codex")
    assert "/hooks" in installed.out, "the user learns how to trust the hooks"
    found = tomllib.loads(config.read_text())
    assert found["plugins"]["clankers@clankers-local"] == {"enabled": True}
    market = Path(found["marketplaces"]["clankers-local"]["source"])
    assert (market / ".agents" / "plugins" / "marketplace.json").is_file()
    assert "hooks" not in found, "trust is the user's to give"
    steps = machine.plugin("install", "codex", "--json").json["steps"]
    assert {step["action"] for step in steps} == {"unchanged"}
    config.write_text(config.read_text() + TRUSTED)
    assert machine.plugin("uninstall", "codex").code == 0
    assert machine.everything() == snapshot


def test_codex_plugin_has_hooks_with_times_that_codex_accepts(machine: Machine) -> None:
    machine.plugin("install", "codex")
    copy = machine.home / ".codex" / "plugins" / "cache" / "clankers-local" / "clankers" / "1.0.0"
    hooks = json.loads((copy / "hooks" / "hooks.json").read_bytes())["hooks"]
    times = {name: groups[0]["hooks"][0]["timeout"] for name, groups in hooks.items()}
    assert (times["SessionEnd"], times["Interrupt"]) == (3, 3)
    assert {"SessionStart", "UserPromptSubmit", "Stop", "SubagentStop", "PostCompact"} <= set(times)
    command = hooks["Stop"][0]["hooks"][0]["command"]
    assert subprocess.run(command, shell=True, input=b"", timeout=60, check=False).returncode == 0
    (server,) = json.loads((copy / ".mcp.json").read_bytes())["mcpServers"].values()
    assert command.split()[0] in server["args"]


def test_codex_config_that_cannot_be_edited_is_left_alone(machine: Machine) -> None:
    write(machine.home / ".codex" / "config.toml", b"plugins = {}\n")
    snapshot = machine.everything()
    refused = machine.plugin("install", "codex")
    assert refused.code != 0
    assert "cannot be edited" in refused.err
    assert machine.everything() == snapshot


@pytest.mark.parametrize(
    ("states", "said"),
    [(("trusted", "untrusted"), "its hooks are untrusted"), (("trusted", "trusted"), "was not used")],
)
def test_codex_plugin_status_says_whether_its_hooks_are_trusted(
    fresh_daemon: DaemonProcess, states: tuple[str, ...], said: str
) -> None:
    user = fresh_daemon.home / "user"
    hooks = [{"pluginId": "clankers@clankers-local", "trustStatus": state} for state in states]
    reply = json.dumps({"id": 1, "result": {"data": [{"hooks": hooks}]}})
    program = user / "bin" / "codex"
    write(program, f"#!/bin/sh\necho '{{\"id\": 0, \"result\": {{}}}}'\necho '{reply}'\nsleep 9\n".encode())
    program.chmod(0o755)
    write(user / ".codex" / "state_5.sqlite", b"")
    fresh_daemon.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    ctl(fresh_daemon, "plugin", "install", "codex")
    status = ctl(fresh_daemon, "plugin", "status", "codex")
    is_trusted = "untrusted" not in states
    assert (said in status.out, status.code) == (True, 0 if is_trusted else 4)
    checks = ctl(fresh_daemon, "doctor", "--json").json["checks"]
    (finding,) = (check for check in checks if check["name"] == "plugin codex")
    assert finding["state"] == ("ok" if is_trusted else "problem")


# --- Gemini CLI


def test_gemini_extension_is_shown_and_asked_for_and_uninstalled_without_a_trace(machine: Machine) -> None:
    write(machine.home / ".gemini" / "settings.json", ODD)
    snapshot = machine.everything()
    refused = machine.plugin("install", "gemini", typed="n\n")
    assert refused.code != 0
    assert "MCP server" in refused.out
    assert machine.plugin("install", "gemini", "--json").code != 0
    assert machine.everything() == snapshot

    assert machine.plugin("install", "gemini", "--yes").code == 0
    extension = machine.home / ".gemini" / "extensions" / "clankers"
    hooks = json.loads((extension / "hooks" / "hooks.json").read_bytes())["hooks"]
    assert hooks["PreCompress"][0]["matcher"] == "manual", "an automatic one comes before every request to the model"
    assert all(groups[0]["hooks"][0]["timeout"] == 5000 for groups in hooks.values())
    assert machine.plugin("status", "gemini").out.startswith("gemini: installed")
    steps = machine.plugin("install", "gemini", "--json").json["steps"]
    assert {step["action"] for step in steps} == {"unchanged"}
    assert machine.plugin("uninstall", "gemini").code == 0
    assert machine.everything() == snapshot


def test_gemini_extension_of_somebody_else_is_left_alone(machine: Machine) -> None:
    write(machine.home / ".gemini" / "extensions" / "clankers" / "gemini-extension.json", b'{"name": "other"}')
    snapshot = machine.everything()
    assert "not an extension of clankers" in machine.plugin("install", "gemini", "--yes").err
    assert machine.everything() == snapshot


# --- Qwen Code, Copilot CLI, pi


def test_qwen_extension_is_uninstalled_with_its_entry_in_qwen_codes_list(machine: Machine) -> None:
    write(machine.home / ".qwen" / "settings.json", ODD)
    listed = machine.home / ".qwen" / "extension-store" / "state.json"
    other = {"name": "other", "defaultActivation": "enabled"}
    write(listed, json.dumps({"version": 2, "extensions": {"1f": other}}, indent=2).encode())
    before = machine.everything()
    assert "Qwen Code will load" in machine.plugin("install", "qwen", typed="n\n").out
    assert machine.everything() == before
    assert machine.plugin("install", "qwen", "--yes").code == 0
    extension = machine.home / ".qwen" / "extensions" / "clankers"
    hooks = json.loads((extension / "hooks" / "hooks.json").read_text())["hooks"]
    assert all(group["hooks"][0]["timeout"] < 1000 for groups in hooks.values() for group in groups), "seconds"
    ours = {"name": "clankers", "defaultActivation": "enabled"}  # as Qwen Code lists what it has loaded
    listed.write_text(json.dumps({"version": 2, "extensions": {"1f": other, "2e": ours}}, indent=2))
    assert machine.plugin("status", "qwen").out.startswith("qwen: installed")
    assert machine.plugin("uninstall", "qwen").code == 0
    assert machine.everything() == before


@pytest.mark.parametrize("before", BEFORE)
def test_copilot_plugin_uninstall_restores_every_file_byte_for_byte(machine: Machine, before: bytes | None) -> None:
    (machine.home / ".copilot").mkdir()
    if before is not None:
        write(machine.home / ".copilot" / "settings.json", before)
        write(machine.home / ".copilot" / "mcp-config.json", before)
    snapshot = machine.everything()
    assert machine.plugin("install", "copilot").code == 0
    assert machine.plugin("status", "copilot").out.startswith("copilot: installed")
    steps = machine.plugin("install", "copilot", "--json").json["steps"]
    assert {step["action"] for step in steps} == {"unchanged"}
    (machine.home / ".copilot" / "plugin-data" / "clankers-local" / "clankers").mkdir(parents=True)  # as Copilot does
    assert machine.plugin("uninstall", "copilot").code == 0
    assert machine.everything() == snapshot


def test_copilot_hooks_name_their_event_and_the_folder_of_sessions(machine: Machine) -> None:
    machine.plugin("install", "copilot")
    plugin = machine.home / ".local" / "share" / "clankers" / "plugins" / "copilot" / "clankers"
    hooks = json.loads((plugin / "hooks" / "hooks.json").read_text())["hooks"]
    command = shlex.split(hooks["sessionEnd"][0]["bash"])
    run = subprocess.run(
        command, input=b'{"sessionId": "s1", "reason": "complete"}', env=machine.daemon.environ, check=True
    )
    assert run.returncode == 0
    (spooled,) = (machine.home / ".local" / "share" / "clankers" / "spool").glob("*.json")
    event = json.loads(spooled.read_bytes())["event"]
    added = {"hookEventName": "sessionEnd", "copilotHome": str(machine.home / ".copilot")}
    assert event == added | {"sessionId": "s1", "reason": "complete"}


def test_pi_extension_has_the_tools_and_is_uninstalled_without_a_trace(machine: Machine) -> None:
    write(machine.home / ".pi" / "agent" / "settings.json", ODD)
    before = machine.everything()
    assert machine.plugin("install", "pi").code == 0
    text = (machine.home / ".pi" / "agent" / "extensions" / "clankers.ts").read_text()
    assert '"clankers-hook"' not in text
    assert '"name": "remember"' in text
    assert machine.plugin("status", "pi").out.startswith("pi: installed")
    assert machine.plugin("uninstall", "pi").code == 0
    assert machine.everything() == before


def test_pi_extension_of_somebody_else_is_left_alone(machine: Machine) -> None:
    write(machine.home / ".pi" / "agent" / "extensions" / "clankers.ts", b"export default () => {}")
    before = machine.everything()
    assert "not a file of clankers" in machine.plugin("install", "pi").err
    machine.plugin("uninstall", "pi")
    assert machine.everything() == before


# --- Texts for agents

DISTILL = {
    "claude-code": ".local/share/clankers/plugins/claude-code/clankers/commands/distill.md",
    "codex": ".local/share/clankers/plugins/codex/plugins/clankers/skills/clankers-distill/SKILL.md",
    "copilot": ".local/share/clankers/plugins/copilot/clankers/skills/clankers-distill/SKILL.md",
    "gemini": ".gemini/extensions/clankers/commands/clankers/distill.toml",
    "opencode": ".config/opencode/plugin/clankers.js",
    "pi": ".pi/agent/prompts/clankers-distill.md",
    "qwen": ".qwen/extensions/clankers/commands/clankers/distill.toml",
}


@pytest.mark.parametrize("harness", sorted(DISTILL))
def test_plugin_brings_the_skill_and_the_command_that_distills_a_session(machine: Machine, harness: str) -> None:
    before = set(machine.home.rglob("*"))
    assert machine.plugin("install", harness, "--yes").code == 0
    written = [path for path in machine.home.rglob("*") if path not in before]
    (skill, *_) = (path for path in written if path.parts[-2:] == ("clankers-memory", "SKILL.md"))
    assert skill.read_bytes() == (PLUGINS / "claude-code" / "skills" / "clankers-memory" / "SKILL.md").read_bytes()
    distill = (machine.home / DISTILL[harness]).read_text()
    assert "Call `remember` once for each fact" in distill
    assert "$ARGUMENTS" not in distill or harness in ("claude-code", "opencode", "pi")
    if distill.startswith("description"):
        assert "{{args}}" in tomllib.loads(distill)["prompt"]
