"""`make bench-hook`: what a hook costs the harness that waits for it, beside a bare Python and a bare Node.

The hook is started as `clankers-ctl plugin install` writes it, and as the command `clankers-hook`; with the daemon up,
away, and hung (it accepts and never answers). All take turns in the same run, so that other work on the machine moves
all figures together: trust the ratios. CPU is what the kernel says the process used. Exits 1 when a bar is missed.

The real Claude Code answers one prompt from a mock model: without the plugin, with it, and with one that does nothing
(its hooks run `true`, its MCP server is a shell script), which shows what Claude Code itself spends on any plugin. Its
CPU is that of all the processes it started. CLAUDE_ROUNDS=0 leaves it out. Codex CLI likewise, without the plugin and
with it; CODEX_ROUNDS=0 leaves that out. What a plugin adds is the median of the differences between runs of one round;
the interval printed with it contains the true median in 19 of 20 measurements.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from e2e.harnesses import ClaudeCode, Codex, claude_binary, codex_binary, machine
from e2e.mock_model import Reply
from helpers.daemon import DaemonProcess, running_daemon
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import NO_EMBEDDER, Bar, judge, real_disk

import clankers.mcp
from clankers.ctl.plugin_files import SHELL, hook_command, mcp_command

ROUNDS = 30
CLAUDE_ROUNDS = int(os.environ.get("CLAUDE_ROUNDS", "21"))
CODEX_ROUNDS = int(os.environ.get("CODEX_ROUNDS", "11"))
MAX_CPU = 2.0
MAX_CLAUDE_CPU_SECONDS = 0.15
MAX_CODEX_CPU_SECONDS = 0.15
MAX_OWN_CPU_SECONDS = 0.1
MAX_RELAY_MB = 12.0
MAX_SERVER_MB = 3.0

TOOL = {
    "tool": {
        "id": "t",
        "sessionId": "s",
        "toolName": "Bash",
        "toolInput": json.dumps({"command": "pytest -q"}),
        "toolOutput": "all is well\n" * 150,
        "success": True,
    }
}
PROMPT = {
    "session_id": "s",
    "transcript_path": "/nowhere/s.jsonl",
    "cwd": "/nowhere",
    "hook_event_name": "UserPromptSubmit",
    "prompt_id": "p",
    "prompt": "why is the watcher test flaky on slow machines?",
}

SHELL_SERVER = r"""
read -r handshake < "$1/initialize"
read -r tools < "$1/tools-list"
while IFS= read -r line; do
  id=${line#*\"id\":}
  id=${id%%[,\}]*}
  case "$line" in
    *\"initialize\"*) printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$handshake" ;;
    *\"tools/list\"*) printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$tools" ;;
    *\"id\":*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}\n' "$id" ;;
  esac
