"""Words of a few new texts are indexed a moment later: by a search, with more of them, or in a quiet second.

Those of very many are indexed by the commit that follows theirs.
"""

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.documents import finished
from helpers.store import message
from helpers.waiting import eventually

from clankersd.db.engine import MAX_CHUNKS_INDEXED_AT_ONCE, MAX_UNINDEXED_CHUNKS

WITHOUT_VECTORS = {"CLANKERS_EMBEDDER": "none"}
"""The words would be indexed with the vectors, a moment after they are stored."""


def count(daemon: DaemonProcess, table: str) -> int:
    with closing(apsw.Connection(str(daemon.database), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").get)


def unindexed(daemon: DaemonProcess) -> int:
    return count(daemon, "chunks") - count(daemon, "chunks_fts_docsize")


def store(connection: RawConnection, name: str, text: str, session: str = "session") -> None:
    assert connection.call("upsertMessage", message=message(name, session, text)) == {"ok": True}


def store_many(connection: RawConnection, texts: dict[str, str]) -> None:
    events = [{"message": message(name, text=text)} for name, text in texts.items()]
    assert connection.call("events.batch", events=events)["ok"]


def found(connection: RawConnection, query: str, **params: Any) -> set[str]:
    reply = connection.call("search", query=query, limit=100, mode="keyword", **params)
    assert "not indexed" not in (reply["degraded"] or "")
    return {hit["ref"]["messageId"] for hit in reply["hits"]}


def test_text_that_was_acknowledged_before_a_kill_is_found_after_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon:
        with daemon.connect() as connection:
            store(connection, "first", "the lighthouse keeper")
            assert unindexed(daemon) == 1, "the words are indexed at once, so that this test shows nothing"
            daemon.close()  # kills it
        daemon.start()
        with daemon.connect() as connection:
            assert found(connection, "lighthouse") == {"first"}


def test_words_of_many_texts_are_indexed_with_them(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        for number in range(3 * MAX_UNINDEXED_CHUNKS):
            store(connection, f"m{number}", f"text {number}")
            assert unindexed(daemon) < MAX_UNINDEXED_CHUNKS


def test_words_of_very_many_texts_are_indexed_while_the_next_ones_come(tmp_path: Path) -> None:
    size = 3 * MAX_CHUNKS_INDEXED_AT_ONCE
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        for batch in range(5):
            store_many(connection, {f"m{batch}-{number}": f"text {number}" for number in range(size)})
            assert unindexed(daemon) <= size, "the batch before it was not indexed"


@pytest.mark.parametrize("_turn", range(5))
def test_very_many_texts_are_found_after_a_kill_right_after_they_were_acknowledged(tmp_path: Path, _turn: int) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon:
        with daemon.connect() as connection:
            store_many(connection, {f"m{number}": "the lighthouse keeper" for number in range(300)})
            daemon.close()  # kills it
        daemon.start()
        with daemon.connect() as connection:
            assert connection.call("search.facets", query="lighthouse")["total"] == 300


def test_each_of_very_many_texts_is_found_once_they_are_acknowledged(tmp_path: Path) -> None:
    size = MAX_CHUNKS_INDEXED_AT_ONCE + 1
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        for batch in range(1, 21):
            store_many(connection, {f"m{batch}-{number}": "the lighthouse keeper" for number in range(size)})
            assert connection.call("search.facets", query="lighthouse")["total"] == batch * size


def test_words_are_indexed_in_a_quiet_second(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        store(connection, "first", "the lighthouse keeper")
        eventually(lambda: not unindexed(daemon), "the words are indexed without a search")


def test_daemon_that_stops_leaves_all_words_indexed(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon:
        with daemon.connect() as connection:
            store(connection, "first", "the lighthouse keeper")
        daemon.stop()
        assert (count(daemon, "chunks"), unindexed(daemon)) == (1, 0)


@pytest.mark.parametrize("embedder", ["none", "static"])
def test_every_text_is_found_once_it_is_acknowledged(tmp_path: Path, embedder: str) -> None:
    """Others store texts meanwhile, so that the index is behind during nearly all searches."""
    with running_daemon(tmp_path, CLANKERS_EMBEDDER=embedder) as daemon, daemon.connect() as connection:
        is_over = threading.Event()

        def store_others(writer: int) -> None:
            with daemon.connect() as other:
                number = 0
                while not is_over.is_set():
                    store(other, f"other-{writer}-{number}", f"a frequent word and {number}")
                    number += 1

        writers = [threading.Thread(target=store_others, args=(writer,)) for writer in range(2)]
        for writer in writers:
            writer.start()
        try:
            for number in range(150):
                store(connection, f"m{number}", f"a frequent lantern{number}x")
                assert f"m{number}" in found(connection, f"lantern{number}x frequent")
                assert connection.call("search.facets", query=f"lantern{number}x")["total"] == 1
        finally:
            is_over.set()
            for writer in writers:
                writer.join()


def test_search_has_the_words_and_the_vector_of_the_newest_text_stored_by_one_commit(tmp_path: Path) -> None:
    texts = 20
    with running_daemon(tmp_path, CLANKERS_EMBEDDER="static") as daemon, daemon.connect() as connection:
        connection.call("search", query="lantern", recorded=False)  # loads what the first search needs

        def commits() -> int:
            return int(connection.call("daemon.status")["queue"]["commits"])

        before = commits()
        for number in range(texts):
            store(connection, f"m{number}", f"a frequent lantern{number}x")
            hits = connection.call("search", query=f"lantern{number}x", recorded=False)["hits"]
            assert hits[0]["ref"]["messageId"] == f"m{number}"
        assert commits() - before < 2.5 * texts  # one stores the text


def test_query_finds_the_words_of_the_newest_text(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        store(connection, "first", "the lighthouse keeper")
        sql = "SELECT count(*) FROM chunks_fts WHERE chunks_fts MATCH 'lighthouse'"
        assert connection.call("query", sql=sql)["rows"] == [[1]]


def test_deleted_text_is_not_indexed_later(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        store(connection, "first", "the lighthouse keeper", "deleted")
        connection.call("session.delete", id="deleted")
        store(connection, "second", "the harbour master")
        assert found(connection, "lighthouse harbour") == {"second"}
        assert (count(daemon, "chunks"), unindexed(daemon)) == (1, 0)


def test_texts_deleted_before_they_were_indexed_leave_no_words(tmp_path: Path) -> None:
    texts = {f"m{number}": "the lighthouse keeper" for number in range(3 * MAX_CHUNKS_INDEXED_AT_ONCE)}
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        for _ in range(10):
            store_many(connection, texts)
            connection.call("session.delete", id="session")
        eventually(lambda: not unindexed(daemon), "all that is stored is indexed")
        assert count(daemon, "chunks") == 0
        assert found(connection, "lighthouse") == set()
        checks = finished(connection, connection.call("doctor.check")["jobId"])["checks"]
        assert [check["state"] for check in checks if check["name"] == "full text"] == ["ok"]


def test_changed_text_is_found_by_its_new_words_only(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        store(connection, "first", "the lighthouse keeper")
        store(connection, "first", "the harbour master")
        assert found(connection, "harbour") == {"first"}
        assert found(connection, "lighthouse") == set()


def test_search_says_that_the_newest_texts_could_not_be_indexed(tmp_path: Path) -> None:
    with running_daemon(tmp_path, **WITHOUT_VECTORS) as daemon, daemon.connect() as connection:
        store(connection, "old", "the lighthouse keeper")
        assert found(connection, "lighthouse") == {"old"}
        store(connection, "new", "another lighthouse")
        with closing(apsw.Connection(str(daemon.database))) as other:
            other.execute("BEGIN IMMEDIATE")
            reply = connection.call("search", query="lighthouse")
            other.execute("ROLLBACK")
        assert "the newest texts are not indexed" in reply["degraded"]
        assert found(connection, "lighthouse") == {"old", "new"}
