"""The commands in README.md and docs/*.md, run as they are written, in a home of their own."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.sample_files import pdf
from helpers.waiting import settled

from clankers.ctl import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(sh|bash|console|python|)\n(.*?)^```", re.DOTALL | re.MULTILINE)

NOT_RUN = (
    "claude", "make ", "pip ", "pip3 ", "pipx ", "uv ", "brew ",  # other programs, or the network
    "clankers-ctl service ", "clankers-ctl setup", "clankers-ctl daemon ",  # change this machine
    "clankers-ctl project merge", "clankers-ctl project move", "clankers-ctl project rename",
    "clankers-ctl project forget",  # need further projects
    "clankers-ctl model use ollama", "clankers-ctl model use openai", "clankers-ctl model use gemini",
    "clankers-ctl model use ~/models", "clankers-ctl model use arctic", "clankers-ctl model pull",  # need a service
    "clankers-ctl backup restore", "clankers-ctl logs -f", "clankers-ctl memory edit", "clankers-ctl memory summarize",
    "clankers-ctl view",  # serves until it is ended
    "rsync ", "scp ", "ssh ", "systemctl ", "launchctl ", "rm -r",
)  # fmt: skip
"""Commands that need another machine, a service, a person, or would change this machine."""

OTHER_EXITS = {
    "clankers-ctl doctor": 4,
    "clankers-ctl capture status": 4,
    'clankers-ctl schedule add "09:00 weekly(blursday)"': 1,
    "clankers-ctl sessions --project shpo": 1,
}
"""Commands that report a problem, which the page shows or this home has, and their exit codes."""

MEMORIES = {
    "01a1e83b-f66b-7aaf-a265-93ad50191066": "The API listens on port 9090",
    "01a1e83b-ce2f-7aaf-a265-93ad50191067": "Requests are logged, one line each",
    "01a1e83c-11aa-7aaf-a265-93ad50191068": "We deploy on Tuesdays",
}
"""Memories that the pages refer to."""


def commands(page: Path) -> Iterator[str]:
    """Yield the commands of a page: of shell blocks, and those after a prompt in blocks that show output."""
    for language, body in BLOCK.findall(page.read_text()):
        if language in ("sh", "bash"):
            yield from logical_lines(body)
        elif language == "python" and "ScheduleSubscribe" in body:
            compile(body, page.name, "exec")  # waits for events for as long as it runs
        elif language == "python":
            yield f"{shlex.quote(sys.executable)} -c {shlex.quote(body)}"
        else:
            prompts = re.findall(r"^\$ (.*(?:\n> .*)*)", body, re.MULTILINE)
            yield from (prompt.replace("\n> ", "\n") for prompt in prompts)


def logical_lines(body: str) -> Iterator[str]:
    """Split a block into commands; one may go on over several lines, in quotes or as a here-document."""
    command = ""
    for line in body.splitlines():
        command = f"{command}\n{line}" if command else line
        if is_complete(command):
            yield command
            command = ""
    assert not command, f"not a complete command: {command}"


def is_complete(command: str) -> bool:
    if (marker := re.search(r"<<-?'?(\w+)'?", command)) and not re.search(rf"\n{marker[1]}$", command):
        return False
    checked = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
    return checked.returncode == 0 and not checked.stderr and not command.rstrip().endswith(("|", "\\"))


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="clk-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[DaemonProcess]:
    """A daemon in a home with what the pages take for granted: a repository, notes, papers, memories."""
    for folder in ("shop/.venv", "src/shop", "src/parser", "papers", "notes", ".claude/skills/git-bisect"):
        (home / folder).mkdir(parents=True)
    (home / "shop/.venv/bin").symlink_to(Path(sys.executable).parent)
    (home / ".claude/skills/git-bisect/SKILL.md").write_text(
        "---\nname: git-bisect\ndescription: Find it\n---\ngit bisect\n"
    )
    (home / "shop/report.pdf").write_bytes(pdf("A report about the retry budget."))
    (home / "papers/paper.md").write_text("# Retry budget\n\nRetries need a budget.\n")
    (home / "notes/deploy.md").write_text("# Deploys\n\nWe deploy on Tuesdays.\n")
    with running_daemon(home, HOME=str(home)) as process:
        yield process


def fill(connection: RawConnection, home: Path) -> None:
    """Store what the pages refer to; what is there already stays as it is."""
    ten_days_ago = int(time.time() * 1000) - 10 * 86_400_000
    place: dict[str, Any] = {
        "scope": "project:shop",
        "projectId": "shop",
        "projectPath": str(home / "shop"),
        "createdAt": ten_days_ago,
    }
    place["entities"] = [{"name": "src/server.py", "type": "file"}]
    memories = [{"id": id_, "content": content, "category": "fact", **place} for id_, content in MEMORIES.items()]
    connection.call("memory.import", memories=memories, scopes=["*"])
    (home / "shop/memories.jsonl").write_text("".join(f"{json.dumps(memory)}\n" for memory in memories))
    for name in ("s1", "0199c5a2-0000-4000-8000-000000000000", "0d6f0c9e-0000-4000-8000-000000000000"):
        connection.call("upsertSession", session={"id": name, "title": "Login", "projectPath": str(home / "shop")})
    old = {"id": "old", "title": "Old", "projectPath": str(home / "src/old-shop")}
    connection.call("upsertSession", session=old)
    message = {"id": "m0", "sessionId": "s1", "role": "user", "textContent": "The login fails on Safari."}
    connection.call("upsertMessage", message=message)
    settled(connection)


def run(daemon: DaemonProcess, command: str, folder: Path, environ: dict[str, str]) -> tuple[int, str]:
    """Run a command, answering yes to questions. A plain `clankers-ctl` runs without a shell, which is faster."""
    if re.fullmatch(r"clankers-ctl [^|<>$;&`]*", command):
        words = [word.replace("~", environ["HOME"], 1) if word.startswith("~/") else word for word in split(command)]
        ran = ctl(daemon, *words[1:], typed="y\n", cwd=folder, **environ)
        return ran.code, ran.out + ran.err
    done = subprocess.run(
        ["bash", "-c", command], env=environ, cwd=folder, input="y\n", capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def split(command: str) -> list[str]:
    return shlex.split(command, comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_work_as_written(page: Path, daemon: DaemonProcess, home: Path) -> None:
    environ = daemon.environ | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "EDITOR": "true",
    }
    with daemon.connect() as connection:
        fill(connection, home)
    failures = []
    for command in commands(page):
        if command.startswith(NOT_RUN) or command.startswith("export CLANKERS_DATA_PATH"):
            continue
        code, output = run(daemon, command, home / "shop", environ)
        allowed = {0} | {code for start, code in OTHER_EXITS.items() if command.startswith(start)}
        if code not in allowed:
            failures.append(f"$ {command}\nexited with {code}: {output[-500:]}")
    assert not failures, "\n\n".join(failures)


def test_json_examples_are_json() -> None:
    for page in PAGES:
        for body in re.findall(r"^```json\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            assert json.loads(body), page.name


def help_examples() -> list[str]:
    """Return the examples in the help texts of all commands."""
    found: list[str] = []

    def collect(command: click.Command) -> None:
        found.extend(re.findall(r"^\s*(?:.*\| )?(clankers-ctl .*?)(?: [|>] .*)?$", command.help or "", re.MULTILINE))
        for child in command.commands.values() if isinstance(command, click.Group) else ():
            collect(child)

    collect(cli)
    return found


def test_examples_in_help_texts_have_options_that_exist() -> None:
    examples = help_examples()
    assert len(examples) > 100
    for example in examples:
        command: click.Command = cli
        words = split(example)[1:]
        if not words:
            continue  # the overview
        if words[0] == "session" and words[1] not in cli.commands["session"].commands:  # type: ignore[attr-defined]
            words.insert(1, "show")
        while isinstance(command, click.Group) and not (command.invoke_without_command and not words):
            assert words[0] in command.commands, example
            command = command.commands[words.pop(0)]
        with click.Context(command, resilient_parsing=True) as context:
            command.make_parser(context).parse_args(words)


def test_examples_of_completion_work_in_a_home_without_their_folders(tmp_path: Path) -> None:
    lines = re.findall(r"^ +((?:mkdir|clankers-ctl) .*)$", cli.commands["completion"].help or "", re.MULTILINE)
    examples = "\n".join(lines)
    environ = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e"], input=examples, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    scripts = (".local/share/bash-completion/completions/clankers-ctl", ".zfunc/_clankers-ctl")
    for script in (*scripts, ".config/fish/completions/clankers-ctl.fish"):
        assert "_CLANKERS_CTL_COMPLETE" in (tmp_path / script).read_text()
