"""`clankers-ctl graph`: how chunks of documents hang together."""

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

relation_option = click.option(
    "--relation", "relations", multiple=True, type=click.Choice(get_args(Relation)), help="Only along these."
)


@click.group()
def graph() -> None:
    """See and make the edges between chunks of documents; `docs show ID --chunks` has the chunks' ids.

    An id may be cut to a beginning of 8 characters or more, if that names one chunk only.

    \b
    Examples:
      clankers-ctl graph edges 5d41402abc4b2a76b9719d911017c592
      clankers-ctl graph walk 5d41402abc4b2a76b9719d911017c592 --hops 3
      clankers-ctl graph prune --min-weight 0.2 --dry-run
    """


@graph.command()
@click.argument("chunks", nargs=-1, required=True, metavar="CHUNK…")
@relation_option
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many each way.")
@common_options
def edges(ctl: Ctl, chunks: tuple[str, ...], relations: tuple[Relation, ...], limit: int) -> None:
    """Show the edges that lead from chunks and to them, strongest first.

    \b
    Examples:
      clankers-ctl graph edges 5d41402abc4b2a76b9719d911017c592
      clankers-ctl graph edges 5d41402abc4b2a76b9719d911017c592 --relation references --json
    """
    asked: dict[str, Any] = {"ids": _whole(ctl, *chunks), "relations": list(relations) or None, "limit": limit}
    out, into = ctl.call(GraphGetEdges(**asked)), ctl.call(GraphIncoming(**asked))
    if ctl.json:
        print_json({"out": out, "in": into})
    elif not out and not into:
        echo("No edges.", err=True)
    else:
        _print_edges(ctl, [*out, *(one for one in into if one not in out)])


def _whole(ctl: Ctl, *given: str) -> list[str]:
    """The ids of the chunks that are meant, each by its id or a beginning of it."""
    ids = []
    for one in given:
        found = ctl.call(ChunkGet([one]))
        if not found:
            raise click.ClickException(f"There is no chunk {one}: docs show ID --chunks has their ids.")
        ids.append(found[0].id)
    return ids


def _print_edges(ctl: Ctl, found: list[Edge]) -> None:
    texts = _texts(ctl, [chunk for one in found for chunk in (one.source_id, one.target_id)])
    columns = [
        Column("Weight", align_right=True, style="cyan"),
        Column("From", min_width=16),
        Column("Relation"),
        Column("To", min_width=16),
        Column("Description", min_width=12, optional=True),
    ]
    rows = [
        [
            f"{one.weight:.2f}",
            texts.get(one.source_id, one.source_id),
            one.relation,
            texts.get(one.target_id, one.target_id),
            one_line(one.description or ""),
        ]
        for one in found
    ]
    print_table(columns, rows)


def _texts(ctl: Ctl, ids: list[str]) -> dict[str, str]:
    """What stands in chunks, to tell them apart by more than their ids."""
    known = list(dict.fromkeys(ids))
    found = [chunk for at in range(0, len(known), 1000) for chunk in ctl.call(ChunkGet(known[at : at + 1000]))]
    return {chunk.id: f"{chunk.id[:8]} {one_line(chunk.content)[:60]}" for chunk in found}


@graph.command()
@click.argument("chunks", nargs=-1, required=True, metavar="CHUNK…")
@click.option("--hops", type=click.IntRange(1, 5), default=2, show_default=True, help="How far.")
@click.option("--decay", type=click.FloatRange(0, 1, min_open=True), default=0.7, show_default=True, help="Per hop.")
@click.option("--direction", type=click.Choice(get_args(Direction)), default="both", show_default=True)
@relation_option
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.0, help="Leave out what scores less.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@common_options
def walk(ctl: Ctl, chunks: tuple[str, ...], relations: tuple[Relation, ...], **options: Any) -> None:
    """Show what can be reached from chunks, best first, and the way there.

    \b
    Examples:
      clankers-ctl graph walk 5d41402abc4b2a76b9719d911017c592
      clankers-ctl graph walk 5d41402abc4b2a76b9719d911017c592 --relation depends_on --direction out --hops 5
    """
    found = ctl.call(GraphTraverse(_whole(ctl, *chunks), relations=list(relations) or None, **options))
    if ctl.json:
        print_json(found)
    elif not found:
        echo("Nothing can be reached.", err=True)
    else:
        _print_reached(ctl, found)


def _print_reached(ctl: Ctl, found: list[Reached]) -> None:
    texts = _texts(ctl, [one.chunk_id for one in found])
    columns = [
        Column("Score", align_right=True, style="cyan"),
        Column("Hops", align_right=True),
        Column("Way", min_width=16, optional=True),
        Column("Chunk", min_width=24),
    ]
    rows = [
        [f"{one.score:.3f}", str(one.hops), way_of(one), texts.get(one.chunk_id, one.chunk_id)] for one in found
    ]  # fmt: skip
    print_table(columns, rows)


def way_of(one: Reached) -> str:
    """The relations on the way; an arrow shows in which direction each was followed."""
    return " ".join(f"←{step.relation}" if step.backwards else f"{step.relation}→" for step in one.way)


@graph.command()
@click.argument("source")
@click.argument("relation", type=click.Choice(get_args(Relation)))
@click.argument("target")
@click.option(
    "--weight", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="How strong."
)
@click.option("--description", help="Why, in a sentence.")
@common_options
def link(ctl: Ctl, source: str, relation: Relation, target: str, weight: float, description: str | None) -> None:
    """Link two chunks. If they are linked so already, the stronger edge is kept.

    \b
    Examples:
      clankers-ctl graph link 5d41402abc4b2a76 depends_on 7d793037a0760186 --weight 0.8
    """
    whole_source, whole_target = _whole(ctl, source, target)
    stored = ctl.call(GraphStoreEdges([Edge(whole_source, whole_target, relation, weight, description)]))
    if ctl.json:
        print_json(stored)
    else:
        echo("Kept the stronger edge that was there." if stored.kept else "Linked.")


@graph.command()
@click.option("--min-weight", type=click.FloatRange(0, 1, min_open=True), help="Remove edges that are weaker.")
@click.option("--most-per-chunk", type=click.IntRange(1, 10_000), help="Leave each chunk its strongest so many.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@common_options
def prune(ctl: Ctl, min_weight: float | None, most_per_chunk: int | None, dry_run: bool) -> None:
    """Remove edges of which a chunk is gone and, if asked to, weak and surplus ones.

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
