"""`clankers-ctl memory graph`: the graph around a memory or entity, as a tree, an SVG picture or a Graphviz file."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.ids import short_ids
from clankers.ctl.memory.options import ALL_SCOPES, as_of_option, complete_memory_id, resolve_entity
from clankers.ctl.output import cut, echo, note, one_line, plain, print_json, rich_console
from clankers.ctl.replacement import replace_text_file
from clankers_protocol.entities import Graph, GraphEdge, GraphNeighbors, GraphNode, RelationType
from clankers_protocol.errors import NotFound

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

TEXT_STYLES = {"memory": "", "entity": "yellow"}

FILL_COLOURS = {
    "semantic": "#cfe3f7",
    "episodic": "#e3e3e3",
    "procedural": "#d5efd2",
    "emotional": "#f9d9e0",
    "reflective": "#e4dbf5",
    "entity": "#fdf0c4",
}

# Sizes in the SVG picture, in pixels.
COLUMN_WIDTH, ROW_HEIGHT = 340, 52
BOX_WIDTH, BOX_HEIGHT = 220, 38
MARGIN = 20
CURVE_OFFSET = 60
"""Distance of a curve's control points from its ends."""

MAX_LABEL_LENGTH = 32
"""Characters that fit into a box."""

_NOT_XML = re.compile("[\ufffe\uffff\ud800-\udfff]")


@click.command()
@click.argument("id", metavar="ID|ENTITY", shell_complete=complete_memory_id)
@click.option("--hops", type=click.IntRange(1, 6), default=2, show_default=True, help="Maximum distance.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(get_args(RelationType)),
    help="Follow only relations of this type. Repeatable.",
)
@click.option(
    "--entities/--no-entities",
    "through_entities",
    default=True,
    help="Follow links through shared entities (the default), or only relations between memories.",
)
@click.option("--closed", "include_closed", is_flag=True, help="Include relations that no longer hold.")
@as_of_option
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of nodes.")
@click.option(
    "--dot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the graph for Graphviz."
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the graph as an SVG picture."
)
@common_options
def graph(
    ctl: Ctl,
    id: str,  # noqa: A002  # the name on the command line
    types: tuple[RelationType, ...],
    dot: Path | None,
    svg: Path | None,
    **fields: Any,
) -> None:
    """Show the graph around a memory or an entity.

    Takes the id of a memory, or the id or name of an entity. Prints a tree, or writes a picture or a Graphviz file.

    \b
    Examples:
      clankers-ctl memory graph 0199c5a2-1b3c
      clankers-ctl memory graph PostgreSQL --hops 3
      clankers-ctl memory graph 0199c5a2-1b3c --type SUPERSEDES --no-entities --closed
      clankers-ctl memory graph PostgreSQL --svg postgres.svg --dot postgres.dot
    """
    found = _fetch_graph(ctl, GraphNeighbors(id=id, types=list(types) or None, scopes=ALL_SCOPES, **fields))
    for path, render in ((dot, render_dot), (svg, render_svg)):
        if path:
            with replace_text_file(path) as file:
                file.write(render(found))
            note(f"Wrote {path}")
    if ctl.json:
        print_json(found)
    elif not dot and not svg:
        _print_tree(ctl, found)
    if found.truncated:
        echo("The graph has more nodes: use --limit N.", err=True)


def _fetch_graph(ctl: Ctl, request: GraphNeighbors) -> Graph:
    try:
        return ctl.call(request)
    except NotFound as not_found:
        try:
            entity_id = resolve_entity(ctl, request.id)
        except NotFound:
            raise not_found from None
    return ctl.call(msgspec.structs.replace(request, id=entity_id))


# -- the tree


