"""The coding agents that clankers knows, with what clients need to know about each.

The daemon's side of a harness, its readers, is a module in `clankersd.capture.harnesses`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class HarnessInfo:
    """A harness: whether `clankers-ctl plugin` can install its plugin, and `clankers-ctl import` read its history.

    `history_unit` is what an import counts.
    """

    name: str
    title: str
    has_plugin: bool = False
    is_importable: bool = False
    history_unit: str = "session"


HARNESSES = (
    HarnessInfo("claude-code", "Claude Code", has_plugin=True, is_importable=True, history_unit="transcript"),
    HarnessInfo("codex", "Codex CLI", has_plugin=True, is_importable=True),
    HarnessInfo("gemini", "Gemini CLI", has_plugin=True, is_importable=True),
    HarnessInfo("opencode", "OpenCode", has_plugin=True, is_importable=True),
)

NAMES = tuple(harness.name for harness in HARNESSES)
IMPORTABLE = tuple(harness.name for harness in HARNESSES if harness.is_importable)
WITH_PLUGIN = tuple(harness.name for harness in HARNESSES if harness.has_plugin)


def find_harness(name: str) -> HarnessInfo | None:
    """Return the harness of this name; None if it is unknown."""
    return next((harness for harness in HARNESSES if harness.name == name), None)
