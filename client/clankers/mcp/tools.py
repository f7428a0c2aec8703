"""The six tools: their arguments, and what they say. First ids and snippets, then the whole text by id."""

import os
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Protocol

import msgspec
from msgspec import Meta

from clankers.aio import AsyncClient
from clankers.ctl.formatting import format_time, parse_time
from clankers.messages import Result
from clankers_protocol.admin import DaemonStatus
from clankers_protocol.agent_text import clean_line
from clankers_protocol.errors import InvalidParams, MethodNotFound, NotFound
from clankers_protocol.ids import encode_id
from clankers_protocol.memories import Memory, MemoryAdd, MemoryGet, MemorySearch, MemoryTimeline
from clankers_protocol.memory_changes import MemoryDelete
from clankers_protocol.recall import RecallGet, SessionInjections
from clankers_protocol.search import Hit, IndexStatus, Ref, Search
from clankers_protocol.sessions import Session, SessionList, SessionTimeline, TimelineEntry
from clankers_protocol.wire import Method

Answer = str
PART = 6_000
SNIPPET = 300
LINE = 200
ABOUT = 300
MOST_MEMORIES = 5
PAGE = 20


@dataclass(frozen=True)
class Asker:
    """Who asks: a connection to the daemon, in a project."""

    client: AsyncClient
    project: str

    async def call(self, request: Method[Result]) -> Result:
        return await self.client.call(request)

    async def call_if_there(self, request: Method[Result]) -> Result | None:
        """As `call`; None when what is asked for, or the method itself, is not there."""
        try:
            return await self.client.call(request)
        except (NotFound, MethodNotFound):
            return None

    def scope(self, everywhere: bool) -> str | None:
        return None if everywhere else self.project


