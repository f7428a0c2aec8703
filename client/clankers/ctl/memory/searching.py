"""`clankers-ctl memory search`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.memory.options import as_of_option, conditions, include_option, selected
from clankers.ctl.memory.showing import scope, short_ids
from clankers.ctl.output import console, echo, one_line, print_json, secho
from clankers.ctl.search import MODE_NAMES, highlight, print_score_components
from clankers.ctl.transcript import MAX_TEXT_WIDTH
from clankers_protocol.memories import Memory, MemoryHit, MemoryHits, MemorySearch, State
from clankers_protocol.search import Mode

if TYPE_CHECKING:
    from rich.text import Text


@click.command()
@click.argument("words", nargs=-1, required=True)
@conditions
@include_option
@as_of_option
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="How many.")
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    default="hybrid",
    show_default=True,
    help="By words (keyword), by meaning (vector) or both.",
)
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.0, help="Leave out hits below.")
@click.option("--explain", is_flag=True, help="Show what each score is made of.")
@common_options
def search(
    ctl: Ctl,
    words: tuple[str, ...],
    include: list[State],
    as_of: int | None,
    limit: int,
    mode: Mode,
    min_score: float,
    explain: bool,
    **given: Any,
) -> None:
    """Find memories by words and by meaning, best first: those that fit, and are strong, important and recent.

    \b
    Examples:
      clankers-ctl memory search which database do we use
      clankers-ctl memory search deploy --project . --explain
      clankers-ctl memory search port --include superseded --json | jq '.hits[].memory.content'
    """
    request = MemorySearch(
        query=" ".join(words),
        include=include,
        as_of=as_of,
        limit=limit,
        mode=mode,
        min_score=min_score,
        explain=explain,
        **selected(ctl, given),
    )
    found = ctl.call(request)
    if ctl.json:
        print_json(found)
    else:
        _print_hits(found, request)


def _print_hits(found: MemoryHits, request: MemorySearch) -> None:
    if found.hits:
        _print_each(found.hits)
        if request.explain:
            ids = short_ids([hit.memory for hit in found.hits])
            parts = [(hit.score, hit.components or {}) for hit in found.hits]
            print_score_components([(one_line(shown), *part) for shown, part in zip(ids, parts, strict=True)], 1)
        how = f"by {MODE_NAMES[found.mode]} in {format_duration(found.took_ms / 1000)}"
        echo()
        secho(f"{plural(len(found.hits), 'hit')} {how}", dim=True)
    else:
        echo(f"No memory is found for “{one_line(request.query)}”.", err=True)
    if found.cursor:
        echo("There are more: --limit N shows them.", err=True)
    if found.degraded:
        secho(f"Incomplete: {one_line(found.degraded)}.", fg="yellow", err=True)


def _print_each(hits: Sequence[MemoryHit]) -> None:
    from rich.text import Text  # slow to load

    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    margin = len(str(len(hits))) + 2
    for number, (hit, shown) in enumerate(zip(hits, short_ids([hit.memory for hit in hits]), strict=True), 1):
        if number > 1:
            out.print()
        heading = Text().append(f"{hit.score:.3f}  ", "cyan").append(one_line(shown), "bold")
        blocks = (heading.append(_facts(hit.memory), "dim"), highlight(hit.snippet, out))
        _print_item(f"{number}.".ljust(margin), blocks, width)


def _print_item(number: str, blocks: Sequence["Text"], width: int) -> None:
    """Blocks of text that hang below a number."""
    from rich.text import Text  # slow to load

    out = console()
    lead = Text(number, "dim")
    for block in blocks:
        for line in block.wrap(out, width - len(number), overflow="fold"):
            line.rstrip()
            out.print(lead, line, sep="")
            lead = Text(" " * len(number))


def _facts(memory: Memory) -> str:
    facts = [memory.sector, memory.category, scope(memory), format_time(memory.created_at)]
    facts += [memory.state] if memory.state != "current" else []
    return "  " + " · ".join(map(one_line, facts))
