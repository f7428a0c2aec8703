"""The graph over the socket: neighbours as a naive walk finds them, chains with one head, and what belongs together."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.daemon import RawConnection, running_daemon
from helpers.waiting import eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NOT_FOUND, CONFLICT = 4004, 4009
EVERYTHING = {"scopes": ["*"]}
TYPES = ["CONTRADICTS", "RELATED_TO", "BUILDS_ON"]

Add = Callable[..., str]
Place = tuple[str, str]

_numbers = count()


@pytest.fixture
def add(rpc: RawConnection) -> Add:
    return partial(remember, rpc)


def remember(connection: RawConnection, text: str = "something", scope: str = "global", **fields: Any) -> str:
    given = {"content": f"{text} n{next(_numbers)}", "scope": scope, "force": True} | EVERYTHING | fields
    return str(connection.call("memory.add", **given)["memory"]["id"])


def relate(connection: RawConnection, source: str, target: str, kind: str = "RELATED_TO", **fields: Any) -> Any:
    return connection.call("relation.add", source=source, target=target, type=kind, **EVERYTHING | fields)


def hops(graph: dict[str, Any]) -> dict[str, int]:
    return {node["id"]: node["hops"] for node in graph["nodes"]}


# -- neighbours


def test_neighbours_are_sorted_by_distance_and_cycles_end(rpc: RawConnection, add: Add) -> None:
    one, two, three, four = (add() for _ in range(4))
    for source, target in ((one, two), (two, three), (three, one), (four, three)):
        relate(rpc, source, target)
    assert hops(rpc.call("graph.neighbors", id=one)) == {one: 0, two: 1, three: 1}
    graph = rpc.call("graph.neighbors", id=one[:-3], hops=6)
    assert hops(graph) == {one: 0, two: 1, three: 1, four: 2}
    assert len(graph["edges"]) == 4
    assert not graph["truncated"]


def test_graph_goes_through_entities_unless_switched_off(rpc: RawConnection, add: Add) -> None:
    name = f"shared{next(_numbers)}thing"
    entity = rpc.call("entity.upsert", name=name, type="concept")["id"]
    one, two = add(f"{name} here"), add(f"and {name} there")
    around = rpc.call("graph.neighbors", id=one, hops=2)
    assert hops(around) == {one: 0, entity: 1, two: 2}
    [node] = [node for node in around["nodes"] if node["kind"] == "entity"]
    assert (node["label"], node["entity"]["memories"], node["memory"]) == (name, 2, None)
    assert hops(rpc.call("graph.neighbors", id=one, hops=2, throughEntities=False)) == {one: 0}
    from_entity = rpc.call("graph.neighbors", id=entity, hops=2, throughEntities=False)
    assert hops(from_entity) == {entity: 0, one: 1, two: 1}
    assert {(edge["source"], edge["target"], edge["type"]) for edge in from_entity["edges"]} == {
        (one, entity, "context"),
        (two, entity, "context"),
    }


def test_edges_have_the_requested_types(rpc: RawConnection, add: Add) -> None:
    one, two = add(), add()
    relate(rpc, one, two, "BUILDS_ON", confidence=0.4)
    relate(rpc, two, one, "CONFIRMS")
    rpc.call("relation.close", id=relate(rpc, one, two, "CONTRADICTS")["id"])

    def types(**params: Any) -> list[str]:
        return sorted(edge["type"] for edge in rpc.call("graph.neighbors", id=one, **params)["edges"])

    assert types() == ["BUILDS_ON", "CONFIRMS"]
    assert types(includeClosed=True) == ["BUILDS_ON", "CONFIRMS", "CONTRADICTS"]
    assert types(types=["BUILDS_ON"]) == ["BUILDS_ON"]


def test_closed_relations_are_shown_on_request(rpc: RawConnection, add: Add) -> None:
    old, new, aside = add(), add(), add()
    closed = relate(rpc, aside, new)
    time.sleep(0.003)  # so that it held for a while
    rpc.call("relation.close", id=closed["id"])
    relate(rpc, new, old, "SUPERSEDES")
    assert hops(rpc.call("graph.neighbors", id=new)) == {new: 0}
    assert hops(rpc.call("graph.neighbors", id=new, includeClosed=True)) == {new: 0, old: 1, aside: 1}
    chain = rpc.call("graph.neighbors", id=new, includeClosed=True, types=["SUPERSEDES"])
    assert hops(chain) == {new: 0, old: 1}
    rpc.call("memory.delete", id=aside)
    assert aside not in hops(rpc.call("graph.neighbors", id=new, includeClosed=True))


def test_graph_as_of_a_time_shows_what_was_known_then(rpc: RawConnection, add: Add) -> None:
    one, two, three = add("first"), add(), add()
    made = relate(rpc, one, two)
    time.sleep(0.003)
    rpc.call("memory.update", id=one, content="corrected since")
    rpc.call("relation.close", id=made["id"])
    later = relate(rpc, one, three)
    then = rpc.call("graph.neighbors", id=one, asOf=made["createdAt"])
    assert hops(then) == {one: 0, two: 1}
    assert then["nodes"][0]["label"].startswith("first")
    assert hops(rpc.call("graph.neighbors", id=one, asOf=later["createdAt"])) == {one: 0, three: 1}
    assert hops(rpc.call("graph.neighbors", id=one)) == {one: 0, three: 1}


def test_labels_are_one_short_line(rpc: RawConnection, add: Add) -> None:
    long = rpc.call("graph.neighbors", id=add("many\n\nwords " * 50))["nodes"][0]["label"]
    assert (len(long), long[-1], "\n" in long) == (80, "…", False)
    assert rpc.call("graph.neighbors", id=add(summary="In short"))["nodes"][0]["label"] == "In short"


def test_graph_of_large_memories_fits_in_a_reply(rpc: RawConnection, add: Add) -> None:
    middle, *others = (add(metadata={"log": "x" * 1_000_000}) for _ in range(6))
    for other in others:
        relate(rpc, middle, other)
    graph = rpc.call("graph.neighbors", id=middle)
    assert hops(graph) == {middle: 0, **dict.fromkeys(sorted(others)[:3], 1)}
    assert len(graph["edges"]) == 3
    assert graph["truncated"]


def test_prefix_of_a_memory_and_an_entity_is_ambiguous(rpc: RawConnection) -> None:
    record = {"id": "ambiguous-memory", "content": "an ambiguous one", "createdAt": 1_700_000_000_000}
    rpc.call("memory.import", memories=[record])
    rpc.call("entity.upsert", id="ambiguous-entity", name="ambiguous", type="concept")
    reply = rpc.request("graph.neighbors", {"id": "ambiguous"})
    assert reply["error"]["code"] == CONFLICT
    assert reply["error"]["data"] == {"ids": ["ambiguous-memory", "ambiguous-entity"]}
    assert rpc.call("graph.neighbors", id="ambiguous-entity")["nodes"][0]["kind"] == "entity"
    assert rpc.call("graph.neighbors", id="ambiguous-m")["nodes"][0]["kind"] == "memory"


@dataclass
class Model:
    """The graph as plain lists, walked node by node."""

    tag: str
    scopes: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    entities: list[str] = field(default_factory=list)
    relations: list[tuple[str, str, str, bool]] = field(default_factory=list)
    links: set[tuple[str, str]] = field(default_factory=set)

    def neighbours(self, start: Place, asked: dict[str, Any]) -> tuple[list[tuple[Place, int]], bool]:
        found = {start: 0}
        border = [start]
        for hop in range(1, asked["hops"] + 1):
            near = {other for place in border for other in self._next_to(place, asked)} - found.keys()
            border = sorted(near, key=lambda place: (place[0] == "entity", place[1]))
            found |= dict.fromkeys(border, hop)
        return list(found.items())[: asked["limit"]], len(found) > asked["limit"]

    def edges(self, shown: set[Place], asked: dict[str, Any]) -> set[tuple[str, str, str]]:
        ids = {id_ for _, id_ in shown}
        held = {
            (source, target, kind)
            for source, target, kind, closed in self.relations
            if self._holds(kind, closed, asked)
        }
        linked = {(memory, entity, "context") for memory, entity in self.links}
        return {edge for edge in held | linked if {edge[0], edge[1]} <= ids}

    def _next_to(self, place: Place, asked: dict[str, Any]) -> Iterator[Place]:
        kind, id_ = place
        for memory, entity in self.links:
            if kind == "entity" and entity == id_ and self._there(memory, asked):
                yield "memory", memory
            if kind == "memory" and memory == id_ and asked["throughEntities"]:
                yield "entity", entity
        for source, target, relation, closed in self.relations:
            if kind == "memory" and id_ in (source, target) and self._holds(relation, closed, asked):
                other = target if id_ == source else source
                if self._there(other, asked):
                    yield "memory", other

    def _there(self, memory: str, asked: dict[str, Any]) -> bool:
        states = ("current", "archived") if asked["includeClosed"] else ("current",)
        return self.scopes[memory] in asked["scopes"] and self.states[memory] in states

    @staticmethod
    def _holds(kind: str, closed: bool, asked: dict[str, Any]) -> bool:
        return kind in (asked["types"] or TYPES) and (asked["includeClosed"] or not closed)


def build(connection: RawConnection, chance: Random) -> Model:
    """Store a graph of any shape, and keep it as a model."""
    model = Model(f"g{next(_numbers)}")
    ids = [f"{model.tag}-memory-{next(_numbers)}" for _ in range(chance.randint(3, 8))]
    records = []
    for id_ in ids:
        model.scopes[id_] = f"custom:{model.tag}{chance.choice('aab')}"
        model.states[id_] = chance.choice(["current", "current", "current", "current", "deleted", "archived"])
        record = {"id": id_, "content": f"memory {id_}", "createdAt": 1_700_000_000_000, "scope": model.scopes[id_]}
        records.append(record | ({"archivedAt": 1_700_000_000_001} if model.states[id_] == "archived" else {}))
    assert connection.call("memory.import", memories=records, **EVERYTHING)["refused"] == {}
    for _ in range(chance.randint(0, 3)):
        name = f"{model.tag} entity {next(_numbers)}"
        model.entities.append(connection.call("entity.upsert", name=name, type="concept", **EVERYTHING)["id"])
    for _ in range(chance.randint(0, 6) if model.entities else 0):
        memory, entity = chance.choice(ids), chance.choice(model.entities)
        connection.call("entity.link", memoryId=memory, entityId=entity, **EVERYTHING)
        model.links.add((memory, entity))
    pairs = {(*chance.sample(ids, 2), chance.choice(TYPES)) for _ in range(chance.randint(0, 12))}
    for source, target, kind in sorted(pairs):
        made = relate(connection, source, target, kind)
        model.relations.append((source, target, kind, chance.random() < 0.3))
        if model.relations[-1][3]:
            connection.call("relation.close", id=made["id"], at=made["validFrom"], **EVERYTHING)
    for id_ in ids:
        if model.states[id_] == "deleted":
            connection.call("memory.delete", id=id_, **EVERYTHING)
    return model


def question(chance: Random, tag: str) -> dict[str, Any]:
    return {
        "hops": chance.randint(1, 6),
        "limit": chance.choice([1, 2, 3, 5, 100]),
        "types": chance.choice([None, None, ["BUILDS_ON"], ["CONTRADICTS", "RELATED_TO"]]),
        "throughEntities": chance.random() < 0.7,
        "includeClosed": chance.random() < 0.5,
        "scopes": [f"custom:{tag}{name}" for name in chance.choice(["a", "ab", "ab", "b", ""])],
    }


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_neighbours_equal_those_of_a_naive_search(rpc: RawConnection, seed: int) -> None:
    chance = Random(seed)
    model = build(rpc, chance)
    for start in [("memory", id_) for id_ in model.scopes] + [("entity", id_) for id_ in model.entities]:
        for asked in (question(chance, model.tag) for _ in range(3)):
            reply = rpc.request("graph.neighbors", {"id": start[1]} | asked)
            if not visible(model, start, asked["scopes"]):
                assert reply["error"]["code"] == NOT_FOUND
                continue
            expected, truncated = model.neighbours(start, asked)
            graph = reply["result"]
            assert [((node["kind"], node["id"]), node["hops"]) for node in graph["nodes"]] == expected
            assert graph["truncated"] == truncated
            found = [(edge["source"], edge["target"], edge["type"]) for edge in graph["edges"]]
            assert found == sorted(model.edges({place for place, _ in expected}, asked))


def visible(model: Model, place: Place, scopes: list[str]) -> bool:
    kind, id_ = place
    if kind == "memory":
        return model.scopes[id_] in scopes
    speaking = {model.scopes[memory] for memory, entity in model.links if entity == id_}
    return bool(scopes) and (not speaking or bool(speaking & set(scopes)))


# -- chains of versions


class Chains:
    """Memories that supersede each other, and what must be so whatever is asked for."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection
        self.scopes = {"scopes": [f"custom:chains{next(_numbers)}"]}
        self.ids: list[str] = []
        self.add()

    def add(self, supersedes: str | None = None) -> None:
        given = {"content": f"version n{next(_numbers)}", "scope": self.scopes["scopes"][0], "force": True}
        reply = self.connection.request("memory.add", given | {"supersedes": supersedes} | self.scopes)
        if "result" in reply:
            self.ids.append(reply["result"]["memory"]["id"])
        else:
            assert reply["error"]["code"] == CONFLICT, reply

    def supersede(self, source: str, target: str) -> None:
        given = {"source": source, "target": target, "type": "SUPERSEDES"} | self.scopes
        reply = self.connection.request("relation.add", given)
        assert "result" in reply or source == target or reply["error"]["code"] == CONFLICT, reply

    def do(self, action: str, id_: str) -> None:
        self.connection.call(f"memory.{action}", id=id_, **self.scopes)

    def check(self) -> None:
        memories = {id_: self.connection.call("memory.get", id=id_, **self.scopes) for id_ in self.ids}
        listed = self.connection.call("relation.list", includeClosed=True, limit=1000, **self.scopes)["relations"]
        held = [(one["source"], one["target"]) for one in listed if one["validUntil"] is None]
        kept = {id_ for id_, memory in memories.items() if memory["deletedAt"] is None}
        for id_ in self.ids:
            assert id_ not in self._older(id_, held), "a cycle"
            successors = [source for source, target in held if target == id_ and source in kept]
            assert len(successors) <= 1, "two successors"
            assert memories[id_]["supersededBy"] == (successors[0] if successors else None)
            if id_ in kept:
                assert (memories[id_]["state"] == "superseded") == bool(successors)
        for versions in self._chains(held, kept):
            assert len([id_ for id_ in versions if memories[id_]["supersededBy"] is None]) == 1, "one head"

    @staticmethod
    def _older(id_: str, held: list[tuple[str, str]]) -> set[str]:
        found: set[str] = set()
        border = {id_}
        while border := {target for source, target in held if source in border} - found:
            found |= border
        return found

    @staticmethod
    def _chains(held: list[tuple[str, str]], kept: set[str]) -> list[set[str]]:
        """The memories that are there, those that supersede each other together."""
        chains = [{id_} for id_ in kept]
        for source, target in held:
            if source in kept and target in kept:
                joined = [chain for chain in chains if source in chain or target in chain]
                chains = [chain for chain in chains if chain not in joined] + [set().union(*joined)]
        return chains


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_chains_have_one_head_and_no_cycle(rpc: RawConnection, seed: int) -> None:
    chance = Random(seed)
    chains = Chains(rpc)
    most = chance.randint(3, 6)
    for _ in range(40):
        one, other = chance.choice(chains.ids), chance.choice(chains.ids)
        action = chance.choice(["add", "replace", *["supersede"] * 4, "delete", "restore"])
        if action == "supersede":
            chains.supersede(one, other)
        elif action in ("delete", "restore"):
            chains.do(action, one)
        elif len(chains.ids) < most:
            chains.add(supersedes=one if action == "replace" else None)
    chains.check()


