"""CPU time of clankers-ctl commands, beside that of the interpreter itself: python -m tests.bench.ctl [SOURCES]

SOURCES is another checkout, whose clankers-ctl is measured in turns with this one.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from helpers.daemon import running_daemon

COMMANDS = ("status", "health", "sessions", "search hello", "memory list", "jobs", "config show", "--help")
RUNS = 15


def cpu_seconds(command: list[str], environ: dict[str, str]) -> float:
    """Run a command; return the CPU time that it took, of the user and of the system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def ctl_command(sources: Path, words: list[str]) -> list[str]:
    folders = [str(sources / "client"), str(sources / "protocol")]
    program = f"import sys; sys.path[:0] = {folders!r}; from clankers.ctl import main; main()"
    return [sys.executable, "-c", program, *words]


def main() -> None:
    here = Path(__file__).parents[2]
    checkouts = {"this": here} | {name: Path(name) for name in sys.argv[1:]}
    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder)) as daemon:
        environ = {**os.environ, **daemon.environ}
        bare = median(cpu_seconds([sys.executable, "-c", "pass"], environ) for _ in range(RUNS))
        print(f"{'python -c pass':<16}{bare * 1000:8.0f} ms")
        for command in COMMANDS:
            taken: dict[str, list[float]] = {name: [] for name in checkouts}
            for _ in range(RUNS):  # in turns, so that a busy machine affects all alike
                for name, sources in checkouts.items():
                    taken[name].append(cpu_seconds(ctl_command(sources, command.split()), environ))
            medians = {name: median(values) for name, values in taken.items()}
            line = "".join(f"{seconds * 1000:8.0f} ms {name}" for name, seconds in medians.items())
            ratios = [f"{medians['this'] / seconds:.2f}" for name, seconds in medians.items() if name != "this"]
            print(f"{command:<16}{line}  {' '.join(ratios)}")


if __name__ == "__main__":
    main()
