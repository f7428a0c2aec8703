"""Two questions about time: what was known, and what was true."""

import time

from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import eventually, settled

DAY = 86_400_000


def days_ago(days: int) -> int:
    return int(time.time() * 1000) - days * DAY


def next_millisecond(than: int) -> None:
    """Wait until the clock shows a later time."""
    eventually(lambda: int(time.time() * 1000) > than, "a millisecond passes")


def contents(connection: RawConnection, **params: object) -> set[str]:
    return {memory["content"] for memory in connection.call("memory.list", scopes=["*"], **params)["memories"]}


def fill(connection: RawConnection) -> str:
    """A fact learned today that was true from ten to five days ago, and one that is true since then."""
    old = connection.call(
        "memory.add", content="The API listened on port 8080", validFrom=days_ago(10), validUntil=days_ago(5)
    )
    connection.call("memory.add", content="The API listens on port 9090", validFrom=days_ago(5), force=True)
    return str(old["memory"]["id"])


def test_valid_at_answers_what_was_true_whenever_it_was_learned(rpc: RawConnection) -> None:
    fill(rpc)
    assert contents(rpc) == {"The API listens on port 9090"}
    assert contents(rpc, validAt=days_ago(7)) == {"The API listened on port 8080"}
    assert contents(rpc, validAt=days_ago(20)) == set()


def test_as_of_answers_what_was_known(rpc: RawConnection) -> None:
    fill(rpc)
    assert contents(rpc, asOf=days_ago(7)) == set()  # true then, but learned today
    assert contents(rpc, asOf=days_ago(7), validAt=days_ago(7)) == set()
    now = int(time.time() * 1000)
    assert contents(rpc, asOf=now, validAt=days_ago(7)) == {"The API listened on port 8080"}
    assert contents(rpc, asOf=now) == {"The API listens on port 9090"}


def test_a_correction_is_true_of_the_past_but_was_not_known_then(rpc: RawConnection) -> None:
    added = rpc.call("memory.add", content="The limit is 10", validFrom=days_ago(10))["memory"]
    rpc.call("memory.update", id=added["id"], validUntil=days_ago(3))
    assert contents(rpc, validAt=days_ago(2)) == set()
    assert contents(rpc, validAt=days_ago(4)) == {"The limit is 10"}
    known = added["createdAt"]
    assert contents(rpc, asOf=known, validAt=days_ago(2)) == {"The limit is 10"}


def test_an_unknown_time_in_an_update_changes_nothing(rpc: RawConnection) -> None:
    """0 means that a time is not known, here as in every other method."""
    times = {"validFrom": days_ago(10), "validUntil": days_ago(-10), "expiresAt": days_ago(-20)}
    added = rpc.call("memory.add", content="The limit is 10", **times)["memory"]
    updated = rpc.call("memory.update", id=added["id"], validFrom=0, validUntil=0, expiresAt=0, importance=0.7)
    assert updated["importance"] == 0.7
    assert {name: updated[name] for name in times} == times


def test_get_and_searches_take_both_times(rpc: RawConnection) -> None:
    memory = fill(rpc)
    settled(rpc)
    then = days_ago(7)
    assert rpc.call("memory.get", id=memory, validAt=then)["id"] == memory
    assert "error" in rpc.request("memory.get", {"id": memory, "validAt": days_ago(1)})
    assert "error" in rpc.request("memory.get", {"id": memory, "asOf": then})
    [hit] = rpc.call("memory.search", query="which port", scopes=["*"], validAt=then)["hits"]
    assert hit["memory"]["id"] == memory
    [hit] = rpc.call("search", query="which port", scopes=["*"], validAt=then)["hits"]
    assert hit["ref"]["memoryId"] == memory


