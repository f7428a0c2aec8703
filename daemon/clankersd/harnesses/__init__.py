"""The harnesses we know: one module each, which reads its events as they come."""

from collections.abc import Callable
from typing import Any

from clankersd.harnesses import claude_code, codex, gemini, opencode
from clankersd.harnesses.told import Told

READERS: dict[str, Callable[[dict[str, Any], int], Told]] = {
    claude_code.HARNESS: claude_code.read,
    opencode.HARNESS: opencode.read,
    codex.HARNESS: codex.read,
    gemini.HARNESS: gemini.read,
}
