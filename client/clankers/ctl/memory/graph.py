"""`clankers-ctl memory graph`: as a tree on the terminal, as DOT and as SVG."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.memory.branches import Branch, grown
from clankers.ctl.memory.drawing import as_dot, as_svg
from clankers.ctl.memory.files import whole_file
from clankers.ctl.memory.options import EVERYTHING, as_of_option, entity_id, memory_ids
from clankers.ctl.memory.showing import SHORT
from clankers.ctl.output import console, echo, one_line, print_json, shorten_ids
from clankers_protocol.entities import Graph, GraphEdge, GraphNeighbors, GraphNode, RelationType
from clankers_protocol.errors import NotFound

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

STYLES = {"memory": "", "entity": "yellow"}


@click.command()
@click.argument("id", metavar="ID|ENTITY", shell_complete=memory_ids)
@click.option("--hops", type=click.IntRange(1, 6), default=2, show_default=True, help="How far.")
@click.option(
    "--type", "types", multiple=True, type=click.Choice(get_args(RelationType)), help="Only along these relations."
)
@click.option("--entities/--no-entities", "through_entities", default=True, help="Through entities, or not.")
@click.option("--closed", "include_closed", is_flag=True, help="Also relations that hold no longer.")
@as_of_option
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many at most.")
@click.option("--dot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it for Graphviz.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it as a picture.")
@common_options
def graph(
    ctl: Ctl,
    id: str,  # noqa: A002  # the name on the command line
    types: tuple[RelationType, ...],
    dot: Path | None,
    svg: Path | None,
    **given: Any,
) -> None:
    """Show what lies around a memory or an entity (by id or by name), as a tree, a picture or for Graphviz.

    \b
    Examples:
      clankers-ctl memory graph 0199c5a2-1b3c
      clankers-ctl memory graph PostgreSQL --hops 3
      clankers-ctl memory graph 0199c5a2-1b3c --type SUPERSEDES --no-entities --closed
      clankers-ctl memory graph PostgreSQL --svg postgres.svg --dot postgres.dot
    """
    found = _around(ctl, GraphNeighbors(id=id, types=list(types) or None, scopes=EVERYTHING, **given))
    for path, draw in ((dot, as_dot), (svg, as_svg)):
        if path:
            with whole_file(path) as file:
                file.write(draw(found))
            echo(f"Written: {path}", err=True)
    if ctl.json:
        print_json(found)
    elif not dot and not svg:
        _print_tree(found)
    if found.truncated:
        echo("There is more around it: --limit N shows it.", err=True)


def _around(ctl: Ctl, request: GraphNeighbors) -> Graph:
    try:
        return ctl.call(request)
    except NotFound as error:
        try:
            named = entity_id(ctl, request.id)
        except NotFound:
            raise error from None
    return ctl.call(msgspec.structs.replace(request, id=named))


def _print_tree(found: Graph) -> None:
    from rich.tree import Tree  # slow to load

    ids = [node.id for node in found.nodes]
    names = dict(zip(ids, shorten_ids(ids, SHORT), strict=True))
    root = grown(found)
    tree = Tree(_node(root.node, names), guide_style="dim")
    _grow(tree, root, names)
    console().print(tree)


def _grow(tree: "Tree", branch: Branch, names: dict[str, str]) -> None:
    from rich.text import Text  # slow to load

    for child in branch.children:
        heading = Text().append(_arrow(child.edge, child.node), "cyan").append(_node(child.node, names))
        _grow(tree.add(heading), child, names)
    for edge in branch.others:
        tree.add(Text(f"{one_line(edge.type)} → {one_line(names[edge.target])} (shown elsewhere)", "dim"))


def _arrow(edge: GraphEdge | None, node: GraphNode) -> str:
    if edge is None:
        return ""
    return f"{one_line(edge.type)} {'→' if edge.target == node.id else '←'} "


def _node(node: GraphNode, names: dict[str, str]) -> "Text":
    from rich.text import Text  # slow to load

    kind = node.entity.type if node.entity else None
    state = node.memory.state if node.memory and node.memory.state != "current" else None
    facts = " ".join(fact for fact in (one_line(names[node.id]), kind, state) if fact)
    return Text().append(one_line(node.label), STYLES[node.kind]).append(f"  {facts}", "dim")
