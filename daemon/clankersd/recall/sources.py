"""What could be told: memories, recent sessions, and what was said about the like of a prompt."""

import math
import re
from typing import TYPE_CHECKING, Any

from clankers_protocol.errors import RpcError
from clankers_protocol.memories import MemorySearch
from clankers_protocol.search import Filter, Hit, Search, Source
from clankersd import clock
from clankersd.db import Db
from clankersd.index.tokenize import query_words
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes
from clankersd.memories.search import best_memories
from clankersd.memories.store import CONFIDENT, CURRENT, SALIENCE
from clankersd.projects import find_project_id
from clankersd.recall.block import Item, day
from clankersd.search.search import best_hits

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

_STRONGEST = f"""
    SELECT memories.id, content, summary, category, pinned FROM memories
    WHERE {CURRENT} AND {IN_SCOPE} AND {CONFIDENT} AND (pinned = 1 OR :strongest)
    ORDER BY pinned DESC, {SALIENCE} * (0.5 + importance) DESC, memories.id DESC LIMIT :limit
"""
_RECENT = """
    SELECT id, title, substr(summary, 1, 2000) AS summary, created_at, substr(coalesce(user_prompt, (
        SELECT text_content FROM messages WHERE session_id = sessions.id AND role = 'user' AND text_content <> ''
        ORDER BY created_at, messages.id LIMIT 1
    )), 1, 2000) AS prompt
    FROM sessions WHERE project_id = :project AND id <> :session AND metadata ->> '$.parentId' IS NULL
    ORDER BY created_at DESC LIMIT :limit
"""
_MARKED = re.compile("«([^»]+)»")


def project_of(db: Db, session: str, project: str | None) -> str | None:
    """The id of the project a session is in, or of the given path or id."""
    known = db.value("SELECT project_id FROM sessions WHERE id = :id", {"id": session})
    return known or (find_project_id(db, project) if project else None)


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
    params = {"now": clock.now(), "strongest": not pinned_only, "limit": MOST_MEMORIES}
    return [_memory_item(**row) for row in db.fetch(_STRONGEST, AllowedScopes(tuple(scopes)).params | params)]


def _memory_item(id: str, content: str, summary: str | None, category: str, pinned: bool) -> Item:  # noqa: A002  # a column
    if pinned:
        return Item(MEMORIES, id, f"pinned {category}", content, LONGEST_PINNED)
    return Item(MEMORIES, id, category, summary or content, LONGEST_TEXT)


def scopes_of(harness: str | None, project: str | None) -> list[str]:
    """Whose memories may be told: everybody's, the harness's and the project's."""
    agent = [f"agent:{harness}"] if harness else []
    return ["global", *agent, *([f"project:{project}"] if project else [])]


async def relevant_memories(daemon: "Daemon", query: str, scopes: list[str]) -> list[Item]:
    """The memories that fit a prompt, best first."""
    try:
        found, _ = await best_memories(daemon, MemorySearch(query=query, scopes=scopes, limit=LOOKED_AT), CONFIDENT)
    except RpcError:  # a prompt never fails with the search
        return []
    fitting = [hit.memory for hit in found if _in_common(hit.snippet, query)]
    return [_memory_item(one.id, one.content, one.summary, one.category, one.pinned) for one in fitting[:MOST_HITS]]


async def related(daemon: "Daemon", query: str, project: str | None, session: str) -> list[Item]:
    """What was said in the project's other sessions, or stands in its memory files, about the like of a prompt."""
    if project is None:
        return []
    others = [Filter("session", "ne", session)] if session else None
    sources: list[Source] = ["sessions", "memory"]
    request = Search(query=query, sources=sources, project=project, filters=others, limit=LOOKED_AT)
    try:
        found = await best_hits(daemon, request)
    except RpcError:
        return []
    fitting = [hit for hit in found if hit.score >= LEAST_SCORE and _in_common(hit.snippet, query)]
    unlike = {hit.text: hit for hit in reversed(fitting)}  # what is said in every session is told once
    return [_hit_item(hit) for hit in fitting if unlike[hit.text] is hit][:MOST_HITS]


def _hit_item(hit: Hit) -> Item:
    where = hit.ref.path or f"{hit.ref.role or 'message'} in {(hit.ref.session_title or 'a session')[:80]}"
    text = hit.snippet.replace("«", "").replace("»", "")
    named = hit.ref.message_id or hit.chunk_id[:SHORT_ID]
    return Item(RELATED, named, f"{day(hit.created_at)} {where}", text, LONGEST_TEXT)


def _in_common(snippet: str, query: str) -> bool:
    """Whether enough of the prompt's words stand in what was found: scores only compare hits of one search."""
    shared = {word.casefold() for word in _MARKED.findall(snippet)}
    return len(shared) >= min(MOST_IN_COMMON, math.ceil(len(query_words(query)) / 2))


def query_of(prompt: str) -> str:
    """What is searched for: the prompt, or both ends of a long one."""
    if len(prompt) <= LONGEST_QUERY:
        return prompt
    return f"{prompt[: LONGEST_QUERY // 2]} {prompt[-LONGEST_QUERY // 2 :]}"
