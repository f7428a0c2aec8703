"""Modules that the daemon does not load when it starts: each costs time and memory."""

import subprocess
import sys

import pytest

NOT_LOADED = ("jsonschema", "http.server", "numpy", "yaml", "httpx")


@pytest.mark.parametrize("module", NOT_LOADED)
def test_daemon_does_not_load_what_few_requests_need(module: str) -> None:
    program = f"import sys; import clankersd.app; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
