"""Copilot CLI, pi and Qwen Code, from the npm registry, with our plugins."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harnesses import (
    PROGRAMS,
    Machine,
    installed,
    platform_name,
)

COPILOT_VERSION = "1.0.102"
NODE_VERSION = "24.16.0"
PI_VERSION = "0.87.1"
QWEN_VERSION = "0.24.4"
OLDEST_NODE = 24
OF_SESSIONS = frozenset(
    {"sessions", "chats", "session-state", "session-store.db", "session-store.db-wal", "logs", "usage_record.jsonl"}
)
"""Names of files and folders in which harnesses keep what was said."""


def copilot_binary() -> Path:
    return installed(f"@github/copilot@{COPILOT_VERSION}", f"@github/copilot-{platform_name()}/copilot")


def pi_program() -> Path:
    package = "@earendil-works/pi-coding-agent"
    return installed(f"{package}@{PI_VERSION}", f"{package}/dist/cli.js")


def qwen_program() -> Path:
    return installed(f"@qwen-code/qwen-code@{QWEN_VERSION}", "@qwen-code/qwen-code/cli.js")


def recent_node() -> Path:
    """A node that is recent enough for all of them: the one in PATH, or one from the npm registry."""
    if found := shutil.which("node"):
        told = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
        if int(told.lstrip("v").partition(".")[0]) >= OLDEST_NODE:
            return Path(found)
    package = f"node-{platform_name()}"
    return installed(f"{package}@{NODE_VERSION}", f"{package}/bin/node")


@dataclass(frozen=True)
class Connected:
    """A harness on a machine, with our plugin as `clankers-ctl plugin install` leaves it."""

    machine: Machine
    program: Path
    name: str

    def plugin(self, *words: str) -> None:
        self.machine.run([PROGRAMS / "clankers-ctl", "plugin", *words, self.name], {})

    def write_settings(self, path: str, settings: Any) -> bytes:
        """Write a file of the harness below the home: its content."""
        file = self.machine.home / path
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings))
        return file.read_bytes()

    def traces(self, folder: str) -> list[Path]:
        """The files and folders of the harness that name us, but for those of sessions and logs."""
        paths = (self.machine.home / folder).rglob("*")
        own = [path for path in paths if not OF_SESSIONS & set(path.relative_to(self.machine.home).parts)]
        return [
            each for each in own if "clankers" in each.name or (each.is_file() and b"clankers" in each.read_bytes())
        ]


@dataclass(frozen=True)
class Copilot(Connected):
    """Copilot CLI in its offline mode, with a model of its own."""

    name: str = "copilot"

    def run(self, prompt: str, *options: str, fails: bool = False) -> str:
        """One run with a prompt: its session's id."""
        environ = {
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_ALLOW_ALL": "true",
            "COPILOT_PROVIDER_BASE_URL": f"{self.machine.model.url}/v1",
            "COPILOT_PROVIDER_API_KEY": "dummy",
            "COPILOT_MODEL": "mock-model",
        }
        events = self.machine.run(
            [self.program, "--output-format", "json", *options, "-p", prompt], environ, fails=fails
        )
        return str(next(event["sessionId"] for event in events if event["type"] == "result"))


@dataclass(frozen=True)
class Pi(Connected):
    """pi with a provider of its own."""

    name: str = "pi"

    def set_up(self) -> "Pi":
        model = {"id": "mock-model", "contextWindow": 100_000, "maxTokens": 4_000}
        provider = {"baseUrl": f"{self.machine.model.url}/v1", "apiKey": "dummy", "api": "openai-completions"}
        self.write_settings(".pi/agent/models.json", {"providers": {"mock": provider | {"models": [model]}}})
        return self

    def run(self, prompt: str, *options: str, fails: bool = False) -> str:
        """One run with a prompt: its session's id."""
        words = ["--provider", "mock", "--model", "mock-model", "--mode", "json", *options, "-p", prompt]
        environ = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}
        events = self.machine.run([recent_node(), self.program, *words], environ, fails=fails)
        return str(next(event["id"] for event in events if event["type"] == "session"))


@dataclass(frozen=True)
class Qwen(Connected):
    """Qwen Code with a model of its own."""

    name: str = "qwen"

    def set_up(self) -> "Qwen":
        settings = {
            "security": {"auth": {"selectedType": "openai"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
        }
        self.write_settings(".qwen/settings.json", settings)
        return self

    def run(self, prompt: str, *options: str, fails: bool = False) -> str:
        """One run with a prompt: its session's id."""
        environ = {
            "OPENAI_API_KEY": "dummy",
            "OPENAI_BASE_URL": f"{self.machine.model.url}/v1",
            "OPENAI_MODEL": "mock-model",
        }
        words = ["--yolo", "--output-format", "stream-json", *options, "-p", prompt]
        events = self.machine.run([recent_node(), self.program, *words], environ, fails=fails)
        return str(next(event["session_id"] for event in events if event.get("subtype") == "init"))
