"""Methods that a viewer needs: windows of a timeline, turns, files, the ledger of recall, strength over time."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers.clock import DAY_SECONDS, ClockedDaemon
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import settled

T0 = 1_700_000_000_000
PROJECT = "/home/me/shop"


def store(connection: RawConnection, *events: dict[str, Any]) -> None:
    assert connection.call("events.batch", events=list(events))["ok"]


def said(number: int, role: str = "user", text: str = "", **fields: Any) -> dict[str, Any]:
    given = {"id": f"m-{number:03}", "sessionId": "s", "role": role, "textContent": text or f"text {number}"}
    return {"message": given | {"createdAt": T0 + number * 1000} | fields}


def called(number: int, name: str = "Bash", **fields: Any) -> dict[str, Any]:
    given = {"id": f"t-{number:03}", "sessionId": "s", "toolName": name, "success": True}
    return {"tool": given | {"createdAt": T0 + number * 1000 + 1} | fields}


def entry_ids(timeline: dict[str, Any]) -> list[str]:
    return [entry[entry["kind"]]["id"] for entry in timeline["entries"]]


def test_timeline_window_starts_at_a_position_or_around_an_entry(rpc: RawConnection) -> None:
    store(rpc, *(event for number in range(50) for event in (said(number), called(number))))
    whole = entry_ids(rpc.call("session.timeline", sessionId="s", limit=1000))

    window = rpc.call("session.timeline", sessionId="s", limit=10, position=33)
    assert (entry_ids(window), window["position"]) == (whole[33:43], 33)
    around = rpc.call("session.timeline", sessionId="s", limit=10, around="t-020")
    assert (entry_ids(around), around["position"]) == (whole[36:46], 36)
    first = rpc.call("session.timeline", sessionId="s", limit=10, around="m-000")
    assert first["position"] == 0
    following = rpc.call("session.timeline", sessionId="s", limit=10, cursor=window["cursor"])
    assert entry_ids(following) == whole[43:53]
    assert rpc.request("session.timeline", {"sessionId": "s", "around": "none"})["error"]["code"] == 4004
    both = rpc.request("session.timeline", {"sessionId": "s", "around": "m-000", "position": 1})
    assert "only one of" in both["error"]["message"]


def test_long_texts_of_a_timeline_are_cut_and_read_in_full_one_by_one(rpc: RawConnection) -> None:
    store(rpc, said(1, text="x" * 5000), called(2, toolOutput="y" * 3000, toolInput="z"))
    message, tool = rpc.call("session.timeline", sessionId="s", maxCharacters=100)["entries"]
    assert (len(message["message"]["textContent"]), message["cut"]) == (100, {"textContent": 5000})
    assert (len(tool["tool"]["toolOutput"]), tool["cut"]) == (100, {"toolOutput": 3000})
    full = rpc.call("session.entry", id="t-002")
    assert (full["kind"], full["tool"]["toolOutput"], full["cut"]) == ("tool", "y" * 3000, None)
    assert rpc.request("session.entry", {"id": "none"})["error"]["code"] == 4004


def test_tool_calls_are_searched_in_full_newest_first(rpc: RawConnection) -> None:
    store(
        rpc,
        {"session": {"id": "s", "title": "Deploy", "projectPath": PROJECT}},
        called(1, toolOutput="first line\nConnection refused by db-7.internal " + "x" * 900),
        called(2, toolInput='{"new_string": "retry on 100%_refused"}', toolOutput="ok"),
        called(3, toolOutput="nothing", errorMessage="REFUSED: no such connection", success=False),
    )

    def ids(**given: Any) -> list[str]:
        return [one["toolId"] for one in rpc.call("tool.search", **given)["hits"]]

    assert ids(query="refused") == ["t-003", "t-002", "t-001"]
    assert ids(query="connection refused") == ["t-003", "t-001"]
    assert ids(query="100%_r") == ["t-002"]
    assert (
        ids(query="refused", project="/elsewhere") == ids(query="   ") == ids(query="refused", sessionId="other") == []
    )
    assert ids(query="refused", project=PROJECT, since=T0 + 2001, until=T0 + 3001) == ["t-002"]
    first = rpc.call("tool.search", query="connection REFUSED", limit=1)
    assert (first["hits"][0]["success"], first["scanned"], first["scannedBackTo"]) == (False, 1, T0 + 3001)
    older = rpc.call("tool.search", query="connection REFUSED", limit=1, cursor=first["cursor"])
    (hit,) = older["hits"]
    assert (hit["sessionTitle"], hit["projectPath"], older["scanned"], older["cursor"]) == ("Deploy", PROJECT, 2, None)
    assert hit["snippet"].startswith("first line «Connection» «refused» by db-7.internal xxx")
    assert hit["snippet"].endswith("x …")


def test_tool_calls_are_found_by_every_term_or_the_query_is_refused(rpc: RawConnection) -> None:
    """Terms after the 16th were ignored: calls without them were found."""
    words = [f"word{number}" for number in range(40)]
    store(rpc, called(1, toolOutput=" ".join(words)), called(2, toolOutput=" ".join(words[:20])))
    for query, found in ((words, ["t-001"]), (words[:20], ["t-002", "t-001"]), (words * 3, ["t-001"])):
        hits = rpc.call("tool.search", query=" ".join(query))["hits"]
        assert [one["toolId"] for one in hits] == found
    many = " ".join(f"term{number}" for number in range(65))
    assert "at `$.query`" in rpc.request("tool.search", {"query": many})["error"]["message"]


def test_turns_outline_a_session(rpc: RawConnection) -> None:
    store(
        rpc,
        said(0, "assistant", "before"),
        said(1, text="first prompt"),
        said(2, "assistant", promptTokens=100, completionTokens=10),
        called(3),
        called(4, success=False),
        said(5, "assistant", promptTokens=150, completionTokens=20),
        said(6, text="second prompt"),
        {"sessionError": {"id": "e", "sessionId": "s", "errorMessage": "bad", "createdAt": T0 + 7000}},
    )
    found = rpc.call("session.turns", sessionId="s")
    assert (found["total"], found["entries"]) == (3, 8)
    before, first, second = found["turns"]
    assert (before["id"], before["position"], before["entries"]) == (None, 0, 1)
    assert (first["id"], first["text"], first["position"], first["entries"]) == ("m-001", "first prompt", 1, 5)
    assert (first["tools"], first["failedTools"], first["messages"]) == (2, 1, 3)
    assert (first["contextTokens"], first["promptTokens"], first["completionTokens"]) == (150, 250, 30)
    assert (second["errors"], second["contextTokens"], second["position"]) == (1, None, 6)
    assert rpc.call("session.turns", sessionId="s", first=2)["turns"] == [second]
    assert rpc.request("session.turns", {"sessionId": "none"})["error"]["code"] == 4004


def test_sessions_are_listed_with_their_subagents_and_without_short_ones(rpc: RawConnection) -> None:
    store(
        rpc,
        {"session": {"id": "parent-1", "title": "Fix the parser", "createdAt": T0}},
        {"session": {"id": "child-1", "metadata": {"parentId": "parent-1"}, "createdAt": T0 + 1}},
        {"session": {"id": "short-1", "createdAt": T0 + 2}},
        *({"message": {"id": f"p{n}", "sessionId": "parent-1", "role": "user", "textContent": "x"}} for n in range(3)),
    )

    def listed(**params: Any) -> list[str]:
        page = rpc.call("session.list", count=True, **params)
        assert page["total"] == len(page["sessions"])
        return [one["id"] for one in page["sessions"]]

    assert listed() == ["short-1", "child-1", "parent-1"]
    assert listed(topLevel=True) == ["short-1", "parent-1"]
    assert listed(parentId="parent-1") == ["child-1"]
    assert listed(topLevel=True, skipShort=True) == ["parent-1"]
    assert listed(query="PARSER") == ["parent-1"]
    page = rpc.call("session.list", count=True, limit=1)
    assert (len(page["sessions"]), page["total"]) == (1, 3)
    assert rpc.call("session.get", id="parent-1")["subagents"] == 1
    scripted = [{"session": {"id": f"cron-{n}", "userPrompt": "Check the logs", "createdAt": T0 + n}} for n in range(3)]
    store(rpc, *scripted[:2])
    assert len(listed(skipAutomated=True)) == 5
    store(rpc, scripted[2])
    assert listed(skipAutomated=True) == ["short-1", "child-1", "parent-1"]
    typed = {"userPrompt": "Check the logs", "metadata": {"entrypoint": "cli"}, "createdAt": T0 + 9}
    store(rpc, {"session": {"id": "typed-1"} | typed}, {"session": {"id": "ran-1", "metadata": {"entrypoint": "exec"}}})
    automated = {one["id"]: one["automated"] for one in rpc.call("session.list")["sessions"]}
    assert (automated["cron-1"], automated["typed-1"], automated["ran-1"]) == ("likely", None, "reported")
    assert "typed-1" in listed(skipAutomated=True)
    assert "ran-1" not in listed(skipAutomated=True)
    assert rpc.call("session.get", id="ran-1")["automated"] == "reported"


def test_files_are_listed_with_calls_edits_and_the_prompt_before_each(rpc: RawConnection) -> None:
    store(
        rpc,
        {"session": {"id": "s", "title": "Fix", "projectPath": PROJECT, "createdAt": T0}},
        said(1, text="make it faster"),
        called(2, "Read", filePath="/shop/cart.py"),
        called(3, "Edit", filePath="/shop/cart.py", success=False),
        said(4, text="and tested"),
        called(5, "Write", filePath="/shop/test_cart.py"),
    )
    found = rpc.call("file.list")
    assert found["total"] == 2
    assert [one["path"] for one in found["files"]] == ["/shop/test_cart.py", "/shop/cart.py"]
    cart = found["files"][1]
    assert (cart["calls"], cart["edits"], cart["failures"], cart["sessions"]) == (2, 1, 1, 1)
    assert [one["path"] for one in rpc.call("file.list", query="TEST_", project=PROJECT)["files"]] == [
        "/shop/test_cart.py"
    ]
    assert rpc.call("file.list", project="/none")["total"] == 0

    page = rpc.call("file.history", path="/shop/cart.py", limit=1)
    assert (page["total"], page["touches"][0]["tool"]["toolName"]) == (2, "Edit")
    assert (page["touches"][0]["prompt"], page["touches"][0]["sessionTitle"]) == ("make it faster", "Fix")
    older = rpc.call("file.history", path="/shop/cart.py", limit=1, cursor=page["cursor"])
    assert (older["touches"][0]["tool"]["toolName"], older["cursor"]) == ("Read", None)


def test_ledger_says_what_was_told_from_what_and_whether_it_was_used(rpc: RawConnection) -> None:
    rpc.call("daemon.configure", key="recall_seconds", value=60)
    fact = "The invoice exporter rounds with Decimal quantize in rounding.py since the cents incident."
    memory = rpc.call("memory.add", content=fact, importance=0.9)["memory"]
    settled(rpc)
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": PROJECT}
    prompt = "How does the invoice exporter round cents?"
    rpc.call("upsertMessage", message={"id": "asked", "sessionId": "s", "role": "user", "textContent": prompt})
    output = rpc.call("recall.hook", harness="codex", event=event | {"prompt": prompt})["output"]
    assert memory["id"][:8] in str(output) or "quantize" in str(output)

    def entry() -> Any:
        (one,) = rpc.call("recall.ledger", sessionId="s")["entries"]
        return one

    told = entry()
    assert (told["kind"], told["prompt"], told["sessionId"]) == ("prompt", prompt, "s")
    (chosen,) = [one for one in told["considered"] if one["chosen"]]
    assert (chosen["id"], chosen["strength"] >= chosen["needed"]) == (memory["id"], True)
    (item,) = [one for one in told["items"] if one["id"] == memory["id"]]
    assert (item["kind"], item["text"], item["timesTold"], item["outcome"]) == ("memory", fact, 1, None)

    def answer(text: str) -> str:
        fields = {"id": "answer", "sessionId": "s", "role": "assistant", "textContent": text}
        rpc.call("upsertMessage", message=fields | {"createdAt": told["at"] + 10})
        return str(next(one["outcome"] for one in entry()["items"] if one["id"] == memory["id"]))

    assert answer("I do not know.") == "ignored"
    assert answer("It calls Decimal.quantize in rounding.py, since the cents incident: quantize rounds.") == "used"
    assert rpc.call("recall.ledger", memoryId=memory["id"])["total"] == 1
    assert rpc.call("recall.ledger", memoryId="none") == {"entries": [], "total": 0, "cursor": None}
    totals = rpc.call("recall.totals", since=told["at"])
    assert (totals["injections"], totals["sessionCount"], totals["since"]) == (1, 1, told["at"])
    assert totals["itemCount"] == len(totals["items"]) == len(told["items"])
    assert rpc.call("recall.totals", since=told["at"] + 1)["injections"] == 0
    (of_memory,) = [one for one in totals["items"] if one["id"] == memory["id"]]
    assert (of_memory["told"], of_memory["used"], of_memory["ignored"], of_memory["text"]) == (1, 1, 0, fact)
    (of_session,) = totals["sessions"]
    assert (of_session["id"], of_session["used"], of_session["characters"]) == ("s", 1, told["characters"])
    assert rpc.call("recall.totals", memoryId=memory["id"])["items"] == [of_memory]
    again = rpc.call("recall.preview", kind="prompt", query=prompt, project=PROJECT, sessionId="s")
    (candidate,) = [one for one in again["considered"] if one["id"] == memory["id"]]
    assert (candidate["chosen"], candidate["why"]) == (False, "already injected in this session")


def test_strength_of_a_memory_falls_until_it_is_archived(rpc: RawConnection) -> None:
    memory = rpc.call("memory.add", content="We tried Redis once, it was slow.", sector="episodic", importance=0.1)[
        "memory"
    ]
    strength = rpc.call("memory.strength", id=memory["id"])
    assert strength["past"][-1]["salience"] == pytest.approx(memory["salience"], abs=0.01)
    future = [point["salience"] for point in strength["future"]]
    assert future == sorted(future, reverse=True)
    assert strength["archiveAt"] > memory["createdAt"]
    assert future[-1] < strength["archiveBelow"] <= future[0]
    rpc.call("memory.pin", id=memory["id"])
    assert rpc.call("memory.strength", id=memory["id"])["archiveAt"] is None


def test_closed_relations_of_the_graph_are_marked(rpc: RawConnection) -> None:
    one, two = (
        rpc.call("memory.add", content=text, force=True)["memory"]["id"] for text in ("Use tabs.", "Ada decides.")
    )
    relation = rpc.call("relation.add", source=one, target=two, type="DEPENDS_ON")
    (edge,) = rpc.call("graph.neighbors", id=one, throughEntities=False)["edges"]
    assert edge["closed"] is False
    rpc.call("relation.close", id=relation["id"])
    (edge,) = rpc.call("graph.neighbors", id=one, throughEntities=False, includeClosed=True)["edges"]
    assert edge["closed"] is True


def test_searches_and_silent_prompts_are_stored_without_secrets(rpc: RawConnection) -> None:
    rpc.call("daemon.configure", key="recall_seconds", value=60)
    fact = "The invoice exporter rounds with Decimal quantize in rounding.py since the cents incident."
    memory = rpc.call("memory.add", content=fact)["memory"]["id"]
    settled(rpc)
    secret = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    query = "how does the exporter round?"
    rpc.call("search", query=query, scopes=["*"])
    rpc.call("search", query=f"token {secret}", scopes=["*"])
    rpc.call("search", query="looking around", scopes=["*"], recorded=False)
    arguments = {"name": "search", "arguments": {"query": "exporter cents", "everywhere": True}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}
    rpc.call("mcp.message", project=PROJECT, message=message)
    call = {"id": "t", "sessionId": "s", "toolName": "mcp__clankers__search", "toolInput": f'{{"query": "{query}"}}'}
    rpc.call("upsertTool", tool=call)

    by_mcp, with_secret, asked = rpc.call("recall.recent")["searches"]
    assert by_mcp["query"] == "exporter cents"
    assert secret not in with_secret["query"]
    (hit,) = [one for one in asked["hits"] if one["memoryId"] == memory]
    assert (hit["text"], hit["components"]["keyword"] > 0) == (fact, True)
    assert (asked["sessionId"], asked["toolId"]) == ("s", "t")
    of_session = rpc.call("recall.recent", sessionId="s")
    assert [one["query"] for one in of_session["searches"]] == [query]
    assert (of_session["searchCount"], of_session["since"]) == (1, asked["at"])
    assert rpc.call("recall.recent", beforeId=with_secret["id"])["searches"] == [asked]
    stored = rpc.call("query", sql="SELECT count(*), group_concat(query || facts_json) FROM recall_log")["rows"][0]
    assert (stored[0], secret in stored[1], fact in stored[1]) == (3, False, False)

    prompt = "Please paint the garden fence green, with quantize of something, and tell nobody about the exporter."
    rpc.call("upsertMessage", message={"id": "asked", "sessionId": "s", "role": "user", "textContent": prompt})
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": PROJECT, "prompt": prompt}
    assert rpc.call("recall.hook", harness="codex", event=event)["output"] is None
    preview = rpc.call("recall.preview", kind="prompt", query=prompt, project=PROJECT)
    assert fact in [one["text"] for one in preview["considered"]]
    (silent,) = rpc.call("recall.recent", sessionId="s")["silent"]
    assert (silent["promptId"], silent["prompt"]) == ("asked", prompt)
    (candidate,) = [one for one in silent["considered"] if one["id"] == memory]
    assert (candidate["strength"] < candidate["needed"], candidate["text"]) == (True, fact)

    rpc.call("memory.purge", id=memory)
    (asked,) = [one for one in rpc.call("recall.recent")["searches"] if one["query"] == query]
    assert [one["text"] for one in asked["hits"] if one["memoryId"] == memory] == [None]


@pytest.mark.parametrize("scopes", [None, ["*"]])
def test_facet_of_projects_ignores_the_project_that_is_given(rpc: RawConnection, scopes: list[str] | None) -> None:
    for name, count in (("s", 3), ("t", 2)):
        store(rpc, {"session": {"id": name, "projectPath": f"{PROJECT}/{name}", "createdAt": T0}})
        for number in range(count):
            said_there = {"id": f"{name}{number}", "sessionId": name, "role": "user", "textContent": "the lamp glows"}
            store(rpc, {"message": said_there})
    rpc.call("memory.add", content="Our lamp glows at night.", scope=f"project:{PROJECT}/s")
    settled(rpc)
    of_all = rpc.call("search.facets", query="lamp glows", scopes=["*"])
    of_one = rpc.call("search.facets", query="lamp glows", scopes=scopes, project=f"{PROJECT}/s")
    assert (of_one["total"], of_one["words"]) == (4, "all")
    assert of_one["projects"] == of_all["projects"]
    assert [one["count"] for one in of_one["projects"]] == [4, 2]
    users = rpc.call("search.facets", query="lamp glows", scopes=scopes, project=f"{PROJECT}/t", role="user")
    assert ([one["count"] for one in users["projects"]], users["total"]) == ([3, 2], 2)


def test_facets_count_all_texts_with_the_words(rpc: RawConnection) -> None:
    store(
        rpc,
        {"session": {"id": "s", "projectPath": PROJECT, "createdAt": T0}},
        *(said(number, "user" if number % 3 else "assistant", f"the lamp glows {number}") for number in range(30)),
        said(40, text="a lamp alone"),
    )
    rpc.call("memory.add", content="The lamp glows at night.", scope="global")
    settled(rpc)

    def counted(**params: Any) -> tuple[int, dict[str, int], dict[str, int]]:
        found = rpc.call("search.facets", query="lamp glows", scopes=["*"], **params)
        assert (found["words"], found["capped"]) == ("all", False)
        sources, roles = ({one["value"]: one["count"] for one in found[name]} for name in ("sources", "roles"))
        return found["total"], sources, roles

    sources = {"sessions": 30, "memories": 1}
    assert counted() == (31, sources, {"user": 20, "assistant": 10})
    assert counted(role="user") == (20, {"sessions": 20}, {"user": 20, "assistant": 10})
    assert counted(sources=["memories"]) == (1, sources, {})
    (project,) = rpc.call("search.facets", query="lamp glows", scopes=["*"])["projects"]
    assert (project["count"], counted(project=project["value"])[0]) == (30, 30)
    assert rpc.call("search.facets", query="alone glows zebra", scopes=["*"])["words"] == "any"
    assert rpc.call("search.facets", query="unheard")["total"] == 0
    words = [f"w{chr(97 + number)}x" for number in range(20)]
    store(rpc, said(50, text=" ".join(words)), said(51, text=" ".join(words[:18])))
    settled(rpc)
    found = rpc.call("search.facets", query=" ".join(words))
    assert (found["words"], found["total"], found["degraded"]) == ("all", 1, None)
    many = rpc.call("search.facets", query=" ".join(f"word{number}" for number in range(100)))
    assert many["degraded"] == "of 100 words the first 40 and the last 24 were searched for"


def test_recorded_searches_survive_a_restart(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        connection.call("search", query="where are the keys?")
        connection.call("recall.recent")  # stores it: a pause may begin in the same millisecond
        connection.call("capture.pause")
        connection.call("search", query="nobody should know")
        assert len(connection.call("recall.recent")["searches"]) == 1, "nothing is recorded while capture is paused"
        connection.call("capture.resume")
        connection.call("search", query="asked just before the end")
    fresh_daemon.stop()
    fresh_daemon.close()
    fresh_daemon.start()
    with fresh_daemon.connect() as connection:
        recent = connection.call("recall.recent")
    assert [one["query"] for one in recent["searches"]] == ["asked just before the end", "where are the keys?"]
    assert recent["searchCount"] == 2


def tell(connection: RawConnection, session: str, text: str) -> str:
    """Store a memory that recall injects in the session; returns its id."""
    connection.call("daemon.configure", key="recall_seconds", value=60)
    memory = str(connection.call("memory.add", content=text, importance=0.9, force=True)["memory"]["id"])
    settled(connection)
    prompt = "How does the invoice exporter round cents?"
    asked = {"id": f"asked-{session}", "sessionId": session, "role": "user", "textContent": prompt}
    connection.call("upsertMessage", message=asked)
    event = {"hook_event_name": "UserPromptSubmit", "session_id": session, "cwd": PROJECT, "prompt": prompt}
    assert connection.call("recall.hook", harness="codex", event=event)["output"]
    answer = {"id": f"answer-{session}", "sessionId": session, "role": "assistant", "textContent": "I do not know."}
    connection.call("upsertMessage", message=answer)
    return memory


def outcome(connection: RawConnection, session: str, memory: str) -> str | None:
    (entry,) = connection.call("recall.ledger", sessionId=session)["entries"]
    (item,) = [one for one in entry["items"] if one["id"] == memory]
    return str(item["outcome"]) if item["outcome"] else None


FACT = "The invoice exporter rounds cents with Decimal quantize in rounding.py since the incident."


def test_item_that_its_session_superseded_or_deleted_was_contradicted(rpc: RawConnection) -> None:
    memory = tell(rpc, "s", FACT)
    assert outcome(rpc, "s", memory) == "ignored"
    rpc.call("memory.delete", id=memory)
    assert outcome(rpc, "s", memory) == "contradicted"
    rpc.call("memory.restore", id=memory)
    assert outcome(rpc, "s", memory) == "ignored"

    rpc.call("upsertSession", session={"id": "another"})
    elsewhere = {"content": "It rounds half even, says another session.", "supersedes": memory, "sessionId": "another"}
    rpc.call("memory.add", **elsewhere)
    assert outcome(rpc, "s", memory) == "ignored"
    rpc.call("memory.restore", id=memory)
    newer = {"content": "The exporter truncates the amounts.", "supersedes": memory, "sessionId": "s"}
    rpc.call("memory.add", **newer)
    assert outcome(rpc, "s", memory) == "contradicted"
    (total,) = rpc.call("recall.totals", memoryId=memory)["items"]
    assert (total["told"], total["contradicted"], total["ignored"]) == (1, 1, 0)
    rpc.call("memory.restore", id=memory)
    assert outcome(rpc, "s", memory) == "ignored"


def test_item_that_was_deleted_long_after_its_session_was_not_contradicted() -> None:
    with tempfile.TemporaryDirectory(prefix="clk-") as home:
        daemon = ClockedDaemon(Path(home))
        try:
            with daemon.start().connect() as connection:
                memory = tell(connection, "s", FACT)
                daemon.set_clock(DAY_SECONDS)
                connection.call("memory.delete", id=memory)
                assert outcome(connection, "s", memory) == "ignored"
        finally:
            daemon.stop()
            daemon.close()
