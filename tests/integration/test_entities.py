"""Entities and relations over the socket: named once, linked by what texts say, and never shown across scopes."""

import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from helpers.daemon import RawConnection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clankersd.db.connection import Db
from clankersd.db.migrations import migrate
from clankersd.memories.entities import link_mentions, name_key, possible_names

INVALID, NOT_FOUND, CONFLICT = -32602, 4004, 4009
EVERYTHING = {"scopes": ["*"]}
TYPES = ["CONTRADICTS", "RELATED_TO", "BUILDS_ON", "CONFIRMS", "APPLIES_TO", "DEPENDS_ON", "ALTERNATIVE_TO"]

Add = Callable[..., str]

_examples = count()


@pytest.fixture
def tag() -> str:
    """A word that nothing else in this file's daemon holds."""
    return f"tag{next(_examples)}x"


@pytest.fixture
def add(rpc: RawConnection, tag: str) -> Add:
    def add(text: str = "something", scope: str = "global", **fields: Any) -> str:
        content = f"{tag} {next(_examples)} {text}"
        params = {"content": content, "scope": scope, "force": True} | EVERYTHING | fields
        return str(rpc.call("memory.add", **params)["memory"]["id"])

    return add


def refused(connection: RawConnection, method: str, code: int, says: str, **params: Any) -> None:
    reply = connection.request(method, params)
    assert "error" in reply, reply
    assert reply["error"]["code"] == code, reply
    assert says in reply["error"]["message"]


def names(connection: RawConnection, memory: str) -> set[str]:
    """The names of the entities that a memory speaks of."""
    graph = connection.call("graph.neighbors", id=memory, **EVERYTHING)
    return {node["label"] for node in graph["nodes"] if node["kind"] == "entity"}


# -- entities


def test_entity_names_ignore_case_and_accents(rpc: RawConnection, tag: str) -> None:
    first = rpc.call("entity.upsert", name=f"Café  {tag}", type="concept")
    again = rpc.call("entity.upsert", name=f"CAFE {tag.upper()} ", type="concept", summary="a place")
    assert again | {"summary": None, "updatedAt": 0} == first | {"updatedAt": 0}
    assert (first["name"], again["summary"]) == (f"Café {tag}", "a place")
    other = rpc.call("entity.upsert", name=f"Café {tag}", type="project")
    assert other["id"] != first["id"]
    refused(rpc, "entity.get", CONFLICT, "$.type", name=f"café {tag}")
    assert rpc.call("entity.get", name=f"café {tag}", type="project")["entity"] == other


def test_upsert_of_an_existing_entity_changes_nothing(rpc: RawConnection, tag: str) -> None:
    given = {"name": tag, "type": "person", "summary": "somebody"}
    assert rpc.call("entity.upsert", **given) == rpc.call("entity.upsert", **given)
    kept = rpc.call("entity.upsert", name=tag, type="person")
    assert kept["summary"] == "somebody"


def test_upsert_by_id_renames_but_takes_no_other_name(rpc: RawConnection, tag: str) -> None:
    rpc.call("entity.upsert", id=f"id-{tag}", name=f"{tag} one", type="concept")
    rpc.call("entity.upsert", id=f"id-{tag}", name=f"{tag} two", type="technology")
    entity = rpc.call("entity.get", id=f"id-{tag}")["entity"]
    assert (entity["name"], entity["type"]) == (f"{tag} two", "technology")
    rpc.call("entity.upsert", name=f"{tag} three", type="concept")
    refused(rpc, "entity.upsert", CONFLICT, "$.name", id=f"id-{tag}", name=f"{tag} THREE", type="concept")
    assert rpc.call("entity.get", id=f"id-{tag}")["entity"] == entity


def test_entity_shows_its_memories_newest_first(rpc: RawConnection, add: Add, tag: str) -> None:
    entity = rpc.call("entity.upsert", name=f"the {tag} thing", type="concept")
    ids = [add(f"the {tag} thing") for _ in range(3)]
    gone = add(f"the {tag} thing")
    rpc.call("memory.delete", id=gone)
    found = rpc.call("entity.get", id=entity["id"][:-4])
    assert [memory["id"] for memory in found["memories"]] == ids[::-1]
    assert found["entity"]["memories"] == 3
    assert len(rpc.call("entity.get", id=entity["id"], limit=2)["memories"]) == 2


