"""`recall.get`: the full text of an id, in parts. The first 16 characters of a chunk's id are enough.

`recall.lines`: lines of an indexed file, put together from its chunks.
"""

from typing import TYPE_CHECKING, Literal

from clankers_protocol.errors import NotFound
from clankers_protocol.recall import FileLines, FullText, RecallGet, RecallLines
from clankersd.db import Db
from clankersd.db.engine import CHUNK_TEXT
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
    "chunk": f"""
        SELECT coalesce(files.path || ':' || chunks.start_line, nullif(documents.title, ''), chunks.role, chunks.source)
                   AS about, chunks.session_id, chunks.created_at, {CHUNK_TEXT} AS text
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

# Chunks of the live index: those of one that is being built may be incomplete.
_FILE_CHUNKS = """
    SELECT start_offset, end_offset, start_line, text FROM chunks
    WHERE file_id = :file AND start_line < :end AND end_line >= :start AND chunking = :chunking ORDER BY position
"""
_FILE = """
    SELECT file_id, chunking, max(end_line) AS line_count FROM chunks
    WHERE file_id = (SELECT id FROM files WHERE path = :path AND source = 'memory') AND chunking = (
        SELECT chunking FROM index_generations WHERE state = 'live' ORDER BY id DESC LIMIT 1)
    GROUP BY file_id, chunking
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
    start, count = request.start_line, request.lines

    def read(db: Db) -> FileLines:
        file = db.fetch_one(_FILE, {"path": request.path})
        if file is None:
            raise NotFound(f"no indexed file with the path {request.path}")
        params = {"file": file["file_id"], "chunking": file["chunking"], "start": start, "end": start + count}
        chunks = db.tuples(_FILE_CHUNKS, params)
        pieces: list[str] = []  # of the chunks that hold the lines, which overlap
        end, line = (chunks[0][0], chunks[0][2]) if chunks else (0, start)
        first_line = line
        for start_offset, end_offset, start_line, text in chunks:
            if start_offset > end:  # blank lines between chunks are in none of them
                pieces.append("\n" * (start_line - line))
            piece = text[max(0, end - start_offset) :]
            pieces.append(piece)
            end, line = max(end, end_offset), max(line, start_line + text.count("\n"))
        lines = "".join(pieces).split("\n")[start - first_line :][:count] if chunks else []
        last, line_count = min(start + len(lines) - 1, file["line_count"]), file["line_count"]
        shown = lines[: max(0, last - start + 1)]
        return FileLines(
            request.path, start, last, "\n".join(shown), line_count, last + 1 if shown and last < line_count else None
        )

    return await daemon.store.read(read)
