"""Plugins of every harness on homes as people have them: linked dotfiles, read-only files, former versions."""

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.ctl import ctl
from helpers.harness_home import HarnessHome as Machine

from clankers_protocol.harnesses import WITH_PLUGIN

FOLDERS = {
    "claude-code": ".claude",
    "codex": ".codex",
    "copilot": ".copilot",
    "gemini": ".gemini",
    "openclaw": ".openclaw",
    "opencode": ".config/opencode",
    "pi": ".pi/agent",
    "qwen": ".qwen",
}
EDITED = {
    "claude-code": ("settings.json", b'{\n    "model": "opus"}'),
    "codex": ("config.toml", b'# mine\nmodel = "gpt"\n'),
    "copilot": ("settings.json", b'{"model": "gpt"}\n\n'),
    "openclaw": ("openclaw.json", b'{"gateway": {"mode": "local"}}'),
}
"""A file of the user that the installation edits, and what is in it."""


@pytest.fixture
def machine(home: Path) -> Machine:
    return Machine(home)


def ledger(machine: Machine, harness: str) -> Path:
    (found,) = machine.home.rglob(f"plugins/{harness}/installed.json")
    return found


def put_config(machine: Machine, harness: str) -> Path:
    name, content = EDITED.get(harness, ("settings.json", b"{}"))
    path = machine.home / FOLDERS[harness] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def install(machine: Machine, harness: str) -> None:
    ran = machine.plugin("install", harness, "--yes")
    assert ran.code == 0, ran.out + ran.err


def uninstall(machine: Machine, harness: str) -> None:
    ran = machine.plugin("uninstall", harness)
    assert ran.code == 0, ran.out + ran.err


@pytest.mark.parametrize("harness", WITH_PLUGIN)
def test_plugin_leaves_no_trace_in_a_folder_of_dotfiles_that_is_linked(machine: Machine, harness: str) -> None:
    path = put_config(machine, harness)
    path.chmod(0o400)
    moved = machine.home / "dotfiles" / harness
    moved.parent.mkdir()
    path.parent.rename(moved)
    path.parent.symlink_to(moved)
    snapshot = machine.everything()
    for _ in range(2):
        install(machine, harness)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    uninstall(machine, harness)
    assert machine.everything() == snapshot


@pytest.mark.parametrize("harness", sorted(EDITED))
def test_plugin_edits_a_linked_file_where_it_is_and_restores_it(machine: Machine, harness: str) -> None:
    path = put_config(machine, harness)
    moved = machine.home / "dotfiles" / path.name
    moved.parent.mkdir()
    path.rename(moved)
    path.symlink_to(moved)
    snapshot = machine.everything()
    install(machine, harness)
    assert path.is_symlink()
    assert b"clankers" in moved.read_bytes()
    uninstall(machine, harness)
    assert machine.everything() == snapshot


@pytest.mark.parametrize("harness", sorted(EDITED))
def test_plugin_uninstall_keeps_what_the_user_wrote_meanwhile(machine: Machine, harness: str) -> None:
    path = put_config(machine, harness)
    install(machine, harness)
    before = path.read_bytes()
    if path.suffix == ".toml":
        path.write_bytes(b"# first line\n" + before + b"\n[mine]\nkey = 1 # why\n")
    else:
        path.write_text(json.dumps(json.loads(before) | {"mine": {"key": 1}}))
    uninstall(machine, harness)
    left = path.read_text()
    assert "clankers" not in left
    assert "mine" in left
    if path.suffix == ".toml":
        assert left.startswith("# first line\n# mine\n")
        assert "key = 1 # why" in left


@pytest.mark.parametrize("harness", sorted(set(EDITED) - {"codex"}))
def test_plugin_install_leaves_a_file_with_comments_as_it_is(machine: Machine, harness: str) -> None:
    """It could not be written again with its comments, so nothing is changed and the user is told."""
    path = put_config(machine, harness)
    path.write_bytes(b'{\n  // mine\n  "model": "x",\n}\n')
    snapshot = machine.everything()
    ran = machine.plugin("install", harness, "--yes")
    assert ran.code != 0
    assert str(path) in ran.err
    assert machine.everything() == snapshot


@pytest.mark.parametrize("harness", WITH_PLUGIN)
def test_plugin_removes_files_that_an_earlier_version_wrote(machine: Machine, harness: str) -> None:
    put_config(machine, harness)
    snapshot = machine.everything()
    install(machine, harness)
    written = json.loads(ledger(machine, harness).read_bytes())
    first, second = (Path(written["files"][0]).with_name(f"former-{number}.md") for number in range(2))
    for number, former in enumerate((first, second)):
        former.write_text("of an earlier version")
        written["files"].append(str(former))
        ledger(machine, harness).write_text(json.dumps(written))
        if number == 0:
            install(machine, harness)
            assert not first.exists()
            written = json.loads(ledger(machine, harness).read_bytes())
            assert str(first) not in written["files"]
    uninstall(machine, harness)
    assert machine.everything() == snapshot


def installed_files(machine: Machine, harness: str) -> Iterator[Path]:
    return (Path(path) for path in json.loads(ledger(machine, harness).read_bytes())["files"])


@pytest.mark.parametrize("harness", WITH_PLUGIN)
def test_plugin_whose_interpreter_is_gone_is_reported_and_mended(machine: Machine, harness: str) -> None:
    """The virtualenv was made again elsewhere; the installed files still start the former one."""
    put_config(machine, harness)
    install(machine, harness)
    assert machine.plugin("status", harness).code == 0
    for path in installed_files(machine, harness):
        path.write_bytes(path.read_bytes().replace(sys.executable.encode(), b"/former/venv/bin/python3"))
    status = machine.plugin("status", harness)
    assert (status.code, status.out.splitlines()[0].partition(";")[0]) == (
        3,
        f"{harness}: broken: /former/venv/bin/python3, which its hooks run, is gone. Install it again",
    )
    findings = ctl(machine.daemon, "doctor", "--json").json["checks"]
    (finding,) = (each for each in findings if each["name"] == f"plugin {harness}")
    assert finding["state"] == "problem"
    assert "/former/venv/bin/python3" in finding["finding"]
    assert finding["advice"] == f"clankers-ctl plugin install {harness}"
    install(machine, harness)
    assert machine.plugin("status", harness).code == 0
