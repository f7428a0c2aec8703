"""Reading captured sessions: pages, timelines, statistics, projects."""

from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

T0 = 1700000000000


def store(connection: RawConnection, *events: dict[str, Any]) -> None:
    assert connection.call("events.batch", events=list(events))["ok"]


def session(number: int, **fields: Any) -> dict[str, Any]:
    return {"session": {"id": f"session-{number:04}", "createdAt": T0 + number * 1000, **fields}}


def message(id_: str, session_id: str, at: int, **fields: Any) -> dict[str, Any]:
    return {"message": {"id": id_, "sessionId": session_id, "createdAt": T0 + at, **fields}}


def ids(page: dict[str, Any], key: str) -> list[str]:
    return [row["id"] for row in page[key]]


def test_sessions_are_listed_newest_first_and_pages_cover_them_once(rpc: RawConnection) -> None:
    store(rpc, *(session(number) for number in range(25)))
    seen: list[str] = []
    cursor = None
    while True:
        page = rpc.call("session.list", limit=7, **({"cursor": cursor} if cursor else {}))
        seen += ids(page, "sessions")
        cursor = page["cursor"]
        if cursor is None:
            break
        store(rpc, session(100 + len(seen)))  # newer ones do not shift the pages
    assert seen == [f"session-{number:04}" for number in reversed(range(25))]


def test_sessions_are_filtered_by_project_source_status_and_time(rpc: RawConnection) -> None:
    store(
        rpc,
        session(1, projectPath="/a", source="opencode", status="ended"),
        session(2, projectPath="/a/", source="claude-code", status="active"),
        session(3, projectPath="/b", source="claude-code", status="active"),
    )
    (project,) = [one for one in rpc.call("project.list") if one["path"] == "/a"]
    filters_of: dict[str, dict[str, Any]] = {
        "path": {"project": "/a"},
        "slash": {"project": "/a/"},
        "id": {"project": project["id"]},
        "source": {"source": "claude-code"},
        "status": {"status": "ended"},
        "since": {"since": T0 + 2000},
        "until": {"until": T0 + 2000},
        "both": {"project": "/a", "status": "active"},
        "none": {"project": "/c"},
    }
    found = {name: ids(rpc.call("session.list", **filters), "sessions") for name, filters in filters_of.items()}
    one, two, three = (f"session-{number:04}" for number in (1, 2, 3))
    assert found == {
        "path": [two, one], "slash": [two, one], "id": [two, one], "source": [three, two], "status": [one],
        "since": [three, two], "until": [one], "both": [two], "none": [],
    }  # fmt: skip


def test_session_is_found_by_a_unique_id_prefix(rpc: RawConnection) -> None:
    store(rpc, session(1), session(2), {"session": {"id": "other-0001"}})
    assert rpc.call("session.get", id="other-00")["id"] == "other-0001"
    assert rpc.request("session.get", {"id": "session-000"})["error"]["code"] == 4009
    for unknown in ("other", "nothing-like-it"):
        error = rpc.request("session.get", {"id": unknown})["error"]
        assert (error["code"], error["message"]) == (4004, f"session not found: {unknown}")


def test_session_delete_removes_its_rows_and_no_others(rpc: RawConnection) -> None:
    before = rpc.call("daemon.status")["counts"]
    store(
        rpc,
        session(1), session(2),
        message("m1", "session-0001", 0), message("m2", "session-0002", 0),
        {"tool": {"id": "t1", "sessionId": "session-0001", "toolName": "Bash"}},
        {"sessionError": {"id": "e1", "sessionId": "session-0001"}},
        {"compactionEvent": {"id": "c1", "sessionId": "session-0001"}},
    )  # fmt: skip
    counts = {"messages": 1, "tools": 1, "failedTools": 0, "errors": 1, "compactions": 1}
    dry = rpc.call("session.delete", id="session-0001", dryRun=True)
    assert dry == {"id": "session-0001", "counts": counts, "dryRun": True}
    assert rpc.call("session.get", id="session-0001")["counts"] == counts
    assert rpc.call("session.delete", id="session-0001")["counts"] == counts
    assert rpc.request("session.delete", {"id": "session-0001"})["error"]["code"] == 4004
    assert rpc.request("session.delete", {"id": "session-0"})["error"]["code"] == 4004
    left = rpc.call("daemon.status")["counts"]
    more = {what: count - before[what] for what, count in left.items() if count != before[what]}
    assert more == {"sessions": 1, "messages": 1}


