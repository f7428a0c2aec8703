"""The index follows what is stored: keyword search immediately, vector search soon, nothing after a deletion."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import sqlite_vec
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.embedding_service import Answer, Request, Service, embeddings, say, served
from helpers.full_text import find_fault
from helpers.waiting import eventually, settled

MODES = ("keyword", "vector", "hybrid")


@pytest.fixture
def empty_index(rpc: RawConnection) -> RawConnection:
    """A connection to the shared daemon, once the rows of earlier tests have left the index."""
    settled(rpc)
    return rpc


def store(connection: RawConnection, name: str, text: str | None = None, session: str = "s", **more: Any) -> None:
    message = {"id": name, "sessionId": session, "role": "user", **more}
    assert connection.call("upsertMessage", message=message | ({} if text is None else {"textContent": text}))["ok"]


def search(connection: RawConnection, query: str, **params: Any) -> dict[str, Any]:
    return dict(connection.call("search", query=query, **params))


def found(connection: RawConnection, query: str, mode: str = "keyword", **params: Any) -> list[str]:
    """The messages, tool calls or files found, best first."""
    hits = search(connection, query, mode=mode, **params)["hits"]
    return [hit["ref"].get("messageId") or hit["ref"].get("toolId") or hit["ref"]["path"] for hit in hits]


def holding(connection: RawConnection, word: str) -> set[str]:
    """The messages whose own text has the word, not only a neighbour's."""
    hits = search(connection, word, mode="keyword", limit=100)["hits"]
    return {hit["ref"]["messageId"] for hit in hits if word in hit["text"].lower()}


def status(connection: RawConnection) -> dict[str, Any]:
    return dict(connection.call("index.status"))


def finish(connection: RawConnection, job: str) -> dict[str, Any]:
    def finished() -> dict[str, Any] | None:
        now = connection.call("job.status", id=job)
        return now if now["state"] != "running" else None

    return dict(eventually(finished, "the job is over"))


def reindex(connection: RawConnection, **params: Any) -> dict[str, Any]:
    done = finish(connection, connection.call("reindex", **params)["jobId"])
    assert done["state"] == "done", done["error"]
    return done


def configure(connection: RawConnection, key: str, value: Any) -> None:
    connection.call("daemon.configure", key=key, value=value)


@contextmanager
def opened(database: Path) -> Iterator[apsw.Connection]:
    """The file itself, as the daemon opens it, for a look inside."""
    db = apsw.Connection(str(database))
    try:
        db.enable_load_extension(True)
        db.load_extension(sqlite_vec.loadable_path())
        yield db
    finally:
        db.close()


def assert_nothing_is_left_over(database: Path) -> None:
    """Words, vectors and queue speak of the same chunks as the table of chunks does."""
    with opened(database) as db:
        assert find_fault(db) is None
        assert db.execute("SELECT count(*) FROM index_queue WHERE chunk NOT IN (SELECT id FROM chunks)").get == 0
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%USING vec0%'")]
        live = db.execute("SELECT id FROM index_generations WHERE state = 'live' AND dims IS NOT NULL").get
        assert tables == ([f"chunk_vectors_{live}"] if live else [])
        for table in tables:
            assert db.execute(f"SELECT count(*) FROM {table} WHERE rowid NOT IN (SELECT id FROM chunks)").get == 0
        assert db.execute("SELECT state FROM index_generations").fetchall() == [("live",)]
        stale = "SELECT count(*) FROM chunks WHERE chunking NOT IN (SELECT chunking FROM index_generations)"
        assert db.execute(stale).get == 0
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA integrity_check").get == "ok"


# --- Coming in


def test_text_is_found_by_keyword_as_soon_as_it_is_acknowledged(empty_index: RawConnection) -> None:
    for letter in "abcdefghijklmnopqrst":
        store(empty_index, letter, f"the {letter}quartz oscillator", session=letter)
        assert found(empty_index, f"{letter}quartz") == [letter]


