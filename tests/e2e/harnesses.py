"""The real harnesses, from the npm registry, on a machine of their own: a home, a project, a daemon, a mock model."""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from e2e.mock_model import MockModel, Reply, Said, mock_model
from helpers.daemon import DaemonProcess, RawConnection
from helpers.hook import end_started_daemons
from helpers.waiting import eventually

INSTALL_SECONDS = 400
RUN_SECONDS = 100
SETTLED_WITHIN = 60
PLUGINS = Path(__file__).parents[2] / "client" / "plugins"
PROGRAMS = Path(sys.executable).parent
"""Where clankers-hook, clankers-mcp and clankers-ctl are installed."""

CACHE = Path(os.environ.get("CLANKERS_E2E_CACHE") or Path.home() / ".cache" / "clankers-e2e")


CLAUDE_VERSIONS = ("2.0.77", "2.1.22", "2.1.200", "2.1.326")
"""The oldest that is supported, the last ones before hooks changed, the newest."""

OPENCODE_VERSIONS = ("1.1.11", "1.18.33")


def claude_binary(version: str = CLAUDE_VERSIONS[-1]) -> Path:
    """Claude Code; until 2.1 a program for node, which a script beside it starts."""
    package = f"@anthropic-ai/claude-code@{version}"
    if tuple(map(int, version.split("."))) >= (2, 1, 100):
        return installed(package, f"@anthropic-ai/claude-code-{platform_name()}/claude")
    program = installed(package, "@anthropic-ai/claude-code/cli.js")
    script = program.with_name(f"claude-{os.getpid()}")
    script.write_text(f'#!/bin/sh\nexec node {program} "$@"\n')
    script.chmod(0o755)
    return script.replace(program.with_name("claude"))


def opencode_binary(version: str = OPENCODE_VERSIONS[-1]) -> Path:
    return installed(f"opencode-ai@{version}", f"opencode-{platform_name()}/bin/opencode")


CODEX_VERSIONS = ("0.166.0", "0.169.0")
GEMINI_VERSION = "0.61.0"


