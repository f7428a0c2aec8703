"""Imports of the hook: it runs many times a minute while a harness waits, so it must import very little."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
before = set(sys.modules)
import clankers.hook
print(json.dumps(sorted(set(sys.modules) - before)))
"""

OURS = {"clankers", "clankers.hook"}


def loaded_by_the_hook() -> set[str]:
    command = [sys.executable, "-I", "-c", PROGRAM]
    return set(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))


def test_hook_imports_only_the_standard_library() -> None:
    foreign = {name for name in loaded_by_the_hook() if name.partition(".")[0] not in sys.stdlib_module_names}

    assert "clankers.hook" in foreign
    assert foreign <= OURS


def test_hook_imports_no_slow_modules() -> None:
    slow = {"asyncio", "typing", "dataclasses", "inspect", "subprocess", "importlib.metadata", "email", "ssl"}

    assert not loaded_by_the_hook() & slow
