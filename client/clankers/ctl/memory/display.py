"""Printed forms of memories and of their change logs."""

import json
from collections.abc import Sequence
from typing import Any

from clankers.ctl.command import Ctl
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.ids import display_ids, short_ids
from clankers.ctl.output import (
    Column,
    bar,
    console,
    cut,
    echo,
    one_line,
    plain,
    print_facts,
    print_table,
)
from clankers.ctl.transcript import MAX_TEXT_WIDTH
from clankers_protocol.memories import LogEntry, Memory

MAX_TITLE_LENGTH = 60
MAX_LOG_VALUE_LENGTH = 200
"""Replaced values in a change log are cut to this length unless `--full` is given."""

LIST_FIELDS = ("tags", "concepts", "files")
TIME_FIELDS = ("valid_from", "valid_until", "expires_at")
EDITABLE_FIELDS = (
    "summary",
    "sector",
    "tier",
    "category",
    "importance",
    "confidence",
    *LIST_FIELDS,
    *TIME_FIELDS,
)
LOGGED_FIELDS = ("content", *EDITABLE_FIELDS, "scope", "metadata")
"""Fields whose replaced values a change log shows; the other columns of an entry are derived from these."""

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

PIN_COLUMN, STATE_COLUMN = 1, 3


def print_memories(ctl: Ctl, memories: Sequence[Memory]) -> None:
    """Print a table of memories, without the pin and state columns if no memory needs them."""
    ids = display_ids(ctl, "memory", [memory.id for memory in memories])
    rows = [
        [
            one_line(shown_id),
            "★" if memory.pinned else "",
            summary_line(memory),
            memory.state,
            format_time(memory.created_at),
            f"{memory.salience:.2f}",
            memory.sector,
            one_line(memory.category),
            scope_name(memory),
        ]
        for shown_id, memory in zip(ids, memories, strict=True)
    ]
    hidden = set()
    if not any(memory.pinned for memory in memories):
        hidden.add(PIN_COLUMN)
    if all(memory.state == "current" for memory in memories):
        hidden.add(STATE_COLUMN)
    shown = [index for index in range(len(COLUMNS)) if index not in hidden]
    print_table([COLUMNS[index] for index in shown], [[row[index] for index in shown] for row in rows])


def count_memories(count: int) -> str:
    """Format a number of memories: "1 memory", "2 memories"."""
    return f"{count:,} memor{'y' if count == 1 else 'ies'}"


def count_entities(count: int) -> str:
    """Format a number of entities: "1 entity", "2 entities"."""
    return f"{count:,} entit{'y' if count == 1 else 'ies'}"


def summary_line(memory: Memory) -> str:
    """Return the summary of a memory, or its content, in one line."""
    return one_line(memory.summary or memory.content)


def scope_name(memory: Memory) -> str:
    """Return the scope of a memory as --scope accepts it, with the name of a project in place of its id."""
    return one_line(memory.scope_label)


def memory_title(memory: Memory) -> str:
    """Return the id of a memory and the start of its text."""
    return f"{one_line(memory.id)} ({cut(summary_line(memory), MAX_TITLE_LENGTH)})"


def validity(memory: Memory) -> str:
    """Describe the period in which a memory is valid."""
    until = f" until {format_time(memory.valid_until)}" if memory.valid_until else ""
    return f"since {format_time(memory.valid_from)}{until}"


def print_memory(memory: Memory) -> None:
    """Print a memory with all its fields."""
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    out.print(plain(memory.content.strip("\n")), width=width, style="bold")
    echo()
    pinned = " (pinned)" if memory.pinned else ""
    used = f"{plural(memory.access_count, 'time')}, last {format_time(memory.last_accessed)}"
    print_facts(
        [
            ("id", one_line(memory.id)),
            ("state", _state(memory)),
            ("summary", memory.summary and one_line(memory.summary)),
            ("kind", f"{memory.sector}, {one_line(memory.category)}, {memory.tier}"),
            ("scope", scope_name(memory)),
            ("project", memory.project_path and one_line(memory.project_path)),
            ("salience", f"{bar(memory.salience, 10)} {memory.salience:.2f}{pinned}"),
            ("importance", f"{memory.importance:.2f}, confidence {memory.confidence:.2f}"),
            ("used", used if memory.access_count else None),
            ("tags", ", ".join(map(one_line, memory.tags)) or None),
            ("concepts", ", ".join(map(one_line, memory.concepts)) or None),
            *(("" if index else "files", one_line(file)) for index, file in enumerate(memory.files)),
            ("created", format_time(memory.created_at)),
            ("updated", format_time(memory.updated_at) if memory.updated_at != memory.created_at else None),
            ("valid", validity(memory)),
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


def print_change_log(ctl: Ctl, log: Sequence[LogEntry], full: bool = True) -> None:
    """Print a table of changes: when, what, by whom, why; which memory, if there are several."""
    ids = [entry.memory_id for entry in log]
    several_memories = len(set(ids)) > 1
    columns = [Column("When"), Column("What"), Column("By", optional=True)]
    if several_memories:
        columns.append(Column("Memory", optional=True, style="cyan"))
    columns.append(Column("Why", min_width=16, wrap=True))
    rows = []
    for entry, shown_id in zip(log, short_ids(ctl, "memory", ids), strict=True):
        row = [format_time(entry.at), one_line(entry.action), one_line(entry.by)]
        if several_memories:
            row.append(one_line(shown_id))
        rows.append([*row, _reason(entry, full)])
    print_table(columns, rows)


def _reason(entry: LogEntry, full: bool) -> str:
    """Return the reason of a change, followed by the values that it replaced."""
    before = {name.removesuffix("_json"): value for name, value in (entry.before or {}).items()}
    replaced = {name: _replaced_value(name, before.get(name), full) for name in LOGGED_FIELDS}
    parts = [f"{name.replace('_', ' ')} was {value}" for name, value in replaced.items() if value]
    if entry.reason:
        parts.insert(0, one_line(entry.reason))
    return "; ".join(parts)


def _replaced_value(name: str, value: Any, full: bool) -> str:
    if value is None:
        return ""
    if name in TIME_FIELDS and value:
        return format_time(value)
    if name in LIST_FIELDS and isinstance(value, str):
        value = ", ".join(json.loads(value))
    text = one_line(value if isinstance(value, str) else json.dumps(value))
    return text if full else cut(text, MAX_LOG_VALUE_LENGTH)