def test_entities_are_listed_by_name_in_pages(rpc: RawConnection, tag: str) -> None:
    for name in ("Beta", "alpha", "Ça", "delta", "epsilon"):
        rpc.call("entity.upsert", name=f"{name} {tag}", type="file" if name == "delta" else "concept")
    seen, cursor = [], None
    while True:
        page = rpc.call("entity.list", query=tag.upper(), limit=2, cursor=cursor)
        seen += [entity["name"].split()[0] for entity in page["entities"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == ["alpha", "Beta", "Ça", "delta", "epsilon"]
    files = rpc.call("entity.list", query=tag, type="file")["entities"]
    assert [entity["name"] for entity in files] == [f"delta {tag}"]


def test_links_are_added_changed_and_removed(rpc: RawConnection, add: Add, tag: str) -> None:
    entity = rpc.call("entity.upsert", name=f"{tag} unspoken", type="error")["id"]
    memory = add()
    linked = rpc.call("entity.link", memoryId=memory[:-4], entityId=entity, role="subject")
    assert [one["id"] for one in linked["entities"]] == [entity]
    assert linked["entities"][0]["memories"] == 1
    rpc.call("entity.link", memoryId=memory, entityId=entity, role="object")
    [edge] = rpc.call("graph.neighbors", id=memory)["edges"]
    assert edge == {"source": memory, "target": entity, "type": "object", "confidence": 1.0, "closed": False}
    for _ in range(2):
        assert rpc.call("entity.link", memoryId=memory, entityId=entity, remove=True)["entities"] == []


def test_merge_moves_links_and_the_summary(rpc: RawConnection, add: Add, tag: str) -> None:
    one = rpc.call("entity.upsert", name=f"{tag} js", type="technology", summary="a language")["id"]
    two = rpc.call("entity.upsert", name=f"{tag} javascript", type="technology")["id"]
    both, first, second = add(f"{tag} js or {tag} javascript"), add(f"{tag} js"), add(f"{tag} javascript")
    merged = rpc.call("entity.merge", id=one, into=two)
    assert (merged["id"], merged["memories"], merged["summary"]) == (two, 3, "a language")
    refused(rpc, "entity.get", NOT_FOUND, one, id=one)
    found = rpc.call("entity.get", id=two)["memories"]
    assert {memory["id"] for memory in found} == {both, first, second}
    refused(rpc, "entity.merge", INVALID, "$.into", id=two, into=two)


def test_deletion_of_an_entity_or_a_memory_leaves_the_other(rpc: RawConnection, add: Add, tag: str) -> None:
    entity = rpc.call("entity.upsert", name=f"{tag} thing", type="concept")["id"]
    kept, purged = add(f"{tag} thing"), add(f"{tag} thing")
    rpc.call("memory.purge", id=purged)
    assert [memory["id"] for memory in rpc.call("entity.get", id=entity)["memories"]] == [kept]
    assert rpc.call("entity.delete", id=entity) == {"deleted": True, "links": 1}
    refused(rpc, "entity.get", NOT_FOUND, "$.id", id=entity)
    assert rpc.call("memory.get", id=kept)["id"] == kept


# -- what a text mentions


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ruff", "we lint with Ruff."),
        ("Visual Studio Code", "open it in visual\nstudio  CODE, please"),
        ("node.js", "Node.js 22 or later"),
        ("c++", "written in C++, mostly"),
        ("Visual C++", "needs the Visual C++."),
        (".env", "secrets live in `.env`"),
        ("@types/node", "needs @types/node."),
        ("src/deep/inside/app.py", "see src/deep/inside/app.py: line 3"),
        ("multi-agent system", "a Multi-Agent System"),
        ("Zoë", "ask ZOE"),
        ("データベース", "新しいデータベースを使う"),
        ("ECONNREFUSED", "failed (ECONNREFUSED)"),
    ],
)
def test_possible_names_contain_a_name_in_the_text(name: str, text: str) -> None:
    assert name_key(name) in possible_names(text)


