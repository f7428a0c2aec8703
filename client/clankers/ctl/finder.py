"""The interactive finder of `clankers-ctl search`: type to search, choose a hit, read it in its conversation."""

import asyncio
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    ConditionalContainer,
    Dimension,
    DynamicContainer,
    HSplit,
    Layout,
    VSplit,
    Window,
)
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output, create_output

from clankers.aio import AsyncClient
from clankers.ctl.command import Ctl
from clankers.ctl.conversation import Conversation
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.output import console, one_line
from clankers.ctl.search import FILES, MATCH_MARKS, NOTHING_CLOSE, SOURCE_NAMES, highlight, hit_location, tool_search
from clankers.ctl.text import Text, cell_len
from clankers.ctl.transcript import ROLE_STYLES
from clankers.messages import BadReply, DaemonUnavailable
from clankers_protocol.admin import Health
from clankers_protocol.errors import RpcError
from clankers_protocol.search import Filter, Hit, Ref, Search, Source, ToolHit, ToolSearch
from clankers_protocol.sessions import Session, SessionList
from clankers_protocol.terminal import sanitize

MAX_ROWS = 50
TYPING_PAUSE_SECONDS = 0.12
ROW_LINES = 2
FRAME_LINES = 4
"""Lines around the list: the query, the filters, a rule and the keys."""

SIDE_BY_SIDE_COLUMNS = 100
PREVIEW_LINES = 16
"""The preview stands beside the list on terminals so wide, below it on terminals so high, and nowhere on others."""

DAY_SECONDS = 86_400
TOOL_CALLS = "tool calls"
"""Name of the kind that searches the whole input and output of tool calls."""

FINDER_KEYS = "↑↓ choose · Enter open · PgUp PgDn preview · Esc leave"
READER_KEYS = "↑↓ PgUp PgDn Home End scroll · Esc back · Ctrl-C leave"
COLOURS = {"yellow", "red", "green", "cyan", "magenta", "blue"}
DIM = "fg:ansibrightblack"
DAEMON_ERRORS = (RpcError, DaemonUnavailable, BadReply, TimeoutError)


@dataclass
class Choice:
    """A filter with its options: each press of its key chooses the next one."""

    name: str
    key: str
    options: list[tuple[str, Any]]
    at: int = 0

    @property
    def value(self) -> Any:
        return self.options[self.at][1]

    def advance(self) -> None:
        self.at = (self.at + 1) % len(self.options)


@dataclass(frozen=True)
class Row:
    """A hit, or one of the last sessions while nothing is typed."""

    what: Text
    title: str
    facts: str
    snippet: Text
    conversation: Conversation


