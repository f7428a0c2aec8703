"""Threads of chats, their messages, and message search."""

import base64
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import eventually, settled

from clankers_protocol.errors import Conflict, InvalidParams, NotFound


def texts(page: dict[str, Any]) -> list[str]:
    return [message["textContent"] for message in page["messages"]]


def found(connection: RawConnection, **params: Any) -> list[str]:
    """The texts that a search finds, once everything is indexed."""
    settled(connection)
    return [one["message"]["textContent"] for one in connection.call("message.search", **params)["messages"]]


def test_chat_messages_include_all_its_threads(rpc: RawConnection) -> None:
    for chat, thread, at in (("room", "t1", 1), ("room", "t2", 2), ("hall", "t3", 3), ("room", "t1", 4)):
        if at < 4:
            rpc.call("thread.create", chatId=chat, id=thread)
        when = 1_700_000_000_000 + at
        rpc.call("message.store", threadId=thread, role="user", content=f"{thread} at {at}", createdAt=when)
    assert texts(rpc.call("message.list", chatId="room")) == ["t1 at 1", "t2 at 2", "t1 at 4"]
    since = rpc.call("message.list", chatId="room", since=1_700_000_000_002, until=1_700_000_000_004)
    assert texts(since) == ["t2 at 2"]


def test_message_store_in_an_opted_out_project_is_an_error(rpc: RawConnection, tmp_path: Path) -> None:
    (tmp_path / ".clankers-ignore").touch()
    rpc.call("upsertSession", session={"id": "private", "projectPath": str(tmp_path)})
    error = rpc.request("message.store", {"threadId": "private", "role": "user", "content": "hello"})["error"]
    assert error["code"] == Conflict.code
    assert "opted out" in error["message"]


def test_message_may_arrive_before_its_thread(rpc: RawConnection) -> None:
    first = rpc.call("message.store", threadId="early", role="user", content="hello")
    thread = rpc.call("thread.create", chatId="room", id="early", title="Late")
    assert (thread["chatId"], thread["messages"]) == ("room", 1)
    assert thread["createdAt"] == first["createdAt"]
    again = rpc.request("thread.create", {"chatId": "room", "id": "early"})
    assert again["error"]["code"] == Conflict.code


def test_thread_is_a_session_and_a_session_a_thread(rpc: RawConnection) -> None:
    thread = rpc.call("thread.create", chatId="room", title="T", metadata={"k": "v"})["id"]
    session = rpc.call("session.get", id=thread)
    assert (session["title"], session["chatId"], session["metadata"]) == ("T", "room", {"k": "v"})
    rpc.call("upsertSession", session={"id": "harness", "title": "From a harness", "chatId": "room"})
    rpc.call("upsertMessage", message={"id": "m", "sessionId": "harness", "role": "user", "textContent": "hi"})
    titles = {found["title"] for found in rpc.call("thread.list", chatId="room")["threads"]}
    assert titles == {"T", "From a harness"}
    assert texts(rpc.call("message.list", threadId="harness")) == ["hi"]


def test_message_stored_again_is_updated(rpc: RawConnection) -> None:
    first = rpc.call("message.store", threadId="t", role="user", content="draft", id="m", metadata={"v": 1})
    second = rpc.call("message.store", threadId="t", role="user", content="final", id="m")
    assert (second["textContent"], second["metadata"], second["createdAt"]) == ("final", {"v": 1}, first["createdAt"])
    assert texts(rpc.call("message.list", threadId="t")) == ["final"]


def test_thread_update_clears_null_fields_and_leaves_absent_ones(rpc: RawConnection) -> None:
    thread = rpc.call("thread.create", chatId="room", title="T", metadata={"k": 1})["id"]
    assert rpc.call("thread.update", id=thread, chatId="hall")["title"] == "T"
    cleared = rpc.call("thread.update", id=thread, title=None, metadata=None)
    assert (cleared["title"], cleared["metadata"], cleared["chatId"]) == (None, None, "hall")


def test_threads_are_paged_by_their_last_change(rpc: RawConnection) -> None:
    for number in range(5):
        rpc.call("thread.create", chatId="room", id=f"t{number}", createdAt=1_700_000_000_000 + number)
    rpc.call("message.store", threadId="t1", role="user", content="bump")
    first = rpc.call("thread.list", chatId="room", limit=3)
    second = rpc.call("thread.list", chatId="room", limit=3, cursor=first["cursor"])
    assert [thread["id"] for thread in first["threads"] + second["threads"]] == ["t1", "t4", "t3", "t2", "t0"]
    assert second["cursor"] is None


