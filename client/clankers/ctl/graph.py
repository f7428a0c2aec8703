"""`clankers-ctl graph`: edges between chunks of documents."""

from typing import Any, get_args

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import plural
from clankers.ctl.output import Column, echo, one_line, print_json, print_table
from clankers_protocol.documents import ChunkGet
from clankers_protocol.graph import (
    Edge,
    GraphGetEdges,
    GraphIncoming,
    GraphPrune,
    GraphStoreEdges,
    GraphTraverse,
    Reached,
)
from clankers_protocol.search import Direction, Relation

MAX_CHUNKS_PER_REQUEST = 1000

relation_option = click.option(
    "--relation",
    "relations",
    multiple=True,
    type=click.Choice(get_args(Relation)),
    help="Only follow edges of this relation. Can be repeated.",
)


@click.group()
def graph() -> None:
    """Show and add edges between chunks of documents. `docs show ID --chunks` lists the ids of chunks.

    You can shorten an id to its first or last 8 characters, or more if that is ambiguous.

    \b
    Examples:
      clankers-ctl graph edges 5d41402abc4b2a76b9719d911017c592
      clankers-ctl graph walk 5d41402abc4b2a76b9719d911017c592 --hops 3
      clankers-ctl graph prune --min-weight 0.2 --dry-run
    """


@graph.command()
@click.argument("chunks", nargs=-1, required=True, metavar="CHUNK…")
@relation_option
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Show at most this many in each direction.",
)
@common_options
def edges(ctl: Ctl, chunks: tuple[str, ...], relations: tuple[Relation, ...], limit: int) -> None:
    """Show outgoing and incoming edges of chunks, strongest first.

    \b
    Examples:
      clankers-ctl graph edges 5d41402abc4b2a76b9719d911017c592
      clankers-ctl graph edges 5d41402abc4b2a76b9719d911017c592 --relation references --json
    """
    ids = _full_ids(ctl, *chunks)
    outgoing = ctl.call(GraphGetEdges(ids, relations=list(relations) or None, limit=limit))
    incoming = ctl.call(GraphIncoming(ids, relations=list(relations) or None, limit=limit))
    if ctl.json:
        print_json({"out": outgoing, "in": incoming})
    elif not outgoing and not incoming:
        echo("No edges.", err=True)
    else:
        _print_edges(ctl, [*outgoing, *(edge for edge in incoming if edge not in outgoing)])


def _full_ids(ctl: Ctl, *prefixes: str) -> list[str]:
    """Return the full ids of chunks, each specified by its id or the start of it."""
    ids = []
    for prefix in prefixes:
        chunks = ctl.call(ChunkGet([prefix]))
        if not chunks:
            raise click.ClickException(f"There is no chunk {prefix}. `docs show ID --chunks` lists the ids of chunks.")
        ids.append(chunks[0].id)
    return ids


def _print_edges(ctl: Ctl, edges: list[Edge]) -> None:
    labels = _chunk_labels(ctl, [chunk_id for edge in edges for chunk_id in (edge.source_id, edge.target_id)])
    columns = [
        Column("Weight", align_right=True, style="cyan"),
        Column("From", min_width=16),
        Column("Relation"),
        Column("To", min_width=16),
        Column("Description", min_width=12, optional=True),
    ]
    rows = [
        [
            f"{edge.weight:.2f}",
            labels.get(edge.source_id, edge.source_id),
            edge.relation,
            labels.get(edge.target_id, edge.target_id),
            one_line(edge.description or ""),
        ]
        for edge in edges
    ]
    print_table(columns, rows)


def _chunk_labels(ctl: Ctl, ids: list[str]) -> dict[str, str]:
    """Return a label for each chunk: its short id and the start of its text."""
    unique_ids = list(dict.fromkeys(ids))
    labels = {}
    for start in range(0, len(unique_ids), MAX_CHUNKS_PER_REQUEST):
        for chunk in ctl.call(ChunkGet(unique_ids[start : start + MAX_CHUNKS_PER_REQUEST])):
            labels[chunk.id] = f"{chunk.id[:8]} {one_line(chunk.content)[:60]}"
    return labels