def test_text_is_found_by_vector_soon_after(empty_index: RawConnection) -> None:
    store(empty_index, "cat", "my kitten sleeps on the sofa", session="a")
    store(empty_index, "tax", "the invoice for the quarterly accounting", session="b")
    eventually(lambda: search(empty_index, "x", mode="hybrid")["pending"] == 0, "nothing is pending")
    assert status(empty_index)["live"]["vectors"] == 2
    answer = search(empty_index, "cats and dogs", mode="vector")
    assert answer["hits"][0]["ref"]["messageId"] == "cat"
    assert (answer["mode"], answer["degraded"]) == ("vector", None)


def test_search_right_after_storing_waits_for_the_vector(empty_index: RawConnection) -> None:
    """Not always, since the budget is short and the machine may be busy; without waiting, never."""
    store(empty_index, "first", "warm up the model")
    settled(empty_index)

    def at_once(number: int) -> bool:
        store(empty_index, f"m{number}", f"note {number} about gardens", session=f"s{number}")
        return f"m{number}" in found(empty_index, f"note {number} about gardens", "vector")

    assert any(at_once(number) for number in range(50))


def test_message_hit_names_its_origin(empty_index: RawConnection) -> None:
    session = {"id": "s", "title": "Clocks", "projectPath": "/home/me/clocks"}
    empty_index.call("upsertSession", session=session)
    store(empty_index, "m", "the quartz oscillator", createdAt=1_700_000_000_000)
    hit, *_ = search(empty_index, "quartz")["hits"]  # the title may be near it as well, once it has a vector
    assert hit["ref"] == {
        "sessionId": "s", "sessionTitle": "Clocks", "messageId": "m", "role": "user", "projectPath": "/home/me/clocks",
    }  # fmt: skip
    assert (hit["source"], hit["createdAt"], hit["text"]) == ("sessions", 1_700_000_000_000, "the quartz oscillator")
    assert hit["snippet"] == "the «quartz» oscillator"


def test_message_is_found_by_its_day(empty_index: RawConnection) -> None:
    store(empty_index, "spring", "we met", session="a", createdAt=1_684_152_000_000)
    store(empty_index, "autumn", "we met", session="b", createdAt=1_700_000_000_000)
    assert found(empty_index, "met in May 2023")[0] == "spring"
    assert found(empty_index, "met in November 2023")[0] == "autumn"


def test_partial_upsert_keeps_the_text(empty_index: RawConnection) -> None:
    store(empty_index, "m", "the quartz oscillator")
    [before] = search(empty_index, "quartz")["hits"]
    store(empty_index, "m", completionTokens=12)
    store(empty_index, "m", "", model="large")
    [after] = search(empty_index, "quartz")["hits"]
    assert after["chunkId"] == before["chunkId"]


def test_changed_text_replaces_the_old(empty_index: RawConnection) -> None:
    store(empty_index, "m", "the quartz oscillator")
    settled(empty_index)
    store(empty_index, "m", "the rubidium standard")
    assert found(empty_index, "quartz") == []
    assert found(empty_index, "rubidium") == ["m"]
    assert settled(empty_index)["live"]["vectors"] == 1
    [hit] = search(empty_index, "quartz", mode="vector")["hits"]
    assert hit["text"] == "the rubidium standard"


def test_status_without_pending_work_counts_every_vector(empty_index: RawConnection) -> None:
    for number in range(30):
        store(empty_index, f"m{number}", f"the quartz oscillator, turn {number}")
        assert settled(empty_index)["live"]["vectors"] == number + 1


def test_message_that_grows_keeps_its_unchanged_chunks(empty_index: RawConnection) -> None:
    """As a streamed answer does: what was cut before keeps its place and its vector."""
    paragraphs = [" ".join(f"p{number}w{word}" for word in range(200)) for number in range(8)]
    store(empty_index, "m", "\n\n".join(paragraphs[:4]))
    before = {hit["chunkId"] for hit in search(empty_index, "p0w1", mode="keyword")["hits"]}
    store(empty_index, "m", "\n\n".join(paragraphs))
    assert {hit["chunkId"] for hit in search(empty_index, "p0w1", mode="keyword")["hits"]} == before
    assert found(empty_index, "p7w199") == ["m"]


