"""`clankers-ctl memory maintain` and `extract`."""

from typing import Literal

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import plural
from clankers.ctl.memory.history import print_log
from clankers.ctl.memory.options import EVERYTHING
from clankers.ctl.output import Column, echo, one_line, print_json, print_table
from clankers.ctl.sessions import complete_session_ids
from clankers_protocol.memory_maintenance import Candidate, Extraction, MaintenanceReport, MemoryExtract, MemoryMaintain
from clankers_protocol.sessions import SessionGet

PATIENCE = 3600
"""Seconds that looking after all memories may take, or a model to read a long session."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--force", is_flag=True, help="Archive even if it is more than a quarter of all memories at once.")
@common_options
def maintain(ctl: Ctl, dry_run: bool, force: bool) -> None:
    """Look after all memories now. The daemon does so by itself, too.

    What is used is promoted, what has faded is archived, what says the same is merged, and entities that nothing
    speaks of are dropped. Each change is in the `history` of its memory, with its reason.

    If more than a quarter of all memories would be archived at once, nothing is done without --force: the clock may
    be wrong. `clankers-ctl doctor` tells when the daemon waits for that.

    \b
    Examples:
      clankers-ctl memory maintain --dry-run
      clankers-ctl memory maintain --json | jq .changes
    """
    done = ctl.call(MemoryMaintain(dry_run=dry_run, force=force), timeout=PATIENCE)
    if ctl.json:
        print_json(done)
        return
    if done.changes:
        print_log(done.changes)
    told = _counted(done)
    echo(f"{'Would be: ' if done.dry_run else ''}{told}." if told else "Nothing to do.")


def _counted(done: MaintenanceReport) -> str:
    counts = {
        "promoted": done.promoted,
        "archived": done.archived,
        "merged": done.merged,
        "expired": done.expired,
    }
    told = [f"{count:,} {name}" for name, count in counts.items() if count]
    dropped = done.entities_dropped
    told += [f"{dropped:,} entit{'y' if dropped == 1 else 'ies'} dropped"] if dropped else []
    return ", ".join(told)


@click.command()
@click.argument("session", shell_complete=complete_session_ids)
@click.option("--by", type=click.Choice(["rules", "model"]), help="How.  [default: as the daemon's settings say]")
@click.option("--dry-run", is_flag=True, help="Show what was found; remember nothing.")
@common_options
def extract(ctl: Ctl, session: str, by: Literal["rules", "model"] | None, dry_run: bool) -> None:
    """Look for memories in a captured session: what was asked to be remembered, corrected, preferred, decided.

    \b
    Examples:
      clankers-ctl memory extract 0199c5a2 --dry-run
      clankers-ctl memory extract 0199c5a2 --by model
    """
    whole = ctl.call(SessionGet(session)).id
    found = ctl.call(MemoryExtract(session_id=whole, by=by, dry_run=dry_run, scopes=EVERYTHING), timeout=PATIENCE)
    if ctl.json:
        print_json(found)
    else:
        _print_extraction(found)


def _print_extraction(found: Extraction) -> None:
    if found.candidates:
        columns = [
            Column("Noticed", style="cyan", optional=True),
            Column("Memory", min_width=24, wrap=True),
            Column("Outcome", optional=True),
            Column("Category", optional=True),
            Column("Importance", align_right=True, optional=True),
            Column("Id", optional=True, style="dim"),
        ]
        print_table(columns, [_row(candidate) for candidate in found.candidates])
    cost = f" ({plural(found.calls, 'question')}, {found.tokens:,} tokens)" if found.calls else ""
    count = plural(len(found.candidates), "find")
    echo(f"{count} in {plural(found.read_messages, 'message')} by {found.by}{cost}.")
    if found.note:
        echo(one_line(found.note), err=True)


def _row(candidate: Candidate) -> list[str]:
    return [
        one_line(candidate.rule),
        one_line(candidate.content),
        one_line(candidate.outcome or "–"),
        one_line(candidate.category),
        f"{candidate.importance:.2f}",
        one_line(candidate.memory_id or ""),
    ]
