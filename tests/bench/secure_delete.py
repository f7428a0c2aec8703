"""`make bench-secure-delete`: what erasing deleted text costs, in time per stored, changed and deleted text.

`pages` is PRAGMA secure_delete, `words` FTS5's secure-delete. Trust the ratios: the runs alternate.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

import apsw
from rich.console import Console
from rich.table import Table

TEXTS = 2_000
CHANGED = 300
DELETED = 600
PER_COMMIT = 10
ROUNDS = 3
SCHEMA = """
    CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
    CREATE INDEX beginnings ON texts (substr(text, 1, 40));
    CREATE VIRTUAL TABLE words USING fts5 (
        text, content = 'texts', content_rowid = 'id', tokenize = 'porter unicode61 remove_diacritics 2'
    );
"""
REMOVE_WORDS = "INSERT INTO words (words, rowid, text) SELECT 'delete', id, text FROM texts WHERE id = ?"
SETTINGS = {"off": (0, 0), "pages": (1, 0), "words": (0, 1), "both": (1, 1)}


def measure(folder: Path, pages: int, words: int) -> dict[str, float]:
    """Seconds per text for each kind of change."""
    chance = random.Random(7)
    vocabulary = [f"{chance.choice('bcdfgklmnprst')}{number:x}" for number in range(20_000)]
    db = apsw.Connection(str(folder / f"{time.monotonic_ns()}.db"))
    db.pragma("auto_vacuum", "incremental")
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "normal")
    db.pragma("secure_delete", pages)
    db.execute(SCHEMA)
    db.execute("INSERT INTO words (words, rank) VALUES ('secure-delete', ?)", (words,))

    def text() -> str:
        return " ".join(chance.choices(vocabulary, k=120))

    def store(number: int) -> None:
        db.execute("INSERT INTO texts (id, text) VALUES (?, ?)", (number, text()))
        db.execute("INSERT INTO words (rowid, text) SELECT id, text FROM texts WHERE id = ?", (number,))

    def change(number: int) -> None:
        db.execute(REMOVE_WORDS, (number,))
        db.execute("UPDATE texts SET text = ? WHERE id = ?", (text(), number))
        db.execute("INSERT INTO words (rowid, text) SELECT id, text FROM texts WHERE id = ?", (number,))

    def remove(number: int) -> None:
        db.execute(REMOVE_WORDS, (number,))
        db.execute("DELETE FROM texts WHERE id = ?", (number,))

    numbers = list(range(TEXTS))
    seconds = {}
    for name, work, chosen in (
        ("store", store, numbers),
        ("change", change, chance.sample(numbers, CHANGED)),
        ("delete", remove, chance.sample(numbers, DELETED)),
    ):
        begun = time.perf_counter()
        for at in range(0, len(chosen), PER_COMMIT):
            with db:
                for number in chosen[at : at + PER_COMMIT]:
                    work(number)
        seconds[name] = (time.perf_counter() - begun) / len(chosen)
    db.close()
    return seconds


def main() -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, (pages, words) in SETTINGS.items():
                found[name].append(measure(Path(folder), pages, words))
    table = Table("secure delete", box=None, pad_edge=False)
    for kind in ("store", "change", "delete"):
        table.add_column(f"{kind} (µs)", justify="right")
        table.add_column("times", justify="right")
    for name, runs in found.items():
        row = []
        for kind in ("store", "change", "delete"):
            now = statistics.median(run[kind] for run in runs)
            ratio = statistics.median(run[kind] / off[kind] for run, off in zip(runs, found["off"], strict=True))
            row += [f"{now * 1e6:.0f}", f"{ratio:.2f}"]
        table.add_row(name, *row)
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