@pytest.mark.parametrize(
    ("name", "text"), [("go", "google it"), ("art", "start"), ("c", "plan c"), ("code", "decoded"), ("py", "happy")]
)
def test_possible_names_contain_no_parts_of_words(name: str, text: str) -> None:
    assert name_key(name) not in possible_names(text)


@given(st.text(max_size=60))
def test_name_key_is_idempotent(text: str) -> None:
    assert name_key(name_key(text)) == name_key(text) == name_key(f"  {text} ")


@given(st.lists(st.from_regex(r"[A-Za-zÀ-ž0-9]{2,9}", fullmatch=True), min_size=1, max_size=4), st.text(max_size=40))
def test_possible_names_contain_any_short_name(parts: list[str], around: str) -> None:
    name = " ".join(parts)
    shouted = "".join(letter.upper() if letter.isascii() else letter for letter in name)
    assert name_key(name) in possible_names(f"{around} {shouted}, {around}")


def test_memory_is_linked_with_mentioned_entities_and_its_files(rpc: RawConnection, add: Add, tag: str) -> None:
    rpc.call("entity.upsert", name=f"{tag} Server", type="project")
    rpc.call("entity.upsert", name=f"{tag} Serv", type="project")
    rpc.call("entity.upsert", name=f"idea {tag}", type="concept")
    memory = add(f"restart the {tag} SERVER", files=[f"src/{tag}.py"], concepts=[f"Idea {tag}"])
    assert names(rpc, memory) == {f"{tag} Server", f"src/{tag}.py", f"idea {tag}"}
    [entity] = rpc.call("entity.list", query=f"src/{tag}")["entities"]
    assert (entity["type"], entity["memories"]) == ("file", 1)
    rpc.call("memory.update", id=memory, content=f"stop {tag} serv")
    assert f"{tag} Serv" in names(rpc, memory)


def test_mentions_are_looked_up_by_an_index(tmp_path: Path) -> None:
    """Ten thousand names make one addition no slower: the lookup goes by the index."""
    db = Db(apsw.Connection(str(tmp_path / "test.db")))
    migrate(db, tmp_path)
    statements: list[str] = []

    def trace(_cursor: Any, sql: str, _bindings: Any) -> bool:
        statements.append(sql)
        return True

    db.raw.exec_trace = trace
    link_mentions(db, "nobody", "a text of words", ["a/file"], [], 1)
    db.raw.exec_trace = None
    [lookup] = [sql for sql in statements if "SELECT" in sql]
    plan = db.fetch(f"EXPLAIN QUERY PLAN {lookup}", {"memory": "m", "now": 1, "keys": "[]"})
    assert not any("SCAN entities" in row["detail"] for row in plan)


# -- relations


def test_relation_is_stored_once_with_the_higher_confidence(rpc: RawConnection, add: Add) -> None:
    one, two = add(), add()
    given = {"source": one, "target": two, "type": "BUILDS_ON"}
    first = rpc.call("relation.add", **given, confidence=0.5, extractedBy="llm")
    assert rpc.call("relation.add", **given, confidence=0.3) == first
    surer = rpc.call("relation.add", **given, confidence=0.9, extractedBy="user")
    assert surer == first | {"confidence": 0.9, "extractedBy": "user"}
    assert rpc.call("relation.list", memoryId=one)["relations"] == [surer]
    back = rpc.call("relation.add", source=two, target=one, type="BUILDS_ON")
    assert back["id"] != first["id"]


def test_relation_added_concurrently_is_stored_once(rpc: RawConnection, add: Add) -> None:
    one, two = add(), add()
    params = {"source": one, "target": two, "type": "CONFIRMS"}
    for number in range(20):
        rpc.send({"jsonrpc": "2.0", "id": f"many {number}", "method": "relation.add", "params": params})
    made = {rpc.receive()["result"]["id"] for _ in range(20)}
    assert len(made) == 1


