"""The six tools: their arguments and their answers.

Lists contain ids and snippets only; the `get` tool returns the full text of an id.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

import msgspec
from msgspec import Meta

from clankers_protocol.admin import DaemonStatus
from clankers_protocol.agent_text import clean_line
from clankers_protocol.counts import count_of, plural
from clankers_protocol.errors import Conflict, InvalidParams, MethodNotFound, NotFound
from clankers_protocol.ids import encode_id
from clankers_protocol.memories import Memory, MemoryAdd, MemoryGet, MemoryTimeline
from clankers_protocol.memory_changes import MemoryDelete
from clankers_protocol.recall import RecallGet, SessionInjections
from clankers_protocol.search import Hit, IndexStatus, Search
from clankers_protocol.sessions import Session, SessionList, SessionTimeline, TimelineEntry
from clankers_protocol.times import format_time, parse_time
from clankers_protocol.wire import Method
from clankersd.capture.opt_out import MARKER, is_opted_out
from clankersd.wire import rpc
from clankersd.wire.rpc import Result

if TYPE_CHECKING:
    from clankersd.app import Daemon

Answer = str

MAX_PART_CHARACTERS = 6_000
"""Length of the part of a long text that `get` returns."""

MAX_SNIPPET_CHARACTERS = 300
MAX_LINE_CHARACTERS = 200
MAX_NAME_CHARACTERS = 60
PAGE_SIZE = 20
ALL_SCOPES = ["*"]
"""Every memory: an agent that asks about all projects, or for an id, gets what it asks for."""


@dataclass(frozen=True)
class ToolContext:
    """The daemon, and the project that the agent works in."""

    daemon: "Daemon"
    project: str

    async def call(self, request: Method[Result]) -> Result:
        return await rpc.call(self.daemon, request)

    async def call_or_none(self, request: Method[Result]) -> Result | None:
        """Call a method; return None if the object, or the method itself, does not exist."""
        try:
            return await self.call(request)
        except (NotFound, MethodNotFound):
            return None


class Tool(Protocol):
    """A tool: a struct of its arguments, whose docstring is the description that the agent reads."""

    name: ClassVar[str]
    is_read_only: ClassVar[bool]

    async def answer(self, context: ToolContext) -> Answer: ...


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of a tool; unknown ones are errors. Tools are read-only unless they say otherwise."""

    is_read_only: ClassVar[bool] = True


class SearchTool(Arguments):
    """Search earlier sessions, memories, documents and skills by keyword and meaning. Returns ids and snippets; use
    `get` to read the full text of an id."""

    name: ClassVar[str] = "search"
    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    everywhere: Annotated[bool, Meta(description="search all projects, not only this one")] = False
    since: Annotated[str, Meta(description="only results since this time: 2026-01-31 or 7d")] = ""
    limit: Annotated[int, Meta(ge=1, le=20)] = 8
    cursor: Annotated[str, Meta(description="cursor of the previous page")] = ""

    async def answer(self, context: ToolContext) -> Answer:
        since = None
        if self.since:
            try:
                since = int(parse_time(self.since, datetime.now().astimezone()).timestamp() * 1000)
            except (ValueError, OverflowError) as error:
                raise InvalidParams(f"{self.since!r} is no time: write 7d or 2026-01-31 - at `$.since`") from error
        result = await context.call(
            Search(
                query=self.query,
                project=None if self.everywhere else context.project,
                scopes=ALL_SCOPES if self.everywhere else None,
                since=since,
                limit=self.limit,
                cursor=self.cursor or None,
            )
        )
        lines = [_hit_line(hit) for hit in result.hits]
        if not lines and result.degraded:
            elsewhere = "" if self.everywhere else " Other projects: try everywhere."
            return f"The search is incomplete and found nothing: {result.degraded}.{elsewhere}"
        if not lines:
            return "Nothing was found." if self.everywhere else "Nothing was found in this project: try everywhere."
        if result.weak:
            lines.insert(0, "Nothing close; the nearest are:")
        if result.cursor:
            lines.append(f"More: cursor {result.cursor}")
        if result.degraded:
            lines.append(f"Incomplete: {result.degraded}")
        return "\n".join(lines)


