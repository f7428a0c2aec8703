"""The walk of a newcomer: from the built wheel to the first recalled memory, in a scratch home."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SESSION = "5d6f0c9e-8d0e-4a52-9c4e-5f1f5c1b7a10"


def run(command: list[str], environ: dict[str, str] | None = None, **options: Any) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return str(done.stdout)


class Newcomer:
    """A user with a scratch home, a history of Claude Code, and the wheel in an environment of its own."""

    def __init__(self, home: Path, tools: Path) -> None:
        self.home, self.bin = home, tools / "bin"
        self.project = home / "shop"
        self.environ = {"HOME": str(home), "PATH": f"{self.bin}:/usr/bin:/bin"}
        history = home / ".claude" / "projects" / "-shop"
        history.mkdir(parents=True)
        self.project.mkdir()
        asked = {"role": "user", "content": "Why does the CSV export drop the last row?"}
        answered = {
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "text", "text": "The writer is closed before its buffer is flushed."}],
        }
        common = {"sessionId": SESSION, "cwd": str(self.project)}
        lines = [
            {"type": "user", "uuid": "u1", "timestamp": "2026-11-10T10:00:00Z", "message": asked},
            {"type": "assistant", "uuid": "a1", "timestamp": "2026-11-10T10:00:05Z", "message": answered},
        ]
        text = "".join(f"{json.dumps(common | line)}\n" for line in lines)
        (history / f"{SESSION}.jsonl").write_text(text)

    def ctl(self, *words: str) -> str:
        return run([str(self.bin / "clankers-ctl"), *words], self.environ, cwd=self.project)

    def hook(self, event: str, **payload: Any) -> str:
        """Run a hook of the installed plugin as Claude Code does; return what it prints."""
        plugin = self.home / ".local/share/clankers/plugins/claude-code/clankers/hooks/hooks.json"
        [hook] = json.loads(plugin.read_text())["hooks"][event][0]["hooks"]
        given = {"session_id": "new-session", "cwd": str(self.project), "hook_event_name": event, **payload}
        command = [hook["command"], *hook["args"]] if "args" in hook else ["sh", "-c", hook["command"]]
        return run(command, self.environ, input=json.dumps(given))


def install_wheel(folder: Path) -> None:
    """Build the wheel and install it into a virtualenv, which borrows the dependencies of this one."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")], cwd=ROOT)
    [wheel] = (folder / "dist").glob("*.whl")
    tools = folder / "tools"
    run([sys.executable, "-m", "venv", "--without-pip", str(tools)])
    python = str(tools / "bin" / "python")
    run([sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-deps", "--no-index", str(wheel)])
    [packages] = (tools / "lib").glob("python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))


@pytest.fixture
def newcomer(home: Path, tmp_path: Path) -> Iterator[Newcomer]:
    pytest.importorskip("hatchling")
    pytest.importorskip("pip")
    install_wheel(tmp_path)
    person = Newcomer(home, tmp_path / "tools")
    try:
        yield person
    finally:
        subprocess.run([str(person.bin / "clankers-ctl"), "daemon", "stop"], env=person.environ, check=False)


@pytest.mark.timeout(300)
def test_newcomer_walks_from_the_wheel_to_the_first_recalled_memory(newcomer: Newcomer) -> None:
    began = time.monotonic()
    planned = json.loads(newcomer.ctl("setup", "--dry-run", "--json"))
    assert {step["state"] for step in planned["steps"]} == {"done", "would"}
    assert not (newcomer.home / ".local").exists()

    shown = newcomer.ctl("setup", "--yes")
    assert "✓ plugin of Claude Code: installed" in shown
    assert "imported 1 session and 2 messages" in shown
    assert "buffer is flushed" in shown  # the first search
    assert len(re.findall(r"\b\d+ hits? ", shown)) == 1, "two numbers of hits, of which one is out of date"
    first_search = time.monotonic() - began

    again = json.loads(newcomer.ctl("setup", "--yes", "--json"))
    assert again["ok"]
    assert {step["state"] for step in again["steps"]} == {"done"}
    newcomer.ctl("doctor")
    newcomer.ctl("capture", "status")

    newcomer.ctl("memory", "add", "We deploy the shop on Tuesdays, never on Fridays", "--project", ".")
    recalled = newcomer.hook("SessionStart", source="startup")  # each item is told once in a session
    recalled += newcomer.hook("UserPromptSubmit", prompt="On which day of the week do we deploy the shop?")
    assert "Tuesdays" in recalled
    assert "new-session" in newcomer.ctl("sessions", "--json")

    newcomer.ctl("daemon", "stop")
    assert "Tuesdays" in newcomer.ctl("memory", "search", "deploy")  # the daemon is started again
    print(
        f"\nfrom setup to the first search: {first_search:.1f} s; to the first recalled memory: "
        f"{time.monotonic() - began:.1f} s"
    )


@pytest.mark.timeout(300)
def test_setup_works_when_nothing_is_found(home: Path) -> None:
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    ctl = [sys.executable, "-m", "clankers.ctl"]
    try:
        steps = json.loads(run([*ctl, "setup", "--yes", "--json"], environ))["steps"]
        assert {step["name"]: step["state"] for step in steps} == {
            "harnesses": "skipped", "daemon": "done", "doctor": "done", "first search": "skipped",
        }  # fmt: skip
        asked = subprocess.run([*ctl, "setup", "--json"], env=environ, capture_output=True, text=True, check=False)
        assert asked.returncode == 2
    finally:
        subprocess.run([*ctl, "daemon", "stop"], env=environ, check=False, stdout=subprocess.DEVNULL)
    assert [path.name for path in home.iterdir()] == [".local"]