def test_relations_are_listed_by_direction_type_and_page(rpc: RawConnection, add: Add) -> None:
    middle, *others = [add() for _ in range(5)]
    out = [rpc.call("relation.add", source=middle, target=other, type="RELATED_TO") for other in others[:2]]
    into = [rpc.call("relation.add", source=other, target=middle, type="CONFIRMS") for other in others[2:]]

    def listed(**params: Any) -> list[dict[str, Any]]:
        return list(rpc.call("relation.list", memoryId=middle, **params)["relations"])

    newest_first = sorted(out + into, key=lambda one: (one["createdAt"], one["id"]), reverse=True)
    assert listed() == newest_first
    assert listed(direction="out") == [one for one in newest_first if one in out]
    assert listed(direction="in") == [one for one in newest_first if one in into]
    assert listed(types=["CONFIRMS"]) == [one for one in newest_first if one in into]
    first = rpc.call("relation.list", memoryId=middle, limit=3)
    rest = rpc.call("relation.list", memoryId=middle, limit=3, cursor=first["cursor"])
    assert first["relations"] + rest["relations"] == newest_first
    assert rest["cursor"] is None


def test_closed_relation_is_valid_only_in_the_past(rpc: RawConnection, add: Add) -> None:
    one, two = add(), add()
    made = rpc.call("relation.add", source=one, target=two, type="DEPENDS_ON")
    time.sleep(0.003)  # so that it held for a while
    closed = rpc.call("relation.close", id=made["id"][:-4])
    assert made["validFrom"] < closed["validUntil"]
    assert rpc.call("relation.close", id=made["id"]) == closed
    assert rpc.call("relation.list", memoryId=one)["relations"] == []
    assert rpc.call("relation.list", memoryId=one, includeClosed=True)["relations"] == [closed]
    assert rpc.call("relation.list", memoryId=one, asOf=made["validFrom"])["relations"] == [closed]
    assert rpc.call("relation.list", memoryId=one, asOf=made["validFrom"] - 1)["relations"] == []
    assert rpc.call("relation.list", memoryId=one, asOf=closed["validUntil"])["relations"] == []
    again = rpc.call("relation.add", source=one, target=two, type="DEPENDS_ON")
    assert again["id"] != made["id"]


def test_relation_with_another_period_is_a_conflict(rpc: RawConnection, add: Add) -> None:
    one, two = add(), add()
    given = {"source": one, "target": two, "type": "APPLIES_TO"}
    past = rpc.call("relation.add", **given, validFrom=1_600_000_000, validUntil=1_650_000_000)
    assert past["validFrom"] == 1_600_000_000_000
    assert rpc.call("relation.add", **given, validFrom=1_600_000_000, validUntil=1_650_000_000) == past
    refused(rpc, "relation.add", CONFLICT, "$.validUntil", **given, validFrom=1_600_000_000, validUntil=1.66e9)
    refused(rpc, "relation.add", CONFLICT, "$.validFrom", **given, validFrom=1_640_000_000)
    now = rpc.call("relation.add", **given)
    found = rpc.call("relation.list", memoryId=one, includeClosed=True)["relations"]
    assert {relation["id"] for relation in found} == {past["id"], now["id"]}


def test_supersedes_relation_ends_the_validity_of_the_target(rpc: RawConnection, add: Add) -> None:
    old, new, third = add(), add(), add()
    made = rpc.call("relation.add", source=new, target=old, type="SUPERSEDES", confidence=0.7, extractedBy="llm")
    assert (made["source"], made["target"], made["confidence"], made["extractedBy"]) == (new, old, 0.7, "llm")
    found = rpc.call("memory.get", id=old)
    assert (found["state"], found["supersededBy"]) == ("superseded", new)
    assert rpc.call("relation.add", source=new, target=old, type="SUPERSEDES", confidence=0.7) == made
    refused(rpc, "relation.add", CONFLICT, "$.target", source=third, target=old, type="SUPERSEDES")
    refused(rpc, "relation.add", CONFLICT, "$.source", source=old, target=new, type="SUPERSEDES")
    refused(rpc, "relation.close", CONFLICT, "$.id", id=made["id"])
    assert rpc.call("memory.get", id=new)["state"] == "current"


