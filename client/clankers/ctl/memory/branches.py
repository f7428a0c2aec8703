"""A graph as a tree from where the question began: what is drawn on a terminal and into a picture."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from clankers_protocol.entities import Graph, GraphEdge, GraphNode


@dataclass
class Branch:
    """A node, the edge that leads to it from the one before, and what goes on from it.

    `others` are the edges from it that lead to nodes which are elsewhere in the tree.
    """

    node: GraphNode
    edge: GraphEdge | None = None
    children: list["Branch"] = field(default_factory=list)
    others: list[GraphEdge] = field(default_factory=list)

    def walk(self) -> Iterator["Branch"]:
        """This one and all that follow, top down."""
        yield self
        for child in self.children:
            yield from child.walk()


def grown(graph: Graph) -> Branch:
    """The tree; each node is in it once, below one that is a hop nearer to the root, or below the root itself."""
    nodes = sorted(graph.nodes, key=lambda node: node.hops)
    branches = {node.id: Branch(node) for node in nodes}
    edges = [edge for edge in graph.edges if edge.source in branches and edge.target in branches]
    for edge in edges:
        near, far = sorted((branches[edge.source], branches[edge.target]), key=lambda branch: branch.node.hops)
        if far.edge is None and far.node.hops == near.node.hops + 1:
            far.edge = edge
            near.children.append(far)
        else:
            branches[edge.source].others.append(edge)
    root = branches[nodes[0].id]
    root.children += [branches[node.id] for node in nodes[1:] if branches[node.id].edge is None]
    return root
