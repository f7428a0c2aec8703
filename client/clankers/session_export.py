"""A session as Markdown or as one HTML file, to read or to send to somebody. Texts are as stored: redacted."""

import html
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from clankers_protocol.sessions import Session, TimelineEntry, Tool
from clankers_protocol.terminal import sanitize

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_MARKDOWN_CHARACTERS = 64_000
"""A longer text is shown as it is: it is a log or a file, and rendering it takes long."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
article { margin: 1.25rem 0; padding-left: .75rem; border-left: 3px solid #8888; }
article.user { border-color: #2a9d55; } article.assistant { border-color: #2a7ab8; }
article.error { border-color: #c0392b; }
h2 { font-size: .9rem; margin: 0 0 .25rem; } time, .facts { color: #777; font-weight: normal; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .25rem 0; }
pre, code { font: .85rem/1.45 ui-monospace, monospace; background: #8881; border-radius: 4px; }
pre { padding: .5rem .7rem; } code { padding: 0 .25em; } pre code { padding: 0; background: none; }
.plain { font: inherit; background: none; padding: 0; } summary { cursor: pointer; }
.text { overflow-wrap: anywhere; } .text > :first-child { margin-top: 0; } .text > :last-child { margin-bottom: 0; }
.text h1, .text h2, .text h3, .text h4 { font-size: 1rem; margin: .8rem 0 .3rem; }
table { border-collapse: collapse; } th, td { border: 1px solid #8886; padding: .15rem .5rem; text-align: left; }
@media print { article { break-inside: avoid; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The file holds text that agents and web pages wrote: nothing in it may run or be fetched."""


def to_markdown(session: Session, entries: Iterable[TimelineEntry]) -> Iterator[str]:
    """Yield a session as Markdown, piece by piece."""
    yield f"# {_line(session.title or session.id)}\n\n"
    for name, value in _facts(session):
        yield f"- {name}: {_line(value)}\n"
    for entry in entries:
        title, facts, text = _describe(entry)
        yield f"\n## {_line(title)} · {_clock(entry.at)}{f' · {facts}' if facts else ''}\n\n"
        if entry.tool:
            for name, block in _tool_blocks(entry.tool):
                yield f"{name}:\n\n{_fence(block)}\n\n"
        elif text:
            yield f"{sanitize(text).strip()}\n"


def to_html(session: Session, entries: Iterable[TimelineEntry]) -> Iterator[str]:
    """Yield a session as one HTML file without scripts, piece by piece."""
    title = _escape(session.title or session.id)
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1><ul>"
    )
    for name, value in _facts(session):
        yield f"<li>{name}: {_escape(value)}</li>"
    yield "</ul>\n"
    for entry in entries:
        heading, facts, text = _describe(entry)
        kind = entry.message.role if entry.message and entry.message.role in ("user", "assistant") else entry.kind
        yield f'<article class="{kind}"><h2>{_escape(heading)} <time>{_clock(entry.at)}</time> '
        yield f'<span class="facts">{_escape(facts)}</span></h2>'
        if entry.tool:
            for name, block in _tool_blocks(entry.tool):
                yield f"<details><summary>{name}</summary><pre>{_escape(block)}</pre></details>"
        elif text and not entry.error and len(text) <= MAX_MARKDOWN_CHARACTERS:
            yield f'<div class="text">{_markdown().render(sanitize(text.strip()))}</div>'
        elif text:
            yield f'<pre class="plain">{_escape(text.strip())}</pre>'
        yield "</article>\n"
    yield "</body></html>\n"


@cache
def _markdown() -> "MarkdownIt":
    """Return the renderer of messages: HTML in them stays text, only web links are links, and nothing is fetched."""
    from markdown_it import MarkdownIt  # only an export needs it

    renderer = MarkdownIt("js-default").disable("image")
    # Not `//host/share` either: in a file on a disk that is a network folder.
    renderer.validateLink = lambda url: url.lower().startswith(("http://", "https://"))  # type: ignore[method-assign]
    return renderer


def _facts(session: Session) -> Iterator[tuple[str, str]]:
    tokens = (session.prompt_tokens or 0) + (session.completion_tokens or 0)
    facts = {
        "Session": session.id,
        "Project": session.project_path,
        "Harness": session.source,
        "Model": session.model,
        "Began": _clock(session.created_at) if session.created_at else None,
        "Ended": _clock(session.ended_at) if session.ended_at else None,
        "Tokens": f"{tokens:,}" if tokens else None,
        "Cost": f"${session.cost:.2f}" if session.cost else None,
    }
    for name, value in facts.items():
        if value:
            yield name, value


def _describe(entry: TimelineEntry) -> tuple[str, str, str | None]:
    """Return the title, the facts and the text of an entry."""
    if entry.message:
        message = entry.message
        tokens = (message.prompt_tokens or 0) + (message.completion_tokens or 0)
        facts = [message.model or "", f"{tokens:,} tokens" if tokens else ""]
        return (message.role or "message").capitalize(), " · ".join(filter(None, facts)), message.text_content
    if entry.tool:
        outcome = {True: "", False: "failed", None: "no result"}[entry.tool.success]
        duration = f"{entry.tool.duration_ms / 1000:.1f} s" if entry.tool.duration_ms else ""
        facts = [entry.tool.file_path or "", duration, outcome]
        return f"Tool: {entry.tool.tool_name}", _line(" · ".join(filter(None, facts))), None
    if entry.error:
        return f"Error: {entry.error.error_type or 'unknown'}", "", entry.error.error_message
    if entry.compaction:
        before, after = entry.compaction.tokens_before, entry.compaction.tokens_after
        sizes = f"{before or '?'} → {after or '?'} tokens" if before or after else ""
        return "Context compacted", sizes, entry.compaction.summary
    return entry.kind.capitalize(), "", None


def _tool_blocks(tool: Tool) -> Iterator[tuple[str, str]]:
    if tool.tool_input:
        try:
            yield "Input", json.dumps(json.loads(tool.tool_input), indent=2, ensure_ascii=False)
        except ValueError:
            yield "Input", tool.tool_input
    if tool.error_message:
        yield "Error", tool.error_message
    if tool.tool_output:
        yield "Output", tool.tool_output


def _fence(text: str) -> str:
    """Put text into a code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{sanitize(text).rstrip()}\n{fence}"


def _line(text: str) -> str:
    return " ".join(sanitize(text).split())


def _escape(text: str) -> str:
    return html.escape(sanitize(text))


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