@pytest.fixture
def filled(rpc: RawConnection) -> RawConnection:
    """Messages of two chats, three threads, two roles and two projects."""
    rows = [
        ("room", "t1", "/src/a", "user", "the parcel never arrived", 1),
        ("room", "t1", "/src/a", "assistant", "your parcel is late", 2),
        ("room", "t2", "/src/b", "user", "where is my parcel", 3),
        ("hall", "t3", "/src/b", "user", "a parcel was damaged", 4),
    ]
    for chat, thread, project, role, content, at in rows:
        session = {"id": thread, "chatId": chat, "projectPath": project}
        rpc.call("upsertSession", session=session)
        when = 1_700_000_000_000 + at
        rpc.call("message.store", threadId=thread, role=role, content=content, createdAt=when)
    return rpc


@pytest.mark.parametrize("by", ["query", "embedding"])
@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({}, {"the parcel never arrived", "your parcel is late", "where is my parcel", "a parcel was damaged"}),
        ({"chatId": "room"}, {"the parcel never arrived", "your parcel is late", "where is my parcel"}),
        ({"chatId": "hall"}, {"a parcel was damaged"}),
        ({"chatId": "nowhere"}, set()),
        ({"threadId": "t1"}, {"the parcel never arrived", "your parcel is late"}),
        ({"project": "/src/b"}, {"where is my parcel", "a parcel was damaged"}),
        ({"role": "assistant"}, {"your parcel is late"}),
        ({"since": 1_700_000_000_003}, {"where is my parcel", "a parcel was damaged"}),
        ({"until": 1_700_000_000_002}, {"the parcel never arrived"}),
        ({"chatId": "room", "project": "/src/b", "role": "user"}, {"where is my parcel"}),
    ],
)
def test_message_search_respects_its_filters(
    filled: RawConnection, by: str, scope: dict[str, Any], expected: set[str]
) -> None:
    asked: dict[str, Any] = {"query": "parcel"} if by == "query" else {"embedding": [1.0] * 256}
    assert set(found(filled, **asked, **scope)) == expected


SPECIAL = [
    '"',
    "'",
    "*",
    "AND",
    "OR NOT",
    "NEAR(",
    "(",
    ")",
    "{}",
    "^",
    "-",
    "+",
    ":",
    "role:",
    "a.b",
    "%_",
    "\\",
    "\0",
    "«»",
]


def test_message_search_has_no_syntax_and_finds_words_among_special_characters(filled: RawConnection) -> None:
    for special in SPECIAL:
        for mode in ("keyword", "hybrid"):
            assert "error" not in filled.request("message.search", {"query": special, "mode": mode}), special
        assert len(found(filled, query=f"{special} damaged {special}", mode="keyword")) == 1, special
    assert found(filled, query="unheardof", mode="keyword") == []


def embedding_of(connection: RawConnection, text: str) -> list[float]:
    """The vector that the index holds of a text."""
    live = connection.call("query", sql="SELECT id FROM index_generations WHERE state = 'live'")["rows"][0][0]
    vectors = f"chunk_vectors_{live}"
    sql = (
        f"SELECT vec_to_json(embedding) FROM {vectors} JOIN chunks ON chunks.id = {vectors}.rowid"
        f" JOIN messages ON messages.id = message_id WHERE text_content = '{text}'"
    )
    rows = connection.call("query", sql=sql)["rows"]
    return [float(number) for number in rows[0][0].strip("[]").split(",")]


def test_message_search_by_embedding_scores_cosines_in_falling_order(filled: RawConnection) -> None:
    found(filled, query="parcel")
    vector = embedding_of(filled, "where is my parcel")
    result = filled.call("message.search", embedding=vector)["messages"]
    scores = [one["score"] for one in result]
    assert scores == sorted(scores, reverse=True)
    assert result[0]["message"]["textContent"] == "where is my parcel"
    assert math.isclose(scores[0], 1, abs_tol=1e-3)
    opposite = filled.call("message.search", embedding=[-3 * number for number in vector])["messages"]
    assert opposite[-1]["message"]["textContent"] == "where is my parcel"
    assert opposite[-1]["score"] == 0.0  # its cosine is -1
    packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    assert filled.call("message.search", embedding=packed)["messages"] == result
    refused = filled.request("message.search", {"embedding": vector, "mode": "keyword"})
    assert "at `$.mode`" in refused["error"]["message"]


def test_message_search_by_embedding_with_filters_finds_all(rpc: RawConnection) -> None:
    long = "\n\n".join(f"Paragraph {number} about ships. " + "sail anchor harbour " * 60 for number in range(12))
    for number in range(3):
        rpc.call("message.store", threadId="long", role="user", content=f"{number} {long}")
    for number in range(8):
        rpc.call("message.store", threadId="short", role="assistant", content=f"ship {number}")
    assert len(found(rpc, embedding=[1.0] * 256, limit=11)) == 11
    assert len(set(found(rpc, embedding=[1.0] * 256, limit=5, threadId="short"))) == 5