# -- bad input


@pytest.mark.parametrize(
    ("method", "params", "code", "says"),
    [
        ("entity.upsert", {"name": " \t", "type": "concept"}, INVALID, "$.name"),
        ("entity.upsert", {"name": "", "type": "concept"}, INVALID, "$.name"),
        ("entity.upsert", {"name": "x", "type": "animal"}, INVALID, "$.type"),
        ("entity.upsert", {"name": "x", "type": "concept", "id": ""}, INVALID, "$.id"),
        ("entity.upsert", {"name": "x", "type": "concept", "scopes": []}, INVALID, "$.scopes"),
        ("entity.upsert", {"name": "x", "type": "concept", "scopes": ["nobody:x"]}, INVALID, "$.scopes"),
        ("entity.get", {}, INVALID, "$.id"),
        ("entity.get", {"id": "nowhere-to-be-found", "name": "x"}, INVALID, "$.id"),
        ("entity.get", {"name": "nothing is called so"}, NOT_FOUND, "$.name"),
        ("entity.get", {"id": "nowhere-to-be-found"}, NOT_FOUND, "$.id"),
        ("entity.list", {"query": "  "}, INVALID, "$.query"),
        ("entity.list", {"cursor": "made up"}, INVALID, "$.cursor"),
        ("entity.list", {"limit": 0}, INVALID, "$.limit"),
        ("entity.delete", {"id": "nowhere-to-be-found"}, NOT_FOUND, "$.id"),
        ("entity.merge", {"id": "ENTITY", "into": "nowhere-to-be-found"}, NOT_FOUND, "$.into"),
        ("entity.merge", {"id": "nowhere-to-be-found", "into": "ENTITY"}, NOT_FOUND, "$.id"),
        ("entity.link", {"memoryId": "nowhere-to-be-found", "entityId": "ENTITY"}, NOT_FOUND, "$.memoryId"),
        ("entity.link", {"memoryId": "ONE", "entityId": "nowhere-to-be-found"}, NOT_FOUND, "$.entityId"),
        ("entity.link", {"memoryId": "ONE", "entityId": "ENTITY", "role": "hero"}, INVALID, "$.role"),
        ("relation.add", {"source": "ONE", "target": "ONE", "type": "CONFIRMS"}, INVALID, "$.target"),
        ("relation.add", {"source": "nowhere-to-be", "target": "ONE", "type": "CONFIRMS"}, NOT_FOUND, "$.source"),
        ("relation.add", {"source": "ONE", "target": "nowhere-to-be", "type": "CONFIRMS"}, NOT_FOUND, "$.target"),
        ("relation.add", {"source": "ONE", "target": "TWO"[:1], "type": "CONFIRMS"}, NOT_FOUND, "$.target"),
        ("relation.add", {"source": "prefixed", "target": "ONE", "type": "CONFIRMS"}, CONFLICT, "$.source"),
        ("relation.add", {"source": "ONE", "target": "TWO", "type": "LOVES"}, INVALID, "$.type"),
        ("relation.add", {"source": "ONE", "target": "TWO", "type": "CONFIRMS", "confidence": 1.1}, INVALID, "$.conf"),
        ("relation.add", {"source": "ONE", "target": "TWO", "type": "CONFIRMS", "confidence": -1}, INVALID, "$.conf"),
        ("relation.add", {"source": "ONE", "target": "TWO", "type": "CONFIRMS", "extractedBy": "me"}, INVALID, "$.ext"),
        (
            "relation.add",
            {"source": "ONE", "target": "TWO", "type": "CONFIRMS", "validFrom": 1.7e9, "validUntil": 1.6e9},
            INVALID,
            "$.validUntil",
        ),
        ("relation.add", {"source": "ONE", "target": "TWO", "type": "CONFIRMS", "validUntil": 5}, INVALID, "$.validU"),
        ("relation.add", {"source": "ONE", "target": "TWO", "type": "CONFIRMS", "validFrom": "x"}, INVALID, "$.validF"),
        (
            "relation.add",
            {"source": "ONE", "target": "TWO", "type": "SUPERSEDES", "validUntil": 4e12},
            INVALID,
            "$.validUntil",
        ),
        ("relation.list", {"direction": "out"}, INVALID, "$.direction"),
        ("relation.list", {"types": []}, INVALID, "$.types"),
        ("relation.list", {"memoryId": "nowhere-to-be-found"}, NOT_FOUND, "$.memoryId"),
        ("relation.close", {"id": "nowhere-to-be-found"}, NOT_FOUND, "$.id"),
        ("relation.close", {"id": "RELATION", "at": 1}, INVALID, "$.at"),
        ("graph.neighbors", {"id": "nowhere-to-be-found"}, NOT_FOUND, "$.id"),
        ("graph.neighbors", {"id": "ONE", "hops": 7}, INVALID, "$.hops"),
        ("memory.related", {"id": "nowhere-to-be-found"}, NOT_FOUND, "$.id"),
    ],
)
def test_invalid_input_names_the_field_and_changes_nothing(
    rpc: RawConnection, method: str, params: dict[str, Any], code: int, says: str
) -> None:
    known = {"scopes": ["custom:bad-input"]}
    stored = [
        {"id": f"{name}-of-the-bad-input", "content": f"{name} of the bad input", "createdAt": 1_700_000_000_000}
        | {"scope": "custom:bad-input"}
        for name in ("one", "two", "prefixed", "prefixed-too")
    ]
    rpc.call("memory.import", memories=stored, **known)
    entity = rpc.call("entity.upsert", name="the bad input's", type="concept", **known)
    rpc.call("entity.link", memoryId=stored[0]["id"], entityId=entity["id"], **known)
    related = {"source": stored[0]["id"], "target": stored[1]["id"], "type": "RELATED_TO"}
    relation = rpc.call("relation.add", **related, **known)
    names = {"ONE": stored[0]["id"], "TWO": stored[1]["id"], "ENTITY": entity["id"], "RELATION": relation["id"]}

    def everything() -> str:
        entities = rpc.call("entity.list", limit=1000, **EVERYTHING)
        relations = rpc.call("relation.list", limit=1000, includeClosed=True, **EVERYTHING)
        return json.dumps([entities, relations])

    before = everything()
    filled = {key: names.get(value, value) if isinstance(value, str) else value for key, value in params.items()}
    refused(rpc, method, code, says, **known | filled)
    assert everything() == before


