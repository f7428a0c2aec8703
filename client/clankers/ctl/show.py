"""`clankers-ctl show`: open whatever an id names."""

from typing import Any

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_time
from clankers.ctl.output import console, echo, one_line, plain, print_facts, print_json
from clankers_protocol.admin import JobList, Query
from clankers_protocol.documents import ChunkGet
from clankers_protocol.errors import Conflict, NotFound
from clankers_protocol.id_lookup import IdFind, IdKind, NamedThing
from clankers_protocol.recall import RecallGet

KIND_NAMES: dict[IdKind, str] = {"tool": "tool call", "documentChunk": "document chunk", "run": "schedule run"}
"""Names of kinds that are not their own."""

ROWS: dict[IdKind, str] = {
    "relation": "memory_relationships",
    "run": "schedule_runs",
    "error": "session_errors",
    "compaction": "compaction_events",
}
"""Tables of the kinds that are shown as they are stored."""

PART_CHARACTERS = 100_000


@click.command()
@click.argument("id")
@click.option("--full", is_flag=True, help="For a session, show full tool inputs and outputs.")
@click.pass_context
@common_options
def show(ctl: Ctl, context: click.Context, id: str, full: bool) -> None:  # noqa: A002  # the name on the command line
    """Show whatever an id names.

    Opens sessions, messages, tool calls, memories, documents, chunks, skills, schedules, entities, relations, projects
    and jobs. You can shorten an id to its first or last 8 characters, or more if that is ambiguous.

    \b
    Examples:
      clankers-ctl show 4f1c02d7
      clankers-ctl show 0199c5a2-1b3c-7d4e-8f90-a1b24f1c02d7 --json
    """
    things = ctl.call(IdFind(id))
    if not things:
        if not any(job.id.startswith(id) or job.id.endswith(id) for job in ctl.call(JobList(1000))):
            raise NotFound(f"nothing has the id {id}")
        from clankers.ctl.jobs import show as show_job

        context.invoke(show_job, id=id)
        return
    if len(things) > 1:
        names = ", ".join(f"{_kind_name(thing)} {thing.id}" for thing in things)
        raise Conflict(f"{id} is ambiguous: {names}", {"ids": [thing.id for thing in things]})
    [thing] = things
    if thing.kind in ("message", "tool", "chunk"):
        _show_text(ctl, thing)
    elif thing.kind == "documentChunk":
        _show_document_chunk(ctl, thing)
    elif thing.kind in ROWS:
        _show_row(ctl, thing)
    else:
        _run_command_of(context, thing, full)


def _run_command_of(context: click.Context, thing: NamedThing, full: bool) -> None:
    """Run the `show` command that the kind has itself."""
    if thing.kind == "session":
        from clankers.ctl.sessions import show as show_session

        context.invoke(show_session, id=thing.id, full=full)
    elif thing.kind == "memory":
        from clankers.ctl.memory.browse import show as show_memory

        context.invoke(show_memory, id=thing.id)
    elif thing.kind == "project":
        from clankers.ctl.projects import show as show_project

        context.invoke(show_project, project=thing.id)
    elif thing.kind == "document":
        from clankers.ctl.docs import show as show_document

        context.invoke(show_document, document=thing.id)
    elif thing.kind == "skill":
        from clankers.ctl.skills import show as show_skill

        context.invoke(show_skill, name=thing.id)
    elif thing.kind == "schedule":
        from clankers.ctl.schedules import show as show_schedule

        context.invoke(show_schedule, id=thing.id)
    else:
        from clankers.ctl.entities import show as show_entity

        context.invoke(show_entity, entity=thing.id)


def _show_text(ctl: Ctl, thing: NamedThing) -> None:
    found = ctl.call(RecallGet(thing.id, characters=PART_CHARACTERS))
    parts, next_offset = [found.text], found.next_offset
    while next_offset is not None:
        part = ctl.call(RecallGet(thing.id, offset=next_offset, characters=PART_CHARACTERS))
        parts.append(part.text)
        next_offset = part.next_offset
    text = "".join(parts)
    if ctl.json:
        fields = {"kind": found.kind, "id": found.id, "about": found.about, "sessionId": found.session_id}
        print_json(fields | {"createdAt": found.created_at, "text": text})
        return
    console().print(one_line(found.about), style="bold")
    print_facts(
        [
            ("kind", _kind_name(thing)),
            ("id", one_line(thing.id)),
            ("session", found.session_id and one_line(found.session_id)),
            ("created", format_time(found.created_at)),
        ]
    )
    echo()
    echo(plain(text))


def _show_document_chunk(ctl: Ctl, thing: NamedThing) -> None:
    chunk = ctl.call(ChunkGet([thing.id]))[0]
    if ctl.json:
        print_json(chunk)
        return
    lines = None if chunk.start_line is None else f"{chunk.start_line} to {chunk.end_line}"
    facts = [("document", one_line(chunk.document_id)), ("lines", lines)]
    print_facts([("kind", _kind_name(thing)), ("id", one_line(chunk.id)), *facts])
    echo()
    echo(plain(chunk.content))


def _show_row(ctl: Ctl, thing: NamedThing) -> None:
    quoted = thing.id.replace("'", "''")
    found = ctl.call(Query(f"SELECT * FROM {ROWS[thing.kind]} WHERE id = '{quoted}'"))
    row = dict(zip(found.columns, found.rows[0], strict=True))
    if ctl.json:
        print_json(row)
        return
    facts = [
        (name.replace("_", " "), one_line(_format(name, value))) for name, value in row.items() if value is not None
    ]
    print_facts([("kind", _kind_name(thing)), *facts])


def _format(name: str, field: Any) -> str:
    is_time = isinstance(field, int) and (name.endswith(("_at", "_until", "_from")) or name == "scheduled_for")
    return format_time(field) if is_time else str(field)


def _kind_name(thing: NamedThing) -> str:
    return KIND_NAMES.get(thing.kind, thing.kind)
