"""Print a session as a transcript: messages, tool calls, errors and compactions."""

import json
from collections.abc import Iterable

from clankers.ctl.formatting import abbreviate, format_dollars, format_duration, format_time, plural
from clankers.ctl.output import console, cut, one_line, plain, print_facts
from clankers.ctl.text import Text
from clankers_protocol.sessions import (
    Compaction,
    Message,
    Session,
    SessionCounts,
    TimelineEntry,
    Tool,
)

TOOL_OUTPUT_LINES = 6
"""Number of lines of a tool's output to show without --full."""

INDENT = "  "

MAX_TEXT_WIDTH = 110
"""Wider text is hard to read, even on a wide terminal."""

ROLE_STYLES = {"user": "bold green", "assistant": "bold cyan", "system": "bold magenta"}


def print_transcript(session: Session, entries: Iterable[TimelineEntry], full: bool) -> None:
    """Print a session and its entries as they arrive."""
    _print_header(session)
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    day = None
    for entry in entries:
        if (today := format_time(entry.at, "%A, %-d %B %Y")) != day:
            day = today
            out.print(f"\n{day}", style="bold")
        heading, *blocks = render_entry(entry, full)
        out.print()
        out.print(heading)
        for block in blocks:
            for line in block.wrap(out, width - len(INDENT), overflow="fold"):
                line.rstrip()
                out.print(INDENT, line, sep="")


def _print_header(session: Session) -> None:
    counts = session.counts or SessionCounts()
    prompt, completion = session.prompt_tokens, session.completion_tokens
    took = (
        session.ended_at
        and session.created_at
        and f" (took {format_duration((session.ended_at - session.created_at) / 1000)})"
    )
    console().print(one_line(session.title or session.id), style="bold")
    print_facts(
        [
            ("id", plain(session.id)),
            ("chat", session.chat_id and one_line(session.chat_id)),
            ("project", session.project_path and one_line(session.project_path)),
            ("model", session.model and one_line(session.model)),
            ("source", session.source and one_line(session.source)),
            ("status", session.status and one_line(session.status)),
            ("began", format_time(session.created_at) or None),
            ("ended", f"{format_time(session.ended_at)}{took or ''}" if session.ended_at else None),
            (
                "tokens",
                f"{abbreviate(prompt or 0)} in, {abbreviate(completion or 0)} out" if prompt or completion else None,
            ),
            ("cost", format_dollars(session.cost) if session.cost else None),
            ("contains", describe_counts(counts)),
            ("metadata", one_line(json.dumps(session.metadata, ensure_ascii=False)) if session.metadata else None),
            ("summary", session.summary and one_line(session.summary)),
        ]
    )


def describe_counts(counts: SessionCounts) -> str:
    """Describe what a session contains: 2 messages, 1 tool call, …"""
    failed = f" ({counts.failed_tools:,} failed)" if counts.failed_tools else ""
    tools = plural(counts.tools, "tool call") + failed
    errors, compactions = plural(counts.errors, "error"), plural(counts.compactions, "compaction")
    return f"{plural(counts.messages, 'message')}, {tools}, {errors}, {compactions}"


def render_entry(entry: TimelineEntry, full: bool) -> list[Text]:
    """Return the heading of an entry and the blocks of text below it."""
    if entry.message:
        return _message(entry.at, entry.message)
    if entry.tool:
        return _tool(entry.at, entry.tool, full)
    if entry.error:
        title = f"! {one_line(entry.error.error_type or 'error')}"
        return [_heading(entry.at, title, "bold red", []), *_block(entry.error.error_message, "red")]
    compaction = entry.compaction or Compaction("", "")
    tokens = _from_to(compaction.tokens_before, compaction.tokens_after, "tokens")
    messages = _from_to(compaction.messages_before, compaction.messages_after, "messages")
    return [_heading(entry.at, "~ context compacted", "bold magenta", [tokens, messages])]


def _message(at: int, message: Message) -> list[Text]:
    role = message.role or "message"
    tokens = None
    if message.prompt_tokens or message.completion_tokens:
        tokens = f"{abbreviate(message.prompt_tokens or 0)} in, {abbreviate(message.completion_tokens or 0)} out"
    facts = [message.model, tokens, message.duration_ms and format_duration(message.duration_ms / 1000)]
    return [_heading(at, one_line(role), ROLE_STYLES.get(role, "bold"), facts), *_block(message.text_content)]


def _tool(at: int, tool: Tool, full: bool) -> list[Text]:
    failed = tool.success is False
    mark, style = ("✗", "bold red") if failed else ("✓" if tool.success else "·", "bold yellow")
    facts = [tool.file_path, tool.duration_ms and format_duration(tool.duration_ms / 1000)]
    return [
        _heading(at, f"{mark} {one_line(tool.tool_name)}", style, facts),
        *_block(_arguments(tool.tool_input, full)),
        *_block(tool.error_message, "red"),
        *_block(_first_lines(tool.tool_output, full), "dim"),
    ]


def _from_to(before: int | None, after: int | None, what: str) -> str | None:
    if before is None and after is None:
        return None
    return f"{'?' if before is None else abbreviate(before)} → {'?' if after is None else abbreviate(after)} {what}"


def _heading(at: int, title: str, style: str, facts: Iterable[str | int | None]) -> Text:
    text = Text().append(format_time(at, "%H:%M:%S"), "dim").append("  ").append(title, style)
    details = " · ".join(one_line(str(fact)) for fact in facts if fact)
    return text.append(f"  {details}" if details else "", "dim")


def _block(text: str | None, style: str = "") -> list[Text]:
    """Return the text as a block, or nothing if it is blank."""
    return [Text(plain(text.strip("\n")), style)] if text and text.strip() else []


def _arguments(text: str | None, full: bool) -> str | None:
    """Format the input of a tool: the fields of an object, each shortened to a line unless `full`."""
    try:
        fields = json.loads(text or "")
    except ValueError:
        return _first_lines(text, full)
    if not isinstance(fields, dict):
        return _first_lines(text, full)
    return "\n".join(f"{name}: {_value(value, full)}" for name, value in fields.items())


def _value(value: object, full: bool) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if full:
        return text
    return cut(one_line(text), MAX_TEXT_WIDTH + 1)


def _first_lines(text: str | None, full: bool) -> str | None:
    lines = (text or "").strip("\n").splitlines()
    if full or len(lines) <= TOOL_OUTPUT_LINES:
        return text
    return "\n".join([*lines[:TOOL_OUTPUT_LINES], f"… {plural(len(lines) - TOOL_OUTPUT_LINES, 'more line')}"])
