"""What a search has in memory follows the database: its answer is that of a daemon that was just started."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.documents import finished
from helpers.waiting import eventually, settled

FREQUENT = 250
"""Chunks with a word from which on its occurrences stay in memory, whatever is stored or deleted."""

MANY = 40_000
"""More changed chunks than are read before a read is interrupted."""


@pytest.fixture
def daemon(home: Path) -> Iterator[DaemonProcess]:
    with running_daemon(home) as process:
        yield process


@pytest.fixture
def own(daemon: DaemonProcess) -> Iterator[RawConnection]:
    with daemon.connect(120) as connection:
        yield connection


def store(connection: RawConnection, session: str, texts: list[str], project: str | None = None, **more: Any) -> None:
    events: list[dict[str, Any]] = [{"session": {"id": session, "projectPath": project}}]
    for number, text in enumerate(texts):
        message = {"id": f"{session}-{number}", "sessionId": session, "role": "user", "textContent": text} | more
        events.append({"message": message})
    for start in range(0, len(events), 2000):
        assert connection.call("events.batch", events=events[start : start + 2000])["ok"]


def sessions(connection: RawConnection, query: str, **params: Any) -> list[str]:
    answer = connection.call("search", query=query, **{"limit": 20, "collapse": False, "mode": "keyword", **params})
    return [hit["ref"]["sessionId"] for hit in answer["hits"]]


def restarted(daemon: DaemonProcess, method: str, **params: Any) -> Any:
    """The answer of the same daemon after a restart."""
    assert daemon.stop() == 0
    daemon.close()
    with daemon.start().connect() as connection:
        settled(connection)
        return connection.call(method, **params)


def test_many_chunks_that_move_or_are_deleted_are_followed(own: RawConnection) -> None:
    store(own, "few", [f"sprocket lighthouse {number}" for number in range(30)], "/nowhere/few")
    store(own, "many", [f"sprocket lighthouse nr {number}" for number in range(MANY)], "/nowhere/many")
    settled(own)
    for mode in ("keyword", "vector"):
        assert sessions(own, "sprocket lighthouse nr", mode=mode, project="/nowhere/few") == ["few"] * 20
    own.call("project.merge", project="/nowhere/many", into="/nowhere/few")
    for mode in ("keyword", "vector"):
        assert sessions(own, "sprocket lighthouse nr", mode=mode, project="/nowhere/few") == ["many"] * 20
    own.call("session.delete", id="many")
    for mode in ("keyword", "vector", "hybrid"):
        assert sessions(own, "sprocket lighthouse nr", mode=mode) == ["few"] * 20


def test_skill_is_found_by_its_new_tags_only(own: RawConnection) -> None:
    def names(query: str) -> list[str]:
        found = own.call("skill.search", query=query, mode="keyword")["skills"]
        return [one["skill"]["name"] for one in found]

    store(own, "s", [f"sprocket lighthouse {number}" for number in range(FREQUENT)])
    skill = own.call("skill.create", name="turning", description="does one thing", tags=["sprocket"])
    assert (names("sprocket"), names("lighthouse")) == (["turning"], [])
    own.call("skill.update", id=skill["id"], tags=["lighthouse"])
    assert (names("sprocket"), names("lighthouse")) == ([], ["turning"])


def test_document_is_found_by_its_new_title_only(own: RawConnection) -> None:
    def titles(query: str) -> set[str]:
        answer = own.call("search", query=query, mode="keyword")
        return {hit["ref"]["documentTitle"] for hit in answer["hits"]}

    for source, title in (("one", "the quokka"), ("two", "the wombat")):
        own.call("document.ingest", text=f"something about {source}", source=source, title=title)
    assert (titles("quokka"), titles("wombat")) == ({"the quokka"}, {"the wombat"})
    [changed] = [one["id"] for one in own.call("document.list")["documents"] if one["title"] == "the quokka"]
    own.call("document.update", id=changed, title="a wombat")
    assert (titles("quokka"), titles("wombat")) == (set(), {"a wombat", "the wombat"})


def test_words_of_a_replaced_database_are_forgotten(own: RawConnection) -> None:
    store(own, "before", [f"sprocket {number}" for number in range(FREQUENT)])
    backup = finished(own, own.call("backup.create")["jobId"])["path"]
    store(own, "replaced", [f"sprocket {number}" for number in range(20)])
    assert sessions(own, "sprocket", sessionId="replaced") == ["replaced"] * 20
    own.call("backup.restore", path=backup)
    store(own, "after", [f"lighthouse {number}" for number in range(20)])  # its chunks get the same ids
    assert sessions(own, "sprocket", sessionId="after") == []
    assert sessions(own, "lighthouse") == ["after"] * 20


def test_repaired_words_are_found(daemon: DaemonProcess, own: RawConnection) -> None:
    for session in ("first", "second"):
        store(own, session, ["a lighthouse"])
    assert daemon.stop() == 0
    daemon.close()
    with closing(apsw.Connection(str(daemon.database))) as db:
        db.execute("DELETE FROM chunks_fts WHERE rowid = 1")
    with daemon.start().connect() as connection:
        assert sessions(connection, "lighthouse") == ["second"]
        assert finished(connection, connection.call("doctor.repair")["jobId"])["repaired"]
        assert {*sessions(connection, "lighthouse")} == {"first", "second"}


def test_word_that_was_deleted_as_often_as_others_were_stored_breaks_no_search(own: RawConnection) -> None:
    store(own, "goes", [f"harbour sprocket lighthouse {number}" for number in range(FREQUENT)])
    assert sessions(own, "harbour sprocket lighthouse") == ["goes"] * 20
    own.call("session.delete", id="goes")
    store(own, "comes", [f"harbour lighthouse {number}" for number in range(FREQUENT)])
    assert sessions(own, "harbour sprocket lighthouse") == ["comes"] * 20


def test_search_by_embedding_finds_what_a_deletion_has_left(own: RawConnection) -> None:
    def document(source: str, count: int, numbers: list[float]) -> str:
        chunks = [{"content": f"{source} {number}", "embedding": numbers} for number in range(count)]
        return str(own.call("document.store", source=source, chunks=chunks)["document"]["id"])

    def found() -> set[str]:
        hits = own.call("chunk.search", embedding=near, limit=3)["hits"]
        return {hit["chunk"]["documentId"] for hit in hits}

    near, far = [1.0, 0.0] * 128, [1.0, 1.0] * 128
    goes, stays = document("goes", 200, near), document("stays", 10, far)
    settled(own)
    assert found() == {goes}
    own.call("document.delete", id=goes)
    assert found() == {stays}


def test_recall_compares_with_what_other_projects_still_have(daemon: DaemonProcess, own: RawConnection) -> None:
    def needed(connection: RawConnection) -> float:
        asked = {"kind": "prompt", "query": prompt, "project": "/nowhere/asked"}
        # A prompt does not wait long, so that there may be nothing on a busy machine.
        [found] = eventually(lambda: connection.call("recall.preview", **asked)["considered"], "recall had time")
        return float(found["needed"])

    prompt = "how do I rotate the sprocket of the lighthouse"
    store(own, "asked", ["the boats of the harbour and their sprocket"], "/nowhere/asked")
    store(own, "goes", [f"{prompt} {number}" for number in range(60)], "/nowhere/other")
    store(own, "stays", ["the sprocket of a lighthouse has to be turned"], "/nowhere/other")
    settled(own)
    needed(own)
    own.call("session.delete", id="goes")
    before = needed(own)
    daemon.kill()
    daemon.close()
    with daemon.start().connect() as connection:
        assert before == needed(connection) > 0.5


def test_speaker_of_imported_messages_is_preferred(home: Path) -> None:
    said = [f"the harbour has boats {number}" for number in range(5)]
    text, is_last = "", False
    with running_daemon(home / "one") as daemon, daemon.connect() as source:
        store(source, "s", said, role="Caroline")
        job = source.call("export.start")["jobId"]
        while not is_last:
            piece = source.call("export.read", jobId=job)
            text, is_last = text + piece["text"], piece["isLast"]
    with running_daemon(home / "two") as daemon, daemon.connect() as connection:
        store(connection, "mine", said)
        assert not connection.call("import.lines", lines=text.splitlines()[1:])["rejected"]
        settled(connection)
        query = {"query": "What did Caroline say about boats?", "explain": True, "collapse": False}
        hits = connection.call("search", **query)["hits"]
        assert hits[0]["components"]["speaker"] == 1
        assert restarted(daemon, "search", **query)["hits"] == hits


def test_deleted_messages_do_not_make_a_word_a_speaker(daemon: DaemonProcess, own: RawConnection) -> None:
    store(own, "goes", [f"Ann: the harbour {number}" for number in range(400)])
    store(own, "stays", [f"Ann: the boats {number}" for number in range(30)])
    store(own, "others", [f"we saw Ann at the harbour {number}" for number in range(400)])
    settled(own)
    query = {"query": "What did Ann say about boats?", "mode": "keyword", "explain": True}
    assert own.call("search", **query)["hits"]
    own.call("session.delete", id="goes")
    found = own.call("search", **query)["hits"]
    again = restarted(daemon, "search", **query)["hits"]
    assert [(hit["chunkId"], hit["components"]) for hit in found] == [
        (hit["chunkId"], hit["components"]) for hit in again
    ]
