"""`make bench-redaction`: how fast secrets are searched for, in ordinary and in hostile texts.

Every figure stands beside a baseline of the same run: one scan of the same text by a plain expression. Trust the ratio;
other work on the machine moves both together.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

from helpers.hostile_texts import HOSTILE, repeated
from rich.console import Console
from rich.table import Table

from clankersd.redaction import engine

CHARACTERS = 200_000
TURNS = 3
HERE = Path(__file__).resolve().parents[2]
_WORDS = re.compile(r"\b(?:password|secret|token)\b")

console = Console(highlight=False, width=110)


def ordinary() -> dict[str, str]:
    """Texts as they are captured: source code, prose, and a tool's output."""
    code = "".join(path.read_text("utf-8") for path in sorted((HERE / "daemon").rglob("*.py")))
    prose = "".join(path.read_text("utf-8") for path in sorted((HERE / "docs").rglob("*.md")))
    lines = "".join(f"2026-01-01T10:{n % 60:02}:00Z INFO served /v1/items/{n} in {n % 90} ms\n" for n in range(4000))
    return {"source code": code, "markdown": prose, "log lines": lines}


def redact_anew(text: str) -> None:
    """Redact a text as one that was never seen: some texts are remembered, and not searched again."""
    engine._last_redaction = (b"", "", {})
    engine._clean_texts.clear()
    engine._clean_words.clear()
    engine.redact(text)


def best_seconds(action: Callable[[str], object], text: str) -> float:
    times = []
    for _ in range(TURNS):
        began = time.process_time()
        action(text)
        times.append(time.process_time() - began)
    return max(min(times), 1e-6)


def main() -> None:
    table = Table("text", "MB/s", "plain scan MB/s", "times the scan", title="redaction")
    texts = {name: text[:CHARACTERS] for name, text in ordinary().items()}
    texts |= {repr(piece)[:40]: repeated(piece, CHARACTERS) for piece in HOSTILE}
    for name, text in texts.items():
        megabytes = len(text.encode()) / 1e6
        own, scan = best_seconds(redact_anew, text), best_seconds(_WORDS.findall, text)
        table.add_row(name, f"{megabytes / own:.1f}", f"{megabytes / scan:.0f}", f"{own / scan:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