def test_deleted_memory_cannot_be_linked(rpc: RawConnection, add: Add, tag: str) -> None:
    entity = rpc.call("entity.upsert", name=f"{tag} unspoken", type="concept")["id"]
    kept, gone = add(), add()
    relation = rpc.call("relation.add", source=kept, target=gone, type="CONFIRMS")
    rpc.call("memory.delete", id=gone)
    refused(rpc, "entity.link", CONFLICT, "$.memoryId", memoryId=gone, entityId=entity)
    refused(rpc, "relation.add", CONFLICT, "$.target", source=kept, target=gone, type="RELATED_TO")
    assert rpc.call("relation.list", memoryId=kept)["relations"] == []
    rpc.call("memory.restore", id=gone)
    assert rpc.call("relation.list", memoryId=kept)["relations"] == [relation]


# -- scopes


def test_entity_mentioned_in_other_scopes_hides_its_summary_and_cannot_be_changed(
    rpc: RawConnection, add: Add, tag: str
) -> None:
    mine, theirs = {"scopes": ["custom:mine"]}, {"scopes": ["custom:theirs"]}
    entity = rpc.call("entity.upsert", name=f"{tag} bob", type="person", summary="secret", **mine)["id"]
    other = rpc.call("entity.upsert", name=f"{tag} rob", type="person", **theirs)["id"]
    add(f"{tag} bob", scope="custom:mine")
    refused(rpc, "entity.get", NOT_FOUND, entity, id=entity, **theirs)
    memory = add(f"{tag} bob is here", scope="custom:theirs")
    shown = rpc.call("entity.get", id=entity, **theirs)
    assert shown["entity"]["summary"] is None
    assert [one["id"] for one in shown["memories"]] == [memory]
    assert rpc.call("entity.get", id=entity, **EVERYTHING)["entity"]["summary"] == "secret"
    again = {"name": f"{tag} bob", "type": "person"}
    assert rpc.call("entity.upsert", **again, **theirs)["summary"] is None
    refused(rpc, "entity.upsert", CONFLICT, "$.summary", **again, summary="mine", **theirs)
    refused(rpc, "entity.delete", CONFLICT, "$.id", id=entity, **theirs)
    refused(rpc, "entity.merge", CONFLICT, "$.id", id=entity, into=other, **theirs)
    assert rpc.call("entity.get", id=entity, **EVERYTHING)["entity"]["summary"] == "secret"