def test_identical_replay_changes_nothing(empty_index: RawConnection) -> None:
    texts = {f"m{number}": f"alpha beta {number} " + "gamma " * number * 50 for number in range(10)}
    chunks = "SELECT id, chunk_id, turn, position, hash FROM chunks ORDER BY id"
    for name, text in texts.items():
        store(empty_index, name, text, createdAt=1_700_000_000_000)
    settled(empty_index)
    before = empty_index.call("query", sql=chunks)["rows"]
    events = [
        {"message": {"id": name, "sessionId": "s", "role": "user", "textContent": text, "createdAt": 1_700_000_000_000}}
        for name, text in texts.items()
    ]
    assert empty_index.call("events.batch", events=events)["ok"]
    assert empty_index.call("query", sql=chunks)["rows"] == before
    assert status(empty_index)["live"]["pending"] == 0


@pytest.mark.parametrize("owner", ["message", "tool", "file"])
def test_chunks_of_an_owner_are_found_by_an_index(empty_index: RawConnection, owner: str) -> None:
    """Every upsert asks for them: by another index it would read the whole table."""
    sql = f"EXPLAIN QUERY PLAN SELECT hash FROM chunks WHERE {owner}_id = 'x' AND chunking = 1 ORDER BY position"
    [plan] = [row[3] for row in empty_index.call("query", sql=sql)["rows"] if "chunks" in row[3]]
    assert f"USING INDEX idx_chunks_{owner} " in plan


@pytest.mark.parametrize("role", ["system", "tool"])
def test_system_and_tool_messages_are_not_indexed(empty_index: RawConnection, role: str) -> None:
    store(empty_index, "hidden", "the quartz oscillator", role=role)
    store(empty_index, "shown", "another oscillator", session="other")
    settled(empty_index)
    for mode in MODES:
        assert found(empty_index, "quartz oscillator", mode) == ["shown"]


def test_message_whose_role_becomes_known_later_is_indexed_by_it(empty_index: RawConnection) -> None:
    empty_index.call("upsertMessage", message={"id": "m", "sessionId": "s", "textContent": "the quartz oscillator"})
    store(empty_index, "m", role="assistant")
    [hit] = search(empty_index, "quartz")["hits"]
    assert hit["ref"]["role"] == "assistant"
    store(empty_index, "m", role="system")
    assert found(empty_index, "quartz") == []


def test_tool_calls_are_indexed_only_when_configured(home: Path) -> None:
    tool = {"id": "t", "sessionId": "s", "toolName": "Bash", "toolInput": "grep quartz", "toolOutput": "oscillator.c"}
    with running_daemon(home) as daemon, daemon.connect() as connection:
        connection.call("upsertTool", tool=tool)
        store(connection, "m", "look into it")
        settled(connection)
        assert found(connection, "quartz") == []
    with running_daemon(home, CLANKERS_INDEX_TOOLS="true") as daemon, daemon.connect() as connection:
        reindex(connection)
        assert found(connection, "quartz") == ["t"]
        connection.call("upsertTool", tool=tool | {"id": "later", "toolInput": "grep rubidium"})
        eventually(lambda: found(connection, "rubidium") == ["later"], "the new tool call is found")
        connection.call(
            "upsertTool", tool={"id": "later", "sessionId": "s", "toolName": "Bash", "toolOutput": "cesium"}
        )
        eventually(lambda: found(connection, "cesium") == ["later"], "its output is found")


def test_tool_call_from_before_may_be_the_first_text_indexed(home: Path) -> None:
    """An index without a chunk is replaced by itself when the configuration changes; what was stored must come in."""
    with running_daemon(home) as daemon, daemon.connect() as connection:
        connection.call(
            "upsertTool", tool={"id": "t", "sessionId": "s", "toolName": "Bash", "toolInput": "grep quartz"}
        )
        configure(connection, "index_tools", True)
        reindex(connection)
        assert found(connection, "quartz") == ["t"]


def test_long_message_is_found_soon_after(empty_index: RawConnection) -> None:
    text = "\n".join(f"line {number} of a long report about granite" for number in range(3000)) + "\nthe quartz end"
    assert len(text) > 100_000
    store(empty_index, "long", text)
    assert status(empty_index)["backlog"] <= 1
    eventually(lambda: found(empty_index, "quartz") == ["long"], "the last line is found")
    assert settled(empty_index)["backlog"] == 0
    assert holding(empty_index, "granite") == {"long"}
    assert "long" in found(empty_index, "a report about granite", "vector")