def test_messages_page_backwards_from_the_newest_oldest_first(rpc: RawConnection) -> None:
    store(rpc, *(message(f"m{number:02}", "s", number // 3) for number in range(10)))
    newest = rpc.call("message.list", sessionId="s", limit=4)
    assert ids(newest, "messages") == ["m06", "m07", "m08", "m09"]
    before = rpc.call("message.list", sessionId="s", limit=4, cursor=newest["cursor"])
    assert ids(before, "messages") == ["m02", "m03", "m04", "m05"]
    first = rpc.call("message.list", sessionId="s", limit=4, cursor=before["cursor"])
    assert ids(first, "messages") == ["m00", "m01"]
    assert first["cursor"] is None


def test_messages_are_filtered_by_role(rpc: RawConnection) -> None:
    store(rpc, message("a", "s", 0, role="user"), message("b", "s", 1, role="assistant"))
    assert ids(rpc.call("message.list", sessionId="s", role="assistant"), "messages") == ["b"]


def test_message_page_is_limited_to_what_fits_a_reply(rpc: RawConnection) -> None:
    for number in range(12):
        store(rpc, message(f"m{number:02}", "s", number, textContent="x" * 1024 * 1024))
    seen: list[str] = []
    cursor = None
    for _ in range(12):
        page = rpc.call("message.list", sessionId="s", **({"cursor": cursor} if cursor else {}))
        seen = ids(page, "messages") + seen
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == [f"m{number:02}" for number in range(12)]


def test_tools_are_filtered_by_name_file_success_and_time(rpc: RawConnection) -> None:
    store(
        rpc,
        {"tool": {"id": "a", "sessionId": "s", "toolName": "Bash", "success": False, "createdAt": T0}},
        {"tool": {"id": "b", "sessionId": "s", "toolName": "Edit", "filePath": "/f", "success": True,
                  "createdAt": T0 + 1000}},
        {"tool": {"id": "c", "sessionId": "z", "toolName": "Edit", "createdAt": T0 + 2000}},
    )  # fmt: skip
    found = [
        ids(rpc.call("tool.list", **filters), "tools")
        for filters in ({}, {"sessionId": "s"}, {"toolName": "Edit"}, {"filePath": "/f"}, {"success": False},
                        {"since": T0 + 1000}, {"until": T0 + 1000})
    ]  # fmt: skip
    assert found == [["a", "b", "c"], ["a", "b"], ["b", "c"], ["b"], ["a"], ["b", "c"], ["a"]]


def test_timeline_lists_everything_in_order_across_pages(rpc: RawConnection) -> None:
    store(
        rpc,
        message("m1", "s", 0, role="user"),
        {"tool": {"id": "t1", "sessionId": "s", "toolName": "Bash", "createdAt": T0 + 10}},
        {"sessionError": {"id": "e1", "sessionId": "s", "errorMessage": "boom", "createdAt": T0 + 10}},
        message("m2", "s", 20, role="assistant"),
        {"compactionEvent": {"id": "c1", "sessionId": "s", "tokensBefore": 9, "createdAt": T0 + 30}},
    )
    seen: list[tuple[str, str]] = []
    cursor = None
    while True:
        page = rpc.call("session.timeline", sessionId="s", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [(entry["kind"], entry[entry["kind"]]["id"]) for entry in page["entries"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == [
        ("message", "m1"),
        ("tool", "t1"),
        ("error", "e1"),
        ("message", "m2"),
        ("compaction", "c1"),
    ]
    assert rpc.call("session.errors", sessionId="s")[0]["errorMessage"] == "boom"
    assert rpc.call("session.compactions", sessionId="s")[0]["tokensBefore"] == 9


@pytest.mark.parametrize("method", ["message.list", "session.timeline", "session.errors", "session.compactions"])
def test_unknown_session_is_an_error_and_not_an_empty_page(shared_daemon: DaemonProcess, method: str) -> None:
    with shared_daemon.connect() as connection:
        error = connection.request(method, {"sessionId": "nope"})["error"]
    assert (error["code"], error["message"]) == (4004, "session not found: nope")


@pytest.mark.parametrize("cursor", ["nonsense", "", "e30", "WzFd", "💥"])
@pytest.mark.parametrize("method", ["session.list", "tool.list"])
def test_cursor_of_another_method_is_rejected(shared_daemon: DaemonProcess, method: str, cursor: str) -> None:
    with shared_daemon.connect() as connection:
        reply = connection.request(method, {"cursor": cursor})
    assert ("result" in reply) if cursor == "" else (reply["error"]["code"] == -32602)


def test_statistics_count_each_token_once_for_its_model(rpc: RawConnection) -> None:
    store(
        rpc,
        session(
            1,
            projectPath="/a",
            source="opencode",
            model="big",
            promptTokens=100,
            completionTokens=10,
            cost=0.5,
        ),
        session(2, projectPath="/b", source="claude-code", model="small", cost=0.25),
        message("m1", "session-0001", 0, model="big", promptTokens=60, completionTokens=4),
        message("m2", "session-0001", 1, model="other", promptTokens=30, completionTokens=4),
        message("m3", "session-0002", 2, promptTokens=7, completionTokens=3),
        {
            "tool": {
                "id": "t1",
                "sessionId": "session-0001",
                "toolName": "Bash",
                "success": False,
                "durationMs": 10,
            }
        },
        {
            "tool": {
                "id": "t2",
                "sessionId": "session-0001",
                "toolName": "Bash",
                "success": True,
                "durationMs": 30,
            }
        },
    )
    stats = rpc.call("stats")
    totals = stats["totals"]
    assert (totals["sessions"], totals["messages"], totals["tools"], totals["failedTools"]) == (2, 3, 2, 1)
    assert (totals["promptTokens"], totals["completionTokens"], totals["cost"]) == (107, 13, 0.75)
    models = {row["name"]: (row["promptTokens"], row["completionTokens"]) for row in stats["byModel"]}
    assert models == {"big": (70, 6), "other": (30, 4), "small": (7, 3)}
    assert {row["name"]: row["cost"] for row in stats["byProject"]} == {"/a": 0.5, "/b": 0.25}
    assert {row["name"]: row["sessions"] for row in stats["bySource"]} == {"opencode": 1, "claude-code": 1}
    assert sum(row["promptTokens"] for row in stats["byDay"]) == 107
    assert stats["tools"] == [{"name": "Bash", "calls": 2, "failures": 1, "failureRate": 0.5, "meanDurationMs": 20.0}]
    assert rpc.call("stats", project="/b")["totals"]["promptTokens"] == 7
    assert rpc.call("stats", until=T0)["totals"]["sessions"] == 0


def test_projects_are_created_when_a_path_is_first_seen(rpc: RawConnection) -> None:
    before = {project["path"] for project in rpc.call("project.list")}
    store(
        rpc,
        session(1, projectPath="/seen/first/"),
        session(2, projectPath="/seen/first"),
        session(3, projectPath="/"),
    )
    projects = {project["path"]: project for project in rpc.call("project.list")}
    assert set(projects) - before == {"/seen/first", "/"}
    assert (projects["/seen/first"]["sessions"], projects["/seen/first"]["name"]) == (2, "first")
    assert projects["/seen/first"]["lastSessionAt"] == T0 + 2000