def test_entity_of_other_scopes_can_be_linked_by_name(rpc: RawConnection, add: Add, tag: str) -> None:
    mine, theirs = {"scopes": ["custom:mine"]}, {"scopes": ["custom:theirs"]}
    rpc.call("entity.upsert", name=f"{tag} common", type="technology", **mine)
    add(f"{tag} common", scope="custom:mine")
    entity = rpc.call("entity.upsert", name=f"{tag} common", type="technology", **theirs)
    assert entity["memories"] == 0
    memory = add("without its name", scope="custom:theirs")
    linked = rpc.call("entity.link", memoryId=memory, entityId=entity["id"], **theirs)
    assert [one["memories"] for one in linked["entities"]] == [1]


class World:
    """Memories, entities and relations in scopes of their own, as they were stored."""

    def __init__(self, connection: RawConnection, chance: Random) -> None:
        self.connection = connection
        self.tag = f"world{next(_examples)}x"
        self.scopes = [f"custom:{self.tag}.{name}" for name in "abc"]
        self.caller = {"scopes": chance.sample(self.scopes, chance.choice([0, 1, 1, 2, 2, 3]))}
        self.memories = [self._memory(chance.choice(self.scopes)) for _ in range(chance.randint(1, 6))]
        self.entities = [self._entity(chance.random() < 0.5) for _ in range(chance.randint(1, 3))]
        self.links: set[tuple[str, str]] = set()
        self.relations: dict[str, tuple[str, str]] = {}
        ids = [memory["id"] for memory in self.memories]
        for _ in range(chance.randint(0, 6)):
            self._link(chance.choice(ids), chance.choice(self.entities)["id"])
        for _ in range(chance.randint(0, 6) if len(ids) > 1 else 0):
            source, target = chance.sample(ids, 2)
            self._relate(source, target, chance.choice(TYPES))

    def _memory(self, scope: str) -> dict[str, Any]:
        given = {"content": f"known {self.tag}m{next(_examples)}", "scope": scope, "force": True}
        return dict(self.connection.call("memory.add", **given, **EVERYTHING)["memory"])

    def _entity(self, has_summary: bool) -> dict[str, Any]:
        number = next(_examples)
        given = {"name": f"{self.tag} e{number}", "type": "concept"}
        summary = {"summary": f"{self.tag}s{number}"} if has_summary else {}
        return dict(self.connection.call("entity.upsert", **given, **summary, **EVERYTHING))

    def _link(self, memory: str, entity: str) -> None:
        self.connection.call("entity.link", memoryId=memory, entityId=entity, **EVERYTHING)
        self.links.add((memory, entity))

    def _relate(self, source: str, target: str, kind: str) -> None:
        given = {"source": source, "target": target, "type": kind}
        made = self.connection.call("relation.add", **given, **EVERYTHING)
        self.relations[made["id"]] = (source, target)

    @property
    def visible(self) -> set[str]:
        return {memory["id"] for memory in self.memories if memory["scope"] in self.caller["scopes"]}

    def speaking(self, entity: str) -> set[str]:
        return {memory for memory, linked in self.links if linked == entity}

    @property
    def visible_entities(self) -> set[str]:
        ids = {entity["id"] for entity in self.entities}
        shown = {id_ for id_ in ids if not self.speaking(id_) or self.speaking(id_) & self.visible}
        return shown if self.caller["scopes"] else set()

    def secrets(self) -> set[str]:
        """What no answer to the caller may hold."""
        found = set()
        for memory in self.memories:
            if memory["id"] not in self.visible:
                found |= {memory["id"], memory["content"]}
        for entity in self.entities:
            if entity["id"] not in self.visible_entities:
                found |= {entity["id"], entity["name"]}
            if entity["summary"] and not self.speaking(entity["id"]) <= self.visible:
                found.add(entity["summary"])
        return found | {id_ for id_, ends in self.relations.items() if not set(ends) <= self.visible}

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The reply to the caller, which holds nothing but what it said itself and what it may see."""
        reply = self.connection.request(method, params | self.caller)
        said = json.dumps(params)
        leaked = {secret for secret in self.secrets() if secret in json.dumps(reply) and secret not in said}
        assert not leaked, (method, params, reply)
        return reply

    def everything(self) -> Any:
        entities = self.connection.call("entity.list", query=self.tag, limit=1000, **EVERYTHING)
        relations = self.connection.call("relation.list", limit=1000, includeClosed=True, **EVERYTHING)
        return entities, relations


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_replies_never_show_what_is_outside_the_scopes(rpc: RawConnection, seed: int) -> None:
    world = World(rpc, Random(seed))
    listed = world.ask("entity.list", query=world.tag)["result"]["entities"]
    assert {entity["id"]: entity["memories"] for entity in listed} == {
        id_: len(world.speaking(id_) & world.visible) for id_ in world.visible_entities
    }
    for entity in world.entities:
        reply = world.ask("entity.get", id=entity["id"])
        by_name = world.ask("entity.get", name=entity["name"])
        assert ("result" in reply) == ("result" in by_name) == (entity["id"] in world.visible_entities)
        if "result" in reply:
            assert {one["id"] for one in reply["result"]["memories"]} == world.speaking(entity["id"]) & world.visible
    relations = world.ask("relation.list", limit=1000, includeClosed=True)["result"]["relations"]
    assert {one["id"] for one in relations} == {
        id_ for id_, ends in world.relations.items() if set(ends) <= world.visible
    }
    for memory in world.memories:
        for method, params in {"graph.neighbors": {"hops": 6, "includeClosed": True}, "memory.related": {}}.items():
            assert ("result" in world.ask(method, id=memory["id"], **params)) == (memory["id"] in world.visible)
        assert ("result" in world.ask("relation.list", memoryId=memory["id"])) == (memory["id"] in world.visible)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_changes_outside_the_scopes_are_impossible(rpc: RawConnection, seed: int) -> None:
    world = World(rpc, Random(seed))
    before = world.everything()
    hidden = [memory["id"] for memory in world.memories if memory["id"] not in world.visible]
    anything = [entity["id"] for entity in world.entities] or ["none at all"]
    for memory in hidden:
        for other in [one["id"] for one in world.memories if one["id"] != memory]:
            assert "error" in world.ask("relation.add", source=memory, target=other, type="SUPERSEDES")
            assert "error" in world.ask("relation.add", source=other, target=memory, type="CONFIRMS")
        assert "error" in world.ask("entity.link", memoryId=memory, entityId=anything[0])
        assert "error" in world.ask("entity.link", memoryId=memory, entityId=anything[0], remove=True)
    for relation, ends in world.relations.items():
        if not set(ends) <= world.visible:
            assert "error" in world.ask("relation.close", id=relation)
    for entity in world.entities:
        if not world.speaking(entity["id"]) <= world.visible:
            assert "error" in world.ask("entity.delete", id=entity["id"])
            assert "error" in world.ask("entity.merge", id=entity["id"], into=anything[-1])
            named = {"name": entity["name"], "type": entity["type"]}
            assert "error" in world.ask("entity.upsert", **named, summary="changed")
            assert "error" in world.ask("entity.upsert", id=entity["id"], name=f"{entity['name']} too", type="concept")
    assert world.everything() == before
