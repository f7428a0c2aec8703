"""`id.find` and `id.shorten`: ids of anything that is stored."""

from typing import TYPE_CHECKING

from clankers_protocol.id_lookup import IdFind, IdKind, IdShorten, NamedThing
from clankersd.db import Db
from clankersd.db.ids import MAX_NAMED_IDS, find_ids, shorten_ids
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

WHOLES: dict[IdKind, str] = {
    "session": "sessions",
    "memory": "memories",
    "document": "documents",
    "skill": "skills",
    "schedule": "scheduled_actions",
    "entity": "entities",
    "project": "projects",
}
"""Tables by kind. These are searched first: there are few of them, and people mostly ask for them."""

PARTS: dict[IdKind, str] = {
    "message": "messages",
    "tool": "tools",
    "documentChunk": "document_chunks",
    "chunk": "chunks",
    "relation": "memory_relationships",
    "run": "schedule_runs",
    "error": "session_errors",
    "compaction": "compaction_events",
}
_COLUMNS = {"chunks": "chunk_id"}
"""Columns of the ids, where that is not `id`."""


@handles(IdFind)
async def find_id(daemon: "Daemon", request: IdFind) -> list[NamedThing]:
    def find(db: Db) -> list[NamedThing]:
        for tables in (WHOLES, PARTS):
            exact: list[NamedThing] = []
            similar: list[NamedThing] = []
            for kind, table in tables.items():
                for found in find_ids(db, request.id, table, _COLUMNS.get(table, "id")):
                    (exact if found == request.id else similar).append(NamedThing(kind, found))
            beginning = [each for each in similar if each.id.startswith(request.id)]
            if things := exact or beginning or similar:
                return things[:MAX_NAMED_IDS]
        return []

    return await daemon.store.read(find)


@handles(IdShorten)
async def shorten(daemon: "Daemon", request: IdShorten) -> list[str]:
    tables = list(WHOLES.values())
    if request.kind in PARTS:
        tables += PARTS.values()
    columns = {table: _COLUMNS.get(table, "id") for table in tables}
    return await daemon.store.read(lambda db: shorten_ids(db, request.ids, columns))
