"""kill -9 while thousands of documents are ingested: the next daemon resumes and stores each of them once."""

from functools import partial
from pathlib import Path
from typing import Any

import apsw
from helpers.daemon import DaemonProcess, RawConnection
from helpers.sample_files import mixed
from helpers.waiting import eventually
from helpers.writers import quick_check

COUNT = 2000
KILLS = (150, 700, 1300)


def has_no_rows(connection: RawConnection, sql: str) -> bool:
    return not connection.call("query", sql=sql)["rows"]


def test_batch_of_two_thousand_documents_survives_kill(home: Path, tmp_path: Path) -> None:
    paths = mixed(tmp_path / "papers", COUNT)
    (tmp_path / "papers" / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    items = [{"path": str(path)} for path in [*paths[:1000], tmp_path / "papers" / "broken.pdf", *paths[1000:]]]
    daemon = DaemonProcess(home, CLANKERS_EMBEDDER="none", CLANKERS_DURABILITY="normal")
    try:
        with daemon.start().connect() as connection:
            connection.call("document.ingestMany", documents=items)
        for stored in KILLS:
            kill_after(daemon, stored)
            assert quick_check(daemon.database) == "ok"
            daemon.start()
        with daemon.connect() as connection:
            result = eventually(lambda: ended(connection), "what was left is done", 90)
            assert result["stored"] + result["unchanged"] == COUNT
            assert [(one["position"], Path(one["source"]).name) for one in result["failed"]] == [(1000, "broken.pdf")]
            everything_is_there_once(daemon.database, [str(path) for path in paths])
            for number in (0, 7, 107, 1999):
                found = connection.call("search", query=f"mark{number}", sources=["documents"], mode="keyword")["hits"]
                assert [hit["ref"]["documentSource"] for hit in found] == [str(paths[number])]
            again = connection.call("document.ingestMany", documents=items[:500])
            second = eventually(lambda: ended(connection, again["jobId"]), "unchanged ones are skipped", 60)
            assert second == {"stored": 0, "updated": 0, "unchanged": 500, "failed": []}
    finally:
        daemon.close()


def kill_after(daemon: DaemonProcess, stored: int) -> None:
    with daemon.connect() as connection:
        eventually(lambda: progress(connection) >= stored, f"{stored} are done", 90)
        daemon.kill()
        daemon.close()


def progress(connection: RawConnection) -> int:
    job = connection.call("job.list", limit=1)[0]
    assert job["state"] in ("running", "failed"), job  # failed: that of the daemon before, as long as it is the last
    return int(job["done"]) if job["state"] == "running" else 0


def ended(connection: RawConnection, job_id: str | None = None) -> dict[str, Any] | None:
    job = connection.call("job.status", id=job_id) if job_id else connection.call("job.list", limit=1)[0]
    assert job["state"] != "cancelled", job
    return job["result"] if job["state"] == "done" else None


def everything_is_there_once(database: Path, sources: list[str]) -> None:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(5000)
        rows = db.execute("SELECT source, checksum IS NOT NULL, chunk_count FROM documents").fetchall()
        assert sorted(str(row[0]) for row in rows) == sorted(sources)
        assert all(complete and chunks for _, complete, chunks in rows)
        indexed = "SELECT count(*), count(DISTINCT document_chunk_id) FROM chunks WHERE document_chunk_id IS NOT NULL"
        (once,) = db.execute(indexed).fetchall()
        (there,) = db.execute("SELECT count(*) FROM document_chunks WHERE searchable = 1").fetchall()
        assert once[0] == once[1] == there[0]
        assert db.execute("SELECT count(*) FROM ingest_items").fetchall() == [(0,)]
    finally:
        db.close()


def test_long_document_is_stored_and_deleted_completely_by_the_next_daemon(home: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("\n\n".join(f"Paragraph {n} on item{n}. {'word ' * 60}" for n in range(20_000)))
    daemon = DaemonProcess(home, CLANKERS_EMBEDDER="none")
    try:
        with daemon.start().connect() as connection:
            connection.call("document.ingestMany", documents=[{"path": str(book)}])
            chunks = "SELECT count(*) FROM document_chunks"
            eventually(lambda: connection.call("query", sql=chunks)["rows"][0][0] > 500, "some of it is stored")
            daemon.kill()
            daemon.close()
        with daemon.start().connect() as connection:
            result = eventually(lambda: ended(connection), "the rest is stored", 90)
            assert result["failed"] == []
            document = connection.call("document.get", source=str(book), length=0)["document"]
            assert document["complete"]
            assert document["characters"] == len(book.read_text())
            parts = "SELECT sum(length(text)) FROM document_parts"
            assert connection.call("query", sql=parts)["rows"] == [[document["characters"]]]
            distinct = "SELECT count(*), count(DISTINCT chunk_index), max(chunk_index) + 1 FROM document_chunks"
            counted = connection.call("query", sql=distinct)["rows"][0]
            assert counted == [document["chunks"]] * 3
            connection.send({"jsonrpc": "2.0", "id": 1, "method": "document.delete", "params": {"id": document["id"]}})
            hidden = "SELECT count(*) FROM documents WHERE revision < 0"
            with daemon.connect() as other:
                eventually(lambda: other.call("query", sql=hidden)["rows"] == [[1]], "it is being removed")
                assert other.call("document.list")["documents"] == []
                daemon.kill()
            daemon.close()
        with daemon.start().connect() as connection:
            for table in ("documents", "document_chunks", "document_parts", "chunk_edges", "chunks"):
                gone = f"SELECT * FROM {table} LIMIT 1"
                eventually(partial(has_no_rows, connection, gone), f"no {table} are left")
    finally:
        daemon.close()


def test_accepted_documents_survive_a_regular_stop(home: Path, tmp_path: Path) -> None:
    items = [{"text": f"Text number {number} on thing{number}. {'word ' * 200}"} for number in range(400)]
    daemon = DaemonProcess(home, CLANKERS_EMBEDDER="none")
    try:
        with daemon.start().connect() as connection:
            connection.call("document.ingestMany", documents=items)
        assert daemon.stop() == 0
        daemon.close()
        with daemon.start().connect() as connection:
            eventually(
                lambda: connection.call("query", sql="SELECT count(*) FROM ingest_items")["rows"] == [[0]],
                "all done",
                60,
            )
            assert connection.call("query", sql="SELECT count(*) FROM documents")["rows"] == [[400]]
    finally:
        daemon.close()
