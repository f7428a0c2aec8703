"""Memory commands that store, forget or change memories: `add`, `forget`, `restore`, `pin`, `unpin`, `extract` and
`maintain`; `edit` is in a module of its own."""

import sys
from collections.abc import Sequence
from typing import Any, Literal, get_args

import click

from clankers.ctl.command import Ctl, common_options, normalize_project
from clankers.ctl.formatting import future_callback, plural, since_callback
from clankers.ctl.memory.display import (
    count_entities,
    count_memories,
    memory_title,
    print_change_log,
    print_memories,
    scope_name,
)
from clankers.ctl.memory.options import (
    ALL_SCOPES,
    complete_memory_id,
    filter_fields,
    filter_options,
    has_filters,
    ids_argument,
    query_option,
)
from clankers.ctl.output import Column, confirm, echo, one_line, print_json, print_table
from clankers.ctl.sessions import complete_session_ids
from clankers_protocol.memories import Added, Memory, MemoryAdd, MemoryGet, Sector, Tier
from clankers_protocol.memory_changes import (
    Changed,
    MemoryBulkDelete,
    MemoryDelete,
    MemoryPin,
    MemoryPurge,
    MemoryRestore,
)
from clankers_protocol.memory_maintenance import Extraction, MaintenanceReport, MemoryExtract, MemoryMaintain
from clankers_protocol.sessions import SessionGet

MAX_LISTED = 20
"""Memories that `forget` lists before it asks for confirmation."""

BULK_DELETE_TIMEOUT_SECONDS = 600
MAINTENANCE_TIMEOUT_SECONDS = 3600
"""Maintenance of all memories, or reading a long session with a model, may take this long."""


@click.command()
@click.argument("words", nargs=-1, required=True)
@click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Store the memory for this project: a folder, or its name or id.",
)
@click.option(
    "--scope",
    help="Who can see the memory: project:NAME, agent:NAME, user:NAME, custom:NAME or global.  "
    "[default: the project's, or global]",
)
@click.option("--category", help="Category: fact, preference, decision, gotcha, fix or any other lowercase word.")
@click.option(
    "--sector", type=click.Choice(get_args(Sector)), help="Kind of memory.  [default: classified from the text]"
)
@click.option("--tier", type=click.Choice(get_args(Tier)), help="How widely the memory applies.")
@click.option("--summary", help="One-line summary.")
@click.option(
    "--importance",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Importance; important memories fade more slowly.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="How certain it is that the memory is true.",
)
@click.option("--pin", "pinned", is_flag=True, help="Pin the memory, so that it never fades.")
@click.option("--tag", "tags", multiple=True, help="Add a tag. Repeatable.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="Add a file that the memory is about. Repeatable.")
@click.option(
    "--valid-from",
    metavar="TIME",
    callback=since_callback,
    help="The memory is true from this time on.  [default: now]",
)
@click.option("--valid-until", metavar="TIME", callback=future_callback, help="The memory is true until this time.")
@click.option(
    "--expires",
    "expires_at",
    metavar="TIME",
    callback=future_callback,
    help="Expire the memory at this time; 2w means in two weeks.",
)
@click.option("--session", metavar="ID", help="Session that the memory comes from.")
@click.option(
    "--supersedes",
    metavar="ID",
    shell_complete=complete_memory_id,
    help="Memory that is no longer true and that this one replaces.",
)
@click.option("--force", is_flag=True, help="Store the memory even if it is a duplicate.")
@common_options
def add(ctl: Ctl, words: tuple[str, ...], session: str | None, **fields: Any) -> None:
    """Add a memory.

    Use - in place of WORDS to read the text from standard input. A duplicate is not stored: it reinforces the existing
    memory. A near-duplicate in the same category and scope replaces it.

    \b
    Examples:
      clankers-ctl memory add "The staging database is read-only" --project . --tag database
      clankers-ctl memory add "Prefers tabs" --category preference --scope user:ada --pin
      clankers-ctl memory add "Port is 9090 now" --supersedes 0199c5a2-1b3c
      clankers-ctl memory add - --category decision < decision.md
    """
    content = sys.stdin.read() if words == ("-",) else " ".join(words)
    session_id = session and ctl.call(SessionGet(session)).id
    fields |= {"tags": list(fields["tags"]), "files": list(fields["files"])}
    added = ctl.call(MemoryAdd(content=content, session_id=session_id, scopes=ALL_SCOPES, **fields))
    ctl.report(added, _print_added)


def _print_added(added: Added) -> None:
    memory = added.memory
    if added.outcome == "duplicate":
        echo(f"Already known; reinforced {one_line(memory.id)}.")
    else:
        replaced = f", in place of {one_line(added.replaced)}" if added.replaced else ""
        echo(f"Remembered as {one_line(memory.id)} ({memory.sector}, {scope_name(memory)}){replaced}.")
    if added.note:
        echo(one_line(added.note), err=True)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]…", shell_complete=complete_memory_id)
