"""What could be told: memories, recent sessions, and what was said about the like of a prompt."""

import json
import math
import re
from typing import TYPE_CHECKING, Any

from clankers_protocol.errors import RpcError
from clankers_protocol.search import Filter, Hit, Search, SearchResult, Source
from clankersd import clock
from clankersd.db import Db
from clankersd.index.words import query_words
from clankersd.projects import project_id
from clankersd.recall.block import Item, day
from clankersd.search.search import search

if TYPE_CHECKING:
    from clankersd.app import Daemon

MOST_SESSIONS = 5
MOST_MEMORIES = 10
MOST_HITS = 5
LOOKED_AT = 20
LONGEST_QUERY = 2_000
LONGEST_PINNED = 400
LONGEST_SUMMARY = 500
LONGEST_TEXT = 300
SHORT_ID = 16
LEAST_SCORE = 0.3
MOST_IN_COMMON = 3
"""Words that a text must share with a prompt, when the prompt has many."""

MEMORIES, SESSIONS, RELATED = "Memories", "Recent sessions in this project", "Related to this prompt"

_CURRENT = """
    memories.is_deleted = 0 AND memories.archived_at IS NULL AND memories.valid_from <= :now
    AND (memories.valid_until IS NULL OR memories.valid_until > :now)
    AND (memories.expires_at IS NULL OR memories.expires_at > :now)
    AND memories.scope IN (SELECT value FROM json_each(:scopes))
"""
_COLUMNS = "memories.id, memories.content, memories.summary, memories.category, memories.pinned"
_STRONGEST = f"""
    SELECT {_COLUMNS} FROM memories WHERE {_CURRENT} AND (pinned = 1 OR :strongest)
    ORDER BY pinned DESC, salience * (0.5 + importance) DESC, memories.created_at DESC LIMIT :limit
"""
_OF_CHUNKS = f"""
    SELECT {_COLUMNS} FROM json_each(:chunks) CROSS JOIN chunks ON chunks.chunk_id = json_each.value
    CROSS JOIN memories ON memories.id = chunks.memory_id
    WHERE {_CURRENT} ORDER BY json_each.key
"""
_RECENT = """
    SELECT id, title, summary, created_at, coalesce(user_prompt, (
        SELECT text_content FROM messages WHERE session_id = sessions.id AND role = 'user' AND text_content <> ''
        ORDER BY created_at, messages.id LIMIT 1
    )) AS prompt
    FROM sessions WHERE project_id = :project AND id <> :session AND metadata ->> '$.parentId' IS NULL
    ORDER BY created_at DESC LIMIT :limit
"""
_MARKED = re.compile("«([^»]+)»")


def project_of(db: Db, session: str, project: str | None) -> str | None:
    """The id of the project a session is in, or of the given path or id."""
    known = db.value("SELECT project_id FROM sessions WHERE id = :id", {"id": session})
    return known or (project_id(db, project) if project else None)


def recent_sessions(db: Db, project: str | None, session: str, *, titles_only: bool) -> list[Item]:
    """The project's last sessions, newest first: what they came to, else what they were asked."""
    found = db.fetch(_RECENT, {"project": project, "session": session, "limit": LOOKED_AT})
    items = [_session_item(row, titles_only) for row in found if row["summary"] or row["prompt"] or row["title"]]
    return items[:MOST_SESSIONS]


def _session_item(row: dict[str, Any], titles_only: bool) -> Item:
    date, title = day(row["created_at"]), row["title"]
    if titles_only:
        return Item(SESSIONS, row["id"], date, title or row["prompt"] or row["summary"], LONGEST_TEXT // 3)
    if row["summary"]:
        return Item(SESSIONS, row["id"], f"{date} {title[:80]}" if title else date, row["summary"], LONGEST_SUMMARY)
    asked = row["prompt"] or title
    return Item(SESSIONS, row["id"], f"{date} asked" if row["prompt"] else date, asked, LONGEST_TEXT)


def strongest_memories(db: Db, scopes: list[str], *, pinned_only: bool) -> list[Item]:
    """The pinned memories and, unless only they are wanted, the strongest others."""
    params = {"scopes": json.dumps(scopes), "now": clock.now(), "strongest": not pinned_only, "limit": MOST_MEMORIES}
    return [_memory_item(row) for row in db.fetch(_STRONGEST, params)]


def _memory_item(row: dict[str, Any]) -> Item:
    about = f"pinned {row['category']}" if row["pinned"] else str(row["category"])
    text = row["content"] if row["pinned"] else row["summary"] or row["content"]
    return Item(MEMORIES, row["id"], about, text, LONGEST_PINNED if row["pinned"] else LONGEST_TEXT)


def scopes_of(harness: str | None, project: str | None) -> list[str]:
    """Whose memories may be told: everybody's, the harness's and the project's."""
    agent = [f"agent:{harness}"] if harness else []
    return ["global", *agent, *([f"project:{project}"] if project else [])]


async def relevant_memories(daemon: "Daemon", query: str, scopes: list[str]) -> list[Item]:
    """The memories nearest to a prompt, best first, those alone that are in force."""
    hits = await _search(daemon, Search(query=query, sources=["memories"], scopes=scopes, limit=LOOKED_AT))
    chunks = [hit.chunk_id for hit in hits if _in_common(hit, query)]
    params = {"chunks": json.dumps(chunks), "scopes": json.dumps(scopes), "now": clock.now()}

    def of_chunks(db: Db) -> list[Item]:
        return [_memory_item(row) for row in db.fetch(_OF_CHUNKS, params)]

    return (await daemon.store.read(of_chunks))[:MOST_HITS] if chunks else []


async def related(daemon: "Daemon", query: str, project: str | None, session: str) -> list[Item]:
    """What was said in the project's other sessions, or stands in its memory files, about the like of a prompt."""
    if project is None:
        return []
    others = [Filter("session", "ne", session)] if session else None
    sources: list[Source] = ["sessions", "memory"]
    request = Search(query=query, sources=sources, project=project, filters=others, limit=LOOKED_AT, diversity=0.3)
    hits = await _search(daemon, request)
    return [_hit_item(hit) for hit in hits if hit.score >= LEAST_SCORE and _in_common(hit, query)][:MOST_HITS]


def _hit_item(hit: Hit) -> Item:
    where = hit.ref.path or f"{hit.ref.role or 'message'} in {(hit.ref.session_title or 'a session')[:80]}"
    text = hit.snippet.replace("«", "").replace("»", "")
    return Item(
        RELATED, hit.ref.message_id or hit.chunk_id[:SHORT_ID], f"{day(hit.created_at)} {where}", text, LONGEST_TEXT
    )


def _in_common(hit: Hit, query: str) -> bool:
    """Whether enough of the prompt's words stand in what was found: scores only compare hits of one search."""
    asked = len(query_words(query))
    shared = {word.casefold() for word in _MARKED.findall(hit.snippet)}
    return len(shared) >= min(MOST_IN_COMMON, math.ceil(asked / 2))


async def _search(daemon: "Daemon", request: Search) -> list[Hit]:
    try:
        found: SearchResult = await search(daemon, request)
    except RpcError:  # a prompt never waits for, or fails with, the search
        return []
    return found.hits


def query_of(prompt: str) -> str:
    """What is searched for: the prompt, or both ends of a long one."""
    if len(prompt) <= LONGEST_QUERY:
        return prompt
    return f"{prompt[: LONGEST_QUERY // 2]} {prompt[-LONGEST_QUERY // 2 :]}"