done
"""

console = Console(highlight=False, width=110)


@dataclass
class Measured:
    """A command, and what its runs took in seconds."""

    what: str
    command: list[str]
    event: Path
    environ: dict[str, str]
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def run(self) -> None:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, str(self.event), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        ]
        start = time.perf_counter()
        process = os.posix_spawn(self.command[0], self.command, self.environ, file_actions=actions)
        _, status, used = os.wait4(process, 0)
        self.wall.append(time.perf_counter() - start)
        self.cpu.append(used.ru_utime + used.ru_stime)
        assert status == 0, f"{self.what}: exit status {status}"


def measured(folder: Path, up: DaemonProcess) -> list[Measured]:
    """Everything that takes turns."""
    tool, prompt = folder / "tool.json", folder / "prompt.json"
    tool.write_text(json.dumps(TOOL))
    prompt.write_text(json.dumps(PROMPT))
    hook, recalling = [*hook_command(), "generic"], [*hook_command(), "claude-code", "--recall"]
    away, hung = DaemonProcess(folder / "away").environ, DaemonProcess(folder / "hung").environ
    runs = [
        Measured("bare Python", [sys.executable, "-I", "-S", "-c", "pass"], tool, away),
        Measured("hook, daemon up", hook, tool, up.environ),
        Measured("hook, daemon away", hook, tool, away),
        Measured("hook, daemon hung", hook, tool, hung),
        Measured("hook that recalls", recalling, prompt, up.environ),
    ]
    script = str(Path(sys.executable).with_name("clankers-hook"))
    runs.append(Measured("clankers-hook, daemon up", [script, "generic"], tool, up.environ))
    if node := shutil.which("node"):
        runs.append(Measured("bare Node", [node, "-e", "0"], tool, away))
    return runs


def table(runs: list[Measured]) -> Table:
    shown = Table("", "CPU ms", "times bare Python", "wall ms", "slowest ms", box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    bare = statistics.median(runs[0].cpu)
    for run in runs:
        cpu = statistics.median(run.cpu)
        wall = statistics.median(run.wall)
        shown.add_row(
            run.what, f"{cpu * 1e3:.1f}", f"{cpu / bare:.2f}", f"{wall * 1e3:.1f}", f"{max(run.wall) * 1e3:.1f}"
        )
    return shown


def bars(runs: list[Measured]) -> list[Bar]:
    cpu = {run.what: statistics.median(run.cpu) for run in runs}
    found = []
    for state in ("up", "away", "hung"):
        hook = cpu[f"hook, daemon {state}"]
        found.append(Bar(f"CPU with the daemon {state} / bare Python", hook / cpu["bare Python"], MAX_CPU, ".2f"))
        if "bare Node" in cpu:
            found.append(Bar(f"CPU with the daemon {state} / bare Node", hook / cpu["bare Node"], 1.0, ".2f"))
    command = cpu["clankers-hook, daemon up"] / cpu["bare Python"]
    return [*found, Bar("CPU of the command clankers-hook / bare Python", command, MAX_CPU, ".2f")]


def do_nothing(plugin: Path) -> None:
    """Replace our processes by the cheapest that Claude Code takes: same hooks, same tools."""
    hooks = json.loads((plugin / "hooks" / "hooks.json").read_bytes())
    for hook in (hook for groups in hooks["hooks"].values() for group in groups for hook in group["hooks"]):
        hook |= {"command": shutil.which("true"), "args": []}
    (plugin / "hooks" / "hooks.json").write_text(json.dumps(hooks))
    answers = json.loads(Path(clankers.mcp.__file__).with_name(clankers.mcp.OFFLINE_ANSWERS).read_bytes())
    for name in ("initialize", "tools/list"):
        (plugin / name.replace("/", "-")).write_text(json.dumps(answers[name]) + "\n")
    server = plugin / "server.sh"
    server.write_text(SHELL_SERVER)
    (plugin / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"clankers": {"command": "/bin/sh", "args": [str(server), str(plugin)]}}})
    )


@contextmanager
def claude_runs() -> Iterator[list[Measured]]:
    """`claude -p` without the plugin, with it, and with one that does nothing; each in a home of its own."""
    with ExitStack() as homes:
        runs = []
        for name in ("without the plugin", "with the plugin", "with a plugin that does nothing"):
            here = homes.enter_context(machine(lambda _: {"hello": [Reply("Hello.")]}))
            here.daemon.environ |= NO_EMBEDDER
            here.daemon.start()
            claude = ClaudeCode(here, claude_binary())
            if name != "without the plugin":
                claude.plugin("install")
            if name == "with a plugin that does nothing":
                do_nothing(here.home / "clankers" / "plugins" / "claude-code" / "clankers")
            words = f"cd {here.project} && exec {claude.binary} -p '[[hello]] hello' --dangerously-skip-permissions"
            environ = here.environ | claude.environ()
            runs.append(Measured(f"claude -p {name}", ["/bin/sh", "-c", words], Path(os.devnull), environ))
        yield runs


@contextmanager
def codex_runs() -> Iterator[list[Measured]]:
    """`codex exec` without the plugin and with it; each in a home of its own."""
    with ExitStack() as homes:
        runs = []
        for name in ("without the plugin", "with the plugin"):
            here = homes.enter_context(machine(lambda _: {"hello": [Reply("Hello.")]}))
            here.daemon.environ |= NO_EMBEDDER
            here.daemon.start()
            codex = Codex(here, codex_binary()).set_up()
            if name == "with the plugin":
                codex.plugin("install")
            options = "--json --dangerously-bypass-hook-trust"
            words = f"cd {here.project} && exec {codex.binary} exec {options} '[[hello]] hello'"
            environ = here.environ | {"MOCK_KEY": "dummy"}
            runs.append(Measured(f"codex exec {name}", ["/bin/sh", "-c", words], Path(os.devnull), environ))
        yield runs


def server_megabytes(command: list[str], up: DaemonProcess) -> float:
    """Resident memory of an MCP server after it has listed its tools."""
    with subprocess.Popen(command, env=up.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
        server.stdin.flush()
        server.stdout.readline()
        status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def memory_bars(up: DaemonProcess) -> list[Bar]:
    _, script, _, *relay = mcp_command()
    server = [SHELL, script, str(up.socket_path), *relay]
    return [
        Bar("megabytes of the MCP server, no tool called yet", server_megabytes(server, up), MAX_SERVER_MB, ".1f"),
        Bar("megabytes of the MCP relay", server_megabytes(relay, up), MAX_RELAY_MB, ".1f"),
    ]


def take_turns(runs: list[Measured], rounds: int) -> None:
    for number in range(-1, rounds):
        for run in runs:
            run.run()
            if number < 0:  # the first finds nothing in the caches
                run.cpu.clear()
                run.wall.clear()


def claude_bars() -> list[Bar]:
    """Measure Claude Code, if it can be had; print what its runs took."""
    try:
        with claude_runs() as runs:
            take_turns(runs, CLAUDE_ROUNDS)
    except (pytest.skip.Exception, pytest.fail.Exception) as problem:
        console.print(str(problem))
        return []
    print_runs(runs)
    without, ours, nothing = (run.cpu for run in runs)
    more = added_seconds("the plugin adds to claude -p", ours, without)
    own = added_seconds("it adds to one that does nothing", ours, nothing)
    return [
        Bar("CPU seconds that the plugin adds to claude -p", more, MAX_CLAUDE_CPU_SECONDS, ".3f"),
        Bar("CPU seconds that it adds to one that does nothing", own, MAX_OWN_CPU_SECONDS, ".3f"),
    ]


def added_seconds(what: str, runs: list[float], others: list[float]) -> float:
    """Return the median of the differences of both; print its 95 % interval, which is one of order statistics."""
    differences = sorted(each - other for each, other in zip(runs, others, strict=True))
    count = len(differences)
    rank = max(round(count / 2 - 0.98 * count**0.5), 1) - 1
    low, high, median = differences[rank], differences[count - 1 - rank], statistics.median(differences)
    console.print(f"{what}: {median:.3f} s of CPU, between {low:.3f} and {high:.3f}")
    return median


def codex_bars() -> list[Bar]:
    """Measure Codex CLI, if it can be had; print what its runs took."""
    try:
        with codex_runs() as runs:
            take_turns(runs, CODEX_ROUNDS)
    except (pytest.skip.Exception, pytest.fail.Exception) as problem:
        console.print(str(problem))
        return []
    print_runs(runs)
    without, ours = (run.cpu for run in runs)
    more = added_seconds("the plugin adds to codex exec", ours, without)
    return [Bar("CPU seconds that the plugin adds to codex exec", more, MAX_CODEX_CPU_SECONDS, ".3f")]


def print_runs(runs: list[Measured]) -> None:
    shown = Table("", "CPU ms", "wall ms", box=None, pad_edge=False)
    for run in runs:
        shown.add_row(run.what, f"{statistics.median(run.cpu) * 1e3:.0f}", f"{statistics.median(run.wall) * 1e3:.0f}")
    console.print(shown, "\n")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="clk-bench-", dir=real_disk()) as name:
        folder = Path(name)
        for state in ("up", "away", "hung/clankers"):
            (folder / state).mkdir(parents=True)
        with running_daemon(folder / "up", **NO_EMBEDDER) as up, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(folder / "hung" / "clankers" / "dxta-clankers.sock"))
            silent.listen(ROUNDS * 2)
            runs = measured(folder, up)
            take_turns(runs, ROUNDS)
            memory = memory_bars(up)
    console.print(table(runs), "\n")
    if "bare Node" not in [run.what for run in runs]:
        console.print("there is no node in PATH to compare with")
    return judge(
        [*bars(runs), *memory, *(claude_bars() if CLAUDE_ROUNDS else []), *(codex_bars() if CODEX_ROUNDS else [])]
    )


if __name__ == "__main__":
    sys.exit(main())
