"""The table of harnesses (docs/harnesses.md): it names the versions that the end-to-end tests run, and no others."""

import pytest
from e2e.harnesses import CLAUDE_VERSIONS, CODEX_VERSIONS, GEMINI_VERSION, OPENCODE_VERSIONS
from e2e.more_harnesses import COPILOT_VERSION, PI_VERSION, QWEN_VERSION
from e2e.openclaw import OPENCLAW_VERSION

from clankers_protocol.harnesses import HARNESSES, HarnessInfo

TESTED = {
    "claude-code": CLAUDE_VERSIONS,
    "codex": CODEX_VERSIONS,
    "copilot": (COPILOT_VERSION,),
    "gemini": (GEMINI_VERSION,),
    "openclaw": (OPENCLAW_VERSION,),
    "opencode": OPENCODE_VERSIONS,
    "pi": (PI_VERSION,),
    "qwen": (QWEN_VERSION,),
}


@pytest.mark.parametrize("harness", [each for each in HARNESSES if each.has_plugin], ids=lambda each: each.name)
def test_harness_was_tested_with_the_versions_that_it_names(harness: HarnessInfo) -> None:
    versions = TESTED[harness.name]
    assert harness.tested_with == (versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}")
