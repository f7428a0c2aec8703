"""The harnesses we know: one module each, which reads its events as they come."""

from collections.abc import Callable
from typing import Any

from clankersd.capture.harnesses import claude_code, codex, gemini, opencode
from clankersd.capture.harnesses.payload import Told

READERS: dict[str, Callable[[dict[str, Any], int], Told]] = {
    claude_code.HARNESS: claude_code.read,
    opencode.HARNESS: opencode.read,
    codex.HARNESS: codex.read,
    gemini.HARNESS: gemini.read,
}