@dataclass
class Finder:
    """State of the finder: what is typed, the filters, the rows, and the conversation beside them."""

    client: AsyncClient
    request: Search
    choices: list[Choice]
    rows: list[Row] = field(default_factory=list)
    chosen: int = 0
    status: str = ""
    note: str = ""
    error: str = ""
    is_reading: bool = False
    output: Output = field(default_factory=create_output)
    _searching: asyncio.Task[None] | None = None
    _loading: asyncio.Task[None] | None = None
    _loaded: Conversation | None = None

    async def run(self) -> None:
        """Run until the user leaves. The terminal is restored whatever happens."""
        query = Buffer(multiline=False, on_text_changed=lambda _: self._search_soon())
        self.query = query
        self.app: Application[None] = Application(
            layout=self._layout(query),
            key_bindings=self._keys(),
            output=self.output,
            full_screen=True,
            erase_when_done=True,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.app.exit)
        await self.app.run_async(pre_run=self._search_soon)

    # -- what is shown

    def _layout(self, query: Buffer) -> Layout:
        typing = Window(BufferControl(query, input_processors=[BeforeInput("> ", "bold")]), height=1)
        listed = Window(FormattedTextControl(self._list))
        preview = Window(FormattedTextControl(self._preview))
        below = HSplit([Window(FormattedTextControl(self._list), height=self._list_dimension), self._rule(), preview])
        beside = VSplit([listed, Window(width=1, char="│", style=DIM), preview])

        def body() -> Any:
            if self.is_reading:
                return preview
            return beside if self._is_wide() else below if self._has_preview() else listed

        typed = ConditionalContainer(
            HSplit([typing, Window(FormattedTextControl(self._filters), height=1)]),
            Condition(lambda: not self.is_reading),
        )
        keys = Window(FormattedTextControl(self._footer), height=1)
        return Layout(HSplit([typed, self._rule(), DynamicContainer(body), keys]), focused_element=query)

    def _rule(self) -> Window:
        return Window(height=1, char="─", style=DIM)

    def _size(self) -> tuple[int, int]:
        """Return the columns of the terminal, and its lines between the rule and the keys."""
        size = self.output.get_size()
        return size.columns, max(size.rows - (2 if self.is_reading else FRAME_LINES), 1)

    def _is_wide(self) -> bool:
        return self._size()[0] >= SIDE_BY_SIDE_COLUMNS

    def _has_preview(self) -> bool:
        return self._is_wide() or self._size()[1] >= PREVIEW_LINES

    def _list_lines(self) -> int:
        lines = self._size()[1]
        return lines if self._is_wide() or not self._has_preview() else lines // 2

    def _list_dimension(self) -> Dimension:
        return Dimension.exact(self._list_lines())

    def _pane(self) -> tuple[int, int]:
        """Return the columns and lines of the conversation."""
        columns, lines = self._size()
        if self.is_reading:
            return columns, lines
        return (columns // 2 - 1, lines) if self._is_wide() else (columns, max(lines - self._list_lines() - 1, 1))

    def _filters(self) -> StyleAndTextTuples:
        fragments: StyleAndTextTuples = []
        for choice in self.choices:
            style = "bold fg:ansiyellow" if choice.at else ""
            fragments += [
                (DIM, f"{choice.key.upper().replace('C-', '^')} {choice.name} "),
                (style, f"{choice.options[choice.at][0]}  "),
            ]
        return fragments

    def _footer(self) -> StyleAndTextTuples:
        if self.error:
            return [("bold fg:ansired", f"Error: {one_line(self.error)}")]
        if self.is_reading:
            return [(DIM, READER_KEYS)]
        shown = f"{' · ' if self.status else ''}{FINDER_KEYS}{' · ' if self.note else ''}{self.note}"
        return [("bold", self.status), (DIM, shown)]

    def _list(self) -> StyleAndTextTuples:
        width = self._size()[0] // 2 - 1 if self._is_wide() else self._size()[0]
        shown = max(self._list_lines() // ROW_LINES, 1)
        first = min(max(self.chosen - shown // 2, 0), max(len(self.rows) - shown, 0))
        fragments: StyleAndTextTuples = []
        for number, row in enumerate(self.rows[first : first + shown], first):
            is_chosen = number == self.chosen
            name = Text(f"{row.title}  ", "bold reverse" if is_chosen else "bold")
            name.truncate(max(width - cell_len(row.what.plain) - cell_len(row.facts) - 4, 8))
            heading = Text("▌ " if is_chosen else "  ", "yellow").append(row.what).append(" ").append(name)
            heading.append(" ").append(row.facts, "dim")
            snippet = Text("▌ " if is_chosen else "  ", "yellow").append(row.snippet)
            for line in (heading, snippet):
                line.truncate(width)
                fragments += [*_fragments(line), ("", "\n")]
        return fragments

    def _preview(self) -> StyleAndTextTuples:
        if not self.rows:
            return []
        width, height = self._pane()
        conversation = self.rows[self.chosen].conversation
        lines = conversation.visible_lines(width, height)
        return [fragment for line in lines for fragment in (*_fragments(line), ("", "\n"))]

    # -- keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        reading, finding = Condition(lambda: self.is_reading), Condition(lambda: not self.is_reading)

        @keys.add("c-c")
        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            event.app.exit()

        @keys.add("escape", eager=True)
        @keys.add("q", filter=reading)
        def _(event: KeyPressEvent) -> None:
            if self.is_reading:
                self.is_reading = False
            else:
                event.app.exit()

        @keys.add("enter", filter=finding)
        def _(_: KeyPressEvent) -> None:
            if self.rows:
                self.is_reading = True
                self._load()

        for key, step in {"up": -1, "c-p": -1, "down": 1, "c-n": 1}.items():
            keys.add(key, filter=finding)(lambda _, step=step: self._choose(self.chosen + step))
            keys.add(key, filter=reading)(lambda _, step=step: self._scroll(step))
        for key, step in {"pageup": -1, "pagedown": 1, " ": 1, "c-b": -1, "c-f": 1}.items():
            active = reading if key in (" ", "c-b", "c-f") else Condition(lambda: True)
            keys.add(key, filter=active)(lambda _, step=step: self._scroll(step * max(self._pane()[1] - 1, 1)))
        keys.add("home", filter=reading)(lambda _: self._load(jump="start"))
        keys.add("end", filter=reading)(lambda _: self._load(jump="end"))
        keys.add("<any>", filter=reading)(lambda _: None)  # otherwise it would be typed into the hidden query
        for choice in self.choices:
            keys.add(choice.key, filter=finding)(lambda _, choice=choice: self._filter(choice))
        return keys

    def _filter(self, choice: Choice) -> None:
        choice.advance()
        self._search_soon()

    def _choose(self, number: int) -> None:
        if self.rows:
            self.chosen = min(max(number, 0), len(self.rows) - 1)
            self._load()

    def _scroll(self, lines: int) -> None:
        if self.rows:
            self.rows[self.chosen].conversation.scroll(lines, *self._pane())
            self._load()

    # -- requests; a newer one cancels the one before

    def _search_soon(self) -> None:
        if self._searching:
            self._searching.cancel()
        self._searching = self.app.create_background_task(self._search())

    async def _search(self) -> None:
        query = self.query.text.strip()
        project, kind, role, since = (choice.value for choice in self.choices)
        after = self.request.since if since is None else int((time.time() - since) * 1000)
        try:
            if query:
                await asyncio.sleep(TYPING_PAUSE_SECONDS)
                filters = [Filter("role", "eq", role)] if role else []
                request = msgspec.structs.replace(
                    self.request,
                    query=query,
                    project=project,
                    sources=None if kind == TOOL_CALLS else kind,
                    since=after,
                    filters=filters,
                    limit=MAX_ROWS,
                )
                self.status, self.note = "searching …", ""
                if kind == TOOL_CALLS:
                    await self._search_tool_calls(tool_search(request))
                else:
                    await self._search_index(request)
            else:
                page = await self.client.call(
                    SessionList(project=project, since=after, limit=MAX_ROWS, top_level=True, skip_automated=True)
                )
                self.rows = [_session_row(session) for session in page.sessions]
                self.status, self.note = "last sessions" if page.sessions else "nothing captured", ""
            self.error = ""
        except DAEMON_ERRORS as error:  # earlier rows would look like the answer
            self.rows, self.status, self.note, self.error = [], "", "", str(error)
        self.chosen = 0
        self._load()

    async def _search_index(self, request: Search) -> None:
        result = await self.client.call(request)
        self.rows = [_hit_row(hit) for hit in result.hits]
        count = f"{len(self.rows)}+ hits" if result.cursor else plural(len(self.rows), "hit")
        took = format_duration(result.took_ms / 1000)
        near = f"{NOTHING_CLOSE} " if result.weak else ""
        self.status = f"{near}{count} in {took}" if self.rows else "nothing found"
        self.note = f"incomplete: {one_line(result.degraded)}" if result.degraded else ""

    async def _search_tool_calls(self, request: ToolSearch) -> None:
        found = await self.client.call(request)
        self.rows = [_call_row(hit) for hit in found.hits]
        searched = f"the newest {found.scanned:,}" if found.cursor else f"all {found.scanned:,}"
        self.status = f"{plural(len(self.rows), 'tool call')}; searched {searched}"

    def _load(self, jump: Literal["start", "end"] | None = None) -> None:
        """Load what the pane shows of the chosen conversation and does not have yet."""
        self.app.invalidate()
        if not self.rows or not (self._has_preview() or self.is_reading):
            return
        conversation = self.rows[self.chosen].conversation
        is_running = self._loading is not None and not self._loading.done()
        if is_running and conversation is self._loaded and jump is None:
            return  # it goes on until what is visible then is loaded
        if self._loading:
            self._loading.cancel()
        self._loaded = conversation
        self._loading = self.app.create_background_task(self._load_conversation(conversation, jump))

    async def _load_conversation(self, conversation: Conversation, jump: Literal["start", "end"] | None) -> None:
        try:
            if jump:
                await conversation.jump(self.client, to_end=jump == "end")
            await conversation.load(self.client, *self._pane())
            self.error = ""
        except DAEMON_ERRORS as error:
            self.error = str(error)
        self.app.invalidate()


def find(ctl: Ctl, request: Search, tool_calls: bool) -> None:
    """Run the finder on the terminal. What the options of the command chose is its first choice of filters."""
    ctl.call(Health())  # starts a daemon if none runs, and fails before the screen is taken
    here = str(Path.cwd())
    projects = [("all", None), ("this folder", here)]
    if request.project not in (None, here):
        projects.insert(0, ("chosen", request.project))
    kinds: list[tuple[str, list[Source] | str | None]] = [("any", None)]
    kinds += [(FILES if source == "memory" else source, [source]) for source in get_args(Source)]
    kinds.append((TOOL_CALLS, TOOL_CALLS))
    if request.sources:
        kinds.insert(0, ("chosen", request.sources))
    choices = [
        Choice("project", "c-o", projects, projects.index(("this folder", here)) if request.project == here else 0),
        Choice("kind", "c-t", kinds, kinds.index((TOOL_CALLS, TOOL_CALLS)) if tool_calls else 0),
        Choice("role", "c-r", [("any", None), *((role, role) for role in (*ROLE_STYLES, "tool"))]),
        Choice(
            "since",
            "c-s",
            [("any time", None), ("a day", DAY_SECONDS), ("a week", 7 * DAY_SECONDS), ("a month", 30 * DAY_SECONDS)],
        ),
    ]

    async def run() -> None:
        async with AsyncClient(ctl.socket, name="clankers-ctl", timeout=30) as client:
            await Finder(client, request, choices).run()

    asyncio.run(run())


def _hit_row(hit: Hit) -> Row:
    ref = hit.ref
    role = one_line(ref.role or SOURCE_NAMES.get(hit.source, hit.source))
    found = {match[1].lower() for match in MATCH_MARKS.finditer(hit.snippet)}
    words = re.compile("|".join(map(re.escape, sorted(found, key=len, reverse=True))), re.IGNORECASE) if found else None
    where = one_line(ref.session_id or ref.memory_id or ref.document_id or ref.skill_id or ref.path or "")
    facts = [format_time(hit.created_at), one_line(ref.project_path or ""), where]
    return Row(
        Text(role, ROLE_STYLES.get(role, "bold").removeprefix("bold ")),
        hit_location(hit),
        format_time(hit.created_at) + (f" · {hit.duplicates:,} more like it" if hit.duplicates else ""),
        highlight(hit.snippet, console()),
        Conversation(
            [hit_location(hit), " · ".join(fact for fact in facts if fact)],
            ref.session_id,
            ref.message_id or ref.tool_id,
            words,
            hit.text,
        ),
    )


def _call_row(hit: ToolHit) -> Row:
    ref = Ref(
        session_id=hit.session_id,
        session_title=hit.session_title,
        tool_id=hit.tool_id,
        role=hit.tool_name,
        project_path=hit.project_path,
    )
    return _hit_row(Hit(hit.tool_id, "sessions", 0.0, hit.snippet, hit.snippet, hit.created_at, ref))


def _session_row(session: Session) -> Row:
    title = one_line(session.title or session.user_prompt or session.id)
    project = one_line(session.project_name or Path(session.project_path or "").name)
    facts = [format_time(session.created_at), project, one_line(session.source or ""), one_line(session.id)]
    return Row(
        Text("session", "bold"),
        title,
        format_time(session.created_at),
        Text(one_line(session.summary or session.user_prompt or ""), "dim"),
        Conversation([title, " · ".join(fact for fact in facts if fact)], session.id),
    )


def _fragments(text: Text) -> list[tuple[str, str]]:
    """Sanitise a text, and convert styles such as "bold red" to those of prompt_toolkit."""
    fragments = []
    for part, style in text.pieces:
        words = [DIM if word == "dim" else f"fg:ansi{word}" if word in COLOURS else word for word in style.split()]
        fragments.append((" ".join(words), sanitize(part)))
    return fragments
