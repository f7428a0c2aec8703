"""The mix of events that load and baselines share: 1 KB messages, 4 KB tool inputs and outputs."""

import json
import random
from typing import Any

from clankers_protocol.framing import frame

TEXT = """
    the daemon stores every event in one file and answers when it is on disk so that a harness never waits
    for more than a commit while parser token index thread query cursor batch frame socket retry test build
"""
WORDS = TEXT.split()

EVENTS_PER_SESSION = 50


def text(size: int, seed: int) -> str:
    """Words, `size` characters of them."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(size // 4))[:size]


MESSAGES = [text(1024, seed) for seed in range(32)]
TOOL_TEXTS = [text(4096, 100 + seed) for seed in range(32)]


def event(prefix: str, number: int) -> dict[str, Any]:
    """One event of a run: of ten, one is a session, five are messages and four are tool calls."""
    session = f"{prefix}-s{number // EVENTS_PER_SESSION}"
    name = f"{prefix}-{number}"
    at = 1_750_000_000_000 + number
    kind = number % 10
    if kind == 0:
        return {"session": {"id": session, "title": "bench", "projectPath": "/bench", "createdAt": at}}
    if kind < 6:
        content = MESSAGES[number % len(MESSAGES)]
        return {
            "message": {
                "id": name,
                "sessionId": session,
                "role": "user" if kind % 2 else "assistant",
                "textContent": content,
                "createdAt": at,
            }
        }
    return {
        "tool": {
            "id": name,
            "sessionId": session,
            "toolName": "Bash",
            "toolInput": TOOL_TEXTS[number % len(TOOL_TEXTS)],
            "toolOutput": TOOL_TEXTS[(number + 7) % len(TOOL_TEXTS)],
            "success": True,
            "createdAt": at,
        }
    }


METHODS = {"session": "upsertSession", "message": "upsertMessage", "tool": "upsertTool"}


def upsert_frame(prefix: str, number: int) -> bytes:
    """The upsert of one event, as it stands on the wire."""
    one = event(prefix, number)
    (kind,) = one
    return request_frame(number, METHODS[kind], one)


def batch_frame(prefix: str, first: int, size: int) -> bytes:
    """An events.batch of `size` events."""
    return request_frame(first, "events.batch", {"events": [event(prefix, first + offset) for offset in range(size)]})


def request_frame(number: int, method: str, params: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return frame(json.dumps(message, separators=(",", ":")).encode())
