"""What an event or a transcript of a harness tells, and how that is stored: fact by fact, replayed harmlessly."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clankers_protocol.events import (
    CompactionEvent,
    MessageEvent,
    SessionErrorEvent,
    SessionEvent,
    ToolEvent,
)
from clankers_protocol.ids import encode_id
from clankersd.capture import apply
from clankersd.capture.apply import Change, Settle
from clankersd.capture.redaction import redact, redact_all
from clankersd.db import Db, Notification
from clankersd.index.index import Index

Fact = Callable[[Index], Change]

LONGEST_TITLE = 120
PIECE_CHARACTERS = 64 * 1024
"""Characters of a text that are digested in one call, which keeps the interpreter lock."""


@dataclass
class Told:
    """What one event tells. One that tells nothing is counted, and that is all."""

    event: str
    session_id: str
    project: str | None = None
    facts: list[Fact] = field(default_factory=list)
    transcripts: list[str] = field(default_factory=list)
    begins_or_ends: bool = False


# -- what a payload holds: fields may be missing, or be anything


def text(payload: dict[str, Any], key: str) -> str | None:
    """A text that is not empty."""
    value = payload.get(key)
    return value if isinstance(value, str) and value.strip() else None


def identifier(payload: dict[str, Any], key: str) -> str | None:
    """An id, spelled so that it can be stored: a hook's event is not refused for the sake of its ids."""
    found = text(payload, key)
    return encode_id(found) if found else None


def number(payload: dict[str, Any], key: str) -> int | None:
    """A whole number that is not negative."""
    value = payload.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def record(payload: dict[str, Any], key: str) -> dict[str, Any]:
    """An object; empty when there is none."""
    value = payload.get(key)
    return value if isinstance(value, dict) else {}


def records(payload: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects of a list."""
    value = payload.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def readable(value: Any) -> str | None:
    """A tool's input or output as text: as it is, the texts of content blocks, what a shell printed, else as JSON."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        if isinstance(value.get("stdout"), str):
            return "\n".join(part for part in (value["stdout"], value.get("stderr")) if part) or None
        if isinstance(value.get("content"), list):
            return readable(value["content"])
        value = {key: each for key, each in value.items() if key != "originalFile"}
    if isinstance(value, list) and value and all(_is_block(block) for block in value):
        return "\n".join(block.get("text") or f"[{block['type']}]" for block in value)
    return msgspec.json.encode(value).decode()


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("type"), str) and isinstance(block.get("text", ""), str)


def file_of(tool_input: dict[str, Any]) -> str | None:
    """The file a tool works on."""
    for key in ("file_path", "filePath", "notebook_path", "absolute_path", "path", "file"):
        if found := text(tool_input, key):
            return found
    return None


# -- facts


def session(event: SessionEvent) -> Fact:
    return lambda index: apply.session_change(index, event)


def message(event: MessageEvent, settle: Settle | None = None) -> Fact:
    return lambda index: apply.message_change(index, event, settle)


def tool(event: ToolEvent) -> Fact:
    return lambda index: apply.tool_change(index, event)


def tool_of_transcript(event: ToolEvent) -> Fact:
    return lambda index: apply.tool_filled_in(index, event)


def error(event: SessionErrorEvent) -> Fact:
    return lambda index: apply.error_change(index, event)


def compaction(event: CompactionEvent, settle: Settle | None = None) -> Fact:
    return lambda index: apply.compaction_change(index, event, settle)


def placed(event: SessionEvent) -> Fact:
    """A session whose start was missed ran where its later events come from; one that is placed stays there."""

    def fact(index: Index) -> Change:
        place = apply.session_change(index, event)

        def store(db: Db) -> None:
            if db.value("SELECT project_path FROM sessions WHERE id = :id", {"id": event.id}) is None:
                place(db)

        return Change(store)

    return fact


_OPEN = """
    UPDATE sessions SET status = 'active', ended_at = NULL,
                        metadata = json_set(COALESCE(metadata, '{}'), '$.openedAt', :at)
    WHERE id = :id AND COALESCE(ended_at, 0) < :at AND COALESCE(metadata ->> '$.openedAt', 0) < :at
"""
_END = """
    UPDATE sessions SET status = 'ended', ended_at = :at, updated_at = MAX(updated_at, :at),
                        metadata = json_set(COALESCE(metadata, '{}'), '$.endReason', :reason)
    WHERE id = :id AND COALESCE(ended_at, 0) < :at AND COALESCE(metadata ->> '$.openedAt', 0) <= :at
"""


