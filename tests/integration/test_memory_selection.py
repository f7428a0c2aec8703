"""Which memories a request is about: what narrows it, and what only says who asks."""

from typing import Any

import pytest
from helpers.daemon import RawConnection


def add(rpc: RawConnection, content: str, **facts: Any) -> dict[str, Any]:
    return dict(rpc.call("memory.add", content=content, **facts)["memory"])


def test_bulk_delete_with_only_a_project_is_refused(rpc: RawConnection) -> None:
    shared = add(rpc, "Everybody deploys on Tuesdays")
    own = add(rpc, "The shop is deployed by hand", project="/src/shop")
    for project in ("/src/shop", "/never/heard/of"):
        reply = rpc.request("memory.bulkDelete", {"project": project})
        assert "say which memories" in reply["error"]["message"]
    narrowed = rpc.call("memory.bulkDelete", project="/src/shop", scopes=["*"])
    assert narrowed["ids"] == [own["id"]]
    assert rpc.call("memory.get", id=shared["id"])["state"] == "current"


@pytest.mark.parametrize("query", ["lighthouse _", "__ lighthouse", "the_lighthouse", "(lighthouse) -"])
def test_punctuation_in_a_query_does_not_hide_a_memory(rpc: RawConnection, query: str) -> None:
    memory = add(rpc, "The lighthouse keeper is Ines")
    assert [one["id"] for one in rpc.call("memory.list", query=query)["memories"]] == [memory["id"]]


def test_supersedes_errors_name_the_field(rpc: RawConnection) -> None:
    reply = rpc.request("memory.add", {"content": "x", "supersedes": "no-such-memory"})
    assert reply["error"]["message"] == "memory not found: no-such-memory - at `$.supersedes`"


@pytest.mark.parametrize(("who", "said_by"), [({}, "user"), ({"agent": "claude-code"}, "llm")])
def test_supersession_records_who_decided_it(rpc: RawConnection, who: dict[str, str], said_by: str) -> None:
    old = add(rpc, f"The {said_by} writes Perl", scope="global", **who)
    new = add(rpc, f"The {said_by} writes Python now", scope="global", supersedes=old["id"], **who)
    [link] = rpc.call("relation.list", memoryId=new["id"])["relations"]
    assert (link["type"], link["target"], link["extractedBy"]) == ("SUPERSEDES", old["id"], said_by)


def test_status_counts_memories(rpc: RawConnection) -> None:
    before = rpc.call("daemon.status")["counts"]
    add(rpc, "One more thing to count", files=["src/counted.py"])
    after = rpc.call("daemon.status")["counts"]
    assert (after["memories"] - before["memories"], after["entities"] - before["entities"]) == (1, 1)
    assert {"documents", "skills", "scheduled_actions"} <= after.keys()
