"""Parts of `clankers-ctl memory` that need no daemon: drafts, graph rendering and import formats."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers.ctl.memory.edit import SEPARATOR, DraftError, format_draft, locate_error, parse_changes
from clankers.ctl.memory.files import convert_record
from clankers.ctl.memory.graph import BOX_HEIGHT, BOX_WIDTH, render_dot, render_svg, spanning_tree
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
    """Return the draft with another value in a field."""
    changed, count = re.subn(rf"(?m)^{name} = .*$", lambda _: f"{name} = {value}", text)
    assert count == 1
    return changed


# Drafts


@given(content=TEXT, summary=TEXT, tags=st.lists(TEXT), importance=st.floats(0, 1), expires=st.integers(NOW, NOW * 2))
def test_parse_changes_returns_none_for_an_unedited_draft(
    content: str, summary: str, tags: list[str], importance: float, expires: int
) -> None:
    shown = memory(content=content, summary=summary, tags=tags, importance=importance, expires_at=expires)
    text = format_draft(shown)

    assert parse_changes(shown, text, text) is None
    assert parse_changes(shown, text, text + "\n\n") is None  # editors like to add a line


@given(content=TEXT.filter(lambda text: "\r" not in text and text.strip("\n")), tags=st.lists(TEXT, max_size=5))
def test_parse_changes_sends_only_edited_fields(content: str, tags: list[str]) -> None:
    before, after = memory(), memory(content=content, tags=[tag[:200] for tag in tags])
    update = parse_changes(before, format_draft(before), format_draft(after))

    sent = (
        {} if update is None else {name for name in ("content", "tags", "summary") if getattr(update, name) is not None}
    )
    assert ("content" in sent) == (content.strip("\n") != before.content)
    assert ("tags" in sent) == bool(tags)
    assert "summary" not in sent
    if update and update.content is not None:
        assert update.content == content.strip("\n")


def test_parse_changes_accepts_times_in_human_formats() -> None:
    shown = memory()
    text = format_draft(shown)

    for written in ('"2033-01-31"', "2033-01-31", "2033-01-31T18:00:00", '"2033-01-31 18:00"', '"2w"'):
        update = parse_changes(shown, text, edited(text, "expires_at", written))
        assert update
        assert update.expires_at
        assert update.expires_at > NOW
    day = [parse_changes(shown, text, edited(text, name, '"2033-01-31"')) for name in ("valid_from", "valid_until")]
    assert day[0]
    assert day[1]
    assert day[1].valid_until == (day[0].valid_from or 0) + 24 * 3_600_000 - 1  # from the start to the end of the day


def test_parse_changes_sends_times_before_2001_in_seconds() -> None:
    shown = memory()
    text = format_draft(shown)
    update = parse_changes(shown, text, edited(text, "valid_from", "1999-12-31T00:00:00Z"))

    assert update
    assert update.valid_from == 946_598_400  # numbers this small are seconds


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("importance", "1.5", "line 7, importance: Expected `float` <= 1.0"),
        ("importance", '"much"', "line 7, importance: Expected `float | null`, got `str`"),
        ("sector", '"psychic"', "line 4, sector: "),
        ("tags", '["a", 1]', "line 9, tags: "),
        ("expires_at", '"soon"', "line 14, expires_at: 'soon' is not a time"),
        ("tags", "[", "the fields are not valid TOML"),
        ("id", '"another"', "line 2, id: this is a draft of another"),
        ("tier", '"global"\nmood = "good"', "mood: there is no field 'mood'"),
        ("category", '"Not A Category"', "line 6, category: "),
    ],
)
def test_parse_changes_reports_the_line_of_an_invalid_field(name: str, value: str, message: str) -> None:
    shown = memory()
    text = format_draft(shown)

    with pytest.raises(DraftError, match=re.escape(message)):
        parse_changes(shown, text, edited(text, name, value))


def test_parse_changes_requires_the_separator() -> None:
    shown = memory()

    with pytest.raises(DraftError, match="is missing"):
        parse_changes(shown, format_draft(shown), format_draft(shown).replace(SEPARATOR, ""))


def test_locate_error_maps_daemon_errors_to_lines_of_the_draft() -> None:
    text = format_draft(memory())

    message = locate_error("invalid params: it ends before it begins - at `$.validUntil`", text)
    assert re.fullmatch(r"line \d+, valid_until: it ends before it begins", str(message))
    assert str(locate_error("invalid params: nothing - at `$.content`", text)) == "below the line: nothing"
    assert str(locate_error("something else", text)) == "something else"


# The graph


def graph(labels: list[str]) -> Graph:
    """Make a graph of a memory, entities around it, and memories around those; the last two memories are related."""
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


def test_spanning_tree_contains_every_node_once_and_every_edge() -> None:
    found = graph(["a", "b", "c", "d"])
    branches = list(spanning_tree(found).walk())

    assert sorted(branch.node.id for branch in branches) == sorted(node.id for node in found.nodes)
    tree_edges = [branch.edge for branch in branches if branch.edge]
    other_edges = [edge for branch in branches for edge in branch.other_edges]
    assert len(tree_edges) + len(other_edges) == len(found.edges)


def test_spanning_tree_contains_nodes_without_edges() -> None:
    found = Graph([GraphNode("a", "memory", "a", 0), GraphNode("b", "memory", "b", 2)], [], True)

    assert [branch.node.id for branch in spanning_tree(found).walk()] == ["a", "b"]


@given(st.lists(st.text(), min_size=2, max_size=4))
def test_render_svg_is_valid_xml_for_any_text(labels: list[str]) -> None:
    drawn = ET.fromstring(render_svg(graph(labels)))

    assert len(drawn.findall(f"{SVG}g")) == len(graph(labels).nodes)


def test_render_svg_boxes_do_not_overlap_and_lie_inside_the_picture() -> None:
    drawn = ET.fromstring(render_svg(graph(list("abcdefgh"))))
    corners = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in drawn.findall(f"{SVG}g/{SVG}rect")]

    for place, (x, y) in enumerate(corners):
        assert 0 <= x <= float(drawn.attrib["width"]) - BOX_WIDTH
        assert 0 <= y <= float(drawn.attrib["height"]) - BOX_HEIGHT
        assert all(abs(x - a) >= BOX_WIDTH or abs(y - b) >= BOX_HEIGHT for a, b in corners[:place])


def test_render_dot_escapes_quotes_and_newlines() -> None:
    text = render_dot(graph(['say "hi"\\', "two\nlines"]))

    assert r'label="say \"hi\"\\"' in text
    assert text.count("\n") == len(text.splitlines())
    assert r'tooltip="two\nlines' in text
    assert '"root" -> "e0"' in text


# Import formats


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
             "salience": 1.0, "lastAccessed": NOW + 2, "createdAt": NOW, "updatedAt": NOW + 1},
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
def test_convert_record_reads_exports_of_other_stores(record: dict[str, Any], expected: dict[str, Any]) -> None:
    assert convert_record(record) == expected
    msgspec.convert(convert_record(record), MemoryRecord)


def test_convert_record_returns_our_own_records_unchanged() -> None:
    record = {"id": "a", "content": "b", "createdAt": 1}

    assert convert_record(record) is record
