"""`file.list` and `file.history`: which files tool calls touched, in which sessions, and after which prompt."""

from typing import TYPE_CHECKING, Any

from clankers_protocol.sessions import Tool
from clankers_protocol.transcripts import FileHistory, FileList, FileTouch, FileTouches, TouchedFile, TouchedFiles
from clankersd.db import Db
from clankersd.db.paging import decode_cursor, encode_cursor, fetch_page, fit_reply
from clankersd.projects import IN_PROJECT, find_project_id
from clankersd.sessions.sessions import from_row
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

PROMPT_CHARACTERS = 300

# The names that harnesses give to tools that change a file.
_IS_EDIT = """
    lower(tool_name) IN ('edit', 'multiedit', 'write', 'notebookedit', 'apply_patch', 'patch', 'replace', 'write_file',
                         'str_replace_editor', 'create_file')
"""
_FILES = f"""
    SELECT file_path AS path, count(*) AS calls, sum({_IS_EDIT}) AS edits, sum(success IS 0) AS failures,
           count(DISTINCT session_id) AS sessions, max(created_at) AS last_at
    FROM tools WHERE {{conditions}} GROUP BY file_path ORDER BY last_at DESC, path LIMIT :limit OFFSET :offset
"""
_COUNT_FILES = "SELECT count(DISTINCT file_path) FROM tools WHERE {conditions}"
_HISTORY = f"""
    SELECT tools.*, sessions.title AS session_title, sessions.source, prompts.id AS prompt_id,
           substr(prompts.text_content, 1, {PROMPT_CHARACTERS}) AS prompt
    FROM (
        SELECT id, session_id, message_id, tool_name, tool_input, tool_output, file_path, success, error_message,
               duration_ms, created_at
        FROM tools WHERE file_path = :path {{condition}} ORDER BY created_at DESC, id DESC LIMIT :limit
    ) AS tools
    JOIN sessions ON sessions.id = tools.session_id
    LEFT JOIN messages AS prompts ON prompts.id = (
        SELECT id FROM messages WHERE session_id = tools.session_id AND role = 'user'
          AND messages.created_at <= tools.created_at ORDER BY messages.created_at DESC, messages.id DESC LIMIT 1
    )
    ORDER BY tools.created_at DESC, tools.id DESC
"""
_TOUCH_COLUMNS = ("session_title", "source", "prompt_id", "prompt")


@handles(FileList)
async def list_files(daemon: "Daemon", request: FileList) -> TouchedFiles:
    conditions = ["file_path IS NOT NULL"]
    if request.query:
        conditions.append("instr(lower(file_path), lower(:query)) > 0")
    if request.project:
        conditions.append(f"session_id IN (SELECT id FROM sessions WHERE {IN_PROJECT})")
    sql = " AND ".join(conditions)

    def files(db: Db) -> TouchedFiles:
        filters: dict[str, Any] = {}
        if request.query:
            filters["query"] = request.query
        if request.project:
            filters["project_id"] = find_project_id(db, request.project)
        page = filters | {"limit": request.limit, "offset": request.offset}
        rows = db.fetch(_FILES.format(conditions=sql), page)
        total = db.value(_COUNT_FILES.format(conditions=sql), filters)
        return TouchedFiles([TouchedFile(**row) for row in rows], total)

    return await daemon.store.read(files)


@handles(FileHistory)
async def file_history(daemon: "Daemon", request: FileHistory) -> FileTouches:
    params: dict[str, Any] = {"path": request.path, "limit": request.limit + 1}
    condition = ""
    if request.cursor:
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)
        condition = "AND (created_at, id) < (:at, :before)"

    def touches(db: Db) -> FileTouches:
        rows = fetch_page(db, _HISTORY.format(condition=condition), params)
        shown = fit_reply(rows[: request.limit])
        more = len(shown) < len(rows)
        cursor = encode_cursor(shown[-1]["created_at"], shown[-1]["id"]) if more else None
        total = db.value("SELECT count(*) FROM tools WHERE file_path = :path", {"path": request.path})
        found = []
        for row in shown:
            beside_tool = {name: row.pop(name) for name in _TOUCH_COLUMNS}
            found.append(FileTouch(from_row(Tool, row), **beside_tool))
        return FileTouches(found, total, cursor)

    return await daemon.store.read(touches)