class GetTool(Arguments):
    """Read the full text of an id from search, timeline or recall: a message, tool call, session, memory or
    passage."""

    name: ClassVar[str] = "get"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]
    offset: Annotated[int, Meta(ge=0, description="character offset at which to continue a long text")] = 0

    async def answer(self, context: ToolContext) -> Answer:
        item = await context.call_or_none(RecallGet(id=self.id, offset=self.offset, characters=MAX_PART_CHARACTERS))
        if item is None:
            memory = await context.call(MemoryGet(id=self.id, scopes=ALL_SCOPES))
            text = memory.content[self.offset : self.offset + MAX_PART_CHARACTERS]
            length, end = len(memory.content), self.offset + len(text)
            scope = clean_line(memory.scope_label, MAX_NAME_CHARACTERS)
            head = f"memory {encode_id(memory.id)}: {memory.category}, {scope}, {memory.state}"
            rest = _continuation(end if end < length else None, length)
            return f"{head}, {format_time(memory.created_at)}\n\n{text}{rest}"
        about = clean_line(item.about, MAX_SNIPPET_CHARACTERS)
        head = f"{item.kind} {encode_id(item.id)}: {about}, {format_time(item.created_at)}"
        if item.session_id not in (None, item.id):
            head += f", session {encode_id(item.session_id)}"
        return f"{head}\n\n{item.text}{_continuation(item.next_offset, item.characters)}"


class RememberTool(Arguments):
    """Store a memory for later sessions: a decision, preference, fact or pitfall. Write one thing, as a self-contained
    sentence. A duplicate reinforces the existing memory."""

    name: ClassVar[str] = "remember"
    is_read_only: ClassVar[bool] = False
    content: Annotated[str, Meta(min_length=1, max_length=100_000)]
    category: Annotated[str, Meta(pattern="^([a-z][a-z0-9_-]{0,63})?$", description="e.g. decision, preference")] = ""
    pinned: Annotated[bool, Meta(description="show it to every later session")] = False
    everywhere: Annotated[bool, Meta(description="store it for all projects, not only this one")] = False
    supersedes: Annotated[str, Meta(description="id of a memory that is no longer true, to be replaced")] = ""

    async def answer(self, context: ToolContext) -> Answer:
        if is_opted_out(context.project):
            raise Conflict(f"nothing is stored: this project has opted out with a {MARKER} file")
        added = await context.call(
            MemoryAdd(
                content=self.content,
                category=self.category or None,
                pinned=self.pinned,
                project=context.project,
                scope="global" if self.everywhere else None,
                supersedes=self.supersedes or None,
            )
        )
        outcome = "Known already, now stronger" if added.outcome == "duplicate" else "Remembered"
        replaced = f", instead of {added.replaced}" if added.replaced else ""
        return f"{outcome}: {added.memory.id}{replaced}."


class ForgetTool(Arguments):
    """Forget a memory by its id. The user can restore it."""

    name: ClassVar[str] = "forget"
    is_read_only: ClassVar[bool] = False
    id: Annotated[str, Meta(min_length=8, max_length=128)]
    reason: Annotated[str, Meta(max_length=1000)] = ""

    async def answer(self, context: ToolContext) -> Answer:
        forgotten = await context.call(MemoryDelete(id=self.id, project=context.project, reason=self.reason or None))
        return f"Forgotten: {', '.join(forgotten.ids)}." if forgotten.ids else "It was forgotten already."


class TimelineTool(Arguments):
    """List what happened, in order of time. With a session id: its messages and tool calls. With a memory id: the
    memories around it. Without an id: the latest sessions."""

    name: ClassVar[str] = "timeline"
    id: Annotated[str, Meta(max_length=1024)] = ""
    everywhere: Annotated[bool, Meta(description="list sessions or memories of all projects, not only this one")] = (
        False
    )
    cursor: Annotated[str, Meta(description="cursor of the previous page")] = ""

    async def answer(self, context: ToolContext) -> Answer:
        cursor = self.cursor or None
        if not self.id:
            project = None if self.everywhere else context.project
            sessions = await context.call(SessionList(project=project, limit=PAGE_SIZE, cursor=cursor))
            return _page(map(_session_line, sessions.sessions), sessions.cursor) or "No sessions here yet."
        page = await context.call_or_none(SessionTimeline(session_id=self.id, limit=PAGE_SIZE, cursor=cursor))
        if page:
            return _page(map(_entry_line, page.entries), page.cursor) or "Nothing happened in it yet."
        scopes = ALL_SCOPES if self.everywhere else None
        timeline = await context.call(MemoryTimeline(id=self.id, scopes=scopes, project=context.project))
        return "\n".join(map(_memory_line, timeline.memories))