@graph.command()
@click.argument("chunks", nargs=-1, required=True, metavar="CHUNK…")
@click.option("--hops", type=click.IntRange(1, 5), default=2, show_default=True, help="Follow at most this many edges.")
@click.option(
    "--decay",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.7,
    show_default=True,
    help="Multiply the score by this per hop.",
)
@click.option(
    "--direction",
    type=click.Choice(get_args(Direction)),
    default="both",
    show_default=True,
    help="Follow outgoing edges, incoming edges, or both.",
)
@relation_option
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.0, help="Leave out chunks with a lower score.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Show at most this many.")
@common_options
def walk(ctl: Ctl, chunks: tuple[str, ...], relations: tuple[Relation, ...], **options: Any) -> None:
    """Show chunks that can be reached from others, best first.

    \b
    Examples:
      clankers-ctl graph walk 5d41402abc4b2a76b9719d911017c592
      clankers-ctl graph walk 5d41402abc4b2a76b9719d911017c592 --relation depends_on --direction out --hops 5
    """
    found = ctl.call(GraphTraverse(_full_ids(ctl, *chunks), relations=list(relations) or None, **options))
    if ctl.json:
        print_json(found)
    elif not found:
        echo("No other chunks can be reached.", err=True)
    else:
        _print_reached(ctl, found)


def _print_reached(ctl: Ctl, reached: list[Reached]) -> None:
    labels = _chunk_labels(ctl, [chunk.chunk_id for chunk in reached])
    columns = [
        Column("Score", align_right=True, style="cyan"),
        Column("Hops", align_right=True),
        Column("Path", min_width=16, optional=True),
        Column("Chunk", min_width=24),
    ]
    rows = []
    for chunk in reached:
        # An arrow shows in which direction each edge was followed.
        path = " ".join(f"←{step.relation}" if step.backwards else f"{step.relation}→" for step in chunk.way)
        rows.append([f"{chunk.score:.3f}", str(chunk.hops), path, labels.get(chunk.chunk_id, chunk.chunk_id)])
    print_table(columns, rows)


@graph.command()
@click.argument("source")
@click.argument("relation", type=click.Choice(get_args(Relation)))
@click.argument("target")
@click.option(
    "--weight",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Set the weight of the edge.",
)
@click.option("--description", help="Describe in a sentence why the chunks are linked.")
@common_options
def link(ctl: Ctl, source: str, relation: Relation, target: str, weight: float, description: str | None) -> None:
    """Add an edge between two chunks. If it already exists, keep the stronger one.

    \b
    Examples:
      clankers-ctl graph link 5d41402abc4b2a76 depends_on 7d793037a0760186 --weight 0.8
    """
    source_id, target_id = _full_ids(ctl, source, target)
    stored = ctl.call(GraphStoreEdges([Edge(source_id, target_id, relation, weight, description)]))
    ctl.report(stored, "Kept the existing edge, which is stronger." if stored.kept else "Linked.")


@graph.command()
@click.option("--min-weight", type=click.FloatRange(0, 1, min_open=True), help="Remove edges with a lower weight.")
@click.option(
    "--most-per-chunk", type=click.IntRange(1, 10_000), help="Keep only this many edges per chunk, the strongest."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@common_options
def prune(ctl: Ctl, min_weight: float | None, most_per_chunk: int | None, dry_run: bool) -> None:
    """Remove edges of deleted chunks, and weak or surplus edges.

    Without options, removes only edges of deleted chunks.

    \b
    Examples:
      clankers-ctl graph prune --dry-run
      clankers-ctl graph prune --min-weight 0.2 --most-per-chunk 20
    """
    pruned = ctl.call(GraphPrune(min_weight, most_per_chunk, dry_run))
    if ctl.json:
        print_json(pruned)
        return
    total = pruned.orphans + pruned.weak + pruned.surplus
    parts = f"{pruned.orphans:,} without a chunk, {pruned.weak:,} weak, {pruned.surplus:,} surplus"
    echo(f"{'Would remove' if dry_run else 'Removed'} {plural(total, 'edge')}: {parts}.")
