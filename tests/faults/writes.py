"""kill -9 at a random point of every kind of write."""

import shutil
import time
from typing import Any

from helpers.daemon import RawConnection
from helpers.documents import finished
from helpers.store import message
from helpers.waiting import eventually
from helpers.writers import quick_check, stored
from tests.faults.harness import NOTHING, Run, chance, column, fault
from tests.faults.upgrades import make_old_database

DOCUMENTS = 60
OLD_SESSION = "old"


@fault("kill -9 while memories are written", "SIGKILL within 0.5 s of adding, changing and deleting memories")
def kill_memory_writer(run: Run) -> frozenset[str]:
    promised = run.promised.setdefault("memories", set())

    def work(connection: RawConnection) -> None:
        for number in range(10_000):
            content = f"Fact {number} of component{number} is that it has {number * 7} parts."
            added = connection.call("memory.add", content=content, scope="global", force=True)["memory"]["id"]
            promised.add(added)
            if number % 3 == 1:
                connection.call("memory.update", id=added, scopes=["*"], importance=0.9)
            if number % 3 == 2:
                connection.call("memory.delete", id=added, scopes=["*"])  # it can be restored, so its row stays

    run.crash_during(work, 0.5)
    return NOTHING


@fault("kill -9 while documents are ingested", "SIGKILL within 0.8 s of a batch of 60 documents")
def kill_ingest(run: Run) -> frozenset[str]:
    sources = {f"paper-{number}" for number in range(DOCUMENTS)}
    accepted: list[str] = []

    def work(connection: RawConnection) -> None:
        items = [{"text": f"{source} says word. " * 200, "source": source} for source in sources]
        accepted.append(connection.call("document.ingestMany", documents=items)["jobId"])

    run.crash_during(work, 0.8)
    if accepted:
        complete = "SELECT source FROM documents WHERE checksum IS NOT NULL"
        eventually(lambda: sources <= column(run.daemon.database, complete), "all accepted documents are stored")
    return NOTHING


@fault("kill -9 during a reindex", "SIGKILL within 0.5 s of its start")
def kill_reindex(run: Run) -> frozenset[str]:
    fill_session(run)
    run.crash_during(lambda connection: connection.call("reindex"), 0.5)
    with run.daemon.connect() as connection:
        hits = connection.call("search", query="zebra", mode="keyword")["hits"]
        assert hits, "a stored message is not found after the crash"
    return NOTHING


@fault("kill -9 during a backup", "SIGKILL within 0.3 s of its start")
def kill_backup(run: Run) -> frozenset[str]:
    fill_session(run)
    run.crash_during(lambda connection: connection.call("backup.create"), 0.3)
    folder = run.daemon.data / "backups"
    left = [path.name for path in folder.glob("*") if path.suffix != ".db"]
    assert not left, f"an unfinished backup is left: {left}"
    assert all(quick_check(path) == "ok" for path in folder.glob("*.db")), "a damaged backup is listed"
    return NOTHING


@fault("kill -9 during a restore", "SIGKILL within 0.5 s of clankers-ctl backup restore")
def kill_restore(run: Run) -> set[str]:
    backup = run.back_up()
    promised, in_backup = run.stop_writing(), stored(backup)
    run.crash_during(lambda connection: connection.call("backup.restore", path=str(backup)), 0.5)
    now = stored(run.daemon.database)
    if promised <= now:
        return set()
    assert in_backup <= now, "neither the old nor the restored database is in place"
    kept = [path for path in run.daemon.data.rglob("*replaced*") if not path.name.endswith(("-wal", "-shm"))]
    assert any(promised <= stored(path) for path in kept), f"the replaced database is not complete: {kept}"
    return promised - in_backup


@fault("kill -9 during a vacuum", "SIGKILL within 0.5 s of its start, after a session was deleted")
def kill_vacuum(run: Run) -> frozenset[str]:
    fill_session(run)
    with run.daemon.connect() as connection:
        connection.call("session.delete", id=OLD_SESSION)
    run.crash_during(lambda connection: connection.call("db.vacuum"), 0.5)
    return NOTHING


@fault("kill -9 while forgetting", "SIGKILL within 0.8 s of forget.start of one session")
def kill_forget(run: Run) -> frozenset[str]:
    fill_session(run)
    run.crash_during(lambda connection: connection.call("forget.start", session=OLD_SESSION), 0.8)
    with run.daemon.connect() as connection:  # the owner asks again, and this time it ends
        reply = connection.request("forget.start", {"session": OLD_SESSION})
        if "result" in reply:
            finished(connection, reply["result"]["jobId"])
    left = column(run.daemon.database, f"SELECT id FROM messages WHERE session_id = '{OLD_SESSION}'")
    assert not left, f"{len(left)} messages are not forgotten"
    return NOTHING


@fault("kill -9 during a migration", "a database of schema 1; SIGKILL within 0.6 s of the start, twice")
def kill_migration(run: Run) -> frozenset[str]:
    run.crash()
    run.stop_writing()
    old = run.daemon.home / "old.db"
    rows = make_old_database(old, version=1)
    aside = run.daemon.home / "aside"
    aside.mkdir()
    for path in run.daemon.data.glob("clankers.db*"):
        path.rename(aside / path.name)
    old.rename(run.daemon.database)
    for _ in range(2):
        run.daemon.start(wait=False)
        time.sleep(chance.uniform(0.05, 0.6))
        run.crash()
    run.daemon.start()
    assert rows <= stored(run.daemon.database), "rows of the old database are missing"
    with run.daemon.connect() as connection:
        assert connection.call("health")["ok"]
    run.crash()
    for path in run.daemon.data.glob("clankers.db*"):
        path.unlink()
    for path in aside.glob("*"):  # back to the database of this run
        shutil.move(path, run.daemon.data / path.name)
    run.daemon.start()
    return NOTHING


def fill_session(run: Run, count: int = 1000) -> None:
    """Store a session of long messages."""
    events: list[dict[str, Any]] = [
        {"message": message(f"{OLD_SESSION}-{number}", OLD_SESSION, f"zebra {number} " * 60)} for number in range(count)
    ]
    with run.daemon.connect() as connection:
        connection.call("events.batch", events=events)
