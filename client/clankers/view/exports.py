"""A session as a file to download: Markdown, one HTML file without scripts, or JSON."""

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec
from starlette.responses import Response

from clankers.aio import AsyncClient
from clankers.session_export import to_html, to_markdown
from clankers_protocol.sessions import Session, SessionGet, SessionTimeline, TimelineEntry
from clankers_protocol.terminal import escape_json

PAGE_ENTRIES = 1_000
MAX_NAME_CHARACTERS = 40


def to_json(session: Session, entries: Iterable[TimelineEntry]) -> Iterator[str]:
    """Yield a session as JSON: the session, then its entries in order."""
    yield escape_json(msgspec.json.encode({"session": session, "entries": list(entries)}).decode())


FORMATS: dict[str, tuple[Callable[[Session, Iterable[TimelineEntry]], Iterator[str]], str, str]] = {
    "markdown": (to_markdown, "md", "text/markdown; charset=utf-8"),
    "html": (to_html, "html", "text/html; charset=utf-8"),
    "json": (to_json, "json", "application/json"),
}
"""Writer, file name extension and media type of each format."""


async def export_session(client: AsyncClient, session_id: str, name: str) -> Response:
    """Return a session as an attachment; raises ValueError for an unknown format."""
    if name not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    session = await client.call(SessionGet(session_id))
    entries: list[TimelineEntry] = []
    cursor: str | None = None
    while True:
        page = await client.call(SessionTimeline(session.id, limit=PAGE_ENTRIES, cursor=cursor))
        entries += page.entries
        cursor = page.cursor
        if cursor is None:
            break
    write, extension, media_type = FORMATS[name]
    safe_name = re.sub(r"[^0-9A-Za-z_-]", "", session.id)[:MAX_NAME_CHARACTERS]
    disposition = f'attachment; filename="session-{safe_name}.{extension}"'
    return Response(
        "".join(write(session, entries)), media_type=media_type, headers={"Content-Disposition": disposition}
    )