def test_message_search_returns_as_many_long_messages_as_fit_a_reply(rpc: RawConnection) -> None:
    long = "zebra " + ("x" * 79 + "\n") * 18_750
    for number in range(3):
        rpc.call("message.store", threadId="t", role="user", content=long, id=f"m{number}")
    eventually(lambda: rpc.call("index.status")["backlog"] == 0, "all is cut")
    assert len(rpc.call("message.search", query="zebra", mode="keyword", collapse=False)["messages"]) == 2


@pytest.mark.parametrize("by", ["query", "embedding"])
def test_message_search_lists_nearly_equal_messages_once_with_a_count(
    shared_daemon: DaemonProcess, rpc: RawConnection, by: str
) -> None:
    text = "explain why the migration of the billing tables locks the whole database for minutes"
    for number, last in enumerate(["today", "now please", "again"]):
        rpc.call("message.store", threadId=f"t{number}", role="user", content=f"{text} {last}")
    rpc.call("message.store", threadId="t", role="user", content=f"{text} today. {'Something else follows. ' * 50}")
    settled(rpc)
    asked: dict[str, Any] = {"query": "billing migration"} if by == "query" else {"embedding": [1.0] * 256}
    messages = rpc.call("message.search", **asked)["messages"]
    assert sorted(one["duplicates"] for one in messages) == [0, 2]
    assert len(rpc.call("message.search", **asked, collapse=False)["messages"]) == 4
    assert "2 more like it" in ctl(shared_daemon, "thread", "search", "billing", "migration").out
    assert "more like it" not in ctl(shared_daemon, "thread", "search", "billing", "--duplicates").out


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("thread.create", {}, InvalidParams.code, "chatId"),
    ("thread.create", {"chatId": ""}, InvalidParams.code, "$.chatId"),
    ("thread.create", {"chatId": "c", "metadata": [1]}, InvalidParams.code, "$.metadata"),
    ("thread.create", {"chatId": "c", "colour": "red"}, InvalidParams.code, "colour"),
    ("thread.update", {"id": "missing", "title": "x"}, NotFound.code, "missing"),
    ("thread.update", {"id": "missing", "chatId": None}, InvalidParams.code, "$.chatId"),
    ("thread.update", {"id": "missing", "title": ""}, InvalidParams.code, "$.title"),
    ("thread.update", {"id": "missing", "metadata": {}}, InvalidParams.code, "$.metadata"),
    ("thread.delete", {"id": "missing"}, NotFound.code, "thread not found: missing"),
    ("thread.get", {"id": "missing"}, NotFound.code, "thread not found: missing"),
    ("thread.list", {"cursor": "nonsense"}, InvalidParams.code, "$.cursor"),
    ("message.store", {"threadId": "t", "role": "user"}, InvalidParams.code, "content"),
    ("message.store", {"threadId": "", "role": "user", "content": "x"}, InvalidParams.code, "$.threadId"),
    ("message.store", {"threadId": "t", "role": "", "content": "x"}, InvalidParams.code, "$.role"),
    ("message.list", {}, InvalidParams.code, "exactly one of"),
    ("message.list", {"threadId": "a", "chatId": "b"}, InvalidParams.code, "exactly one of"),
    ("message.search", {}, InvalidParams.code, "exactly one of query and embedding"),
    ("message.search", {"query": "x", "embedding": [1.0] * 256}, InvalidParams.code, "exactly one of"),
    ("message.search", {"query": ""}, InvalidParams.code, "$.query"),
    ("message.search", {"embedding": []}, InvalidParams.code, "$.embedding"),
    ("message.search", {"embedding": [1.0] * 3}, InvalidParams.code, "256"),
    ("message.search", {"embedding": [0.0] * 256}, InvalidParams.code, "zero"),
    ("message.search", {"embedding": ["x"] * 256}, InvalidParams.code, "$.embedding"),
    ("message.search", {"query": "x", "limit": 0}, InvalidParams.code, "$.limit"),
    ("message.search", {"query": "x", "limit": 101}, InvalidParams.code, "$.limit"),
]


@pytest.mark.parametrize(("method", "params", "code", "names"), BAD)
def test_invalid_thread_params_are_named_and_nothing_is_stored(
    rpc: RawConnection, method: str, params: dict[str, Any], code: int, names: str
) -> None:
    error = rpc.request(method, params)["error"]
    assert error["code"] == code
    assert names in error["message"]
    assert rpc.call("thread.list")["threads"] == []


def test_message_search_tells_messages_with_the_same_beginning_by_their_ends(rpc: RawConnection) -> None:
    """Both are as long as each other, and a long paste is most of their words."""
    paste = " ".join(f"word{number}" for number in range(200))
    for name, question in (("m0", "Why is the sunflower blue?"), ("m1", "When did the tulip open?  ")):
        text = f"{paste} {question.strip():<26}."
        rpc.call("upsertMessage", message={"id": name, "sessionId": name, "role": "user", "textContent": text})
    found = rpc.call("message.search", query="word7 word8", mode="keyword")["messages"]
    assert sorted(one["message"]["id"] for one in found) == ["m0", "m1"]