def test_ctl_asks_both_questions(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    memory = fill(rpc)
    settled(rpc)
    listed = ctl(shared_daemon, "memory", "list", "--valid-at", "7d", "--json").json["memories"]
    assert [each["id"] for each in listed] == [memory]
    assert ctl(shared_daemon, "memory", "list", "--as-of", "7d", "--json").json["memories"] == []
    found = ctl(shared_daemon, "search", "port", "--source", "memories", "--valid-at", "7d", "--json").json["hits"]
    assert [hit["ref"]["memoryId"] for hit in found] == [memory]


def test_two_times_are_compared(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    kept = rpc.call("memory.add", content="The port is 8080", force=True)["memory"]["id"]
    rpc.call("memory.add", content="Alice owns billing", force=True)
    undone = rpc.call("memory.add", content="The lamp is left", force=True)["memory"]["id"]
    gone = rpc.call("memory.add", content="Mondays are free", force=True)["memory"]
    before = gone["createdAt"]
    next_millisecond(before)
    rpc.call("memory.update", id=kept, content="The port is 9090")
    for text in ("The lamp is right", "The lamp is left"):
        rpc.call("memory.update", id=undone, content=text)
    rpc.call("memory.delete", id=gone["id"])
    for number in range(3):
        rpc.call("memory.add", content=f"A new fact, number {number}", force=True)

    found = rpc.call("memory.compare", earlier=before, scopes=["*"], limit=2)
    counts = [found[name] for name in ("before", "after", "addedCount", "changedCount", "endedCount")]
    assert counts == [4, 6, 3, 1, 1]
    assert [memory["content"] for memory in found["added"]] == ["A new fact, number 2", "A new fact, number 1"]
    assert [(one["before"]["content"], one["after"]["content"]) for one in found["changed"]] == [
        ("The port is 8080", "The port is 9090")
    ]
    assert [(memory["content"], memory["state"]) for memory in found["ended"]] == [("Mondays are free", "current")]
    narrowed = rpc.call("memory.compare", earlier=before, scopes=["*"], query="port")
    assert [narrowed[name] for name in ("addedCount", "changedCount", "endedCount")] == [0, 1, 0]
    earliest = rpc.call("memory.compare", earlier=days_ago(1), later=before, scopes=["*"])
    assert (earliest["before"], earliest["addedCount"], earliest["endedCount"]) == (0, 4, 0)
    assert "error" in rpc.request("memory.compare", {"earlier": before, "later": before})
    assert "error" in rpc.request("memory.compare", {"later": before})

    printed = ctl(shared_daemon, "memory", "compare", "1d", "--limit", "3")
    assert "6 added, 0 changed, 0 ended" in printed.out
    assert "There are more changes" in printed.err
    assert ctl(shared_daemon, "memory", "compare", "1d", "--query", "port", "--json").json["addedCount"] == 1


def test_search_says_that_it_does_not_find_deleted_memories(rpc: RawConnection) -> None:
    memory = rpc.call("memory.add", content="The API listens on port 8080")["memory"]
    rpc.call("memory.add", content="The lamp glows at night", scope="user:ada")
    settled(rpc)
    then = int(time.time() * 1000)

    def notes(**params: object) -> list[str | None]:
        both = [rpc.call(method, query="port", asOf=then, **params) for method in ("memory.search", "search")]
        included = rpc.call("memory.search", query="port", include=["deleted", "expired"], **params)
        return [answer["degraded"] for answer in (*both, included)]

    assert notes() == [None, None, None]
    next_millisecond(then)
    rpc.call("memory.delete", id=memory["id"])
    assert contents(rpc, asOf=then) == {"The API listens on port 8080", "The lamp glows at night"}
    assert notes() == ["deleted memories are not searched, only listed (memory.list)"] * 3
    assert notes(scopes=["user:ada"]) == [None, None, None]  # none of them is deleted
    assert rpc.call("memory.search", query="port")["degraded"] is None
    assert rpc.call("memory.search", query="port", asOf=memory["createdAt"] - 1)["degraded"] is None
    assert rpc.call("search", query="port", asOf=then, sources=["sessions"])["degraded"] is None
    rpc.call("memory.purge", id=memory["id"])
    assert notes() == [None, None, None]
