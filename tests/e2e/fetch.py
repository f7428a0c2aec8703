"""Fetch every harness from the npm registry: the end-to-end tests, which use them, have only so much time each."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from e2e.harnesses import (
    CLAUDE_VERSIONS,
    CODEX_VERSIONS,
    OPENCODE_VERSIONS,
    axe_script,
    claude_binary,
    codex_binary,
    gemini_program,
    opencode_binary,
    typescript_compiler,
)
from e2e.more_harnesses import copilot_binary, pi_program, qwen_program, recent_node

WANTED: list[Callable[[], Path]] = [
    *(partial(claude_binary, version) for version in CLAUDE_VERSIONS),
    *(partial(opencode_binary, version) for version in OPENCODE_VERSIONS),
    *(partial(codex_binary, version) for version in CODEX_VERSIONS),
    gemini_program,
    copilot_binary,
    pi_program,
    qwen_program,
    recent_node,
    typescript_compiler,
    axe_script,
]

if __name__ == "__main__":
    for binary in WANTED:
        try:
            print(binary())
        except (pytest.skip.Exception, pytest.fail.Exception) as why:
            sys.exit(str(why))