@dataclass
class Branch:
    """A node of a spanning tree of the graph, and the edge from its parent.

    `other_edges` start at this node and lead to nodes elsewhere in the tree.
    """

    node: GraphNode
    edge: GraphEdge | None = None
    children: list["Branch"] = field(default_factory=list)
    other_edges: list[GraphEdge] = field(default_factory=list)

    def walk(self) -> Iterator["Branch"]:
        """Iterate over this branch and all branches below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def spanning_tree(graph: Graph) -> Branch:
    """Arrange the graph as a tree in which each node occurs once, below a node one hop nearer to the root.

    Nodes without such a neighbour hang below the root.
    """
    nodes = sorted(graph.nodes, key=lambda node: node.hops)
    branches = {node.id: Branch(node) for node in nodes}
    edges = [edge for edge in graph.edges if edge.source in branches and edge.target in branches]
    for edge in edges:
        near, far = sorted((branches[edge.source], branches[edge.target]), key=lambda branch: branch.node.hops)
        if far.edge is None and far.node.hops == near.node.hops + 1:
            far.edge = edge
            near.children.append(far)
        else:
            branches[edge.source].other_edges.append(edge)
    root = branches[nodes[0].id]
    root.children += [branches[node.id] for node in nodes[1:] if branches[node.id].edge is None]
    return root


def _print_tree(ctl: Ctl, graph: Graph) -> None:
    from rich.tree import Tree  # slow to load

    shown_ids: dict[str, str] = {}
    for kind in ("memory", "entity"):
        ids = [node.id for node in graph.nodes if node.kind == kind]
        shown_ids |= zip(ids, short_ids(ctl, kind, ids), strict=True)
    root = spanning_tree(graph)
    tree = Tree(_node_text(root.node, shown_ids), guide_style="dim")
    _add_branches(tree, root, shown_ids)
    rich_console().print(tree)


def _add_branches(tree: "Tree", branch: Branch, shown_ids: dict[str, str]) -> None:
    from rich.text import Text  # slow to load

    for child in branch.children:
        heading = Text()
        if child.edge:
            arrow = "→" if child.edge.target == child.node.id else "←"
            heading.append(f"{one_line(child.edge.type)} {arrow} ", "cyan")
        heading.append(_node_text(child.node, shown_ids))
        _add_branches(tree.add(heading), child, shown_ids)
    for edge in branch.other_edges:
        tree.add(Text(f"{one_line(edge.type)} → {one_line(shown_ids[edge.target])} (shown elsewhere)", "dim"))


def _node_text(node: GraphNode, shown_ids: dict[str, str]) -> "Text":
    from rich.text import Text  # slow to load

    facts = [one_line(shown_ids[node.id])]
    if node.entity:
        facts.append(node.entity.type)
    if node.memory and node.memory.state != "current":
        facts.append(node.memory.state)
    return Text().append(one_line(node.label), TEXT_STYLES[node.kind]).append(f"  {' '.join(facts)}", "dim")


# -- Graphviz


def render_dot(graph: Graph) -> str:
    """Render the graph in the DOT language of Graphviz."""
    lines = ["digraph memories {", "  rankdir=LR;", '  node [style="rounded,filled", fontname="sans-serif"];']
    for node in graph.nodes:
        shape = "ellipse" if node.kind == "entity" else "box"
        label, tooltip = _quote_dot(_short_label(node)), _quote_dot(_description(node))
        attributes = f'shape={shape}, label={label}, tooltip={tooltip}, fillcolor="{_colour(node)}"'
        lines.append(f"  {_quote_dot(node.id)} [{attributes}];")
    for edge in graph.edges:
        label = _quote_dot(edge.type)
        lines.append(f"  {_quote_dot(edge.source)} -> {_quote_dot(edge.target)} [label={label}, fontsize=10];")
    return "\n".join([*lines, "}", ""])


def _quote_dot(text: str) -> str:
    escaped = plain(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# -- SVG: the tree from left to right with one column per hop, so that boxes never overlap


@dataclass(frozen=True)
class Position:
    """The upper left corner of a box."""

    x: float
    y: float


def render_svg(graph: Graph) -> str:
    """Render the graph as an SVG picture."""
    root = spanning_tree(graph)
    branches = list(root.walk())
    positions = _lay_out(root)
    width = max(position.x for position in positions.values()) + BOX_WIDTH + MARGIN + CURVE_OFFSET
    height = max(position.y for position in positions.values()) + BOX_HEIGHT + MARGIN
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    tree_edges = [branch.edge for branch in branches if branch.edge]
    other_edges = [edge for branch in branches for edge in branch.other_edges]
    elements += [_svg_edge(edge, positions, dashed=False) for edge in tree_edges]
    elements += [_svg_edge(edge, positions, dashed=True) for edge in other_edges]
    elements += [_svg_box(branch.node, positions[branch.node.id]) for branch in branches]
    return "\n".join([*elements, "</svg>", ""])


def _lay_out(root: Branch) -> dict[str, Position]:
    """Place each leaf in a row of its own and each inner node halfway between its first and last child."""
    positions: dict[str, Position] = {}
    leaves = 0
    for branch in reversed(list(root.walk())):  # children before their parents
        x = MARGIN + COLUMN_WIDTH * max(branch.node.hops - root.node.hops, 0)
        if branch.children:
            ys = [positions[child.node.id].y for child in branch.children]
            y = (min(ys) + max(ys)) / 2
        else:
            y = leaves * ROW_HEIGHT
            leaves += 1
        positions[branch.node.id] = Position(x, y)
    bottom = (leaves - 1) * ROW_HEIGHT + MARGIN  # the walk was backwards, so rows count from the bottom
    return {node_id: Position(position.x, bottom - position.y) for node_id, position in positions.items()}


def _svg_edge(edge: GraphEdge, positions: dict[str, Position], dashed: bool) -> str:
    source, target = positions[edge.source], positions[edge.target]
    y1, y2 = source.y + BOX_HEIGHT / 2, target.y + BOX_HEIGHT / 2
    if target.x == source.x:  # within a column: leave and arrive on the right side
        x1 = x2 = source.x + BOX_WIDTH
        control1 = control2 = x1 + CURVE_OFFSET
        label_x = x1 + CURVE_OFFSET * 0.75
    elif target.x > source.x:
        x1, x2 = source.x + BOX_WIDTH, target.x
        control1, control2 = x1 + CURVE_OFFSET, x2 - CURVE_OFFSET
        label_x = (x1 + x2) / 2
    else:
        x1, x2 = source.x, target.x + BOX_WIDTH
        control1, control2 = x1 - CURVE_OFFSET, x2 + CURVE_OFFSET
        label_x = (x1 + x2) / 2
    path = f"M{x1:.1f} {y1:.1f} C{control1:.1f} {y1:.1f} {control2:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<path d="{path}" fill="none" stroke="#999"{dashes} marker-end="url(#tip)"/>'
        f'<text x="{label_x:.1f}" y="{(y1 + y2) / 2 - 4:.1f}" text-anchor="middle" font-size="9" fill="#555">'
        f"{_escape_xml(edge.type)}</text>"
    )


def _svg_box(node: GraphNode, position: Position) -> str:
    radius = BOX_HEIGHT / 2 if node.kind == "entity" else 5
    border = ' stroke-width="2.5"' if node.hops == 0 else ""
    return (
        f"<g><title>{_escape_xml(_description(node))}</title>"
        f'<rect x="{position.x:.1f}" y="{position.y:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{radius:.0f}" '
        f'fill="{_colour(node)}" stroke="#555"{border}/>'
        f'<text x="{position.x + BOX_WIDTH / 2:.1f}" y="{position.y + BOX_HEIGHT / 2 + 4:.1f}" text-anchor="middle">'
        f"{_escape_xml(_short_label(node))}</text></g>"
    )


def _escape_xml(text: str) -> str:
    """Escape text for XML, replacing characters that XML does not allow."""
    return html.escape(_NOT_XML.sub("\ufffd", plain(text)))


# -- common to both files


def _colour(node: GraphNode) -> str:
    return FILL_COLOURS.get(node.memory.sector if node.memory else node.kind, "#ffffff")


def _short_label(node: GraphNode) -> str:
    return cut(one_line(node.label), MAX_LABEL_LENGTH)


def _description(node: GraphNode) -> str:
    """Return the full text of a node and what it is, for a tooltip."""
    if node.memory:
        return f"{node.memory.content}\n({node.memory.sector}, {node.memory.state}, {node.id})"
    return f"{node.label}\n({node.entity.type if node.entity else node.kind}, {node.id})"
