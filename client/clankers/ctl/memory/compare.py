"""`clankers-ctl memory compare`: what became known, changed and ended between two times."""

from typing import Any

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_time, until_callback
from clankers.ctl.ids import short_ids
from clankers.ctl.memory.options import filter_fields, filter_options, query_option
from clankers.ctl.output import Column, echo, one_line, print_table
from clankers_protocol.memories import MemoryCompare, MemoryComparison

COLUMNS = [Column("Change"), Column("Id", optional=True, style="cyan"), Column("Memory", min_width=24, wrap=True)]


@click.command()
@click.argument("earlier", callback=until_callback)
@click.argument("later", required=False, callback=until_callback)
@query_option
@filter_options
@click.option(
    "--limit", type=click.IntRange(1, 100), default=50, show_default=True, help="Maximum number of each kind."
)
@common_options
def compare(ctl: Ctl, earlier: int, later: int | None, limit: int, **filters: Any) -> None:
    """Compare what was known at two times.

    Shows what was added, changed and ended in between. The times are written as 2h, 3d, yesterday or 2025-01-31. LATER
    is now unless you give it.

    \b
    Examples:
      clankers-ctl memory compare 7d
      clankers-ctl memory compare 2025-01-31 2025-02-28 --project .
      clankers-ctl memory compare yesterday --json | jq '.ended[].content'
    """
    request = MemoryCompare(earlier=earlier, later=later, limit=limit, **filter_fields(ctl, filters))
    ctl.report(ctl.call(request), lambda found: _print_comparison(ctl, found))


def _print_comparison(ctl: Ctl, found: MemoryComparison) -> None:
    echo(
        f"From {format_time(found.earlier)} to {format_time(found.later)}: {found.added_count:,} added, "
        f"{found.changed_count:,} changed, {found.ended_count:,} ended."
    )
    changes = [("added", memory) for memory in found.added]
    for change in found.changed:
        changes += [("was", change.before), ("is now", change.after)]
    changes += [("ended", memory) for memory in found.ended]
    ids = short_ids(ctl, "memory", [memory.id for _, memory in changes])
    if changes:
        echo()
        rows = [[kind, one_line(i), one_line(memory.content)] for (kind, memory), i in zip(changes, ids, strict=True)]
        print_table(COLUMNS, rows)
    if len(found.added) + len(found.changed) + len(found.ended) < (
        found.added_count + found.changed_count + found.ended_count
    ):
        echo("There are more changes: use --limit N.", err=True)
