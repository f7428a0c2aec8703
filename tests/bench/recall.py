"""`make bench-recall DATA=…`: what is injected with prompts, of the project's own and of another one.

Every chat of BEAM is a project. Its questions are prompts in it (own), and prompts in the next project (foreign).
Nothing should be injected for foreign ones; the evidence should be among what is injected for own ones. A search with
the same words reports `weak` if it finds nothing close, by the same measure.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.daemon import RawConnection, running_daemon
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import real_disk
from tests.bench.datasets import Question, load_sets, other_events
from tests.bench.retrieval import send_events
from tests.bench.waiting import wait_for_vectors, wait_until_in_memory

MAX_FOREIGN, MIN_EVIDENCE = 0.10, 0.60

console = Console(highlight=False, width=110)


@dataclass(frozen=True)
class PromptFigures:
    """Shares of prompts that get something, that get evidence, and whose words find nothing close in a search."""

    injected: float
    evidence: float
    weak: float
    characters: float
    """Mean length of what is injected, of the prompts that get something."""
    p50_ms: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="a folder with beam*.json")
    parser.add_argument("--onnx", type=Path, help="a folder with an ONNX model, measured instead of the static one")
    parser.add_argument("--others", type=int, default=0, help="messages of other projects in the same store")
    given = parser.parse_args()
    [chats] = load_sets(given.data, ["beam"])
    environ = {"CLANKERS_EMBEDDER": "static", "CLANKERS_RECALL_SECONDS": "30", "CLANKERS_SEARCH_SECONDS": "30"}
    if given.onnx:
        environ |= {"CLANKERS_EMBEDDER": "onnx", "CLANKERS_EMBEDDER_MODEL": str(given.onnx.absolute())}
    with (
        tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk()) as folder,
        running_daemon(Path(folder), **environ) as daemon,
        daemon.connect(timeout=3600) as connection,
    ):
        send_events(connection, chats.events())
        send_events(connection, other_events([chats], given.others))
        wait_for_vectors(connection)
        connection.call("search", query="warm up")
        wait_until_in_memory(connection)
        projects = list(chats.messages)
        following = dict(zip(projects, projects[1:] + projects[:1], strict=True))
        own = [one for one in chats.questions if one.evidence]
        rows = {
            "own, answered somewhere": _ask(connection, own, {}),
            "own, answered nowhere": _ask(connection, [one for one in chats.questions if not one.evidence], {}),
            "foreign": _ask(connection, chats.questions, following),
        }
    _show(rows)
    foreign, evidence = rows["foreign"].injected, rows["own, answered somewhere"].evidence
    console.print(f"{'ok  ' if foreign <= MAX_FOREIGN else 'MISS'}  foreign prompts that get something: {foreign:.1%}")
    console.print(f"{'ok  ' if evidence >= MIN_EVIDENCE else 'MISS'}  own prompts with their evidence: {evidence:.1%}")
    raise SystemExit(0 if foreign <= MAX_FOREIGN and evidence >= MIN_EVIDENCE else 1)


def _ask(connection: RawConnection, questions: list[Question], asked_in: dict[str, str]) -> PromptFigures:
    """Ask for recall with each question in its project, or in the one that `asked_in` maps it to."""
    injected, evidence, characters, times, weak = [], [], [], [], []
    for question in questions:
        project = asked_in.get(question.project, question.project)
        began = time.perf_counter()
        recall: dict[str, Any] = connection.call("recall.preview", kind="prompt", query=question.text, project=project)
        times.append((time.perf_counter() - began) * 1000)
        weak.append(connection.call("search", query=question.text, project=project)["weak"])
        injected.append(bool(recall["ids"]))
        evidence.append(not question.evidence.isdisjoint(recall["ids"]))
        if recall["ids"]:
            characters.append(recall["characters"])
    return PromptFigures(
        injected=statistics.fmean(injected),
        evidence=statistics.fmean(evidence),
        weak=statistics.fmean(weak),
        characters=statistics.fmean(characters) if characters else 0.0,
        p50_ms=statistics.median(times),
    )


def _show(rows: dict[str, PromptFigures]) -> None:
    table = Table(title="Prompts of BEAM", title_justify="left")
    for name in ("", "injected", "evidence among it", "characters", "p50 ms", "weak search"):
        table.add_column(name, justify="right" if name else "left")
    for name, one in rows.items():
        shares = f"{one.injected:.1%}", f"{one.evidence:.1%}"
        table.add_row(name, *shares, f"{one.characters:.0f}", f"{one.p50_ms:.1f}", f"{one.weak:.1%}")
    console.print(table)


if __name__ == "__main__":
    main()
