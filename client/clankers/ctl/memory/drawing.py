"""A graph as a file: in DOT for Graphviz, or as an SVG picture of our own drawing.

The picture is a tree from left to right, a column for each hop, so that no two boxes ever lie upon each other.
"""

import html
import re
from dataclasses import dataclass

from clankers.ctl.memory.branches import Branch, grown
from clankers.ctl.output import one_line, plain
from clankers_protocol.entities import Graph, GraphEdge, GraphNode

COLUMN, ROW, WIDTH, HEIGHT, MARGIN, BEND = 340, 52, 220, 38, 20, 60
LETTERS = 32
"""What fits into a box."""

COLOURS = {
    "semantic": "#cfe3f7",
    "episodic": "#e3e3e3",
    "procedural": "#d5efd2",
    "emotional": "#f9d9e0",
    "reflective": "#e4dbf5",
    "entity": "#fdf0c4",
}

_NOT_XML = re.compile("[\ufffe\uffff\ud800-\udfff]")


def as_dot(graph: Graph) -> str:
    """The graph in the language of Graphviz."""
    lines = ["digraph memories {", "  rankdir=LR;", '  node [style="rounded,filled", fontname="sans-serif"];']
    for node in graph.nodes:
        shape = "ellipse" if node.kind == "entity" else "box"
        facts = f'label={_quoted(_cut(node.label))}, tooltip={_quoted(_whole(node))}, fillcolor="{_colour(node)}"'
        lines.append(f"  {_quoted(node.id)} [shape={shape}, {facts}];")
    for edge in graph.edges:
        arrow = _quoted(edge.type)
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [label={arrow}, fontsize=10];")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    escaped = plain(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@dataclass(frozen=True)
class Spot:
    """Where a box lies: its left upper corner."""

    x: float
    y: float


def as_svg(graph: Graph) -> str:
    """The graph as a picture."""
    root = grown(graph)
    spots = _spots(root)
    width = max(spot.x for spot in spots.values()) + WIDTH + MARGIN + BEND
    height = max(spot.y for spot in spots.values()) + HEIGHT + MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    led = [branch.edge for branch in root.walk() if branch.edge]
    others = [edge for branch in root.walk() for edge in branch.others]
    drawn += [_line(edge, spots, dashed=False) for edge in led]
    drawn += [_line(edge, spots, dashed=True) for edge in others]
    drawn += [_box(branch.node, spots[branch.node.id]) for branch in root.walk()]
    return "\n".join([*drawn, "</svg>", ""])


def _spots(root: Branch) -> dict[str, Spot]:
    """A row for each leaf; a branch lies in the middle of those that go on from it."""
    spots: dict[str, Spot] = {}
    rows = 0
    for branch in reversed(list(root.walk())):  # what follows is placed before what it follows from
        x = MARGIN + COLUMN * _depth(branch, root)
        if branch.children:
            ys = [spots[child.node.id].y for child in branch.children]
            spots[branch.node.id] = Spot(x, (min(ys) + max(ys)) / 2)
        else:
            spots[branch.node.id] = Spot(x, rows * ROW)
            rows += 1
    top = (rows - 1) * ROW + MARGIN
    return {name: Spot(spot.x, top - spot.y) for name, spot in spots.items()}


def _depth(branch: Branch, root: Branch) -> int:
    return max(branch.node.hops - root.node.hops, 0)


def _line(edge: GraphEdge, spots: dict[str, Spot], dashed: bool) -> str:
    source, target = spots[edge.source], spots[edge.target]
    right = target.x >= source.x
    x1, x2 = source.x + (WIDTH if right else 0), target.x + (0 if right and target.x > source.x else WIDTH)
    y1, y2 = source.y + HEIGHT / 2, target.y + HEIGHT / 2
    bend = BEND if right else -BEND
    back = bend if target.x == source.x else -bend  # in one column it leaves and comes back on the right
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 + back:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    middle = (x1 + x2) / 2 + (bend * 0.75 if target.x == source.x else 0)
    return (
        f'<path d="{path}" fill="none" stroke="#999"{dashes} marker-end="url(#tip)"/>'
        f'<text x="{middle:.1f}" y="{(y1 + y2) / 2 - 4:.1f}" text-anchor="middle" font-size="9" fill="#555">'
        f"{_escaped(edge.type)}</text>"
    )


def _box(node: GraphNode, spot: Spot) -> str:
    round_corners = HEIGHT / 2 if node.kind == "entity" else 5
    border = ' stroke-width="2.5"' if node.hops == 0 else ""
    return (
        f"<g><title>{_escaped(_whole(node))}</title>"
        f'<rect x="{spot.x:.1f}" y="{spot.y:.1f}" width="{WIDTH}" height="{HEIGHT}" rx="{round_corners:.0f}" '
        f'fill="{_colour(node)}" stroke="#555"{border}/>'
        f'<text x="{spot.x + WIDTH / 2:.1f}" y="{spot.y + HEIGHT / 2 + 4:.1f}" text-anchor="middle">'
        f"{_escaped(_cut(node.label))}</text></g>"
    )


def _colour(node: GraphNode) -> str:
    return COLOURS.get(node.memory.sector if node.memory else node.kind, "#ffffff")


def _whole(node: GraphNode) -> str:
    if node.memory:
        return f"{node.memory.content}\n({node.memory.sector}, {node.memory.state}, {node.id})"
    return f"{node.label}\n({node.entity.type if node.entity else node.kind}, {node.id})"


def _cut(label: str) -> str:
    line = one_line(label)
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…"


def _escaped(text: str) -> str:
    """The text as XML may hold it."""
    return html.escape(_NOT_XML.sub("\ufffd", plain(text)))
