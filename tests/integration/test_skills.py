"""Skills: versions, vector and keyword search, import and export as SKILL.md folders."""

from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import RawConnection, running_daemon
from helpers.waiting import eventually, settled

from clankers_protocol.errors import Conflict, InvalidParams, NotFound

BISECT = """\
---
name: git-bisect
description: Find the commit that broke something. Use when a test passed before and fails now.
allowed-tools: Bash(git bisect:*), Read Grep
model: opus
license: MIT
disable-model-invocation: true
metadata:
  tags: [git, debugging]
  references: git-log
  author: somebody
  since: 2024-01-31
---

# How

1. Name a good commit and a bad one.
2. Run `frobnicate` at each step.
"""


def names(connection: RawConnection, **params: Any) -> list[str]:
    settled(connection)
    return [one["skill"]["name"] for one in connection.call("skill.search", **params)["skills"]]


def bake(connection: RawConnection, **more: Any) -> dict[str, Any]:
    params = {"name": "bread", "description": "Bake a loaf of bread in the oven", "tags": ["kitchen"]} | more
    return dict(connection.call("skill.create", **params))


def test_skill_is_created_read_updated_listed_and_deleted(rpc: RawConnection) -> None:
    made = bake(rpc, instructions="Knead.", tools=["Oven"], model="opus", references=["flour"], createdBy="me")
    assert made["version"] == 1
    assert rpc.call("skill.get", id=made["id"]) == made
    assert rpc.call("skill.get", id="BREAD") == made
    changed = rpc.call("skill.update", id="bread", tags=["kitchen", "slow"], model=None)
    assert (changed["version"], changed["tags"], changed["model"]) == (2, ["kitchen", "slow"], None)
    assert (changed["tools"], changed["references"], changed["createdBy"]) == (["Oven"], ["flour"], "me")
    assert changed["createdAt"] == made["createdAt"]
    listed = rpc.call("skill.list")["skills"]
    assert [(one["name"], one["version"]) for one in listed] == [("bread", 2)]
    assert rpc.call("skill.delete", id="bread", dryRun=True)["versions"] == 2
    assert rpc.call("skill.delete", id="bread")["dryRun"] is False
    assert rpc.request("skill.get", {"id": "bread"})["error"]["code"] == NotFound.code


def test_skill_versions_are_stored_unless_nothing_changed(rpc: RawConnection) -> None:
    first = bake(rpc, instructions="one")
    rpc.call("skill.update", id="bread", instructions="two", createdBy="an agent")
    assert rpc.call("skill.update", id="bread", instructions="two")["version"] == 2
    rpc.call("skill.update", id="bread", name="loaf", instructions="three")
    assert rpc.call("skill.get", id="loaf", version=1) == first
    assert rpc.call("skill.get", id="loaf", version=2)["instructions"] == "two"
    assert rpc.call("skill.get", id="loaf", version=3)["instructions"] == "three"
    versions = rpc.call("skill.versions", id="loaf")
    assert [(one["version"], one["createdBy"]) for one in versions] == [(3, None), (2, "an agent"), (1, None)]
    assert rpc.request("skill.get", {"id": "loaf", "version": 4})["error"]["code"] == NotFound.code


def test_skills_are_found_by_vector_and_keyword_also_in_their_instructions(rpc: RawConnection) -> None:
    rpc.call("skill.import", text=BISECT)
    bake(rpc)
    assert names(rpc, query="pastry recipe", mode="vector")[0] == "bread"
    assert names(rpc, query="which change caused the regression in the repository", mode="vector")[0] == "git-bisect"
    assert names(rpc, query="frobnicate", mode="keyword") == ["git-bisect"]
    assert names(rpc, query="debugging", mode="keyword") == ["git-bisect"]
    assert names(rpc, query="bread git", tags=["kitchen"]) == ["bread"]
    assert names(rpc, query="bread", tags=["kitchen", "git"]) == []
    hit = rpc.call("search", query="frobnicate", sources=["skills"])["hits"][0]
    assert (hit["source"], hit["ref"]["skillId"]) == ("skills", rpc.call("skill.get", id="git-bisect")["id"])


