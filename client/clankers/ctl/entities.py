"""`clankers-ctl entity`: people, projects, technologies and other things that memories mention."""

from typing import get_args

import click

from clankers.ctl.command import Ctl, common_options, yes_option
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.ids import display_ids
from clankers.ctl.memory.display import count_memories, print_memories
from clankers.ctl.memory.options import ALL_SCOPES, resolve_entity
from clankers.ctl.output import Column, confirm, echo, one_line, print_facts, print_json
from clankers_protocol.entities import (
    Entity,
    EntityDelete,
    EntityGet,
    EntityLink,
    EntityList,
    EntityMerge,
    EntityRole,
    EntityType,
    EntityUpsert,
)

COLUMNS = [
    Column("Id", style="cyan"),
    Column("Name", min_width=16),
    Column("Type"),
    Column("Memories", align_right=True),
    Column("Summary", min_width=16, optional=True),
]

type_option = click.option("--type", "entity_type", type=click.Choice(get_args(EntityType)), help="Only this type.")
entity_argument = click.argument("entity", metavar="ID|NAME")


@click.group()
def entity() -> None:
    """List and change the entities that memories mention.

    Entities are people, projects, technologies, concepts, files and errors. You can name one by its id or its name.

    \b
    Examples:
      clankers-ctl entity list --type technology
      clankers-ctl entity show PostgreSQL
      clankers-ctl entity merge Postgres PostgreSQL
    """


@entity.command("list")
@type_option
@click.option("--query", metavar="TEXT", help="Only entities whose name contains this.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Show at most this many.")
@common_options
def list_entities(ctl: Ctl, entity_type: EntityType | None, query: str | None, limit: int) -> None:
    """List entities by name.

    \b
    Examples:
      clankers-ctl entity list
      clankers-ctl entity list --type person --query ann
    """
    page = ctl.call(EntityList(type=entity_type, query=query, limit=limit, scopes=ALL_SCOPES))

    def rows() -> list[list[str]]:
        ids = display_ids(ctl, "entity", [found.id for found in page.entities])
        return [
            [one_line(shown), one_line(found.name), found.type, f"{found.memories:,}", one_line(found.summary or "")]
            for shown, found in zip(ids, page.entities, strict=True)
        ]

    ctl.report_page(page, "entities", COLUMNS, rows)


@entity.command()
@entity_argument
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of memories."
)
@common_options
def show(ctl: Ctl, entity: str, limit: int = 20) -> None:
    """Show an entity and the memories that mention it.

    \b
    Examples:
      clankers-ctl entity show PostgreSQL
    """
    found = ctl.call(EntityGet(id=resolve_entity(ctl, entity), limit=limit, scopes=ALL_SCOPES))
    if ctl.json:
        print_json(found)
        return
    _print_entity(found.entity)
    if found.memories:
        echo()
        print_memories(ctl, found.memories)


@entity.command()
@click.argument("name")
@click.option("--type", "entity_type", type=click.Choice(get_args(EntityType)), required=True, help="What it is.")
@click.option("--summary", help="A sentence about it.")
@common_options
def add(ctl: Ctl, name: str, entity_type: EntityType, summary: str | None) -> None:
    """Add an entity, or change the summary of the one with this name and type.

    \b
    Examples:
      clankers-ctl entity add PostgreSQL --type technology --summary "The database of the shop"
    """
    found = ctl.call(EntityUpsert(name=name, type=entity_type, summary=summary, scopes=ALL_SCOPES))
    ctl.report(found, _print_entity)


@entity.command()
@entity_argument
@click.argument("into", metavar="ID|NAME")
@common_options
def merge(ctl: Ctl, entity: str, into: str) -> None:
    """Merge an entity into another one, which takes over its memories.

    \b
    Examples:
      clankers-ctl entity merge Postgres PostgreSQL
    """
    request = EntityMerge(id=resolve_entity(ctl, entity), into=resolve_entity(ctl, into), scopes=ALL_SCOPES)
    found = ctl.call(request)
    ctl.report(found, _print_entity)


@entity.command()
@click.argument("memory_id", metavar="MEMORY")
@entity_argument
@click.option(
    "--role", type=click.Choice(get_args(EntityRole)), default="context", show_default=True, help="Role in the memory."
)
@click.option("--remove", is_flag=True, help="Remove the link instead.")
@common_options
def link(ctl: Ctl, memory_id: str, entity: str, role: EntityRole, remove: bool) -> None:
    """Link a memory to an entity that it mentions.

    \b
    Examples:
      clankers-ctl entity link 4f1c02d7 PostgreSQL --role subject
      clankers-ctl entity link 4f1c02d7 PostgreSQL --remove
    """
    entity_id = resolve_entity(ctl, entity)
    request = EntityLink(memory_id=memory_id, entity_id=entity_id, role=role, remove=remove, scopes=ALL_SCOPES)
    linked = ctl.call(request)
    if ctl.json:
        print_json(linked)
    else:
        names = ", ".join(one_line(found.name) for found in linked.entities) or "nothing"
        echo(f"Memory {one_line(linked.memory_id)} mentions {names}.")


@entity.command()
@entity_argument
@yes_option
@common_options
def delete(ctl: Ctl, entity: str, yes: bool) -> None:
    """Delete an entity. The memories that mention it stay. Asks for confirmation first.

    \b
    Examples:
      clankers-ctl entity delete Postgres --yes
    """
    found = ctl.call(EntityGet(id=resolve_entity(ctl, entity), limit=1, scopes=ALL_SCOPES)).entity
    if not yes:
        confirm(f"Delete {found.name}, which {count_memories(found.memories)} mention?", abort=True)
    deleted = ctl.call(EntityDelete(id=found.id, scopes=ALL_SCOPES))
    ctl.report(deleted, f"Deleted {one_line(found.name)} and {plural(deleted.links, 'link')}.")


def _print_entity(found: Entity) -> None:
    print_facts(
        [
            ("id", one_line(found.id)),
            ("name", one_line(found.name)),
            ("type", found.type),
            ("summary", found.summary and one_line(found.summary)),
            ("mentioned", f"by {count_memories(found.memories)}"),
            ("created", format_time(found.created_at)),
        ]
    )