def test_chain_through_a_deleted_memory_is_no_cycle(rpc: RawConnection) -> None:
    chains = Chains(rpc)
    chains.add(supersedes=chains.ids[0])
    chains.add(supersedes=chains.ids[1])
    oldest, middle, newest = chains.ids
    chains.do("delete", middle)
    chains.supersede(oldest, newest)
    chains.do("restore", middle)
    chains.check()


# -- what belongs to a memory


def test_related_memories_are_found_by_relation_entity_and_vector(rpc: RawConnection, add: Add) -> None:
    name = f"widget{next(_numbers)}"
    entity = rpc.call("entity.upsert", name=name, type="technology")["id"]
    one = add(f"The canteen serves lunch at twelve and has a {name}")
    by_relation, by_entity = add("zebra"), add("giraffe")
    rpc.call("entity.link", memoryId=by_entity, entityId=entity)
    by_meaning = add("Lunch in the canteen is served at twelve")
    superseded, successor = add("quagga"), add("okapi")
    relate(rpc, by_relation, one, "CONTRADICTS", confidence=0.9)
    relate(rpc, one, superseded, "BUILDS_ON")
    relate(rpc, successor, superseded, "SUPERSEDES")

    def related() -> dict[str, tuple[str, str]]:
        found = rpc.call("memory.related", id=one, limit=100)
        scores = [one["score"] for one in found]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score <= 1 for score in scores)
        return {one["memory"]["id"]: (one["via"], one["detail"]) for one in found}

    eventually(lambda: by_meaning in related(), "its vector is there")
    found = related()
    assert found[by_relation] == ("relation", "that CONTRADICTS this")
    assert found[by_entity] == ("entity", name)
    assert found[by_meaning][0] == "similarity"
    assert found.keys() & {one, superseded, successor} == set()
    assert len(rpc.call("memory.related", id=one, limit=1)) == 1


