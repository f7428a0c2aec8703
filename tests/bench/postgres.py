"""Both engines in the same run: events per second, searches, and the recall of the HNSW index."""

import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np
from helpers.daemon import DaemonProcess, running_daemon
from helpers.postgres import PostgresServer
from helpers.store import message
from helpers.waiting import settled

from clankersd.db.migrations import migrate
from clankersd.db.postgres.connection import PostgresDb, create_schema

SECONDS = 5.0
WORDS = ("deploy", "registry", "backoff", "header", "parser", "queue", "migration", "index", "vault", "token", "cache")
DIMS = 256
QUERIES = 50


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


def search_ms(daemon: DaemonProcess, messages: int) -> tuple[float, float]:
    """Store messages, then return the median time of searches by keyword and of hybrid ones."""
    random = np.random.default_rng(7)
    with daemon.connect(timeout=600) as rpc:
        for start in range(0, messages, 500):
            events = [
                {"message": message(f"b{n}", f"t{n // 40}", " ".join(random.choice(WORDS, 30)) + f" unique{n}")}
                for n in range(start, min(start + 500, messages))
            ]
            rpc.call("events.batch", events=events)
        settled(rpc)
        times: dict[str, list[float]] = {"keyword": [], "hybrid": []}
        for number in range(QUERIES):
            for mode, taken in times.items():
                started = time.perf_counter()
                rpc.call("search", query=f"{WORDS[number % len(WORDS)]} unique{number * 7 % messages}", mode=mode)
                taken.append((time.perf_counter() - started) * 1000)
    return median(times["keyword"]), median(times["hybrid"])


def hnsw_recall(url: str, rows: int) -> dict[str, float]:
    """Return recall@10 of the HNSW index against exact search: all vectors, and those that a filter passes."""
    db = PostgresDb(create_schema(url, "recall"))
    migrate(db, Path())
    db.engine.create_vectors(db, "chunk_vectors_1", DIMS)
    random = np.random.default_rng(3)
    centres = random.normal(size=(200, DIMS))
    vectors = centres[random.integers(200, size=rows)] + 0.7 * random.normal(size=(rows, DIMS))
    vectors = (vectors / np.linalg.norm(vectors, axis=1)[:, None]).astype("<f4")
    db.execute(
        "INSERT INTO chunks (chunk_id, chunking, source, position, start_line, end_line, start_offset, end_offset, "
        "tokens, created_at, hash, text) "
        "SELECT n, 1, 'x', n, 0, 0, 0, 0, 1, n, '', '' FROM generate_series(1, :rows) AS n",
        {"rows": rows},
    )
    with db.transaction():
        for number, vector in enumerate(vectors, 1):
            db.engine.insert_vector(db, "chunk_vectors_1", number, vector.tobytes())
    db.execute("ANALYZE chunk_vectors_1")
    db.execute("ANALYZE chunks")
    results = {}
    for share in (1, 10, 100, 1000):
        eligible = "SELECT id FROM chunks" + (f" WHERE position % {share} = 0" if share > 1 else "")
        recalls = []
        for _ in range(QUERIES):
            query = vectors[random.integers(rows)] + 0.1 * random.normal(size=DIMS).astype("<f4")
            allowed = np.arange(share, rows + 1, share)
            order = allowed[np.argsort(-(vectors[allowed - 1] @ query))[:10]]
            found = db.engine.nearest(db, "chunk_vectors_1", query.astype("<f4").tobytes(), 10, eligible, {})
            recalls.append(len({chunk for chunk, _ in found} & set(order.tolist())) / min(10, len(order)))
        results[f"{100 / share:g} %"] = sum(recalls) / len(recalls)
    return results


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    print(f"{'engine':<10} {'events/s at 1':>14} {'8':>7} {'64':>7} {'keyword ms':>11} {'hybrid ms':>10}")
    with PostgresServer() as server:
        for engine in ("sqlite", "postgres"):
            environ = {"CLANKERS_DATABASE_URL": server.new_database()} if engine == "postgres" else {}
            with (
                tempfile.TemporaryDirectory(prefix="clk-") as home,
                running_daemon(Path(home), HOME=home, **environ) as daemon,
            ):
                one, eight, many = (events_per_second(daemon, connections) for connections in (1, 8, 64))
                keyword, hybrid = search_ms(daemon, messages)
                print(f"{engine:<10} {one:>14.0f} {eight:>7.0f} {many:>7.0f} {keyword:>11.1f} {hybrid:>10.1f}")
        recalls = hnsw_recall(server.new_database(), messages)
        print("HNSW recall@10 by share of vectors that pass:", {share: round(one, 3) for share, one in recalls.items()})


if __name__ == "__main__":
    main()
