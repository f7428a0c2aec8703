"""`recall.get`: the full text of an id, in parts. The first 16 characters of a chunk's id are enough.

`recall.lines`: lines of an indexed file, put together from its chunks.
"""

from typing import TYPE_CHECKING, Literal

from clankers_protocol.errors import NotFound
from clankers_protocol.recall import FileLines, FullText, RecallGet, RecallLines
from clankersd.db import Db
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

Kind = Literal["session", "message", "tool", "chunk"]

# Each selects a description, the session, the time and the full text.
_QUERIES: dict[Kind, str] = {
    "message": """
        SELECT coalesce(messages.role, 'message') || coalesce(' in ' || nullif(sessions.title, ''), '') AS about,
               session_id, messages.created_at, coalesce(text_content, '') AS text
        FROM messages JOIN sessions ON sessions.id = session_id WHERE messages.id = :id
    """,
    "tool": """
        SELECT tool_name || CASE success WHEN 0 THEN ' (failed)' ELSE '' END AS about, session_id, created_at,
               concat_ws(char(10), tool_input, tool_output, error_message) AS text
        FROM tools WHERE id = :id
    """,
    "session": """
        SELECT concat_ws(' in ', coalesce(nullif(title, ''), 'session'), project_path) AS about, id AS session_id,
               created_at, concat_ws(char(10) || '…' || char(10),
                   (SELECT extracted_summaries.summary FROM extracted_summaries WHERE session_id = sessions.id),
                   nullif(summary, ''), iif(summary <> '', NULL, concat_ws(char(10) || '…' || char(10),
                   coalesce(user_prompt, (SELECT text_content FROM messages WHERE session_id = sessions.id
                       AND role = 'user' AND text_content <> '' ORDER BY created_at, id LIMIT 1)),
                   (SELECT text_content FROM messages WHERE session_id = sessions.id
                       AND role = 'assistant' AND text_content <> '' ORDER BY created_at DESC, id DESC LIMIT 1)
               ))) AS text
        FROM sessions WHERE id = :id
    """,
    "chunk": """
        SELECT coalesce(files.path || ':' || chunks.start_line, nullif(documents.title, ''), chunks.role, chunks.source)
                   AS about, chunks.session_id, chunks.created_at, chunks.text
        FROM chunks LEFT JOIN files ON files.id = chunks.file_id
        LEFT JOIN document_chunks ON document_chunks.id = chunks.document_chunk_id
        LEFT JOIN documents ON documents.id = document_chunks.document_id
        WHERE chunk_id >= :id AND chunk_id < :id || char(1114111) AND length(:id) >= 16 AND memory_id IS NULL LIMIT 1
    """,
}
_PART = """
    SELECT about, session_id, created_at, length(text) AS characters,
           substr(text, :offset + 1, :characters) AS text FROM ({query})
"""

# Chunks of the newest chunking: those of an index that is being built may be incomplete.
_FILE_CHUNKS = """
    SELECT start_offset, start_line, text FROM chunks JOIN files ON files.id = file_id
    WHERE path = :path AND files.source = 'memory' AND chunking = (
        SELECT chunking FROM index_generations WHERE state = 'live' ORDER BY id DESC LIMIT 1)
    ORDER BY position
"""


@handles(RecallGet)
async def recall_get(daemon: "Daemon", request: RecallGet) -> FullText:
    params = {"id": request.id, "offset": request.offset, "characters": request.characters}

    def get(db: Db) -> FullText:
        for kind, query in _QUERIES.items():
            if row := db.fetch_one(_PART.format(query=query), params):
                end = request.offset + len(row["text"])
                next_offset = end if end < row["characters"] else None
                return FullText(id=request.id, kind=kind, next_offset=next_offset, **row)
        raise NotFound(f"nothing with the id {request.id}")

    return await daemon.store.read(get)


@handles(RecallLines)
async def recall_lines(daemon: "Daemon", request: RecallLines) -> FileLines:
    chunks = await daemon.store.read(lambda db: db.tuples(_FILE_CHUNKS, {"path": request.path}))
    if not chunks:
        raise NotFound(f"no indexed file with the path {request.path}")
    content = ""
    for offset, start_line, text in chunks:
        if offset > len(content):  # blank lines between chunks are in none of them
            content += "\n" * (start_line - 1 - content.count("\n"))
        content = content[:offset].ljust(offset) + text  # chunks overlap
    lines = content.splitlines()
    shown = lines[request.start_line - 1 : request.start_line - 1 + request.lines]
    end = request.start_line + len(shown) - 1
    return FileLines(
        request.path, request.start_line, end, "\n".join(shown), len(lines), end + 1 if end < len(lines) else None
    )