@query_option
@filter_options
@click.option("--purge", is_flag=True, help="Delete permanently, with history and links; `restore` cannot undo this.")
@click.option("--reason", help="Reason to record in the history; only with ids.")
@click.option("--dry-run", is_flag=True, help="List the memories that would be forgotten; forget nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def forget(
    ctl: Ctl, ids: tuple[str, ...], purge: bool, reason: str | None, dry_run: bool, yes: bool, **filters: Any
) -> None:
    """Forget memories by id, or all that match the filters.

    Asks for confirmation first. Forgotten memories no longer appear in searches. Use `restore` to get them back, unless
    they were purged.

    \b
    Examples:
      clankers-ctl memory forget 0199c5a2-1b3c --reason "the team moved to Postgres"
      clankers-ctl memory forget --tag scratch --until 30d --dry-run
      clankers-ctl memory forget --scope custom:experiment --purge
    """
    if bool(ids) == has_filters(filters):
        raise click.UsageError("Give either ids or filters such as --tag, not both.")
    if reason and (purge or not ids):
        raise click.UsageError("--reason works only with ids, and not with --purge, which leaves no history.")
    bulk = None
    if ids:
        # Resolve every id first, so that a wrong one is an error before anything is forgotten.
        resolved = [ctl.call(MemoryGet(id=each, scopes=ALL_SCOPES)).id for each in ids]
        affected = list(dict.fromkeys(resolved))
    else:
        bulk = MemoryBulkDelete(**filter_fields(ctl, filters), purge=purge, dry_run=True)
        affected = ctl.call(bulk, timeout=BULK_DELETE_TIMEOUT_SECONDS).ids
    if affected and (dry_run or not yes) and not ctl.json:
        _print_affected(ctl, affected, purge, dry_run)
    if affected and not dry_run:
        if not yes:
            confirm(f"{'Purge' if purge else 'Forget'} {count_memories(len(affected))}?", abort=True)
        if bulk is None:
            affected = _forget_ids(ctl, affected, purge, reason)
        else:
            bulk.dry_run = False
            affected = ctl.call(bulk, timeout=BULK_DELETE_TIMEOUT_SECONDS).ids
    _print_forgotten(ctl, affected, purge, dry_run)


def _print_affected(ctl: Ctl, ids: Sequence[str], purge: bool, dry_run: bool) -> None:
    memories = [ctl.call(MemoryGet(id=each, scopes=ALL_SCOPES)) for each in ids[:MAX_LISTED]]
    if dry_run:
        print_memories(ctl, memories)
    else:
        for memory in memories:
            echo(f"  {memory_title(memory)}", err=True)
    if len(ids) > MAX_LISTED:
        echo(f"  … and {len(ids) - MAX_LISTED:,} more", err=True)
    if purge and not dry_run:
        echo("Purged memories cannot be restored.", err=True)


def _forget_ids(ctl: Ctl, ids: Sequence[str], purge: bool, reason: str | None) -> list[str]:
    forgotten: list[str] = []
    for each in ids:
        if purge:
            forgotten += ctl.call(MemoryPurge(id=each, scopes=ALL_SCOPES)).ids
        else:
            forgotten += ctl.call(MemoryDelete(id=each, reason=reason, scopes=ALL_SCOPES)).ids
    return forgotten


def _print_forgotten(ctl: Ctl, ids: list[str], purge: bool, dry_run: bool) -> None:
    if ctl.json:
        print_json(Changed(len(ids), ids))
    elif not ids:
        echo("There is nothing to forget.", err=True)
    elif dry_run:
        echo(f"Would {'purge' if purge else 'forget'} {count_memories(len(ids))}.")
    else:
        echo(f"{'Purged' if purge else 'Forgot'} {count_memories(len(ids))}.")


@click.command()
@ids_argument
@common_options
def restore(ctl: Ctl, ids: tuple[str, ...]) -> None:
    """Restore forgotten, archived or superseded memories.

    A superseded memory is valid again beside the one that had replaced it.

    \b
    Examples:
      clankers-ctl memory restore 0199c5a2-1b3c
      clankers-ctl memory list --include deleted
    """
    restored = [ctl.call(MemoryRestore(id=each, scopes=ALL_SCOPES)) for each in ids]
    if ctl.json:
        print_json(restored)
        return
    for memory in restored:
        state = "" if memory.state == "current" else f"; its state is now {memory.state}"
        echo(f"Restored {memory_title(memory)}{state}.")