def codex_binary(version: str = CODEX_VERSIONS[-1]) -> Path:
    machine = {"x86_64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    system = "apple-darwin" if sys.platform == "darwin" else "unknown-linux-musl"
    program = f"@openai/codex-{platform_name()}/vendor/{machine}-{system}/bin/codex"
    return installed(f"@openai/codex@{version}", program)


def gemini_program() -> Path:
    return installed(f"@google/gemini-cli@{GEMINI_VERSION}", "@google/gemini-cli/bundle/gemini.js")


def typescript_compiler() -> Path:
    return installed("typescript@5.9.3", "typescript/lib/tsc.js")


def axe_script() -> Path:
    """The accessibility checks that browser tests run in a page."""
    return installed("axe-core@4.14.0", "axe-core/axe.min.js")


def platform_name() -> str:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{sys.platform}-{machine}"


def installed(package: str, inside: str, node: Path | None = None) -> Path:
    """The harness's program, installed once into a cache; where it cannot be had the test is skipped.

    npm chooses versions by the node that runs it, which may be given.
    """
    folder = CACHE / package.replace("/", "-")
    program = folder / "node_modules" / inside
    if not program.exists():
        npm = shutil.which("npm") or _cannot("npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:  # the other half of the suite may want it at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                _install(npm, package, folder, node)
    return program if program.exists() else _cannot(f"{package} has no program for {platform_name()}")


def _install(npm: str, package: str, folder: Path, node: Path | None) -> None:
    # --force: it asks for a newer node than many have, and its program is not run by node at all.
    command = [
        npm,
        "install",
        "--force",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        str(folder),
        package,
    ]
    try:
        path = os.pathsep.join([*([str(node.parent)] if node else []), os.environ["PATH"]])
        done = subprocess.run(
            command,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _cannot(f"npm took too long to install {package}")
    if done.returncode:
        _cannot(f"npm could not install {package}: {done.stderr.strip()[-300:]}")


def _cannot(why: str) -> NoReturn:
    """Skip; or fail, where somebody has said that the harnesses must be there."""
    if os.environ.get("CLANKERS_E2E") == "required":
        pytest.fail(why)
    pytest.skip(f"the real harness cannot be had: {why}")


@dataclass(frozen=True)
class Machine:
    """A home with a project in it, a daemon (which may be down), and the model the harnesses talk to."""

    home: Path
    daemon: DaemonProcess
    model: MockModel

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def environ(self) -> dict[str, str]:
        """What harnesses, hooks and the daemon share."""
        return {
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            **{name: value for name, value in self.daemon.environ.items() if name.startswith("CLANKERS_")},
        }

    def run(
        self, command: Sequence[str | Path], environ: Mapping[str, str], given: str = "", *, fails: bool = False
    ) -> list[dict[str, Any]]:
        """Run a harness in the project to its end: the events it printed."""
        done = subprocess.run(
            command,
            cwd=self.project,
            env={**self.environ, **environ},
            input=given,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Stored:
    """What the daemon holds, as the checks look at it."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection

    def prompts(self, session: str) -> list[str]:
        return [one["textContent"] for one in self._messages(session, "user")]

    def answers(self, session: str) -> list[tuple[str, int, int]]:
        """What the model said in a session, each with its tokens, sorted: the order is not what is compared."""
        said = self._messages(session, "assistant")
        return sorted((one["textContent"] or "", one["promptTokens"], one["completionTokens"]) for one in said)

    def tools(self, session: str) -> list[dict[str, Any]]:
        return list(self.connection.call("tool.list", sessionId=session)["tools"])

    def tokens(self) -> tuple[int, int]:
        """Of all sessions together."""
        totals = self.connection.call("stats")["totals"]
        return totals["promptTokens"], totals["completionTokens"]

    def _messages(self, session: str, role: str) -> list[dict[str, Any]]:
        return list(self.connection.call("message.list", sessionId=session, role=role)["messages"])


def holds_in_time(check: Callable[[], None]) -> None:
    """What hooks kept is replayed, and transcripts are read, a little after the harness has ended."""
    deadline = time.monotonic() + SETTLED_WITHIN
    while time.monotonic() < deadline:
        try:
            check()
        except (AssertionError, KeyError, ValueError):
            time.sleep(0.5)
        else:
            return
    check()


def imported(connection: RawConnection, harness: str) -> dict[str, int]:
    """How many new rows an import of the harness's own files adds, by table."""
    job = connection.call("import.start", harness=harness)["jobId"]
    done = eventually(lambda: (each := connection.call("job.status", id=job))["state"] != "running" and each, "it ends")
    assert done["state"] == "done", done
    return {name: done["result"][name] for name in ("sessions", "messages", "tools", "errors", "compactions")}


def answers(said: Iterable[Said]) -> list[tuple[str, int, int]]:
    """What the mock says it said, as `Stored.answers` has it."""
    return sorted((one.reply.text, one.prompt_tokens, one.completion_tokens) for one in said)


def tokens(said: Iterable[Said]) -> tuple[int, int]:
    said = list(said)
    return sum(one.prompt_tokens for one in said), sum(one.completion_tokens for one in said)


@contextmanager
def machine(scripts: Callable[[Path], Mapping[str, Sequence[Reply]]]) -> Iterator[Machine]:
    """A machine whose daemon is not started yet, and gone with the block; `scripts` are told where the project is."""
    with tempfile.TemporaryDirectory(prefix="clk-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        _make_project(home)
        daemon = DaemonProcess(home, HOME=str(home), CLANKERS_RECALL_SECONDS="4.5")  # the plugin's hooks may take 5
        with mock_model(scripts(home / "project")) as model:
            try:
                yield Machine(home, daemon, model)
            finally:
                daemon.close()
                end_started_daemons(home)  # some harnesses do not pass on the environment that forbids it


def _make_project(home: Path) -> None:
    """A repository with a commit: OpenCode takes one without for no project at all."""
    for folder in ("project", "tmp"):
        (home / folder).mkdir()
    commit = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.com",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "first",
    ]
    for command in (["git", "init", "-q"], commit):
        subprocess.run(command, cwd=home / "project", check=True)


@dataclass(frozen=True)
class ClaudeCode:
    """Claude Code with our plugin."""

    machine: Machine
    binary: Path

    def run(self, *prompts: str, options: Sequence[str] = (), installed: bool = False) -> str:
        """One process that is given the prompts one after the other: its session's id.

        It uses the plugin of the repository, or the one that `clankers-ctl plugin install` has installed.
        """
        asked = [{"type": "user", "message": {"role": "user", "content": prompt}} for prompt in prompts]
        command: list[str | Path] = [
            self.binary,
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
        ]
        command.append("--verbose")
        command += ["--dangerously-skip-permissions", *options]
        if not installed:
            command += ["--plugin-dir", PLUGINS / "claude-code"]
        events = self.machine.run(command, self.environ(), "".join(json.dumps(line) + "\n" for line in asked))
        return str(next(event["session_id"] for event in events if event.get("subtype") == "init"))

    def plugin(self, *words: str) -> None:
        """Run `clankers-ctl plugin`, which finds this Claude Code in PATH."""
        path = f"{self.binary.parent}{os.pathsep}{self.machine.environ['PATH']}"
        self.machine.run([PROGRAMS / "clankers-ctl", "plugin", *words, "claude-code"], self.environ() | {"PATH": path})

    def environ(self) -> dict[str, str]:
        quiet = ["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING"]
        return {
            "ANTHROPIC_BASE_URL": self.machine.model.url,
            "ANTHROPIC_API_KEY": "sk-ant-dummy-not-a-key",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            **dict.fromkeys([*quiet, "DISABLE_AUTOUPDATER", "IS_SANDBOX"], "1"),
        }


@dataclass(frozen=True)
class OpenCode:
    """OpenCode with our plugin, as `clankers-ctl plugin install` leaves it."""

    machine: Machine
    binary: Path

    def set_up(self) -> "OpenCode":
        models = {name: {"limit": {"context": 100_000, "output": 4_000}} for name in ("mock-model", "mock-small")}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{self.machine.model.url}/v1", "apiKey": "dummy"},
            "models": models,
        }
        wanted = {
            "model": "mock/mock-model",
            "small_model": "mock/mock-small",
            "autoupdate": False,
            "share": "disabled",
        }
        settings = self.machine.home / ".config" / "opencode" / "opencode.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(wanted | {"provider": {"mock": provider}}))
        self.plugin("install")
        return self

    def plugin(self, *words: str) -> None:
        self.machine.run([PROGRAMS / "clankers-ctl", "plugin", *words, "opencode"], self._environ())

    def run(self, prompt: str, options: Sequence[str] = ()) -> str:
        """One run with a prompt: its session's id."""
        command: list[str | Path] = [self.binary, "run", prompt, "--format", "json", *options]
        events = self.machine.run(command, self._environ())
        return str(events[0]["sessionID"])

    def _environ(self) -> dict[str, str]:
        home = self.machine.home
        # Without these it tries for a minute to fetch what it can do without.
        off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
        return {
            "XDG_CONFIG_HOME": str(home / ".config"),
            **{f"XDG_{name.upper()}_HOME": str(home / name) for name in ("data", "cache", "state")},
            **{f"OPENCODE_DISABLE_{name}": "1" for name in off},
            "npm_config_fetch_retries": "0",
            "npm_config_offline": "true",
        }


@dataclass(frozen=True)
class Codex:
    """Codex CLI with our plugin, whose hooks are run without the trust that only a person can give."""

    machine: Machine
    binary: Path

    @property
    def config(self) -> Path:
        return self.machine.home / ".codex" / "config.toml"

    def set_up(self) -> "Codex":
        self.config.parent.mkdir()
        self.config.write_text(f"""
model = "gpt-5.5"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.mock]
name = "mock"
base_url = "{self.machine.model.url}/v1"
wire_api = "responses"
env_key = "MOCK_KEY"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[features]
remote_plugin = false
apps = false

[projects."{self.machine.project}"]
trust_level = "trusted"
""")
        return self

    def plugin(self, *words: str) -> None:
        self.machine.run([PROGRAMS / "clankers-ctl", "plugin", *words, "codex"], {})

    def run(self, prompt: str, *options: str) -> str:
        """One run with a prompt: its session's id."""
        trust = "--dangerously-bypass-hook-trust"
        command: list[str | Path] = [self.binary, "exec", *options, "--json", trust, prompt]
        events = self.machine.run(command, {"MOCK_KEY": "dummy"})
        return str(next(event["thread_id"] for event in events if event["type"] == "thread.started"))


@dataclass(frozen=True)
class Gemini:
    """Gemini CLI with our extension."""

    machine: Machine
    program: Path

    def set_up(self) -> "Gemini":
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "telemetry": {"enabled": False},
            "tools": {"useRipgrep": False},
        }
        path = self.machine.home / ".gemini" / "settings.json"
        path.parent.mkdir()
        path.write_text(json.dumps(settings))
        return self

    def plugin(self, *words: str) -> None:
        self.machine.run([PROGRAMS / "clankers-ctl", "plugin", *words, "gemini"], {})

    def run(self, prompt: str, *options: str) -> str:
        """One run with a prompt: its session's id."""
        output = ["--approval-mode", "yolo", "--output-format", "stream-json", "-p", prompt]
        command: list[str | Path] = ["node", self.program, "-m", "gemini-2.5-flash", *options, *output]
        environ = {
            "GEMINI_API_KEY": "dummy",
            "GOOGLE_GEMINI_BASE_URL": self.machine.model.url,
            **dict.fromkeys(("GEMINI_CLI_NO_RELAUNCH", "NO_BROWSER"), "1"),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        events = self.machine.run(command, environ)
        return str(next(event["session_id"] for event in events if event["type"] == "init"))
