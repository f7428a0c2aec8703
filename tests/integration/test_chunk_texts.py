"""Chunks of messages have no text of their own: it is a part of the message, whatever happens to that."""

from contextlib import closing
from typing import Any

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.full_text import find_fault
from helpers.store import message
from helpers.waiting import eventually, settled

from clankersd.index.chunks import hash_of

LONG = "\n".join(f"line {number} 漢字 🦊 naïve about the walrus" for number in range(250))
OWN_TEXTS = "SELECT count(*) FROM chunks WHERE message_id = 'm' AND text <> ''"


def store(rpc: RawConnection, text: str) -> None:
    rpc.call("upsertMessage", message=message("m", text=text))
    settled(rpc)


def hits(rpc: RawConnection, query: str) -> list[dict[str, Any]]:
    return list(rpc.call("search", query=query, mode="keyword", limit=50)["hits"])


def count(rpc: RawConnection, sql: str) -> int:
    return int(rpc.call("query", sql=sql)["rows"][0][0])


def assert_words_are_those_of_the_texts(daemon: DaemonProcess) -> None:
    with closing(apsw.Connection(str(daemon.database))) as db:
        assert find_fault(db) is None


@pytest.mark.parametrize(
    ("text", "has_own_texts"),
    [("a walrus", False), (LONG, False), ("\n".join([LONG] * 3), True)],
    ids=["one chunk", "several chunks", "a long message"],
)
def test_hits_have_the_text_of_their_part_of_the_message(
    rpc: RawConnection, shared_daemon: DaemonProcess, text: str, has_own_texts: bool
) -> None:
    store(rpc, text)
    assert (count(rpc, OWN_TEXTS) > 0) == has_own_texts
    [hit] = hits(rpc, "walrus")
    assert hit["text"] in text
    chunks = rpc.call("query", sql="SELECT chunk_id, hash, end_offset - start_offset FROM chunks")["rows"]
    for chunk_id, digest, length in chunks:
        part = rpc.call("recall.get", id=chunk_id)["text"]
        assert (len(part), hash_of(part)) == (length, digest)
    assert_words_are_those_of_the_texts(shared_daemon)


def test_text_after_a_null_character_is_found(rpc: RawConnection) -> None:
    """There SQLite stops counting characters."""
    store(rpc, f"{LONG}\0{LONG} and the penguin")
    assert "and the penguin" in hits(rpc, "penguin")[0]["text"]


def test_changed_message_is_found_by_its_new_words_only(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    store(rpc, f"{LONG}\nthe last line is of a penguin")
    kept = count(rpc, "SELECT min(id) FROM chunks")
    store(rpc, f"{LONG}\nthe last line is of an albatross")
    assert count(rpc, "SELECT min(id) FROM chunks") == kept  # with its vector
    assert hits(rpc, "penguin") == []
    assert "albatross" in hits(rpc, "albatross")[0]["text"]
    assert_words_are_those_of_the_texts(shared_daemon)


def test_no_part_of_a_message_that_became_long_is_shown_as_another(
    rpc: RawConnection, shared_daemon: DaemonProcess
) -> None:
    """A text above 50,000 characters is chunked after it is stored; its old chunks would show parts of the new one."""
    store(rpc, "the penguin is here")
    rpc.call("upsertMessage", message=message("m", text="walrus " * 10_000))
    assert all("penguin" in hit["text"] for hit in hits(rpc, "penguin"))
    settled(rpc)
    assert hits(rpc, "penguin") == []
    assert hits(rpc, "walrus")
    assert count(rpc, OWN_TEXTS) > 0
    assert_words_are_those_of_the_texts(shared_daemon)


def test_words_of_a_deleted_message_are_not_counted(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    store(rpc, "the xylophone of the walrus")
    words = "SELECT count(*) FROM chunks_vocabulary WHERE term = 'xylophon'"
    assert count(rpc, words) == 1
    rpc.call("session.delete", id="session")
    assert count(rpc, words) == 0
    assert_words_are_those_of_the_texts(shared_daemon)


def test_reindex_with_other_chunks_keeps_the_texts(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        store(connection, LONG)
        connection.call("daemon.configure", key="chunk_tokens", value=100)
        job = connection.call("reindex")["jobId"]
        eventually(lambda: connection.call("job.status", id=job)["state"] == "done", "the reindex is done")
        assert count(connection, OWN_TEXTS) == 0
        assert all("walrus" in hit["text"] for hit in hits(connection, "walrus"))
    assert_words_are_those_of_the_texts(fresh_daemon)