@click.command()
@ids_argument
@common_options
def pin(ctl: Ctl, ids: tuple[str, ...]) -> None:
    """Pin memories, so that they never fade.

    \b
    Examples:
      clankers-ctl memory pin 0199c5a2-1b3c
    """
    _set_pinned(ctl, ids, pinned=True)


@click.command()
@ids_argument
@common_options
def unpin(ctl: Ctl, ids: tuple[str, ...]) -> None:
    """Unpin memories, so that they fade again.

    \b
    Examples:
      clankers-ctl memory unpin 0199c5a2-1b3c
    """
    _set_pinned(ctl, ids, pinned=False)


def _set_pinned(ctl: Ctl, ids: tuple[str, ...], *, pinned: bool) -> None:
    memories: list[Memory] = [ctl.call(MemoryPin(id=each, pinned=pinned, scopes=ALL_SCOPES)) for each in ids]
    if ctl.json:
        print_json(memories)
        return
    for memory in memories:
        echo(f"{'Pinned' if memory.pinned else 'Unpinned'} {memory_title(memory)}.")


@click.command()
@click.argument("session", shell_complete=complete_session_ids)
@click.option(
    "--by",
    type=click.Choice(["rules", "model"]),
    help="Extract with built-in rules or with the configured model.  [default: the `extract` setting]",
)
@click.option("--dry-run", is_flag=True, help="Show what was found; store nothing.")
@common_options
def extract(ctl: Ctl, session: str, by: Literal["rules", "model"] | None, dry_run: bool) -> None:
    """Extract memories from a captured session.

    Looks for requests to remember something, corrections, preferences and decisions.

    \b
    Examples:
      clankers-ctl memory extract 0199c5a2 --dry-run
      clankers-ctl memory extract 0199c5a2 --by model
    """
    session_id = ctl.call(SessionGet(session)).id
    request = MemoryExtract(session_id=session_id, by=by, dry_run=dry_run, scopes=ALL_SCOPES)
    extraction = ctl.call(request, timeout=MAINTENANCE_TIMEOUT_SECONDS)
    ctl.report(extraction, _print_extraction)


def _print_extraction(extraction: Extraction) -> None:
    if extraction.candidates:
        columns = [
            Column("Rule", style="cyan", optional=True),
            Column("Memory", min_width=24, wrap=True),
            Column("Outcome", optional=True),
            Column("Category", optional=True),
            Column("Importance", align_right=True, optional=True),
            Column("Id", optional=True, style="dim"),
        ]
        rows = [
            [
                one_line(candidate.rule),
                one_line(candidate.content),
                one_line(candidate.outcome or "–"),
                one_line(candidate.category),
                f"{candidate.importance:.2f}",
                one_line(candidate.memory_id or ""),
            ]
            for candidate in extraction.candidates
        ]
        print_table(columns, rows)
    found = plural(len(extraction.candidates), "candidate")
    cost = ""
    if extraction.calls:
        cost = f" ({plural(extraction.calls, 'model call')}, {extraction.tokens:,} tokens)"
    echo(f"{found} in {plural(extraction.read_messages, 'message')} by {extraction.by}{cost}.")
    if extraction.note:
        echo(one_line(extraction.note), err=True)


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--force", is_flag=True, help="Proceed even if more than a quarter of all memories would be archived.")
@common_options
def maintain(ctl: Ctl, dry_run: bool, force: bool) -> None:
    """Run memory maintenance now.

    The daemon also runs it regularly. Maintenance promotes memories that are used, archives memories that have faded,
    merges near-duplicates, and drops entities without references. Each change is recorded in the `history` of its
    memory, with its reason.

    If more than a quarter of all memories would be archived, the command does nothing unless --force is given,
    because the system clock may be wrong. `clankers-ctl doctor` reports when the daemon waits for this decision.

    \b
    Examples:
      clankers-ctl memory maintain --dry-run
      clankers-ctl memory maintain --json | jq .changes
    """
    report = ctl.call(MemoryMaintain(dry_run=dry_run, force=force), timeout=MAINTENANCE_TIMEOUT_SECONDS)
    if ctl.json:
        print_json(report)
        return
    if report.changes:
        print_change_log(ctl, report.changes)
    counts = _maintenance_counts(report)
    if not counts:
        echo("Nothing to do.")
    else:
        echo(f"{'Would be: ' if report.dry_run else ''}{counts}.")


def _maintenance_counts(report: MaintenanceReport) -> str:
    counts = {
        "promoted": report.promoted,
        "archived": report.archived,
        "merged": report.merged,
        "expired": report.expired,
    }
    parts = [f"{count:,} {name}" for name, count in counts.items() if count]
    if report.entities_dropped:
        parts.append(f"{count_entities(report.entities_dropped)} dropped")
    return ", ".join(parts)
