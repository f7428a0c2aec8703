"""kill -9 during a reindex: the live index answers before, during and after, and nothing is left over."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import sqlite_vec
from helpers.daemon import DaemonProcess, RawConnection
from helpers.embedding_service import Answer, Request, embeddings, served
from helpers.waiting import eventually

KILLS = 20
MESSAGES = 150
SLOW = 0.15
"""Seconds for each reply of the service: without it the window would be too short to hit."""


class Slow:
    """An embedding service that takes its time, but for questions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, request: Request) -> Answer:
        if len(request.texts) > 1:
            time.sleep(self.seconds)
        return embeddings(request)


def word(number: int) -> str:
    """One that no other message has, and no stemmer touches."""
    return "".join("bcdfghjklm"[int(digit)] for digit in f"{number:05}")


def text(number: int) -> str:
    """Long enough to be cut in several chunks when chunks are small."""
    return f"{word(number)} opens, {'some words in between ' * 12} and {word(number)} closes"


def test_index_survives_twenty_kills_during_a_reindex(home: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    service = Slow()
    with served(service) as running:
        environ = {"CLANKERS_EMBEDDER": "openai", "CLANKERS_EMBEDDER_URL": running.url, "CLANKERS_EMBEDDER_MODEL": "0"}
        daemon = DaemonProcess(home, **environ)
        try:
            stored, caught_building = fill(daemon), 0
            for number in range(KILLS):
                where = f"round {number}, seed {seed}"
                change(daemon, number)
                service.seconds = SLOW
                with daemon.start().connect() as connection:
                    assert_whole(connection, stored, chance, where)
                    assert_no_leftovers(daemon, connection, where)
                    killer = threading.Timer(chance.uniform(0, 0.8), daemon.kill)
                    killer.start()
                    stored += rebuild_and_write(connection, stored, chance, where)
                    killer.join()
                daemon.close()
                caught_building += "building" in assert_integrity(daemon.database, where)
            assert caught_building >= KILLS // 5, "too few kills came while the index was built"
            service.seconds = 0
            with daemon.start().connect() as connection:
                assert_whole(connection, stored, chance, f"the end, seed {seed}")
                finish(connection, connection.call("reindex")["jobId"])
                assert connection.call("index.status")["vectors"] == "ready"
                assert_whole(connection, stored, chance, f"the end, seed {seed}")
                assert_no_leftovers(daemon, connection, f"the end, seed {seed}")
            assert daemon.stop() == 0
            assert_integrity(daemon.database, f"the end, seed {seed}")
        finally:
            daemon.close()


def fill(daemon: DaemonProcess) -> int:
    events = [message(number) for number in range(MESSAGES)]
    with daemon.start().connect() as connection:
        assert connection.call("events.batch", events=events)["ok"]
        eventually(lambda: connection.call("index.status")["live"]["vectors"] == MESSAGES, "every message has a vector")
    assert daemon.stop() == 0
    daemon.close()
    return MESSAGES


def message(number: int) -> dict[str, Any]:
    made = {"id": f"m{number}", "sessionId": f"s{number}", "role": "user", "textContent": text(number)}
    return {"message": made}


def change(daemon: DaemonProcess, number: int) -> None:
    """Another model, another way of cutting, or both: each leaves other things half done."""
    if number % 3 != 1:
        daemon.environ["CLANKERS_EMBEDDER_MODEL"] = str(number)
    if number % 3 != 0:
        daemon.environ["CLANKERS_CHUNK_TOKENS"] = str(40 + 20 * (number % 4))
        daemon.environ["CLANKERS_CHUNK_OVERLAP"] = "8"


def rebuild_and_write(connection: RawConnection, stored: int, chance: random.Random, where: str) -> int:
    """Build anew, and meanwhile search and store, until the daemon is gone; how many were acknowledged."""
    acknowledged = 0
    try:
        connection.call("reindex")
        while True:
            assert connection.call("events.batch", events=[message(stored + acknowledged)])["ok"], where
            acknowledged += 1
            for number in (chance.randrange(stored), stored + acknowledged - 1):
                assert_found(connection, number, where)
    except (OSError, AssertionError) as error:
        if isinstance(error, AssertionError) and "hung up" not in str(error):
            raise
    return acknowledged


def assert_found(connection: RawConnection, number: int, where: str) -> None:
    hits = connection.call("search", query=word(number), mode="keyword")["hits"]
    assert {hit["ref"]["messageId"] for hit in hits} == {f"m{number}"}, where


def assert_whole(connection: RawConnection, stored: int, chance: random.Random, where: str) -> None:
    """Every message is found by its word; and by its meaning, when vectors are ready."""
    rows = connection.call("query", sql=EVERY_MESSAGE, limit=10_000)["rows"]
    assert {name for (name,) in rows} >= {f"m{number}" for number in range(stored)}, where
    for number in chance.sample(range(stored), 10):
        assert_found(connection, number, where)
    if connection.call("index.status")["vectors"] == "ready":
        eventually(lambda: connection.call("index.status")["live"]["pending"] == 0, f"all have vectors, {where}")
        for number in chance.sample(range(stored), 5):
            hits = connection.call("search", query=text(number), mode="vector", limit=3)["hits"]
            assert all(hit["text"] in text(int(hit["ref"]["messageId"][1:])) for hit in hits), where
            assert hits, where


EVERY_MESSAGE = """
    SELECT DISTINCT message_id FROM chunks JOIN index_generations USING (chunking) WHERE state = 'live'
"""


def assert_no_leftovers(daemon: DaemonProcess, connection: RawConnection, where: str) -> None:
    """One generation, its vectors, its chunks, and nothing of those that were begun."""

    def swept() -> bool:
        states = connection.call("query", sql="SELECT state FROM index_generations")["rows"]
        return bool(states == [["live"]])

    eventually(swept, f"what was begun is swept away, {where}")
    stale = "SELECT count(*) FROM chunks WHERE chunking NOT IN (SELECT chunking FROM index_generations)"
    tables = "SELECT count(*) FROM sqlite_schema WHERE sql LIKE '%USING vec0%'"
    queued = "SELECT count(*) FROM index_queue WHERE generation NOT IN (SELECT id FROM index_generations)"
    for sql, wanted in ((stale, 0), (tables, 1), (queued, 0)):
        assert connection.call("query", sql=sql)["rows"] == [[wanted]], f"{sql}, {where}"
    assert daemon.process
    assert daemon.process.poll() is None


def assert_integrity(database: Path, where: str) -> set[str]:
    """The file is whole, and the words in it are those of its chunks; tells the states of its generations."""
    db = apsw.Connection(str(database))
    try:
        db.enable_load_extension(True)
        db.load_extension(sqlite_vec.loadable_path())
        assert db.execute("PRAGMA quick_check").get == "ok", where
        db.execute("INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('integrity-check', 1)")
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%USING vec0%'").fetchall():
            orphans = f"SELECT count(*) FROM {table} WHERE rowid NOT IN (SELECT id FROM chunks)"
            assert db.execute(orphans).get == 0, where
        return {state for (state,) in db.execute("SELECT state FROM index_generations")}
    finally:
        db.close()


def finish(connection: RawConnection, job: str) -> None:
    eventually(lambda: connection.call("job.status", id=job)["state"] != "running", "the reindex is over", within=60)
    assert connection.call("job.status", id=job)["state"] == "done"
