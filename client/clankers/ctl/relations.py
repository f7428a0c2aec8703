"""`clankers-ctl relation`: relations between memories."""

from typing import Literal, get_args

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_time
from clankers.ctl.ids import display_ids
from clankers.ctl.memory.options import ALL_SCOPES, as_of_option
from clankers.ctl.output import Column, one_line, print_facts, print_json
from clankers_protocol.entities import Relation, RelationAdd, RelationClose, RelationList, RelationType

Direction = Literal["out", "in", "both"]

COLUMNS = [
    Column("Id", style="cyan"),
    Column("From", style="cyan"),
    Column("Type"),
    Column("To", style="cyan"),
    Column("Confidence", align_right=True, optional=True),
    Column("Since", optional=True),
    Column("Until", optional=True),
]


@click.group()
def relation() -> None:
    """List, add and close relations between memories.

    \b
    Examples:
      clankers-ctl relation list --memory 4f1c02d7
      clankers-ctl relation add 4f1c02d7 DEPENDS_ON 99ab12cd
      clankers-ctl relation close 7d3e55f0
    """


@relation.command("list")
@click.option("--memory", "memory_id", metavar="ID", help="Only relations of this memory.")
@click.option(
    "--direction", type=click.Choice(get_args(Direction)), default="both", show_default=True, help="Only from or to it."
)
@click.option(
    "--type", "types", multiple=True, type=click.Choice(get_args(RelationType)), help="Only this type. Can be repeated."
)
@click.option("--closed", "include_closed", is_flag=True, help="Include relations that no longer hold.")
@as_of_option
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Show at most this many.")
@common_options
def list_relations(
    ctl: Ctl,
    memory_id: str | None,
    direction: Direction,
    types: tuple[RelationType, ...],
    include_closed: bool,
    as_of: int | None,
    limit: int,
) -> None:
    """List relations, newest first.

    \b
    Examples:
      clankers-ctl relation list --memory 4f1c02d7 --direction out
      clankers-ctl relation list --type CONTRADICTS --json
    """
    request = RelationList(
        memory_id=memory_id,
        direction=direction,
        types=list(types) or None,
        include_closed=include_closed,
        as_of=as_of,
        limit=limit,
        scopes=ALL_SCOPES,
    )
    page = ctl.call(request)

    def rows() -> list[list[str]]:
        ids = display_ids(ctl, "relation", [found.id for found in page.relations])
        sources = display_ids(ctl, "memory", [found.source for found in page.relations])
        targets = display_ids(ctl, "memory", [found.target for found in page.relations])
        return [
            [
                one_line(shown),
                one_line(source),
                found.type,
                one_line(target),
                f"{found.confidence:.2f}",
                format_time(found.valid_from),
                format_time(found.valid_until),
            ]
            for shown, source, target, found in zip(ids, sources, targets, page.relations, strict=True)
        ]

    ctl.report_page(page, "relations", COLUMNS, rows)


@relation.command()
@click.argument("source", metavar="MEMORY")
@click.argument("relation_type", metavar="TYPE", type=click.Choice(get_args(RelationType), case_sensitive=False))
@click.argument("target", metavar="MEMORY")
@click.option("--confidence", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="How certain it is.")
@common_options
def add(ctl: Ctl, source: str, relation_type: RelationType, target: str, confidence: float) -> None:
    """Add a relation between two memories.

    TYPE is SUPERSEDES, CONTRADICTS, RELATED_TO, BUILDS_ON, CONFIRMS, APPLIES_TO, DEPENDS_ON or ALTERNATIVE_TO.
    SUPERSEDES ends the validity of the second memory.

    \b
    Examples:
      clankers-ctl relation add 4f1c02d7 BUILDS_ON 99ab12cd
    """
    request = RelationAdd(source=source, target=target, type=relation_type, confidence=confidence, scopes=ALL_SCOPES)
    _print_relation(ctl, ctl.call(request))


@relation.command()
@click.argument("id")
@common_options
def close(ctl: Ctl, id: str) -> None:  # noqa: A002  # the name on the command line
    """End the validity of a relation now.

    \b
    Examples:
      clankers-ctl relation close 7d3e55f0
    """
    _print_relation(ctl, ctl.call(RelationClose(id=id, scopes=ALL_SCOPES)))


def _print_relation(ctl: Ctl, found: Relation) -> None:
    if ctl.json:
        print_json(found)
        return
    until = f" until {format_time(found.valid_until)}" if found.valid_until else ""
    print_facts(
        [
            ("id", one_line(found.id)),
            ("from", one_line(found.source)),
            ("type", found.type),
            ("to", one_line(found.target)),
            ("confidence", f"{found.confidence:.2f}"),
            ("valid", f"since {format_time(found.valid_from)}{until}"),
        ]
    )
