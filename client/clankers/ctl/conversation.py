"""Part of a session on the screen: loaded around one entry, and further while it is scrolled."""

import re
from dataclasses import dataclass, field

from clankers.aio import AsyncClient
from clankers.ctl.output import one_line, plain
from clankers.ctl.text import Text
from clankers.ctl.transcript import INDENT, MAX_TEXT_WIDTH, render_entry
from clankers_protocol.sessions import SessionTimeline, TimelineEntry
from clankers_protocol.transcripts import SessionTurns

WINDOW_ENTRIES = 40
MAX_ENTRIES = 400
"""Entries that stay loaded; those farthest from the screen are dropped."""

MAX_CHARACTERS = 20_000
LINES_ABOVE_HIT = 2
HIT_STYLE = "bold yellow"


@dataclass
class Conversation:
    """A session around the entry `entry_id`, or from its start. Without a session, it is only `text`.

    `header` stays visible. `top` is the first visible line below it; None until the entry was found, which is then put
    near the top. `words` are highlighted in the entry.
    """

    header: list[str]
    session_id: str | None = None
    entry_id: str | None = None
    words: re.Pattern[str] | None = None
    text: str = ""
    top: int | None = None
    entries: list[TimelineEntry] = field(default_factory=list)
    first: int = 0
    is_complete: bool = False
    _width: int = 0
    _lines: list[Text] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    """First line of each entry."""

    async def load(self, client: AsyncClient, width: int, height: int) -> None:
        """Load the entries around the visible lines, as far as they are not loaded yet."""
        if self.session_id is None:
            return
        if not self.entries and not self.is_complete:
            around = {"around": self.entry_id} if self.entry_id else {"position": self.first}
            page = await client.call(
                SessionTimeline(self.session_id, limit=WINDOW_ENTRIES, max_characters=MAX_CHARACTERS, **around)
            )
            self.entries, self.first, self.is_complete = page.entries, page.position or 0, page.cursor is None
            self._lay_out(width)
        while not self.is_complete and self._first_visible(width) + 2 * height > len(self._lines):
            await self._append(client, width)
        while self.first and self._first_visible(width) < height:
            await self._prepend(client, width)

    async def jump(self, client: AsyncClient, *, to_end: bool) -> None:
        """Forget what is loaded, and go to the first or the last entries; `load` reads them."""
        if self.session_id is None:
            self.top = len(self._lines) if to_end else 0
            return
        last = (await client.call(SessionTurns(self.session_id, limit=1))).entries if to_end else 0
        self.entries, self.is_complete, self.entry_id = [], False, None
        self.first = max(last - WINDOW_ENTRIES, 0)
        self.top = 1_000_000_000 if to_end else 0

    def scroll(self, lines: int, width: int, height: int) -> None:
        """Move by so many lines, as far as there are any."""
        if not self._lines:
            return  # not loaded yet: `top` is still to be found
        last = max(len(self._lines) - (height - len(self.header)), 0)
        self.top = min(max(self._first_visible(width) + lines, 0), last)

    def visible_lines(self, width: int, height: int) -> list[Text]:
        """Return the header and the lines that are visible on a screen of this size."""
        header = [Text(line, "bold" if number == 0 else "dim") for number, line in enumerate(self.header)]
        for line in header:
            line.truncate(width)
        first = self._first_visible(width)
        room = max(height - len(header), 1)
        first = min(first, max(len(self._lines) - room, 0))
        return [*header, *self._lines[first : first + room]][:height]

    def _first_visible(self, width: int) -> int:
        """Return the first visible line; lay the lines out first if the width has changed."""
        if width != self._width:
            at = self._entry_at(self.top)
            self._lay_out(width)
            if self.top is not None and at is not None:
                self.top = self._starts[at]
        if self.top is not None:
            return min(self.top, max(len(self._lines) - 1, 0))
        for entry, start in zip(self.entries, self._starts, strict=True):
            if _entry_id(entry) == self.entry_id:
                self.top = max(start - LINES_ABOVE_HIT, 0)
        return self.top or 0

    def _entry_at(self, line: int | None) -> int | None:
        """Return the number of the loaded entry that a line belongs to."""
        found = [number for number, start in enumerate(self._starts) if line is not None and start <= line]
        return found[-1] if found else None

    async def _append(self, client: AsyncClient, width: int) -> None:
        assert self.session_id
        following = self.first + len(self.entries)
        page = await client.call(
            SessionTimeline(self.session_id, limit=WINDOW_ENTRIES, position=following, max_characters=MAX_CHARACTERS)
        )
        self.entries += page.entries
        self.is_complete = page.cursor is None
        dropped = max(len(self.entries) - MAX_ENTRIES, 0)
        if dropped:
            removed = self._starts[dropped]
            del self.entries[:dropped]
            self.first += dropped
            self.top = None if self.top is None else max(self.top - removed, 0)
        self._lay_out(width)

    async def _prepend(self, client: AsyncClient, width: int) -> None:
        assert self.session_id
        start = max(self.first - WINDOW_ENTRIES, 0)
        page = await client.call(
            SessionTimeline(self.session_id, limit=self.first - start, position=start, max_characters=MAX_CHARACTERS)
        )
        before = len(self._lines)
        self.entries = page.entries + self.entries[: MAX_ENTRIES - len(page.entries)]
        self.is_complete = self.is_complete and len(self.entries) < MAX_ENTRIES
        self.first = start
        self._lay_out(width)
        self.top = (self.top or 0) + self._starts[len(page.entries)] if before else self.top

    def _lay_out(self, width: int) -> None:
        """Wrap everything that is loaded."""
        self._width, self._lines, self._starts = width, [], []
        room = max(min(width, MAX_TEXT_WIDTH) - len(INDENT), 1)
        if self.session_id is None:
            self._lines = self._mark(Text(plain(self.text))).wrap(None, room)
        for entry in self.entries:
            is_hit = _entry_id(entry) == self.entry_id
            heading, *blocks = render_entry(entry, full=is_hit)
            self._starts.append(len(self._lines))
            marked = Text("▶ ", HIT_STYLE).append(heading) if is_hit else heading
            marked.truncate(width)
            self._lines.append(marked)
            if entry.cut:
                blocks.append(Text(f"… shortened; see `clankers-ctl show {one_line(_entry_id(entry))}`", "dim"))
            for block in blocks:
                for line in (self._mark(block) if is_hit else block).wrap(None, room):
                    line.rstrip()
                    self._lines.append(Text(INDENT).append(line))
            self._lines.append(Text())

    def _mark(self, block: Text) -> Text:
        """Highlight the words that matched."""
        if self.words is None:
            return block
        marked = Text()
        for text, style in block.pieces:
            position = 0
            for match in self.words.finditer(text):
                marked.append(text[position : match.start()], style).append(match[0], HIT_STYLE)
                position = match.end()
            marked.append(text[position:], style)
        return marked


def _entry_id(entry: TimelineEntry) -> str:
    stored = entry.message or entry.tool or entry.error or entry.compaction
    return stored.id if stored else ""