def test_changed_description_is_embedded_again_and_changed_instructions_are_not(rpc: RawConnection) -> None:
    bake(rpc)
    rpc.call("skill.create", name="other", description="Iron a shirt without creases")
    assert names(rpc, query="ship sailing on the ocean", mode="vector", limit=1) != []
    before = _vectors(rpc)
    rpc.call("skill.update", id="bread", instructions="Knead well.")
    settled(rpc)
    assert _vectors(rpc) == before
    rpc.call("skill.update", id="bread", description="Sail a ship across the ocean")
    assert names(rpc, query="sea voyage by boat", mode="vector")[0] == "bread"
    assert _vectors(rpc) != before
    assert names(rpc, query="oven", mode="keyword") == []
    assert names(rpc, query="knead", mode="keyword") == ["bread"]


def _vectors(connection: RawConnection) -> list[Any]:
    sql = "SELECT id, hash FROM chunks WHERE skill_id IS NOT NULL ORDER BY id"
    return list(connection.call("query", sql=sql)["rows"])


def test_deleted_skill_is_not_found_and_leaves_no_rows(rpc: RawConnection) -> None:
    made = bake(rpc, instructions="quuxify the dough")
    action = rpc.call("schedule.create", description="d", schedule="09:00 daily", skillId="bread")
    assert action["skillId"] == made["id"]
    settled(rpc)
    rpc.call("skill.delete", id="bread")
    assert rpc.call("search", query="quuxify dough bread oven")["hits"] == []
    tables = ("skills", "skill_versions", "chunks", "chunks_fts_docsize", "index_queue")
    counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    assert rpc.call("query", sql=f"SELECT {counts}")["rows"] == [[0, 0, 0, 0, 0]]
    assert rpc.call("schedule.get", id=action["id"])["skillId"] is None


def test_skills_are_found_by_an_embedding(rpc: RawConnection) -> None:
    bake(rpc)
    rpc.call("skill.import", text=BISECT)
    assert set(names(rpc, embedding=[1.0] * 256)) == {"bread", "git-bisect"}
    assert names(rpc, embedding=[1.0] * 256, tags=["git"], limit=1) == ["git-bisect"]


