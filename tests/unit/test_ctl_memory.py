"""Memories as forms, pictures and files of others: what needs no daemon."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers.ctl.memory.branches import grown
from clankers.ctl.memory.drawing import HEIGHT, WIDTH, as_dot, as_svg
from clankers.ctl.memory.foreign import adopted
from clankers.ctl.memory.form import LINE, Mistake, changes, form, mistake
from clankers_protocol.entities import Graph, GraphEdge, GraphNode
from clankers_protocol.memories import Memory
from clankers_protocol.memory_transfer import MemoryRecord

NOW = 1_760_000_000_000
SVG = "{http://www.w3.org/2000/svg}"
TEXT = st.text(st.characters(codec="utf-8"), min_size=1)


def memory(**fields: Any) -> Memory:
    facts: dict[str, Any] = dict.fromkeys(Memory.__struct_fields__)
    facts |= {"id": "0199c5a2-1b3c", "content": "The port is 8080.", "sector": "semantic", "tier": "global"}
    facts |= {"category": "fact", "scope": "global", "importance": 0.5, "confidence": 0.5, "salience": 1.0}
    facts |= {"access_count": 0, "pinned": False, "tags": [], "concepts": [], "files": [], "state": "current"}
    facts |= {"created_at": NOW, "updated_at": NOW, "last_accessed": NOW, "valid_from": NOW}
    return Memory(**facts | fields)


def edited(text: str, name: str, value: str) -> str:
    """The form with another value in a field."""
    changed, count = re.subn(rf"(?m)^{name} = .*$", lambda _: f"{name} = {value}", text)
    assert count == 1
    return changed


# The form


@given(content=TEXT, summary=TEXT, tags=st.lists(TEXT), importance=st.floats(0, 1), expires=st.integers(NOW, NOW * 2))
def test_a_form_that_is_left_alone_changes_nothing(
    content: str, summary: str, tags: list[str], importance: float, expires: int
):
    shown = memory(content=content, summary=summary, tags=tags, importance=importance, expires_at=expires)
    text = form(shown)

    assert changes(shown, text, text) is None
    assert changes(shown, text, text + "\n\n") is None  # editors like to add a line


@given(content=TEXT.filter(lambda text: "\r" not in text and text.strip("\n")), tags=st.lists(TEXT, max_size=5))
def test_what_is_changed_and_only_that_is_sent(content: str, tags: list[str]):
    before, after = memory(), memory(content=content, tags=[tag[:200] for tag in tags])
    update = changes(before, form(before), form(after))

    sent = (
        {} if update is None else {name for name in ("content", "tags", "summary") if getattr(update, name) is not None}
    )
    assert ("content" in sent) == (content.strip("\n") != before.content)
    assert ("tags" in sent) == bool(tags)
    assert "summary" not in sent
    if update and update.content is not None:
        assert update.content == content.strip("\n")


def test_times_are_taken_as_people_write_them():
    shown = memory()
    text = form(shown)

    for written in ('"2033-01-31"', "2033-01-31", "2033-01-31T18:00:00", '"2033-01-31 18:00"', '"2w"'):
        update = changes(shown, text, edited(text, "expires_at", written))
        assert update
        assert update.expires_at
        assert update.expires_at > NOW
    day = [changes(shown, text, edited(text, name, '"2033-01-31"')) for name in ("valid_from", "valid_until")]
    assert day[0]
    assert day[1]
    assert day[1].valid_until == (day[0].valid_from or 0) + 24 * 3_600_000 - 1  # a day from its beginning to its end


def test_a_time_before_2001_is_sent_as_the_daemon_reads_it():
    shown = memory()
    text = form(shown)
    update = changes(shown, text, edited(text, "valid_from", "1999-12-31T00:00:00Z"))

    assert update
    assert update.valid_from == 946_598_400  # so small a number is seconds


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("importance", "1.5", "line 7, importance: Expected `float` <= 1.0"),
        ("importance", '"much"', "line 7, importance: Expected `float | null`, got `str`"),
        ("sector", '"psychic"', "line 4, sector: "),
        ("tags", '["a", 1]', "line 9, tags: "),
        ("expires_at", '"soon"', "line 14, expires_at: 'soon' is not a time"),
        ("tags", "[", "the fields cannot be read"),
        ("id", '"another"', "line 2, id: this is a draft of another"),
        ("tier", '"global"\nmood = "good"', "mood: there is no field 'mood'"),
        ("category", '"Not A Category"', "line 6, category: "),
    ],
)
def test_a_mistake_names_its_line(name: str, value: str, said: str):
    shown = memory()
    text = form(shown)

    with pytest.raises(Mistake, match=re.escape(said)):
        changes(shown, text, edited(text, name, value))


def test_a_form_without_its_line_is_a_mistake():
    shown = memory()

    with pytest.raises(Mistake, match="is gone"):
        changes(shown, form(shown), form(shown).replace(LINE, ""))


def test_what_the_daemon_finds_wrong_is_shown_in_the_form():
    text = form(memory())

    said = mistake("invalid params: it ends before it begins - at `$.validUntil`", text)
    assert re.fullmatch(r"line \d+, valid_until: it ends before it begins", str(said))
    assert str(mistake("invalid params: nothing - at `$.content`", text)) == "below the line: nothing"
    assert str(mistake("something else", text)) == "something else"


# The graph


def graph(labels: list[str]) -> Graph:
    """A memory, around it entities, and around those memories again; the last two are also related."""
    nodes = [GraphNode("root", "memory", labels[0], 0)]
    edges = []
    for place, label in enumerate(labels[1:]):
        nodes.append(GraphNode(f"e{place}", "entity", label, 1))
        edges.append(GraphEdge("root", f"e{place}", "subject", 1.0))
        for number in range(2):
            nodes.append(GraphNode(f"m{place}{number}", "memory", label, 2))
            edges.append(GraphEdge(f"m{place}{number}", f"e{place}", "context", 1.0))
    edges.append(GraphEdge(nodes[-1].id, nodes[-2].id, "CONTRADICTS", 0.5))
    return Graph(nodes, edges, False)


def test_a_tree_holds_every_node_once_and_every_edge():
    found = graph(["a", "b", "c", "d"])
    branches = list(grown(found).walk())

    assert sorted(branch.node.id for branch in branches) == sorted(node.id for node in found.nodes)
    edges = [branch.edge for branch in branches if branch.edge] + [edge for each in branches for edge in each.others]
    assert len(edges) == len(found.edges)


def test_a_node_that_no_edge_leads_to_is_still_in_the_tree():
    found = Graph([GraphNode("a", "memory", "a", 0), GraphNode("b", "memory", "b", 2)], [], True)

    assert [branch.node.id for branch in grown(found).walk()] == ["a", "b"]


@given(st.lists(st.text(), min_size=2, max_size=4))
def test_a_picture_is_good_xml_whatever_the_memories_say(labels: list[str]):
    drawn = ET.fromstring(as_svg(graph(labels)))

    assert len(drawn.findall(f"{SVG}g")) == len(graph(labels).nodes)


def test_no_two_boxes_of_a_picture_overlap_and_all_are_in_it():
    drawn = ET.fromstring(as_svg(graph(list("abcdefgh"))))
    corners = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in drawn.findall(f"{SVG}g/{SVG}rect")]

    for place, (x, y) in enumerate(corners):
        assert 0 <= x <= float(drawn.attrib["width"]) - WIDTH
        assert 0 <= y <= float(drawn.attrib["height"]) - HEIGHT
        assert all(abs(x - a) >= WIDTH or abs(y - b) >= HEIGHT for a, b in corners[:place])


def test_dot_keeps_quotes_and_lines_in_their_strings():
    text = as_dot(graph(['say "hi"\\', "two\nlines"]))

    assert r'label="say \"hi\"\\"' in text
    assert text.count("\n") == len(text.splitlines())
    assert r'tooltip="two\nlines' in text
    assert '"root" -> "e0"' in text


# Files of others


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"id": "8f2c", "memory": "Likes tea", "hash": "x", "metadata": {"a": 1}, "user_id": "ada",
             "categories": ["food"], "created_at": "2025-01-31T12:00:00Z", "updated_at": None},
            {"id": "8f2c", "content": "Likes tea", "metadata": {"a": 1, "user_id": "ada"}, "tags": ["food"],
             "createdAt": 1_738_324_800_000},
        ),
        (
            {"id": "f91c", "content": "Dark mode", "primary_sector": "emotional", "sectors": ["emotional"],
             "tags": '["ui"]', "meta": '{"b": 2}', "salience": 1.4, "created_at": NOW, "updated_at": NOW + 1,
             "last_seen_at": NOW + 2, "decay_lambda": 0.02},
            {"id": "f91c", "content": "Dark mode", "sector": "emotional", "tags": ["ui"], "metadata": {"b": 2},
             "salience": 1.0, "salienceAt": NOW + 2, "lastAccessed": NOW + 2, "createdAt": NOW, "updatedAt": NOW + 1},
        ),
        (
            {"content": "Use WAL", "content_hash": "ab" * 32, "tags": "db, sqlite", "memory_type": "decision",
             "metadata": {}, "created_at": 1_738_324_800.5, "updated_at_iso": "2025-01-31T12:00:01"},
            {"id": "ab" * 32, "content": "Use WAL", "tags": ["db", "sqlite"],
             "metadata": {"memory_type": "decision"}, "createdAt": 1_738_324_800.5, "updatedAt": 1_738_324_801_000},
        ),
    ],
    ids=["mem0", "OpenMemory", "mcp-memory-service"],
)  # fmt: skip
def test_memories_of_other_stores_become_ours(record: dict[str, Any], expected: dict[str, Any]):
    assert adopted(record) == expected
    msgspec.convert(adopted(record), MemoryRecord)


def test_our_own_records_stay_as_they_are():
    record = {"id": "a", "content": "b", "createdAt": 1}

    assert adopted(record) is record
