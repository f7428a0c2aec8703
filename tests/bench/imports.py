"""`make bench-import`: how fast the history of a harness is imported, beside decoding its lines alone.

Sessions of Claude Code with prompts, answers, and tool calls with their results; without an embedder, since vectors are
made in the background (`make bench-indexing`).
"""

import argparse
import json
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from helpers.daemon import running_daemon
from tests.bench.__main__ import NO_EMBEDDER, real_disk
from tests.bench.events import MESSAGES, TOOL_TEXTS

TURNS_PER_SESSION = 100
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
JOB_POLL_SECONDS = 0.05


def session_lines(number: int, cwd: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a transcript: a prompt, a tool call, its result, and an answer in each turn."""
    session, parent, position = str(uuid.UUID(int=number + 1)), None, 0

    def line(kind: str, message: dict[str, Any]) -> dict[str, Any]:
        nonlocal parent, position
        own = str(uuid.UUID(int=(number + 1) << 64 | position))
        at = BEGIN + timedelta(minutes=number * 400, seconds=position)
        given = {"type": kind, "uuid": own, "parentUuid": parent, "sessionId": session, "cwd": cwd, "message": message}
        parent, position = own, position + 1
        return given | {"timestamp": at.isoformat().replace("+00:00", "Z"), "version": "2.1.325", "isSidechain": False}

    def answer(turn: int, content: dict[str, Any]) -> dict[str, Any]:
        usage = {"input_tokens": 900, "output_tokens": 200}
        message = {"id": f"msg_{number}_{turn}_{content['type']}", "role": "assistant", "model": "claude-opus-5-5"}
        return line("assistant", message | {"content": [content], "usage": usage})

    for turn in range(TURNS_PER_SESSION):
        tool_id = f"toolu_{number}_{turn}"
        text, output = MESSAGES[turn % len(MESSAGES)], TOOL_TEXTS[turn % len(TOOL_TEXTS)]
        result = {"type": "tool_result", "tool_use_id": tool_id, "content": output}
        yield line("user", {"role": "user", "content": f"{number}.{turn}: {text}"})
        command = {"command": f"make check-{number}-{turn}"}
        yield answer(turn, {"type": "tool_use", "id": tool_id, "name": "Bash", "input": command})
        yield line("user", {"role": "user", "content": [result]})
        yield answer(turn, {"type": "text", "text": f"{turn}.{number}: {text}"})


def write_history(home: Path, sessions: int) -> int:
    """Write transcripts below the home folder; return their size in bytes."""
    folder = home / ".claude" / "projects" / "-bench"
    folder.mkdir(parents=True)
    size = 0
    for number in range(sessions):
        lines = [json.dumps(line, separators=(",", ":")) for line in session_lines(number, "/bench")]
        path = folder / f"{uuid.UUID(int=number + 1)}.jsonl"
        size += path.write_text("\n".join(lines) + "\n")
    return size


def decode_seconds(home: Path) -> float:
    """Return the time that it takes to decode every line."""
    began = time.perf_counter()
    for path in (home / ".claude").rglob("*.jsonl"):
        with path.open() as file:
            for line in file:
                json.loads(line)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk()) as name:
        home = Path(name)
        size = write_history(home, given.sessions)
        with running_daemon(home, HOME=name, **NO_EMBEDDER) as daemon, daemon.connect(timeout=600) as rpc:
            began = time.perf_counter()
            job = rpc.call("import.start", harness="claude-code")["jobId"]
            while (state := rpc.call("job.status", id=job))["state"] == "running":
                time.sleep(JOB_POLL_SECONDS)
            seconds = time.perf_counter() - began
        assert state["state"] == "done", state
        result = state["result"]
        messages, rows = result["messages"] / seconds, (result["messages"] + result["tools"]) / seconds
        print(f"{size / 1e6:.0f} MB with {result['messages']:,} messages and {result['tools']:,} tool calls")
        print(f"imported in {seconds:.1f} s: {messages:,.0f} messages/s, {rows:,.0f} rows/s")
        print(f"{seconds / decode_seconds(home):.1f} times as long as decoding the lines")


if __name__ == "__main__":
    main()