def test_search_says_that_many_stored_texts_are_not_indexed_yet(fresh_daemon: DaemonProcess) -> None:
    """Another program holds the lock of the database, so that the backlog stays."""
    with fresh_daemon.connect() as connection, closing(apsw.Connection(str(fresh_daemon.database))) as other:
        store(connection, "m", "quartz")
        settled(connection)
        assert search(connection, "quartz")["degraded"] is None
        other.set_busy_timeout(10_000)
        owners = json.dumps([f"t{number}" for number in range(900)])
        other.execute("INSERT INTO index_backlog (kind, owner) SELECT 'tool', value FROM json_each(?)", (owners,))
        other.execute("BEGIN IMMEDIATE")
        note = search(connection, "quartz")["degraded"]
        skills = connection.call("skill.search", query="quartz")["degraded"]
        recalled = connection.call("recall.preview", kind="prompt", query="quartz", project="/p")["degraded"]
        other.execute("COMMIT")
        assert "stored texts, such as tool calls and titles, wait to be indexed" in note
        assert (skills, recalled) == (None, None)
        settled(connection)
        assert search(connection, "quartz")["degraded"] is None


def test_long_message_that_becomes_short_is_found_by_its_last_text(empty_index: RawConnection) -> None:
    store(empty_index, "m", "quartz " * 20_000)
    store(empty_index, "m", "rubidium at last")
    settled(empty_index)
    eventually(lambda: not found(empty_index, "quartz"), "the long text is gone")
    assert found(empty_index, "rubidium") == ["m"]


@pytest.mark.parametrize(
    "text", ["\x00", "a\x00b quartz", "🐢" * 500 + " quartz", "e\u0301" * 600 + " quartz", " \n\t "]
)
def test_unusual_texts_are_stored_and_found(empty_index: RawConnection, text: str) -> None:
    store(empty_index, "odd", text)
    settled(empty_index)
    assert found(empty_index, "quartz") == (["odd"] if "quartz" in text else [])


@pytest.mark.parametrize("moment", [0, 1, 1e12, 253_402_300_799_999, 10**15])
def test_message_of_any_timestamp_is_stored_and_found(empty_index: RawConnection, moment: float) -> None:
    store(empty_index, "m", "the quartz oscillator", createdAt=moment)
    assert found(empty_index, "quartz") == ["m"]


# --- Going out


def fill(connection: RawConnection) -> None:
    for session in ("a", "b"):
        connection.call("upsertSession", session={"id": session, "projectPath": f"/home/me/{session}"})
        for number in range(20):
            store(connection, f"{session}{number}", f"quartz {session} number {number}", session=session)