def test_entity_in_many_memories_relates_them_weakly(home: Path) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon, daemon.connect() as connection:
        for name in ("common", "rare"):
            connection.call("entity.upsert", name=name, type="technology")
        texts = ["common rare", "kiwi rare", "emu common rare", *["moa common"] * 9]
        one, by_rare, by_both, *by_common = (remember(connection, text) for text in texts)
        found = connection.call("memory.related", id=one, limit=100)
        score = {related["memory"]["id"]: related["score"] for related in found}
        assert score[by_both] > score[by_rare] > max(score[id_] for id_ in by_common)
        assert found[0]["detail"] == "common, rare"


def test_related_scores_do_not_reveal_other_scopes(home: Path) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon, daemon.connect() as connection:
        connection.call("entity.upsert", name="gnu", type="concept")
        one, _ = remember(connection, "gnu"), remember(connection, "gnu")
        before = connection.call("memory.related", id=one)
        for _ in range(3):
            remember(connection, "gnu", "custom:theirs")
        assert connection.call("memory.related", id=one) == before
        assert len(connection.call("memory.related", id=one, **EVERYTHING)) == 4


def test_similar_memories_of_other_scopes_are_not_related(rpc: RawConnection, add: Add) -> None:
    text = "Invoices are printed on yellow paper every Friday"
    mine, own, theirs = add(text, "custom:mine"), add(f"{text} morning", "custom:mine"), add(text, "custom:theirs")

    def related(**scopes: Any) -> set[str]:
        return {one["memory"]["id"] for one in rpc.call("memory.related", id=mine, limit=100, **scopes)}

    eventually(lambda: {own, theirs} <= related(**EVERYTHING), "their vectors are there")
    for _ in ("in the database", "in memory"):
        assert own in related(scopes=["custom:mine"])
        assert theirs not in related(scopes=["custom:mine"])
        rpc.call("memory.search", query="invoices")  # brings the vectors into memory


def test_related_memories_without_vectors_use_relations_and_entities(home: Path) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon, daemon.connect() as connection:
        one, other = remember(connection, "the same words"), remember(connection, "the same words")
        assert connection.call("memory.related", id=one) == []
        relate(connection, one, other, "CONFIRMS")
        [found] = connection.call("memory.related", id=one)
        assert (found["memory"]["id"], found["via"], found["detail"]) == (other, "relation", "this CONFIRMS that")