def opened(session_id: str, at: int) -> Fact:
    """A session that is worked in has not ended, or no longer."""
    return _executed(_OPEN, {"id": session_id, "at": at})


def ended(session_id: str, at: int, reason: str | None) -> Fact:
    """A session ended; when it was opened again since, that was earlier news."""
    return _executed(_END, {"id": session_id, "at": at, "reason": redact(reason or "other")[0]})


def noted(session_id: str, **facts: Any) -> Fact:
    """Something of a session that no column is for."""
    sql = "UPDATE sessions SET metadata = json_patch(COALESCE(metadata, '{}'), :facts) WHERE id = :id"
    return _executed(sql, {"id": session_id, "facts": msgspec.json.encode(redact_all(facts)[0]).decode()})


def first_prompt(session_id: str, prompt: str) -> Fact:
    """What a session began with names it, until the harness does."""
    sql = """
        UPDATE sessions SET title = COALESCE(title, :title), user_prompt = COALESCE(user_prompt, :prompt)
        WHERE id = :id AND (title IS NULL OR user_prompt IS NULL)
    """
    clean = redact(prompt)[0]
    title = " ".join(clean.lstrip()[: LONGEST_TITLE * 100].split())[:LONGEST_TITLE]
    return _executed(sql, {"id": session_id, "title": title, "prompt": clean})


def summarised(session_id: str, summary: str) -> Fact:
    """What a compaction left of a session is its summary."""
    sql = "UPDATE sessions SET summary = :summary WHERE id = :id"
    return _executed(sql, {"id": session_id, "summary": redact(summary)[0]})


def cleared_from(session_id: str, project: str | None) -> Fact:
    """A session that a clear began goes on where the last one that a clear ended, in the same place, left off."""
    sql = """
        UPDATE sessions SET metadata = json_set(COALESCE(metadata, '{}'), '$.clearedFrom', (
            SELECT id FROM sessions AS before
            WHERE before.project_path = :project AND before.metadata ->> '$.endReason' = 'clear' AND before.id <> :id
              AND before.id NOT IN (SELECT metadata ->> '$.clearedFrom' FROM sessions
                                    WHERE project_path = :project AND metadata ->> '$.clearedFrom' IS NOT NULL)
            ORDER BY before.ended_at DESC LIMIT 1))
        WHERE id = :id AND metadata ->> '$.clearedFrom' IS NULL
    """
    return _executed(sql, {"id": session_id, "project": project and (project.rstrip("/") or "/")})


def used(session_id: str, prompt_tokens: int, completion_tokens: int, cost: float) -> Fact:
    """A session's own figures. Those of a fork count what was used before it, too, and are left out."""
    sql = """
        UPDATE sessions SET prompt_tokens = MAX(COALESCE(prompt_tokens, 0), :prompt),
                            completion_tokens = MAX(COALESCE(completion_tokens, 0), :completion),
                            cost = MAX(COALESCE(cost, 0), :cost)
        WHERE id = :id AND metadata ->> '$.forkedFrom' IS NULL AND COALESCE(metadata ->> '$.startedBy', '') <> 'fork'
    """
    params = {"id": session_id, "prompt": prompt_tokens, "completion": completion_tokens, "cost": cost}
    return _executed(sql, params)


def succeeded(tool_id: str) -> Fact:
    """Whatever a batch made us think of it before."""
    sql = "UPDATE tools SET error_message = NULL WHERE id = :id AND success = 1 AND error_message IS NOT NULL"
    return lambda _index: Change(lambda db: db.execute(sql, {"id": tool_id}))


def unanswered(event: ToolEvent) -> Fact:
    """A call of a batch: one that neither succeeded nor failed by itself was denied, and its output says why."""

    def fact(index: Index) -> Change:
        told = apply.tool_change(index, msgspec.structs.replace(event, success=None, error_message=None))
        denied = apply.tool_change(index, event)

        def store(db: Db) -> None:
            success = db.value("SELECT success FROM tools WHERE id = :id", {"id": event.id})
            (denied if success is None else told)(db)

        return Change(store)

    return fact


def _executed(sql: str, params: dict[str, Any]) -> Fact:
    """Update the session of the parameter `id`, and announce it if anything was updated."""

    def store(db: Db) -> None:
        if db.value(f"{sql} RETURNING id", params) is not None:
            db.after_commit(Notification("session", "stored", params["id"]))

    return lambda _index: Change(store)


