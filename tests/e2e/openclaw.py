"""The real OpenClaw from the npm registry: a gateway on loopback, and turns of an agent through it."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import PROGRAMS, Machine, installed, platform_name
from helpers.waiting import eventually

SWITCH = "CLANKERS_E2E_OPENCLAW"
"""Environment variable that has these tests run: OpenClaw takes 650 MB, and its gateway most of a minute to start."""

needs_switch = pytest.mark.skipif(not os.environ.get(SWITCH), reason=f"set {SWITCH}=1 to install and run OpenClaw")

OPENCLAW_VERSION = "2026.9.6"
NODE_VERSION = "24.21.0"
START_SECONDS = 300
START_ATTEMPTS = 4
TURN_SECONDS = 240
STOP_SECONDS = 60


def node_program() -> Path:
    """The node that OpenClaw needs."""
    name = f"node-{platform_name()}"
    return installed(f"{name}@{NODE_VERSION}", f"{name}/bin/node")


def openclaw_program() -> Path:
    return installed(f"openclaw@{OPENCLAW_VERSION}", "openclaw/openclaw.mjs", node=node_program())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class OpenClaw:
    """OpenClaw with our plugin, whose workspace is the project."""

    machine: Machine
    node: Path
    program: Path
    port: int = field(default_factory=free_port)

    @property
    def folder(self) -> Path:
        return self.machine.home / ".openclaw"

    @property
    def config(self) -> Path:
        return self.folder / "openclaw.json"

    def set_up(self) -> "OpenClaw":
        costs = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
        model = {"id": "mock-model", "name": "Mock", "contextWindow": 100_000, "maxTokens": 4_000, "input": ["text"]}
        provider = {
            "baseUrl": f"{self.machine.model.url}/v1",
            "apiKey": "dummy",
            "api": "openai-completions",
            "models": [model | {"cost": costs}],
        }
        defaults = {
            "model": {"primary": "mock/mock-model"},
            "workspace": str(self.machine.project),
            "skipBootstrap": True,
        }
        config = {
            "models": {"mode": "replace", "providers": {"mock": provider}},
            "agents": {"defaults": defaults},
            "tools": {"profile": "full", "toolSearch": False},
            "gateway": {"mode": "local", "port": self.port, "auth": {"mode": "token", "token": "dummy"}},
        }
        self.folder.mkdir()
        self.config.write_text(json.dumps(config))
        return self

    @property
    def environ(self) -> dict[str, str]:
        own = self.machine.environ
        return own | {"PATH": f"{self.node.parent}{os.pathsep}{own['PATH']}", "NO_COLOR": "1"}

    def plugin(self, *words: str) -> None:
        self.machine.run([PROGRAMS / "clankers-ctl", "plugin", *words, "openclaw"], {})

    @contextmanager
    def gateway(self) -> Iterator[None]:
        """A gateway that listens inside the block, and has stopped after it."""
        process = self._start_gateway()
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start_gateway(self) -> "subprocess.Popen[bytes]":
        """Start a gateway; again, if it gives up, which it does on a busy machine after five seconds."""
        log = self.machine.home / "gateway.log"
        command: list[str | Path] = [self.node, self.program, "gateway", "run", "--port", str(self.port)]
        for _ in range(START_ATTEMPTS):
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*command, "--bind", "loopback"],
                    env=self.environ,
                    cwd=self.machine.project,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            eventually(
                lambda process=process: process.poll() is not None or self._is_listening(log),  # type: ignore[misc]
                "the gateway listens",
                within=START_SECONDS,
            )
            if process.poll() is None:
                return process
        raise AssertionError(log.read_text("utf-8", errors="replace")[-3000:])

    def _is_listening(self, log: Path) -> bool:
        with socket.socket() as probe:
            is_up = "http server listening" in log.read_text("utf-8", errors="replace")
            return is_up and probe.connect_ex(("127.0.0.1", self.port)) == 0

    def turn(self, key: str, prompt: str) -> Mapping[str, Any]:
        """One turn of the agent in the session of a key: what it prints."""
        return self._run("agent", "--session-key", f"agent:main:{key}", "--json", "-m", prompt)

    def compact(self, key: str) -> Mapping[str, Any]:
        return self._run("sessions", "compact", f"agent:main:{key}", "--json")

    def wake(self, text: str) -> Mapping[str, Any]:
        """Have the main session take a heartbeat now, because of this event."""
        return self._run("system", "event", "--mode", "now", "--text", text, "--json")

    def _run(self, *words: str) -> Mapping[str, Any]:
        done = subprocess.run(
            [self.node, self.program, *words],
            cwd=self.machine.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TURN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        found: Mapping[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return found
