"""`make bench-retrieval DATA=…`: how much of the evidence a search finds, through the real RPC path.

Every turn goes in as a message, every question is asked with `search`, and the share of its evidence among the
first k hits is counted: hybrid, and each of its halves alone, in the same run. Exits 1 when a bar is missed.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from helpers.daemon import RawConnection, running_daemon
from rich.console import Console
from rich.table import Table

DEPTHS = (5, 10, 25)
BARS = {"static": 0.75, "onnx": 0.81}
ADVERSARIAL = 5

console = Console(highlight=False, width=110)


@dataclass
class Question:
    text: str
    project: str
    evidence: set[str]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--onnx", type=Path, help="a folder with an ONNX model, to be measured too")
    given = parser.parse_args()
    conversations = json.loads(given.data.read_text())
    met = [measure("static", "", conversations)]
    if given.onnx:
        met.append(measure("onnx", str(given.onnx.absolute()), conversations))
    raise SystemExit(0 if all(met) else 1)


def measure(embedder: str, model: str, conversations: list[dict[str, Any]]) -> bool:
    """Print the table of one embedder; tells whether its bars are met."""
    with (
        tempfile.TemporaryDirectory(prefix="clk-") as folder,
        running_daemon(Path(folder), CLANKERS_EMBEDDER=embedder, CLANKERS_EMBEDDER_MODEL=model) as daemon,
        daemon.connect(timeout=600) as connection,
    ):
        seconds = store(connection, conversations)
        scores = {mode: ask(connection, mode, conversations) for mode in ("keyword", "vector", "hybrid")}
    show(embedder, model, scores, seconds)
    hybrid = scores["hybrid"][1]
    best_half = max(scores["keyword"][1], scores["vector"][1])
    return report(f"recall@10 of {embedder}", hybrid, BARS[embedder]) & report("… above its halves", hybrid, best_half)


def store(connection: RawConnection, conversations: list[dict[str, Any]]) -> float:
    """Everything in by upsert; returns how long until all of it can be found by meaning."""
    began = time.perf_counter()
    for item in conversations:
        events = list(events_of(item))
        for start in range(0, len(events), 500):
            assert connection.call("events.batch", events=events[start : start + 500])["ok"]
    while connection.call("index.status")["live"]["pending"]:
        time.sleep(0.1)
    return time.perf_counter() - began


def events_of(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    conversation = item["conversation"]
    for number in range(1, 100):
        turns = conversation.get(f"session_{number}")
        if not turns:
            continue
        session, at = f"{item['sample_id']}-{number}", moment(conversation[f"session_{number}_date_time"])
        yield {"session": {"id": session, "projectPath": f"/{item['sample_id']}", "createdAt": at}}
        for place, turn in enumerate(turns):
            yield {
                "message": {
                    "id": f"{item['sample_id']}/{turn['dia_id']}",
                    "sessionId": session,
                    "role": turn["speaker"],
                    "textContent": turn["text"],
                    "createdAt": at + place * 1000,
                }
            }


def moment(text: str) -> int:
    return int(datetime.strptime(text, "%I:%M %p on %d %B, %Y").astimezone().timestamp() * 1000)


def questions_of(item: dict[str, Any]) -> Iterator[Question]:
    known = {
        turn["dia_id"]
        for key, turns in item["conversation"].items()
        if re.fullmatch(r"session_\d+", key)
        for turn in turns
    }
    for qa in item["qa"]:
        evidence = {one for text in qa["evidence"] for one in re.findall(r"D\d+:\d+", text)} & known
        if qa["category"] != ADVERSARIAL and evidence:
            sample = item["sample_id"]
            yield Question(qa["question"], f"/{sample}", {f"{sample}/{one}" for one in evidence})


def ask(connection: RawConnection, mode: str, conversations: list[dict[str, Any]]) -> list[float]:
    """Recall at each depth, the mean reciprocal rank, and milliseconds a question."""
    rows = []
    for item in conversations:
        for question in questions_of(item):
            began = time.perf_counter()
            answer = connection.call("search", query=question.text, project=question.project, mode=mode, limit=50)
            took = (time.perf_counter() - began) * 1000
            ids = [hit["ref"]["messageId"] for hit in answer["hits"]]
            ranks = [ids.index(one) for one in question.evidence if one in ids]
            recalls = [sum(rank < depth for rank in ranks) / len(question.evidence) for depth in DEPTHS]
            rows.append([*recalls, 1 / (1 + min(ranks)) if ranks else 0.0, took])
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def show(embedder: str, model: str, scores: dict[str, list[float]], seconds: float) -> None:
    table = Table(title=f"{embedder} {Path(model).name} (indexed in {seconds:.1f} s)", title_justify="left")
    for name in ("", *(f"r@{depth}" for depth in DEPTHS), "MRR", "ms"):
        table.add_column(name, justify="right" if name else "left")
    for mode, values in scores.items():
        table.add_row(mode, *(f"{value:.3f}" for value in values[:-1]), f"{values[-1]:.1f}")
    console.print(table)


def report(what: str, figure: float, bar: float) -> bool:
    met = figure >= bar
    console.print(f"{'ok  ' if met else 'MISS'}  {what}: {figure:.3f}, bar {bar:.3f}")
    return met


if __name__ == "__main__":
    main()