# -- the same message, told twice

_KNOWN_LINE = "SELECT message_id, session_id, digest FROM told_messages WHERE line_id = :line"
_KNOWN_TEXT = """
    SELECT message_id, line_id FROM told_messages
    WHERE session_id = :session AND prompt_id = :prompt AND kind = :kind AND digest IN (:digest, '')
    ORDER BY line_id IS NOT NULL LIMIT 1
"""
_HOOKED = """
    SELECT message_id FROM told_messages
    WHERE session_id = :session AND kind = :kind AND line_id IS NULL AND (digest = :digest OR :digest = '')
      AND (prompt_id = :prompt OR :digest <> '')
    ORDER BY prompt_id <> :prompt, message_id LIMIT 1
"""
_TELL = """
    INSERT INTO told_messages (message_id, session_id, prompt_id, kind, digest, line_id)
    VALUES (:id, :session, :prompt, :kind, :digest, :line)
    ON CONFLICT (message_id) DO UPDATE SET digest = :digest, line_id = COALESCE(line_id, :line)
"""
_FORKED = """
    UPDATE sessions SET metadata = json_set(COALESCE(metadata, '{}'), '$.forkedFrom', :owner)
    WHERE id = :session AND metadata ->> '$.forkedFrom' IS NULL
"""


def digest(words: str | None) -> str:
    """The same for texts that differ in white space alone: harnesses join the blocks of a message in several ways."""
    found = hashlib.sha256()
    for start in range(0, len(words or ""), PIECE_CHARACTERS):
        piece = (words or "")[start : start + PIECE_CHARACTERS]
        found.update("".join(piece.split()).encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:24]


def by_hook(kind: str, prompt_id: str) -> Settle:
    """The id of a message that a hook tells of: none when the transcript was first."""

    def settle(db: Db, row: dict[str, Any]) -> str | None:
        told = _told(row, kind, prompt_id)
        known = db.fetch_one(_KNOWN_TEXT, told)
        if known:
            return None if known["line_id"] else str(known["message_id"])
        taken = db.value("SELECT 1 FROM told_messages WHERE message_id = :id", {"id": prompt_id})
        own = f"{prompt_id or row['session_id']}-{told['digest'][:12] or kind}"
        found = own if taken or kind != "prompt" else prompt_id
        db.execute(_TELL, {**told, "id": found, "line": None})
        return found

    return settle


def by_transcript(kind: str, prompt_id: str, line_id: str) -> Settle:
    """The id of a message that a transcript tells of: that by which a hook did, else the transcript's own.

    None for one that belongs to another session: a fork's transcript begins with what was said before it.
    """

    def settle(db: Db, row: dict[str, Any]) -> str | None:
        told = _told(row, kind, prompt_id) | {"line": line_id}
        owner = db.fetch_one(_KNOWN_LINE, {"line": line_id})
        if owner and owner["session_id"] != row["session_id"]:
            db.execute(_FORKED, {"session": row["session_id"], "owner": owner["session_id"]})
            return None
        hooked = db.value(_HOOKED, told)
        found = owner["message_id"] if owner else line_id
        if hooked and not owner and not _is_stored(db, line_id):
            found = hooked
        elif hooked and (not owner or owner["digest"] != told["digest"]):
            _forget(db, hooked)  # the transcript had told of the message's beginning before
        db.execute(_TELL, {**told, "id": found})
        return str(found)

    return settle


def where_it_was_said(db: Db, row: dict[str, Any]) -> str | None:
    """The id of a message that only a transcript tells of: none when it belongs to another session."""
    owner = db.value("SELECT session_id FROM messages WHERE id = :id", {"id": row["id"]})
    return str(row["id"]) if owner in (None, row["session_id"]) else None


def _told(row: dict[str, Any], kind: str, prompt_id: str) -> dict[str, Any]:
    words = "" if kind == "compaction" else digest(row.get("text_content"))
    return {"session": row["session_id"], "prompt": prompt_id, "kind": kind, "digest": words}


def _is_stored(db: Db, message_id: str) -> bool:
    return db.value("SELECT 1 FROM messages WHERE id = :id", {"id": message_id}) is not None


def _forget(db: Db, message_id: str) -> None:
    for table, column in (("messages", "id"), ("told_messages", "message_id")):
        db.execute(f"DELETE FROM {table} WHERE {column} = :id", {"id": message_id})