def test_deleted_session_is_immediately_found_by_no_mode(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        fill(connection)
        settled(connection)
        assert any(name.startswith("a") for name in found(connection, "quartz", "vector", limit=100))
        connection.call("session.delete", id="a")
        for mode in MODES:
            names = found(connection, "quartz a number", mode, limit=100)
            assert {name[0] for name in names} == {"b"}
        assert status(connection)["live"]["vectors"] == 20
    fresh_daemon.stop()
    assert_nothing_is_left_over(fresh_daemon.database)


def test_session_deleted_before_it_has_vectors_leaves_nothing(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        fill(connection)
        connection.call("session.delete", id="a")
        connection.call("session.delete", id="b")
        for mode in MODES:
            assert found(connection, "quartz", mode) == []
        settled(connection)
    fresh_daemon.stop()
    assert_nothing_is_left_over(fresh_daemon.database)
    with opened(fresh_daemon.database) as db:
        assert db.execute("SELECT count(*) FROM chunks").get == 0


def test_session_deleted_while_vectors_are_made_leaves_nothing(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        for number in range(30):
            store(connection, f"m{number}", f"quartz number {number} " * 50, session=f"s{number}")
            if number % 2:
                connection.call("session.delete", id=f"s{number}")
        settled(connection)
        for mode in MODES:
            assert {int(name[1:]) % 2 for name in found(connection, "quartz number", mode, limit=100)} == {0}
    fresh_daemon.stop()
    assert_nothing_is_left_over(fresh_daemon.database)


def test_deleted_file_is_found_by_no_mode(home: Path) -> None:
    root = home / "work"
    (root / "memory").mkdir(parents=True)
    for name in ("one", "two"):
        (root / "memory" / f"{name}.md").write_text(f"# {name}\n\nthe quartz oscillator {name}\n")
    with running_daemon(home, CLANKERS_WATCH_ROOTS=str(root)) as daemon:
        with daemon.connect() as connection:
            eventually(lambda: len(found(connection, "quartz")) == 2, "both files are found")
            settled(connection)
            [hit] = [hit for hit in search(connection, "quartz")["hits"] if hit["ref"]["path"].endswith("one.md")]
            assert (hit["source"], hit["ref"]["startLine"], hit["ref"]["endLine"]) == ("memory", 1, 3)
            (root / "memory" / "one.md").unlink()
            connection.call("index.sync")
            for mode in MODES:
                assert found(connection, "quartz one", mode) == [str(root / "memory" / "two.md")]
        daemon.stop()
        assert_nothing_is_left_over(daemon.database)


def test_deleted_text_is_found_by_no_mode_after_a_restart(fresh_daemon: DaemonProcess) -> None:
    """The vectors' trigger lives as long as the connection: every connection must have it."""
    with fresh_daemon.connect() as connection:
        fill(connection)
        settled(connection)
    fresh_daemon.stop()
    fresh_daemon.close()
    with fresh_daemon.start().connect() as connection:
        connection.call("session.delete", id="a")
        for mode in MODES:
            assert {name[0] for name in found(connection, "quartz a number", mode, limit=100)} == {"b"}
    fresh_daemon.stop()
    assert_nothing_is_left_over(fresh_daemon.database)


# --- Embedders that change


def test_search_without_an_embedder_uses_keywords_and_says_so(home: Path) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon, daemon.connect() as connection:
        store(connection, "m", "the quartz oscillator")
        answer = search(connection, "quartz")
        assert [hit["ref"]["messageId"] for hit in answer["hits"]] == ["m"]
        assert answer["mode"] == "keyword"
        assert "none" in answer["degraded"]
        assert answer["pending"] == 0
        assert "none" in status(connection)["vectors"]
        assert search(connection, "quartz", mode="keyword")["degraded"] is None
        by_meaning = search(connection, "quartz", mode="vector")
        assert by_meaning["hits"] == []
        assert by_meaning["degraded"]


def test_empty_index_follows_the_configuration_without_a_reindex(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        for embedder in ("none", "static", "none", "static"):
            configure(connection, "embedder", embedder)
            assert status(connection)["live"]["provider"] == embedder
        store(connection, "m", "the quartz oscillator")
        assert settled(connection)["vectors"] == "ready"


def test_changed_embedder_pauses_vectors_until_the_index_is_rebuilt(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        fill(connection)
        settled(connection)
        configure(connection, "embedder", "none")
        assert_paused(connection, "none")
        store(connection, "late", "quartz late", session="late")
        assert "late" in found(connection, "late")
        configure(connection, "embedder", "static")
        assert settled(connection)["vectors"] == "ready"  # nothing was lost, so nothing must be built
        assert search(connection, "quartz late", mode="vector")["hits"][0]["ref"]["messageId"] == "late"
        configure(connection, "embedder", "none")
        reindex(connection)
        assert "none" in status(connection)["vectors"]
        assert status(connection)["live"]["vectors"] == 0
        assert search(connection, "quartz")["mode"] == "keyword"
        configure(connection, "embedder", "static")
        assert_paused(connection, "being rebuilt")
        eventually(lambda: status(connection)["vectors"] == "ready", "rebuilt by itself")
        now = settled(connection)
        assert (now["vectors"], now["live"]["vectors"]) == ("ready", 41)
        assert search(connection, "quartz late", mode="vector")["hits"][0]["ref"]["messageId"] == "late"
    fresh_daemon.stop()
    assert_nothing_is_left_over(fresh_daemon.database)


def assert_paused(connection: RawConnection, why: str) -> None:
    assert why in status(connection)["vectors"]
    answer = search(connection, "quartz")
    assert (answer["mode"], len(answer["hits"])) == ("keyword", 10)
    assert why in answer["degraded"]


class Switchable:
    """A service that can be slow, or be away."""

    def __init__(self) -> None:
        self.away = False
        self.dims = 4
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, request: Request) -> Answer:
        self.go_on.wait(30)
        if self.away:
            return say({"error": {"message": "come back later"}}, 401)
        return embeddings(request, [vector(text, self.dims) for text in request.texts])


def vector(text: str, dims: int) -> list[float]:
    """By its first letters, so that like texts are alike."""
    return [float(sum(ord(char) for char in text[place::dims]) % 97 + 1) for place in range(dims)]


@contextmanager
def remote(home: Path, behaviour: Switchable) -> Iterator[tuple[DaemonProcess, RawConnection, Service]]:
    with served(behaviour) as service:
        environ = {"CLANKERS_EMBEDDER": "openai", "CLANKERS_EMBEDDER_URL": service.url}
        (home / "clankers.toml").write_text('embedder_model = "a"\n')
        with running_daemon(home, **environ) as daemon, daemon.connect() as connection:
            yield daemon, connection, service


def embedded(service: Service) -> int:
    return sum(len(request.texts) for request in service.requests)


def test_reindex_with_a_previous_model_uses_the_cache(home: Path) -> None:
    with remote(home, Switchable()) as (_, connection, service):
        fill(connection)
        settled(connection)
        assert embedded(service) == 40
        configure(connection, "embedder_model", "b")
        reindex(connection)
        assert embedded(service) == 80
        configure(connection, "embedder_model", "a")
        reindex(connection)
        assert embedded(service) == 80
        now = status(connection)
        assert (now["live"]["model"], now["live"]["vectors"], now["vectors"]) == ("a", 40, "ready")


def test_equal_texts_are_embedded_once(home: Path) -> None:
    with remote(home, Switchable()) as (_, connection, service):
        for number in range(10):
            store(connection, f"m{number}", "the same text", session=f"s{number}")
            settled(connection)
        assert embedded(service) == 1
        assert status(connection)["live"]["vectors"] == 10


def test_outage_pauses_only_the_vectors_and_ends(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (_, connection, _):
        store(connection, "before", "quartz before", session="before")
        settled(connection)
        behaviour.away = True
        for number in range(5):
            store(connection, f"m{number}", f"quartz number {number}", session=f"s{number}")
        eventually(lambda: status(connection)["vectors"] != "ready", "the outage is noticed")
        now = status(connection)
        assert now["live"]["pending"] == 5
        assert now["lastError"]
        assert index_lag(connection) > 0
        answer = search(connection, "quartz")
        assert (answer["mode"], len(answer["hits"]), answer["pending"]) == ("keyword", 6, 5)
        assert answer["degraded"]
        behaviour.away = False
        store(connection, "after", "quartz after", session="after")
        now = settled(connection)
        assert (now["vectors"], now["live"]["vectors"]) == ("ready", 7)
        assert search(connection, "quartz after")["mode"] == "hybrid"
        assert index_lag(connection) == 0


def index_lag(connection: RawConnection) -> float:
    metrics = {metric["name"]: metric["samples"] for metric in connection.call("metrics")["metrics"]}
    return float(metrics["clankers_index_lag_seconds"][0]["value"])


def test_outage_ends_even_if_nothing_is_pending(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (_, connection, _):
        store(connection, "before", "quartz before", session="before")
        settled(connection)
        behaviour.away = True
        store(connection, "m", "quartz", session="s")
        eventually(lambda: status(connection)["vectors"] != "ready", "the outage is noticed")
        connection.call("session.delete", id="s")
        behaviour.away = False
        unsearched = {"id": "i", "sessionId": "s", "role": "system", "textContent": "instructions"}
        connection.call("upsertMessage", message=unsearched)  # something happens, but nothing that waits
        eventually(lambda: search(connection, "quartz")["mode"] == "hybrid", "vectors are searched again")


def test_search_does_not_wait_for_an_embedder_that_hangs(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (_, connection, _):
        store(connection, "m", "quartz")
        settled(connection)
        behaviour.go_on.clear()
        try:
            answer = search(connection, "quartz")
        finally:
            behaviour.go_on.set()
        assert [hit["ref"]["messageId"] for hit in answer["hits"]] == ["m"]
        assert answer["mode"] == "keyword"
        assert "time ran out" in answer["degraded"]


def test_model_with_other_dimensions_than_before_is_detected(home: Path) -> None:
    """The same name, another model behind it: its vectors fit nothing that is there."""
    behaviour = Switchable()
    with remote(home, behaviour) as (daemon, connection, _):
        fill(connection)
        settled(connection)
        daemon.stop()
        daemon.close()
        behaviour.dims = 8
        with daemon.start().connect() as again:
            store(again, "late", "quartz late")
            assert found(again, "quartz late", "hybrid")
            eventually(lambda: status(again)["vectors"] != "ready", "it is noticed", within=20)
            assert "dimensions" in status(again)["vectors"]
            assert found(again, "late", "hybrid") == ["late"]
            reindex(again)
            assert status(again)["live"]["dims"] == 8
            assert search(again, "quartz late")["mode"] == "hybrid"


# --- Building anew


def test_reindex_with_other_chunking_holds_the_same_text(home: Path) -> None:
    text = "\n\n".join(" ".join(f"p{number}w{word}" for word in range(60)) for number in range(20))
    with running_daemon(home) as daemon:
        with daemon.connect() as connection:
            store(connection, "long", text)
            settled(connection)
            before = status(connection)["chunks"]["sessions"]
            configure(connection, "chunk_tokens", 64)
            configure(connection, "chunk_overlap", 8)
            assert status(connection)["vectors"] == "ready"  # the previous index serves until then
            assert "being rebuilt" in search(connection, "p7w30")["degraded"]
            assert found(connection, "p7w30") == ["long"]
            done = reindex(connection)
            now = settled(connection)
            assert now["chunks"]["sessions"] == done["result"]["chunks"] > before
            assert (now["live"]["chunkTokens"], now["vectors"]) == (64, "ready")
            for number in range(20):
                assert found(connection, f"p{number}w59") == ["long"]
        daemon.stop()
        assert_nothing_is_left_over(daemon.database)


def test_reindex_with_other_chunking_preserves_neighbours(home: Path) -> None:
    """The ids' order is not the conversation's."""
    names = ["m5", "m1", "m4", "m2", "m3"]
    with running_daemon(home) as daemon, daemon.connect() as connection:
        for name in names:
            store(connection, name, "quartz" if name == "m4" else f"word{name}")
        before = found(connection, "quartz")
        assert before == ["m4", "m2", "m3", "m1", "m5"]  # the match, then after it, then before it
        configure(connection, "chunk_tokens", 64)
        reindex(connection)
        assert found(connection, "quartz") == before


def until_building(connection: RawConnection, service: Service) -> None:
    """Until the new index's first texts have been sent; the service holds them back."""
    eventually(lambda: service.requests[-1].payload["model"] == "b", "the new index is being made")
    assert status(connection)["building"]


def test_text_stored_during_a_reindex_is_in_both_generations(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (daemon, connection, service):
        fill(connection)
        settled(connection)
        behaviour.go_on.clear()
        configure(connection, "embedder_model", "b")
        configure(connection, "chunk_tokens", 64)
        job = connection.call("reindex")["jobId"]
        until_building(connection, service)
        store(connection, "late", "quartz late", session="late")
        store(connection, "a0", "rubidium instead", session="a")
        connection.call("session.delete", id="b")
        assert found(connection, "late") == ["late"]
        assert holding(connection, "rubidium") == {"a0"}
        assert {name[0] for name in found(connection, "quartz", limit=100)} == {"a", "l"}
        with pytest.raises(AssertionError, match="already"):
            connection.call("reindex")
        behaviour.go_on.set()
        assert finish(connection, job)["state"] == "done"
        settled(connection)
        assert found(connection, "late") == ["late"]
        assert holding(connection, "rubidium") == {"a0"}
        assert len(holding(connection, "quartz")) == 20
        assert status(connection)["live"]["vectors"] == 21
        daemon.stop()
        assert_nothing_is_left_over(daemon.database)


def test_neighbours_are_preserved_during_a_reindex(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (_, connection, service):
        store(connection, "m1", "first")
        settled(connection)
        behaviour.go_on.clear()
        configure(connection, "embedder_model", "b")
        configure(connection, "chunk_tokens", 64)
        job = connection.call("reindex")["jobId"]
        until_building(connection, service)
        for number in range(2, 6):
            store(connection, f"m{number}", "quartz" if number == 3 else f"word{number}")
        during = found(connection, "quartz")
        behaviour.go_on.set()
        assert finish(connection, job)["state"] == "done"
        assert during == found(connection, "quartz") == ["m3", "m4", "m5", "m2", "m1"]


def test_cancelled_reindex_leaves_the_live_index(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (daemon, connection, service):
        fill(connection)
        live = settled(connection)["live"]
        behaviour.go_on.clear()
        configure(connection, "embedder_model", "b")
        configure(connection, "chunk_tokens", 64)
        job = connection.call("reindex")["jobId"]
        until_building(connection, service)
        connection.call("job.cancel", id=job)
        behaviour.go_on.set()
        assert finish(connection, job)["state"] == "cancelled"
        now = status(connection)
        assert now["building"] is None
        assert now["live"]["vectors"] == live["vectors"] == 40
        assert len(found(connection, "quartz", limit=100)) == 40
        configure(connection, "chunk_tokens", None)
        configure(connection, "embedder_model", "a")
        assert settled(connection)["vectors"] == "ready"
        assert search(connection, "quartz", limit=100)["mode"] == "hybrid"
        daemon.stop()
        assert_nothing_is_left_over(daemon.database)


def test_reindex_ends_when_the_configuration_changes(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (_, connection, service):
        for number in range(200):  # more than are embedded at once
            store(connection, f"m{number}", f"quartz number {number}")
        settled(connection)
        behaviour.go_on.clear()
        configure(connection, "embedder_model", "b")
        job = connection.call("reindex")["jobId"]
        until_building(connection, service)
        configure(connection, "embedder_model", "a")
        behaviour.go_on.set()
        done = finish(connection, job)
        assert done["state"] in ("failed", "cancelled")
        assert settled(connection)["vectors"] == "ready"


def test_reindex_survives_a_migration_that_has_nothing_to_do(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (_, connection, service):
        fill(connection)
        settled(connection)
        behaviour.go_on.clear()
        configure(connection, "embedder_model", "b")
        job = connection.call("reindex")["jobId"]
        until_building(connection, service)
        assert connection.call("db.migrate")["applied"] == []
        behaviour.go_on.set()
        assert finish(connection, job)["state"] == "done"


def test_reindex_ends_when_a_backup_is_restored(home: Path) -> None:
    behaviour = Switchable()
    with remote(home, behaviour) as (daemon, connection, _):
        fill(connection)
        settled(connection)
        backup = finish(connection, connection.call("backup.create")["jobId"])["result"]["path"]
        behaviour.go_on.clear()
        job = connection.call("reindex")["jobId"]
        eventually(lambda: status(connection)["building"], "the new index is being made")
        connection.call("backup.restore", path=backup)
        behaviour.go_on.set()
        done = finish(connection, job)
        assert done["state"] == "failed"
        assert done["error"] == "the database was opened again meanwhile; start the reindex again"
        reindex(connection)
        assert settled(connection)["live"]["vectors"] == 40
        daemon.stop()
        assert_nothing_is_left_over(daemon.database)


def test_reindex_may_name_the_embedder(empty_index: RawConnection) -> None:
    fill(empty_index)
    reindex(empty_index, embedder="none")
    assert status(empty_index)["live"]["provider"] == "none"
    reindex(empty_index, embedder="static")
    assert status(empty_index)["live"]["vectors"] == 40


def test_reindex_progress_goes_to_the_caller(empty_index: RawConnection) -> None:
    fill(empty_index)
    job = empty_index.call("reindex")["jobId"]
    finish(empty_index, job)

    def told() -> list[dict[str, Any]]:
        empty_index.call("health")  # reading its answer, what was told comes in too
        return [one["params"] for one in empty_index.notifications if one["method"] == "$/progress"]

    eventually(lambda: told()[-1]["state"] == "done", "its end is told")
    assert {one["id"] for one in told()} == {job}
    assert json.dumps(told()[-1]["result"])
