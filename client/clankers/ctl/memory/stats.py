"""`clankers-ctl memory stats`."""

from collections.abc import Mapping

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.memory.options import project_option, scope_option
from clankers.ctl.output import Column, bar, console, echo, one_line, print_facts, print_json, print_table
from clankers_protocol.memories import MemoryStats, MemoryStatsOf


@click.command()
@project_option
@scope_option
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="Rows per chart.")
@common_options
def stats(ctl: Ctl, project: str | None, scopes: list[str], limit: int) -> None:
    """Show how much is remembered, and of what kind, as bars.

    \b
    Examples:
      clankers-ctl memory stats
      clankers-ctl memory stats --project . --json | jq .bySector
    """
    found = ctl.call(MemoryStatsOf(scopes=scopes, project=project))
    if ctl.json:
        print_json(found)
        return
    _print_totals(found)
    charts = {
        "Sector": found.by_sector,
        "Tier": found.by_tier,
        "Category": found.by_category,
        "Scope": found.by_scope,
    }
    for name, counts in charts.items():
        if counts:
            echo()
            _print_chart(name, counts, limit)


def _print_totals(found: MemoryStats) -> None:
    entities = f"{found.entities:,} entit{'y' if found.entities == 1 else 'ies'}"
    states = {
        "upcoming": found.upcoming,
        "superseded": found.superseded,
        "expired": found.expired,
        "archived": found.archived,
        "forgotten": found.deleted,
    }
    others = "".join(f", {count:,} {name}" for name, count in states.items() if count)
    strength = "" if found.salience is None else f"{bar(found.salience, 10)} {found.salience:.2f} on average"
    print_facts(
        [
            ("memories", f"{found.total:,}: {found.current:,} current{others}"),
            ("pinned", f"{found.pinned:,}" if found.pinned else None),
            ("salience", strength or None),
            ("graph", f"{entities}, {plural(found.relations, 'relation')}"),
            ("made", f"{format_time(found.oldest)} to {format_time(found.newest)}" if found.oldest else None),
        ]
    )


def _print_chart(name: str, counts: Mapping[str, int], limit: int) -> None:
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    most = max(max(counts.values()), 1)
    width = max(10, min(40, console().width // 4))
    columns = [
        Column(name, min_width=16, truncate_start=name == "Scope"),
        Column("", style="cyan"),
        Column("Memories", align_right=True),
    ]
    print_table(columns, [[one_line(each), bar(count / most, width), f"{count:,}"] for each, count in rows[:limit]])
    if len(rows) > limit:
        echo(f"{len(rows) - limit:,} more: --limit N shows them.", err=True)
