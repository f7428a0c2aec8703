"""Other clients are answered while one sends something large, and its writes keep their order."""

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.stalls import CASES, MEGABYTE, Pinger, prose, run_case, window
from helpers.store import message, request
from helpers.waiting import eventually, settled

SIZE = 6 * MEGABYTE
MAX_SHARE_OF_REQUEST = 0.3
MAX_TIMES_ORDINARY = 10
ORDINARY_MESSAGES = 300


@pytest.fixture
def slow_rpc(shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """A connection that waits long for a reply: requests are large."""
    with shared_daemon.connect(timeout=100) as raw:
        yield raw


@pytest.mark.parametrize(
    "name",
    [
        "upsertMessage, assignments",
        "upsertMessage, metadata of many keys",
        "upsertSessionError",
        "events.batch of 5,000",
        "hook.event, claude-code tool",
        "thread.create, metadata",
        "config.set, text",
        "recall.hook, huge prompt",
        "frame of empty arrays",
    ],
)
def test_large_input_does_not_keep_another_client_waiting(
    shared_daemon: DaemonProcess, slow_rpc: RawConnection, name: str
) -> None:
    """The worst answer is compared with the time that the request itself takes, which it was nearly equal to, and with
    the worst answer during ordinary events: both grow with whatever else the machine does."""
    with Pinger(shared_daemon) as pinger:
        with window() as ordinary:
            for number in range(ORDINARY_MESSAGES):
                slow_rpc.call("upsertMessage", message=message(f"ordinary-{number}"))
        stall = run_case(shared_daemon, CASES[name], SIZE, settle_seconds=0)
        (_, worst), (_, usual) = pinger.worst(stall.window), pinger.worst((ordinary[0], ordinary[1]))
    assert worst < max(MAX_SHARE_OF_REQUEST * stall.seconds, MAX_TIMES_ORDINARY * usual), stall


@pytest.mark.parametrize(
    "asked",
    [
        {"query": "which part of the report", "diversity": 0.5, "pool": 1000},
        {"query": f"speaker7 said {'some words of a log ' * 45_000}"},
    ],
    ids=["diversity in a large pool", "a megabyte among many speakers"],
)
def test_large_search_does_not_keep_another_client_waiting(
    shared_daemon: DaemonProcess, slow_rpc: RawConnection, rpc: RawConnection, asked: dict[str, Any]
) -> None:
    chance = random.Random(1)
    words = [f"{chr(97 + number % 26)}{number}" for number in range(2_000)]
    for number in range(1_000):
        text = f"part {number} of the report: {' '.join(chance.choices(words, k=60))}"
        said = message(f"m{number}", f"s{number % 20}", text) | {"role": f"speaker{number % 200}"}
        slow_rpc.call("upsertMessage", message=said)
    settled(slow_rpc)
    slow_rpc.call("search", query="report")  # loads what searches keep in memory
    with Pinger(shared_daemon) as pinger:
        with window() as ordinary:
            for number in range(ORDINARY_MESSAGES):
                slow_rpc.call("upsertMessage", message=message(f"ordinary-{number}"))
        with window() as searching:
            slow_rpc.call("search", **asked)
        (_, worst), (_, usual) = (pinger.worst((one[0], one[1])) for one in (searching, ordinary))
    seconds = searching[1] - searching[0]
    assert worst < max(MAX_SHARE_OF_REQUEST * seconds, MAX_TIMES_ORDINARY * usual)


def test_writes_of_a_connection_keep_their_order_around_a_large_one(slow_rpc: RawConnection) -> None:
    texts = ["first", prose(2 * MEGABYTE), "third", prose(MEGABYTE), "last"]
    sent = [request(number, "upsertMessage", message=message("one", text=text)) for number, text in enumerate(texts)]
    for each in sent:
        slow_rpc.send(each)
    assert all("result" in slow_rpc.receive() for _ in sent)
    stored = slow_rpc.call("query", sql="SELECT text_content AS text FROM messages WHERE id = 'one'")
    assert stored["rows"] == [["last"]]


def test_request_after_a_large_write_sees_it_deleted(slow_rpc: RawConnection) -> None:
    slow_rpc.send(request(1, "upsertMessage", message=message("gone", session="going", text=prose(2 * MEGABYTE))))
    slow_rpc.send(request(2, "upsertSession", session={"id": "going", "title": "after"}))
    slow_rpc.send(request(3, "session.delete", id="going"))
    replies = {reply["id"]: reply for reply in (slow_rpc.receive() for _ in range(3))}
    assert all("result" in reply for reply in replies.values())
    assert "error" in slow_rpc.request("session.get", {"id": "going"})


def test_large_request_that_fails_lets_the_next_one_start(slow_rpc: RawConnection) -> None:
    slow_rpc.send(request(1, "upsertMessage", message={"id": "nobody", "textContent": prose(MEGABYTE)}))
    slow_rpc.send(request(2, "upsertMessage", message=message("somebody")))
    replies = {reply["id"]: reply for reply in (slow_rpc.receive() for _ in range(2))}
    assert replies[1]["error"]["data"] == {"field": "sessionId"}
    assert "result" in replies[2]


def test_batch_of_calls_with_large_ones_is_answered_whole(slow_rpc: RawConnection) -> None:
    texts = [prose(300_000), "short", prose(200_000), "short too"]
    slow_rpc.send([request(n, "upsertMessage", message=message(f"b{n}", text=text)) for n, text in enumerate(texts)])
    assert sorted(reply["id"] for reply in slow_rpc.receive()) == [0, 1, 2, 3]


def test_connection_that_leaves_while_its_large_request_is_prepared_harms_nobody(
    shared_daemon: DaemonProcess,
) -> None:
    with shared_daemon.connect() as leaving:
        leaving.send(request(1, "upsertMessage", message=message("left", text=prose(3 * MEGABYTE))))
        leaving.send(request(2, "upsertMessage", message=message("after")))
    with shared_daemon.connect() as other:
        assert other.call("upsertMessage", message=message("other")) == {"ok": True}


def test_long_text_is_found_by_its_last_words_once_it_is_indexed(slow_rpc: RawConnection) -> None:
    slow_rpc.call("upsertMessage", message=message("long", text=f"{prose(2 * MEGABYTE)}\nquetzalcoatl"))
    settled(slow_rpc)
    hits = slow_rpc.call("search", query="quetzalcoatl", mode="keyword")["hits"]
    assert hits
    pieces = slow_rpc.call("query", sql="SELECT count(*) FROM chunks WHERE message_id = 'long'")["rows"][0][0]
    assert pieces > 1000


def test_log_line_of_a_client_is_bounded(slow_rpc: RawConnection) -> None:
    for entry in ({"message": "x" * 100_000}, {"message": "m", "context": {"text": "x" * 100_000}}):
        assert "65536 bytes - at `$.entry." in slow_rpc.request("log.write", {"entry": entry})["error"]["message"]


def test_hook_event_that_comes_twice_counts_once(shared_daemon: DaemonProcess, slow_rpc: RawConnection) -> None:
    event = {
        "hook_event_name": "UserPromptSubmit",
        "session_id": "h",
        "prompt_id": "p",
        "prompt": "why?",
    }
    params: dict[str, Any] = {"harness": "claude-code", "at": 1_700_000_000_000, "event": event}

    def count() -> int:
        report = slow_rpc.call("capture.status")
        [harness] = [each for each in report["harnesses"] if each["harness"] == "claude-code"]
        return int(harness["events"])

    slow_rpc.call("hook.event", **params)
    before = count()
    slow_rpc.call("hook.event", **params)
    spool = shared_daemon.data / "spool"
    spool.mkdir(exist_ok=True)
    (spool / f"{time.time_ns()}-1.json").write_text(json.dumps(params))
    slow_rpc.call("hook.event", **params)  # replays the spool first
    eventually(lambda: not list(spool.glob("*.json")), "the spool is empty")
    assert count() == before
    slow_rpc.call("hook.event", **params | {"at": params["at"] + 1})
    assert count() == before + 1
