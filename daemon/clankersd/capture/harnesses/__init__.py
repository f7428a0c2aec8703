"""The harnesses: one module each, with all that is known of it, and one line each in the registry below."""

import os
from collections.abc import Mapping
from pathlib import Path

from clankersd.capture.harnesses import claude_code, codex, copilot, gemini, generic, openclaw, opencode, pi, qwen
from clankersd.capture.harnesses.base import Harness, Occasion, Payload

HARNESSES: dict[str, Harness] = {
    harness.name: harness
    for harness in (
        claude_code.HARNESS,
        codex.HARNESS,
        copilot.HARNESS,
        gemini.HARNESS,
        generic.HARNESS,
        openclaw.HARNESS,
        opencode.HARNESS,
        pi.HARNESS,
        qwen.HARNESS,
    )
}


def find_occasion(harness: str, payload: Payload) -> Occasion | None:
    """Read a hook payload as an occasion for recall; None if it is none, or the harness is unknown."""
    known = HARNESSES.get(harness)
    return known.find_occasion(payload) if known else None


def data_folders(harness: Harness, extra: list[str], environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the folders that a harness's own files may lie in, with those of the configuration."""
    own = harness.data_folders(environ) if harness.data_folders else []
    return [*own, *(Path(path).expanduser() for path in extra)]