class StatusTool(Arguments):
    """Report whether the memory works and how much it holds. With a session id, also how much was recalled into that
    session."""

    name: ClassVar[str] = "status"
    session: Annotated[str, Meta(max_length=1024)] = ""

    async def answer(self, context: ToolContext) -> Answer:
        status, index = await context.call(DaemonStatus()), await context.call(IndexStatus())
        counts = ", ".join(count_of(count, name) for name, count in status.counts.items())
        project = clean_line(context.project, MAX_SNIPPET_CHARACTERS)
        lines = [
            f"clankers {status.version}: " + ("works" if status.ok else f"not working: {status.problem}"),
            f"Holds {counts}.",
            f"Search by meaning: {index.vectors}. This project: {project}",
        ]
        if self.session:
            injections = await context.call(SessionInjections(session_id=self.session))
            total = sum(injection.characters for injection in injections)
            session = encode_id(self.session)
            lines.append(
                f"Recalled into session {session}: {plural(len(injections), 'time')}, {plural(total, 'character')}."
            )
        return "\n".join(lines)


TOOLS: dict[str, type[Tool]] = {
    tool.name: tool for tool in (SearchTool, GetTool, RememberTool, ForgetTool, TimelineTool, StatusTool)
}


def _hit_line(hit: Hit) -> str:
    ref = hit.ref
    day, snippet = format_time(hit.created_at, "%Y-%m-%d"), clean_line(hit.snippet, MAX_SNIPPET_CHARACTERS)
    if ref.memory_id:
        kind = clean_line(ref.memory_category or "", MAX_NAME_CHARACTERS)
        return f"- {encode_id(ref.memory_id)} {day} memory ({kind}): {snippet}"
    is_title = hit.source == "sessions" and not ref.message_id and not ref.tool_id
    hit_id = encode_id(ref.message_id or ref.tool_id or (is_title and ref.session_id) or hit.chunk_id[:16])
    session = f" ({encode_id(ref.session_id)})" if ref.session_id else ""
    if is_title:
        place = "title of a session"
    elif ref.path:
        name = os.path.basename(ref.path)  # noqa: PTH119  # a text
        place = f"{clean_line(name, MAX_LINE_CHARACTERS)}:{ref.start_line}"
    elif ref.document_id:
        place = f"{clean_line(ref.document_title or 'document', MAX_NAME_CHARACTERS)}:{ref.start_line}"
    elif ref.skill_id:
        place = f"skill {encode_id(ref.skill_id)}"
    else:
        role = clean_line(ref.role or "message", MAX_NAME_CHARACTERS)
        place = f"{role}, {clean_line(ref.session_title or 'session', MAX_NAME_CHARACTERS)}"
    others = f" and {hit.duplicates} like it" if hit.duplicates else ""
    return f"- {hit_id} {day} {place}{session}{others}: {snippet}"


def _memory_line(memory: Memory) -> str:
    kind = f"{memory.category}, pinned" if memory.pinned else memory.category
    day = format_time(memory.created_at, "%Y-%m-%d")
    return f"- {encode_id(memory.id)} {day} memory ({kind}): {clean_line(memory.content, MAX_SNIPPET_CHARACTERS)}"


def _continuation(next_offset: int | None, characters: int) -> str:
    return "" if next_offset is None else f"\n\n… {characters} characters in all; go on with offset {next_offset}"


def _session_line(session: Session) -> str:
    title = session.summary or session.title or session.user_prompt or "no title"
    counts = session.counts
    size = f" ({plural(counts.messages, 'message')}, {plural(counts.tools, 'tool')})" if counts else ""
    return (
        f"- {encode_id(session.id)} {format_time(session.created_at)}{size}: {clean_line(title, MAX_LINE_CHARACTERS)}"
    )


def _entry_line(entry: TimelineEntry) -> str:
    at = format_time(entry.at, "%m-%d %H:%M")
    if entry.message:
        role = clean_line(entry.message.role or "message", MAX_NAME_CHARACTERS)
        text = clean_line(entry.message.text_content or "", MAX_LINE_CHARACTERS)
        return f"- {encode_id(entry.message.id)} {at} {role}: {text}"
    if entry.tool:
        name = clean_line(entry.tool.tool_name, MAX_NAME_CHARACTERS)
        failed = " FAILED" if entry.tool.success is False else ""
        tool_input = clean_line(entry.tool.tool_input or "", MAX_LINE_CHARACTERS)
        return f"- {encode_id(entry.tool.id)} {at} {name}{failed}: {tool_input}"
    if entry.error:
        message = entry.error.error_message or entry.error.error_type or ""
        return f"- {at} error: {clean_line(message, MAX_LINE_CHARACTERS)}"
    return f"- {at} the context was compacted"


def _page(lines: Iterable[str], cursor: str | None) -> str:
    text = "\n".join(lines)
    return f"{text}\nMore: cursor {cursor}" if cursor else text
