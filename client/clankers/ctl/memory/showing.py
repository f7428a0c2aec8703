"""Memories as one reads them: a table of many, or all about one."""

import json
from collections.abc import Sequence
from pathlib import Path

from clankers.ctl.formatting import format_time, plural
from clankers.ctl.output import (
    WIDE_TERMINAL_COLUMNS,
    Column,
    bar,
    console,
    echo,
    one_line,
    plain,
    print_facts,
    print_table,
    shorten_ids,
)
from clankers.ctl.transcript import MAX_TEXT_WIDTH
from clankers_protocol.memories import Memory

SHORT = 13
"""Characters of an id. It begins with the time of its making; so many tell the milliseconds apart."""

COLUMNS = [
    Column("Id", style="cyan"),
    Column("", optional=True, style="yellow"),
    Column("Memory", min_width=40),
    Column("State", optional=True),
    Column("Created", optional=True),
    Column("Salience", optional=True, align_right=True),
    Column("Sector", optional=True),
    Column("Category", optional=True),
    Column("Scope", optional=True, min_width=12),
]

STATE = 3


def print_memories(found: Sequence[Memory]) -> None:
    """A table that fits; what all of them share by default has no column."""
    ids = short_ids(found) if console().width < WIDE_TERMINAL_COLUMNS else [memory.id for memory in found]
    rows = [_row(shown, memory) for shown, memory in zip(ids, found, strict=True)]
    used = [place for place, column in enumerate(COLUMNS) if column.name or any(row[place] for row in rows)]
    if all(memory.state == "current" for memory in found):
        used.remove(STATE)
    print_table([COLUMNS[place] for place in used], [[row[place] for place in used] for row in rows])


def memories(count: int) -> str:
    """So many memories."""
    return f"{count:,} memor{'y' if count == 1 else 'ies'}"


def short_ids(found: Sequence[Memory]) -> list[str]:
    """Their ids, as short as still tells them apart."""
    return shorten_ids([memory.id for memory in found], SHORT)


def _row(shown: str, memory: Memory) -> list[str]:
    return [
        one_line(shown),
        "★" if memory.pinned else "",
        said(memory),
        memory.state,
        format_time(memory.created_at),
        f"{memory.salience:.2f}",
        memory.sector,
        one_line(memory.category),
        scope(memory),
    ]


def said(memory: Memory) -> str:
    """What it says in a line."""
    return one_line(memory.summary or memory.content)


def scope(memory: Memory) -> str:
    """Who it is for; a project by its name."""
    if memory.project_path and memory.scope == f"project:{memory.project_id}":
        return one_line(f"project:{Path(memory.project_path).name}")
    return one_line(memory.scope)


def named(memory: Memory) -> str:
    """Its id and the beginning of what it says."""
    text = said(memory)
    return f"{one_line(memory.id)} ({text if len(text) <= 60 else f'{text[:59]}…'})"


def print_memory(memory: Memory) -> None:
    """All about one."""
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    out.print(plain(memory.content.strip("\n")), width=width, style="bold")
    echo()
    print_facts(
        [
            ("id", one_line(memory.id)),
            ("state", _state(memory)),
            ("summary", memory.summary and one_line(memory.summary)),
            ("kind", f"{memory.sector}, {one_line(memory.category)}, {memory.tier}"),
            ("scope", one_line(memory.scope)),
            ("project", memory.project_path and one_line(memory.project_path)),
            ("salience", f"{bar(memory.salience, 10)} {memory.salience:.2f}{' (pinned)' if memory.pinned else ''}"),
            ("importance", f"{memory.importance:.2f}, confidence {memory.confidence:.2f}"),
            ("used", _use(memory)),
            ("tags", _listed(memory.tags)),
            ("concepts", _listed(memory.concepts)),
            *(("" if place else "files", one_line(file)) for place, file in enumerate(memory.files)),
            ("created", format_time(memory.created_at)),
            ("updated", format_time(memory.updated_at) if memory.updated_at != memory.created_at else None),
            ("true", validity(memory)),
            ("expires", format_time(memory.expires_at) or None),
            ("session", memory.source_session_id and one_line(memory.source_session_id)),
            ("message", memory.source_message_id and one_line(memory.source_message_id)),
            ("metadata", one_line(json.dumps(memory.metadata, ensure_ascii=False)) if memory.metadata else None),
        ]
    )


def _state(memory: Memory) -> str:
    if memory.superseded_by:
        return f"{memory.state} by {one_line(memory.superseded_by)}"
    since = {"archived": memory.archived_at, "deleted": memory.deleted_at}.get(memory.state)
    return f"{memory.state} since {format_time(since)}" if since else memory.state


def _use(memory: Memory) -> str | None:
    if not memory.access_count:
        return None
    return f"{plural(memory.access_count, 'time')}, last {format_time(memory.last_accessed)}"


def _listed(names: Sequence[str]) -> str | None:
    return ", ".join(map(one_line, names)) or None


def validity(memory: Memory) -> str:
    """From when until when it is true."""
    until = f" until {format_time(memory.valid_until)}" if memory.valid_until else ""
    return f"since {format_time(memory.valid_from)}{until}"