class Tool(Protocol):
    """A tool is its arguments; the docstring is what the agent reads."""

    name: ClassVar[str]
    only_reads: ClassVar[bool]

    async def answer(self, asker: Asker) -> Answer: ...


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What a tool is called with: an argument it does not know is an error. Most tools only read."""

    only_reads: ClassVar[bool] = True


class SearchTool(Arguments):
    """Find what was said, done, decided or noted earlier, by words and by meaning. Gives ids and snippets: `get` an
    id for its text."""

    name: ClassVar[str] = "search"
    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    everywhere: Annotated[bool, Meta(description="all projects, not only this one")] = False
    since: Annotated[str, Meta(description="2026-01-31 or 7d")] = ""
    limit: Annotated[int, Meta(ge=1, le=20)] = 8
    cursor: Annotated[str, Meta(description="of the page before")] = ""

    async def answer(self, asker: Asker) -> Answer:
        project = asker.scope(self.everywhere)
        found = await asker.call(
            Search(
                query=self.query,
                sources=["sessions", "memory", "documents", "skills"],
                project=project,
                since=_since(self.since),
                limit=self.limit,
                cursor=self.cursor or None,
            )
        )
        memories = [] if self.cursor else await self._memories(asker)
        lines = [*map(_memory_line, memories), *map(_hit_line, found.hits)]
        if not lines:
            return "Nothing was found" + ("." if self.everywhere else " in this project: try everywhere.")
        more = f"\nMore: cursor {found.cursor}" if found.cursor else ""
        missing = f"\nIncomplete: {found.degraded}" if found.degraded else ""
        return "\n".join(lines) + more + missing

    async def _memories(self, asker: Asker) -> list[Memory]:
        request = MemorySearch(query=self.query, project=asker.project, limit=min(self.limit, MOST_MEMORIES))
        found = await asker.call_if_there(request)
        return [hit.memory for hit in found.hits] if found else []


class GetTool(Arguments):
    """The whole text of an id from search, timeline or recall: message, tool call, session, memory, passage."""

    name: ClassVar[str] = "get"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]
    offset: Annotated[int, Meta(ge=0, description="where to go on in a long text")] = 0

    async def answer(self, asker: Asker) -> Answer:
        whole = await asker.call_if_there(RecallGet(id=self.id, offset=self.offset, characters=PART))
        if whole is None:
            return _memory_text(await asker.call(MemoryGet(id=self.id, project=asker.project)), self.offset)
        session = f", session {encode_id(whole.session_id)}" if whole.session_id not in (None, whole.id) else ""
        about = clean_line(whole.about, ABOUT)
        head = f"{whole.kind} {encode_id(whole.id)}: {about}, {format_time(whole.created_at)}{session}"
        return f"{head}\n\n{whole.text}{_rest(whole.next_offset, whole.characters)}"


class RememberTool(Arguments):
    """Keep something for later sessions: a decision, preference, fact, pitfall. One thing, in a sentence that stands
    alone. What is known already is made stronger."""

    name: ClassVar[str] = "remember"
    only_reads: ClassVar[bool] = False
    content: Annotated[str, Meta(min_length=1, max_length=100_000)]
    category: Annotated[str, Meta(pattern="^([a-z][a-z0-9_-]{0,63})?$", description="e.g. decision, preference")] = ""
    pinned: Annotated[bool, Meta(description="tell every later session")] = False
    everywhere: Annotated[bool, Meta(description="for all projects")] = False
    supersedes: Annotated[str, Meta(description="id of what is no longer true")] = ""

    async def answer(self, asker: Asker) -> Answer:
        added = await asker.call(
            MemoryAdd(
                content=self.content,
                category=self.category or None,
                pinned=self.pinned,
                project=asker.project,
                scope="global" if self.everywhere else None,
                supersedes=self.supersedes or None,
            )
        )
        done = {"created": "Remembered", "duplicate": "Known already, now stronger", "superseded": "Remembered"}
        replaced = f", instead of {added.replaced}" if added.replaced else ""
        return f"{done[added.outcome]}: {added.memory.id}{replaced}."


class ForgetTool(Arguments):
    """Forget a memory by its id; its owner can restore it."""

    name: ClassVar[str] = "forget"
    only_reads: ClassVar[bool] = False
    id: Annotated[str, Meta(min_length=8, max_length=128)]
    reason: Annotated[str, Meta(max_length=1000)] = ""

    async def answer(self, asker: Asker) -> Answer:
        forgotten = await asker.call(MemoryDelete(id=self.id, project=asker.project, reason=self.reason or None))
        return f"Forgotten: {', '.join(forgotten.ids)}." if forgotten.ids else "It was forgotten already."


class TimelineTool(Arguments):
    """What happened in order: of a session id its messages and tools, around a memory id what was learnt, without an
    id the last sessions."""

    name: ClassVar[str] = "timeline"
    id: Annotated[str, Meta(max_length=1024)] = ""
    everywhere: Annotated[bool, Meta(description="sessions of all projects")] = False
    cursor: Annotated[str, Meta(description="of the page before")] = ""

    async def answer(self, asker: Asker) -> Answer:
        if not self.id:
            return await self._sessions(asker)
        page = await asker.call_if_there(SessionTimeline(session_id=self.id, limit=PAGE, cursor=self.cursor or None))
        if page:
            return _page([_entry_line(entry) for entry in page.entries], page.cursor) or "Nothing happened in it yet."
        near = await asker.call(MemoryTimeline(id=self.id, project=asker.project))
        return "\n".join(map(_memory_line, near.memories))

    async def _sessions(self, asker: Asker) -> Answer:
        project = asker.scope(self.everywhere)
        page = await asker.call(SessionList(project=project, limit=PAGE, cursor=self.cursor or None))
        return _page([_session_line(session) for session in page.sessions], page.cursor) or "No sessions here yet."


class StatusTool(Arguments):
    """Whether the memory works, what it holds, and with a session id what that session was told."""

    name: ClassVar[str] = "status"
    session: Annotated[str, Meta(max_length=1024)] = ""

    async def answer(self, asker: Asker) -> Answer:
        status, index = await asker.call(DaemonStatus()), await asker.call(IndexStatus())
        held = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in status.counts.items())
        lines = [
            f"clankers {status.version}: " + ("works" if status.ok else f"in trouble: {status.problem}"),
            f"Holds {held}.",
            f"Search by meaning: {index.vectors}. This project: {clean_line(asker.project, ABOUT)}",
        ]
        return "\n".join([*lines, *(await self._told(asker) if self.session else [])])

    async def _told(self, asker: Asker) -> list[str]:
        told = await asker.call(SessionInjections(session_id=self.session))
        total = sum(one.characters for one in told)
        return [f"Recalled into session {encode_id(self.session)}: {len(told)} times, {total} characters."]


TOOLS: dict[str, type[Tool]] = {
    tool.name: tool for tool in (SearchTool, GetTool, RememberTool, ForgetTool, TimelineTool, StatusTool)
}


def _since(text: str) -> int | None:
    try:
        return int(parse_time(text, datetime.now().astimezone()).timestamp() * 1000) if text else None
    except (ValueError, OverflowError) as error:
        raise InvalidParams(f"{text!r} is no time: write 7d or 2026-01-31 - at `$.since`") from error


def _hit_line(hit: Hit) -> str:
    session = f" ({encode_id(hit.ref.session_id)})" if hit.ref.session_id else ""
    found = encode_id(hit.ref.message_id or hit.ref.tool_id or hit.chunk_id[:16])
    day = format_time(hit.created_at, "%Y-%m-%d")
    return f"- {found} {day} {_place(hit.ref)}{session}: {clean_line(hit.snippet, SNIPPET)}"


def _place(ref: Ref) -> str:
    if ref.path:
        return f"{clean_line(os.path.basename(ref.path), LINE)}:{ref.start_line}"  # noqa: PTH119  # a text
    if ref.document_id:
        return f"{clean_line(ref.document_title or 'document', 60)}:{ref.start_line}"
    if ref.skill_id:
        return f"skill {encode_id(ref.skill_id)}"
    return f"{clean_line(ref.role or 'message', 60)}, {clean_line(ref.session_title or 'session', 60)}"


def _memory_line(memory: Memory) -> str:
    marks = ", ".join([memory.category, *(["pinned"] * memory.pinned)])
    day = format_time(memory.created_at, "%Y-%m-%d")
    return f"- {encode_id(memory.id)} {day} memory ({marks}): {clean_line(memory.content, SNIPPET)}"


def _memory_text(memory: Memory, offset: int) -> str:
    text = memory.content[offset : offset + PART]
    end = offset + len(text)
    facts = f"{memory.category}, {memory.scope}, {memory.state}, {format_time(memory.created_at)}"
    head = f"memory {encode_id(memory.id)}: {facts}"
    return f"{head}\n\n{text}{_rest(end if end < len(memory.content) else None, len(memory.content))}"


def _rest(next_offset: int | None, characters: int) -> str:
    return "" if next_offset is None else f"\n\n… {characters} characters in all; go on with offset {next_offset}"


def _session_line(session: Session) -> str:
    said = session.summary or session.title or session.user_prompt or "no title"
    counts = session.counts
    size = f" ({counts.messages} messages, {counts.tools} tools)" if counts else ""
    return f"- {encode_id(session.id)} {format_time(session.created_at)}{size}: {clean_line(said, LINE)}"


def _entry_line(entry: TimelineEntry) -> str:
    at = format_time(entry.at, "%m-%d %H:%M")
    if entry.message:
        said = clean_line(entry.message.text_content or "", LINE)
        return f"- {encode_id(entry.message.id)} {at} {clean_line(entry.message.role or 'message', 60)}: {said}"
    if entry.tool:
        failed = " FAILED" if entry.tool.success is False else ""
        given = clean_line(entry.tool.tool_input or "", LINE)
        return f"- {encode_id(entry.tool.id)} {at} {clean_line(entry.tool.tool_name, 60)}{failed}: {given}"
    if entry.error:
        return f"- {at} error: {clean_line(entry.error.error_message or entry.error.error_type or '', LINE)}"
    return f"- {at} the context was compacted"


def _page(lines: list[str], cursor: str | None) -> str:
    return "\n".join([*lines, *([f"More: cursor {cursor}"] if cursor else [])])
