"""A hook runs many times a minute inside somebody else's program: it loads next to nothing."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
before = set(sys.modules)
import clankers.hook
print(json.dumps(sorted(set(sys.modules) - before)))
"""

OURS = {"clankers", "clankers.hook", "clankers.spool"}


def loaded_by_the_hook() -> set[str]:
    command = [sys.executable, "-I", "-c", PROGRAM]
    return set(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))


def test_the_hook_loads_only_the_standard_library():
    foreign = {name for name in loaded_by_the_hook() if name.partition(".")[0] not in sys.stdlib_module_names}

    assert "clankers.hook" in foreign
    assert foreign <= OURS


def test_the_hook_loads_nothing_slow():
    slow = {"asyncio", "typing", "dataclasses", "inspect", "subprocess", "importlib.metadata", "email", "ssl"}

    assert not loaded_by_the_hook() & slow
