"""`make bench-hook`: what a hook costs the harness that waits for it, beside a bare Python and a bare Node.

The hook is started as `clankers-ctl plugin install` writes it, and as the command `clankers-hook`; with the daemon up,
away, and hung (it accepts and never answers). All take turns in the same run, so that other work on the machine moves
all figures together: trust the ratios. CPU is what the kernel says the process used. Exits 1 when a bar is missed.
"""

import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from helpers.daemon import DaemonProcess, running_daemon
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import NO_EMBEDDER, Bar, judge, real_disk

from clankers.ctl.plugin import hook_command

ROUNDS = 30
MAX_CPU = 2.0

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


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="clk-bench-", dir=real_disk()) as name:
        folder = Path(name)
        for state in ("up", "away", "hung/clankers"):
            (folder / state).mkdir(parents=True)
        with running_daemon(folder / "up", **NO_EMBEDDER) as up, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(folder / "hung" / "clankers" / "dxta-clankers.sock"))
            silent.listen(ROUNDS * 2)
            runs = measured(folder, up)
            for number in range(-1, ROUNDS):
                for run in runs:
                    run.run()
                    if number < 0:  # the first finds nothing in the caches
                        run.cpu.clear()
                        run.wall.clear()
    console.print(table(runs), "\n")
    if "bare Node" not in [run.what for run in runs]:
        console.print("there is no node in PATH to compare with")
    return judge(bars(runs))


if __name__ == "__main__":
    sys.exit(main())
