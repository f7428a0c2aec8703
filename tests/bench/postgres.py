"""Both engines in the same run: events per second, searches, and the recall of the HNSW index.

`make bench-postgres CHUNKS=… VECTORS=…`: messages that are stored and searched, and vectors that are indexed.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import anyio
import numpy as np
from helpers.daemon import DaemonProcess, running_daemon
from helpers.postgres import PostgresServer
from helpers.store import message
from helpers.waiting import settled
from tests.bench.__main__ import real_disk
from tests.bench.datasets import load_sets, other_events
from tests.bench.waiting import wait_for_vectors, wait_until_in_memory

from clankersd.db.engine import DEFAULT_HNSW
from clankersd.db.migrations import migrate
from clankersd.db.postgres.connection import PostgresDb, connect, create_schema
from clankersd.db.postgres.engine import MAX_COMPARED
from clankersd.db.postgres.hnsw import IndexBuild
from clankersd.embedders import make_embedder
from clankersd.embedders.base import EmbedderSettings, ItemFailed

T = TypeVar("T")

SECONDS = 5.0
CONNECTIONS = (1, 8, 64)
WORDS = ("deploy", "registry", "backoff", "header", "parser", "queue", "migration", "index", "vault", "token", "cache")
DIMS = 256
QUERIES = 50
RECALL_QUERIES = 400
"""Of 50 queries, the recall would have a standard error of .012."""

VECTORS_PER_COMMIT = 10_000
SAME_COSINE = 1e-5
"""Texts that occur several times have the same vector: any of them is as near."""

SHARES = {1.0: 0.98, 0.5: 0.95, 0.3: 0.95, 0.1: 0.95, 0.01: 0.95, 0.001: 0.95}
"""Share of the vectors that pass the filter, and recall@10 below which the run fails."""

EVENTS_PER_BATCH = 500


def events_per_second(daemon: DaemonProcess, connections: int) -> float:
    """Store events on so many connections for some seconds."""
    counts = [0] * connections
    end = time.monotonic() + SECONDS

    def store(place: int) -> None:
        with daemon.connect() as rpc:
            while time.monotonic() < end:
                name = f"c{connections}-{place}-{counts[place]}"
                rpc.call("upsertMessage", message=message(name, f"s{place}", "a short message about the deploy"))
                counts[place] += 1

    threads = [threading.Thread(target=store, args=(place,)) for place in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def random_messages(count: int) -> Iterator[dict[str, Any]]:
    """Yield messages of frequent words and one word that no other message has."""
    random = np.random.default_rng(7)
    for number in range(count):
        text = " ".join(random.choice(WORDS, 30)) + f" unique{number}"
        yield {"message": message(f"b{number}", f"t{number // 40}", text)}


def texts_and_queries(count: int, data: Path | None) -> tuple[Iterator[dict[str, Any]], list[str]]:
    """Return events with messages, and queries for them: of the evaluation sets in the folder, or random ones."""
    if data is None:
        queries = [f"{WORDS[number % len(WORDS)]} unique{number * 7 % count}" for number in range(QUERIES)]
        return random_messages(count), queries
    sets = load_sets(data, ["locomo", "roles", "beam", "cosqa"])
    events = chain.from_iterable([*(one.events() for one in sets), other_events(sets, count)])
    questions = [question.text for one in sets for question in one.questions]
    return islice(events, count), questions[:: max(1, len(questions) // QUERIES)][:QUERIES]


def search_ms(daemon: DaemonProcess, events: Iterator[dict[str, Any]], queries: list[str]) -> list[float]:
    """Store events; return their number per second, and the median times of searches.

    These are by keyword for the first time, which reads the words from the database, by keyword again, and hybrid.
    """
    with daemon.connect(timeout=3600) as rpc:
        started, stored = time.perf_counter(), 0
        for part in batched(events, EVENTS_PER_BATCH):
            rpc.call("events.batch", events=part)
            stored += len(part)
        rate = stored / (time.perf_counter() - started)
        wait_for_vectors(rpc)
        settled(rpc)
        rpc.call("search", query="warm up")
        wait_until_in_memory(rpc)
        medians = []
        for mode in ("keyword", "keyword", "hybrid"):
            times = []
            for query in queries:
                started = time.perf_counter()
                rpc.call("search", query=query, mode=mode)
                times.append((time.perf_counter() - started) * 1000)
            medians.append(median(times))
    return [rate, *medians]


def make_vectors(rows: int, data: Path | None) -> Any:
    """Return vectors of length 1: of the texts in the folder, by the bundled model, or random ones of 32 dimensions."""
    if data is None:
        random = np.random.default_rng(3)
        vectors = random.standard_normal((rows, 32), "<f4") @ random.standard_normal((32, DIMS), "<f4")
        vectors += np.float32(0.5) * random.standard_normal((rows, DIMS), "<f4")
    else:
        sets = load_sets(data, ["locomo", "roles", "beam", "cosqa"])
        events = chain.from_iterable([*(one.events() for one in sets), other_events(sets, rows)])
        texts = islice((event["message"]["textContent"] for event in events if "message" in event), rows)
        embedder = make_embedder(EmbedderSettings("static", ""))
        assert embedder is not None
        embedded = chain.from_iterable(anyio.run(embedder.embed, part) for part in batched(texts, 512))
        vectors = np.stack([vector for vector in embedded if not isinstance(vector, ItemFailed)])
    return (vectors / np.linalg.norm(vectors, axis=1)[:, None]).astype("<f4")


def batched(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while part := list(islice(items, size)):
        yield part


def hnsw_recall(url: str, vectors: Any) -> bool:
    """Print recall@10 of the HNSW index against exact search, of all vectors and of those that a filter passes."""
    vectors, queries = vectors[:-RECALL_QUERIES], vectors[-RECALL_QUERIES:]
    rows = len(vectors)
    db = PostgresDb(create_schema(url, "recall"))
    migrate(db, Path())
    db.engine.create_vectors(db, "chunk_vectors_1", DIMS)
    db.execute(
        "INSERT INTO chunks (chunk_id, chunking, source, position, start_line, end_line, start_offset, end_offset, "
        "tokens, created_at, hash, text) "
        "SELECT n, 1, 'x', n, 0, 0, 0, 0, 1, n, '', '' FROM generate_series(1, :rows) AS n",
        {"rows": rows},
    )
    started = time.perf_counter()
    for start in range(0, rows, VECTORS_PER_COMMIT):
        with db.transaction():
            for number, vector in enumerate(vectors[start : start + VECTORS_PER_COMMIT], start + 1):
                db.engine.insert_vector(db, "chunk_vectors_1", number, vector.tobytes())
    stored = time.perf_counter()
    IndexBuild(partial(connect, url, "recall"), "chunk_vectors_1", DIMS, DEFAULT_HNSW).run()
    distinct = db.value("SELECT count(*) FROM chunk_vectors_1_distinct")
    print(
        f"{rows:,} vectors, {distinct:,} of them distinct, stored in {stored - started:.0f} s, "
        f"indexed in {time.perf_counter() - stored:.0f} s"
    )
    met = True
    for share, bar in SHARES.items():
        eligible = f"SELECT id FROM chunks WHERE position % 1000 < {round(1000 * share)}"
        recalls, times = [], []
        numbers = np.arange(1, rows + 1)
        allowed = numbers[numbers % 1000 < round(1000 * share)]
        compared = vectors[allowed - 1]
        for query in queries if len(allowed) > MAX_COMPARED else queries[:QUERIES]:  # few are all compared
            tenth = np.partition(compared @ query, -10)[-10] - SAME_COSINE
            began = time.perf_counter()
            found = db.engine.nearest(db, "chunk_vectors_1", query.tobytes(), 10, eligible, {})
            times.append((time.perf_counter() - began) * 1000)
            recalls.append(sum(vectors[chunk - 1] @ query >= tenth for chunk, _ in found) / 10)
        recall = sum(recalls) / len(recalls)
        met &= recall >= bar
        verdict = "ok  " if recall >= bar else "MISS"
        print(
            f"{verdict}  recall@10 {recall:.3f} where {100 * share:g} % pass, bar {bar}; median {median(times):.1f} ms"
        )
    return met


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--vectors", type=int, default=30_000)
    parser.add_argument("--data", type=Path, help="a folder with texts, see make bench-retrieval")
    given = parser.parse_args()
    names = ("events/s at 1", "8", "64", "batch", "keyword ms first", "again", "hybrid ms")
    print("engine    ", *names, sep="  ")
    with PostgresServer(shared_buffers="512MB") as server:
        for engine in ("sqlite", "postgres") if given.messages else ():
            environ = {"CLANKERS_DATABASE_URL": server.new_database()} if engine == "postgres" else {}
            with (
                tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk()) as home,
                running_daemon(Path(home), HOME=home, **environ) as daemon,
            ):
                rates = [events_per_second(daemon, connections) for connections in CONNECTIONS]
                figures = [*rates, *search_ms(daemon, *texts_and_queries(given.messages, given.data))]
                cells = (f"{figure:>{len(name)}.1f}" for name, figure in zip(names, figures, strict=True))
                print(f"{engine:<10}", *cells, sep="  ", flush=True)
        if given.vectors:
            vectors = np.random.default_rng(5).permutation(make_vectors(given.vectors, given.data))
            if not hnsw_recall(server.new_database(), vectors):
                raise SystemExit(1)


if __name__ == "__main__":
    main()