def test_skills_survive_a_reindex_with_other_chunking(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        bake(connection, instructions="quuxify the dough")
        connection.call("daemon.configure", key="chunk_tokens", value=200)
        job = connection.call("reindex")["jobId"]
        eventually(lambda: connection.call("job.status", id=job)["state"] == "done", "the reindex is over")
        assert names(connection, query="quuxify", mode="keyword") == ["bread"]
        assert names(connection, query="pastry", mode="vector") == ["bread"]


def test_front_matter_of_claude_code_is_parsed(rpc: RawConnection) -> None:
    imported = rpc.call("skill.import", text=BISECT, files=[{"path": "scripts/run.sh", "text": "true\n"}])
    assert imported["outcome"] == "created"
    skill = rpc.call("skill.get", id="git-bisect")
    assert skill["tools"] == ["Bash(git bisect:*)", "Read", "Grep"]
    assert (skill["model"], skill["tags"], skill["references"]) == ("opus", ["git", "debugging"], ["git-log"])
    assert skill["extra"] == {
        "license": "MIT",
        "disable-model-invocation": True,
        "metadata": {"author": "somebody", "since": "2024-01-31"},
    }
    assert skill["instructions"].startswith("# How\n\n1. Name a good commit")
    assert skill["files"] == [{"path": "scripts/run.sh", "text": "true\n"}]


def test_exported_skill_is_imported_unchanged(rpc: RawConnection) -> None:
    rpc.call("skill.import", text=BISECT, files=[{"path": "scripts/run.sh", "text": "true\n"}])
    before = rpc.call("skill.get", id="git-bisect")
    folder = rpc.call("skill.export", id="git-bisect")
    assert folder["folder"] == "git-bisect"
    assert [file["path"] for file in folder["files"]] == ["SKILL.md", "scripts/run.sh"]
    again = rpc.call("skill.import", text=folder["files"][0]["text"], files=folder["files"][1:])
    assert again["outcome"] == "unchanged"
    rpc.call("skill.delete", id="git-bisect")
    rpc.call("skill.import", text=folder["files"][0]["text"], files=folder["files"][1:])
    after = rpc.call("skill.get", id="git-bisect")
    different = {"id", "createdAt", "updatedAt"}
    assert {k: v for k, v in after.items() if k not in different} == {
        k: v for k, v in before.items() if k not in different
    }


def test_tools_with_spaces_and_commas_survive_a_round_trip(rpc: RawConnection) -> None:
    for name, tools in (("plain", ["Read", "Bash(git add:*, git rm:*)"]), ("odd", ["My Tool", "a,b", "c"])):
        bake(rpc, name=name, tools=tools)
        text = rpc.call("skill.export", id=name)["files"][0]["text"]
        assert rpc.call("skill.import", text=text)["outcome"] == "unchanged"


def test_imported_change_creates_a_version(rpc: RawConnection) -> None:
    rpc.call("skill.import", text=BISECT)
    changed = rpc.call("skill.import", text=BISECT.replace("opus", "sonnet"))
    assert (changed["outcome"], changed["skill"]["version"]) == ("updated", 2)
    assert rpc.call("skill.get", id="git-bisect", version=1)["model"] == "opus"


def test_skill_without_name_and_description_takes_its_folder_and_first_paragraph(
    rpc: RawConnection,
) -> None:
    text = "---\nallowed-tools: [Read, Write]\n---\n# Heading\n\nFold the\nlaundry.\n\nMore.\n"
    rpc.call("skill.import", text=text, folder="laundry")
    skill = rpc.call("skill.get", id="laundry")
    assert (skill["description"], skill["tools"]) == ("Fold the laundry.", ["Read", "Write"])


def test_skill_may_change_the_case_of_its_name_but_not_take_another_name(rpc: RawConnection) -> None:
    for name in ("bread", "Äpfel", "äpfel"):  # names are compared by their ASCII letters
        bake(rpc, name=name)
    assert rpc.call("skill.update", id="bread", name="Bread")["name"] == "Bread"
    refused = rpc.request("skill.update", {"id": "Äpfel", "name": "äpfel"})
    assert refused["error"]["code"] == Conflict.code


def test_skill_name_with_spaces_becomes_a_folder_name(rpc: RawConnection) -> None:
    bake(rpc, name="Bread & Butter (slow)")
    assert rpc.call("skill.export", id="bread & butter (slow)")["folder"] == "bread-butter-slow"


def test_skills_are_paged_by_name(rpc: RawConnection) -> None:
    for name in ("delta", "Alpha", "charlie", "Bravo"):
        bake(rpc, name=name)
    first = rpc.call("skill.list", limit=3)
    second = rpc.call("skill.list", limit=3, cursor=first["cursor"])
    assert [one["name"] for one in first["skills"] + second["skills"]] == ["Alpha", "Bravo", "charlie", "delta"]


BOMB = "---\nname: x\ndescription: y\na: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a]\n---\n"
GOOD = {"name": "ok", "description": "d"}
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("skill.create", {"name": "x"}, InvalidParams.code, "description"),
    ("skill.create", {"name": "", "description": "d"}, InvalidParams.code, "$.name"),
    ("skill.create", {"name": "a/b", "description": "d"}, InvalidParams.code, "$.name"),
    ("skill.create", {"name": "two\nlines", "description": "d"}, InvalidParams.code, "$.name"),
    (
        "skill.create",
        {"name": "ghp_frwhFjGH4l9YOgHNj3yitnLWvEf7EvYzn9Xw", "description": "d"},
        InvalidParams.code,
        "a secret",
    ),
    ("skill.create", {"name": "x" * 65, "description": "d"}, InvalidParams.code, "$.name"),
    ("skill.create", {"name": "x", "description": "d" * 1025}, InvalidParams.code, "$.description"),
    ("skill.create", GOOD | {"tags": [1]}, InvalidParams.code, "$.tags"),
    ("skill.create", GOOD | {"tags": [""]}, InvalidParams.code, "$.tags"),
    ("skill.create", GOOD | {"extra": {"model": "x"}}, InvalidParams.code, "$.extra"),
    ("skill.create", GOOD | {"extra": {"tags": ["x"]}}, InvalidParams.code, "$.extra"),
    ("skill.create", GOOD | {"extra": {"metadata": 5}}, InvalidParams.code, "$.extra.metadata"),
    ("skill.create", GOOD | {"extra": {"x": "y" * 40_000}}, InvalidParams.code, "$.extra"),
    ("skill.create", GOOD | {"files": [{"path": "../x", "text": ""}]}, InvalidParams.code, "$.files[0].path"),
    ("skill.create", GOOD | {"files": [{"path": "/etc/x", "text": ""}]}, InvalidParams.code, "$.files[0].path"),
    ("skill.create", GOOD | {"files": [{"path": "a//b", "text": ""}]}, InvalidParams.code, "$.files[0].path"),
    ("skill.create", GOOD | {"files": [{"path": "skill.md", "text": ""}]}, InvalidParams.code, "$.files[0].path"),
    ("skill.create", GOOD | {"files": [{"path": "a", "text": ""}] * 2}, InvalidParams.code, "$.files[1].path"),
    ("skill.create", {"name": "TAKEN", "description": "d"}, Conflict.code, "TAKEN"),
    ("skill.update", {"id": "missing", "description": "d"}, NotFound.code, "missing"),
    ("skill.update", {"id": "taken", "name": "also taken"}, Conflict.code, "also taken"),
    ("skill.update", {"id": "taken", "description": None}, InvalidParams.code, "$.description"),
    ("skill.delete", {"id": "missing"}, NotFound.code, "missing"),
    ("skill.list", {"tags": []}, InvalidParams.code, "$.tags"),
    ("skill.search", {}, InvalidParams.code, "exactly one of"),
    ("skill.search", {"embedding": [1.0]}, InvalidParams.code, "256"),
    ("skill.import", {"text": "no front matter"}, InvalidParams.code, "$.text"),
    ("skill.import", {"text": "---\nname: x\n"}, InvalidParams.code, "$.text"),
    ("skill.import", {"text": "---\nname: [x\n---\n"}, InvalidParams.code, "not valid YAML"),
    ("skill.import", {"text": "---\n- a\n- b\n---\n"}, InvalidParams.code, "$.text"),
    ("skill.import", {"text": "---\ndescription: d\n---\n"}, InvalidParams.code, "name"),
    ("skill.import", {"text": "---\nname: x\n---\n"}, InvalidParams.code, "description"),
    ("skill.import", {"text": "---\nname: 5\ndescription: d\n---\n"}, InvalidParams.code, "$.name"),
    ("skill.import", {"text": "---\nname: x\ndescription: d\nmetadata: 5\n---\n"}, InvalidParams.code, "metadata"),
    ("skill.import", {"text": "---\nname: x\ndescription: d\ntags: {a: b}\n---\n"}, InvalidParams.code, "tags"),
    ("skill.import", {"text": "---\nname: !!python/name:os.system x\n---\n"}, InvalidParams.code, "not valid YAML"),
    ("skill.import", {"text": BOMB}, InvalidParams.code, "alias"),
    ("skill.import", {"text": "---\nx: " + "[" * 20_000 + "\n---\n"}, InvalidParams.code, "$.text"),
    ("skill.export", {"id": "missing"}, NotFound.code, "missing"),
    ("skill.versions", {"id": "missing"}, NotFound.code, "missing"),
]


@pytest.mark.parametrize(("method", "params", "code", "message"), BAD)
def test_invalid_skill_params_are_named_and_nothing_is_stored(
    rpc: RawConnection, method: str, params: dict[str, Any], code: int, message: str
) -> None:
    for name in ("taken", "also taken"):
        bake(rpc, name=name)
    error = rpc.request(method, params)["error"]
    assert error["code"] == code
    assert message in error["message"]
    listed = rpc.call("skill.list")["skills"]
    assert [(one["name"], one["version"]) for one in listed] == [("also taken", 1), ("taken", 1)]
