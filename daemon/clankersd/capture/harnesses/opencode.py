"""OpenCode's events, as its plugin sends them: those of the bus as they are, and messages put together from parts.

Its storage holds the same records, so an import reads it with the same functions.
"""

import re
from collections.abc import Callable
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd.capture.apply import Change, error_change
from clankersd.capture.harnesses import payload
from clankersd.capture.harnesses.payload import Fact, Told, identifier, number, record, records, text
from clankersd.db import Db
from clankersd.index.index import Index

HARNESS = "opencode"
SAME_ERROR_MS = 60_000
_UNTITLED = re.compile(r"(?:New|Child) session - \d{4}-")
_FORK = re.compile(r"\(fork #\d+\)\s*\Z")


def read(event: dict[str, Any], at: int) -> Told:
    """What an event tells."""
    name, properties = text(event, "type") or "", record(event, "properties")
    session_id = _session_id(properties)
    place = text(record(properties, "info"), "directory") or text(event, "directory") or text(event, "cwd")
    tell = _EVENTS.get(name)
    return Told(name, session_id, place, tell(event, properties, session_id, at) if tell and session_id else [])


def _session_id(properties: dict[str, Any]) -> str:
    """However it is spelled, and wherever it stands."""
    for place in (properties, record(properties, "info"), record(properties, "part")):
        for key in ("sessionID", "sessionId", "session_id"):
            if found := identifier(place, key):
                return found
    return identifier(record(properties, "info"), "id") or ""


def session_facts(info: dict[str, Any], session_id: str) -> list[Fact]:
    """What a session's record tells."""
    model, when, title = record(info, "model"), record(info, "time"), text(info, "title")
    event = SessionEvent(
        session_id,
        title=None if title and _UNTITLED.match(title) else title,
        project_path=text(info, "directory"),
        model=text(model, "id") or text(model, "modelID"),
        provider=text(model, "providerID"),
        source=HARNESS,
        created_at=number(when, "created"),
        updated_at=number(when, "updated"),
    )
    facts = [payload.session(event)]
    if parent := identifier(info, "parentID"):
        facts.append(payload.noted(session_id, parentId=parent, agent=text(info, "agent")))
    if title and _FORK.search(title):
        facts.append(payload.noted(session_id, startedBy="fork"))
    usage, cost = _usage(info), info.get("cost")
    if usage["prompt_tokens"] or usage["completion_tokens"]:
        spent = float(cost) if isinstance(cost, int | float) and cost > 0 else 0.0
        facts.append(payload.used(session_id, usage["prompt_tokens"] or 0, usage["completion_tokens"] or 0, spent))
    return facts


def _usage(info: dict[str, Any]) -> dict[str, Any]:
    tokens = record(info, "tokens")
    cache = record(tokens, "cache")
    asked = sum(each or 0 for each in (number(tokens, "input"), number(cache, "read"), number(cache, "write")))
    answered = (number(tokens, "output") or 0) + (number(tokens, "reasoning") or 0)
    return {"prompt_tokens": asked or None, "completion_tokens": answered or None}


def _session(_event: dict[str, Any], properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return session_facts(record(properties, "info"), session_id)


def _created(event: dict[str, Any], properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return [*_session(event, properties, session_id, at), payload.opened(session_id, at)]


def _deleted(event: dict[str, Any], properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    """OpenCode forgets it; what its owner said stays until he deletes it here, too."""
    return [*_session(event, properties, session_id, at), payload.ended(session_id, at, "deleted")]


def _idle(_event: dict[str, Any], _properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return [payload.session(SessionEvent(session_id, source=HARNESS, status="idle", updated_at=at))]


def _error(event: dict[str, Any], properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    problem = record(properties, "error")
    return [error_fact(identifier(event, "id") or f"{session_id}-{at}", session_id, problem, at)] if problem else []


def error_fact(error_id: str, session_id: str, problem: dict[str, Any], at: int | None) -> Fact:
    """The bus tells of an error twice, the second time as part of a message: it is kept once."""
    event = SessionErrorEvent(
        error_id,
        session_id,
        text(problem, "name"),
        text(record(problem, "data"), "message") or text(problem, "message"),
        at,
    )

    def fact(index: Index) -> Change:
        keep = error_change(index, event)

        def store(db: Db) -> None:
            if not db.value(
                _SAME_ERROR, {"id": error_id, "session": session_id, "type": event.error_type, "at": at or 0}
            ):
                keep(db)

        return Change(store)

    return fact


_SAME_ERROR = f"""
    SELECT 1 FROM session_errors
    WHERE session_id = :session AND id <> :id AND error_type IS :type AND abs(created_at - :at) < {SAME_ERROR_MS}
"""


def _compacted(event: dict[str, Any], _properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    """The summary's message tells more, and nearly always has by now."""
    row = CompactionEvent(identifier(event, "id") or f"{session_id}-{at}", session_id, created_at=at)

    def unless_told(db: Db, given: dict[str, Any]) -> str | None:
        known = "SELECT 1 FROM compaction_events WHERE session_id = :session AND id <> :id AND created_at > :since"
        params = {"session": session_id, "id": given["id"], "since": at - 600_000}
        return None if db.value(known, params) else str(given["id"])

    return [payload.compaction(row, unless_told)]


def _part(_event: dict[str, Any], properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return tool_facts(record(properties, "part"), session_id, at)


def tool_facts(part: dict[str, Any], session_id: str, at: int | None) -> list[Fact]:
    """What a tool's part tells: the only place that tells of one that failed."""
    state, name, part_id = (
        record(part, "state"),
        text(part, "tool"),
        identifier(part, "id") or identifier(part, "callID"),
    )
    if text(part, "type") != "tool" or not name or not part_id:
        return []
    when, status = record(state, "time"), text(state, "status")
    began, ended, exit_code = number(when, "start"), number(when, "end"), record(state, "metadata").get("exit")
    failed = status == "error" or (status == "completed" and isinstance(exit_code, int) and exit_code != 0)
    problem = text(state, "error") or (f"exit code {exit_code}" if failed else None)
    call = ToolEvent(
        part_id,
        session_id,
        message_id=identifier(part, "messageID"),
        tool_name=name,
        tool_input=payload.readable(state.get("input")) if state.get("input") else None,
        tool_output=payload.readable(state.get("output")),
        file_path=payload.file_of(record(state, "input")),
        success=not failed if status in ("completed", "error") else None,
        error_message=problem if failed else None,
        duration_ms=ended - began if began and ended and ended >= began else None,
        created_at=began or at,
    )
    return _said_here([payload.tool(call)], session_id, began)


def _message(_event: dict[str, Any], properties: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return message_facts(record(properties, "info"), records(properties, "parts"), session_id)


def message_facts(info: dict[str, Any], parts: list[dict[str, Any]], session_id: str) -> list[Fact]:
    """What a message tells, with its parts: its text, its usage, a compaction, an error."""
    message_id, role = identifier(info, "id"), text(info, "role")
    if not message_id or role not in ("user", "assistant"):
        return []
    words = "\n\n".join(part["text"] for part in parts if _is_said(part)) or None
    facts = (_asked if role == "user" else _answered)(info, parts, session_id, words)
    return _said_here(facts, session_id, number(record(info, "time"), "created"))


def _answered(info: dict[str, Any], _parts: list[dict[str, Any]], session_id: str, words: str | None) -> list[Fact]:
    facts = [payload.message(_answer(info, session_id, None if info.get("summary") is True else words))]
    if info.get("summary") is True:
        facts += _summary(info, session_id, words)
    if problem := record(info, "error"):
        at = number(record(info, "time"), "completed") or number(record(info, "time"), "created")
        facts.append(error_fact(f"{identifier(info, 'id')}-error", session_id, problem, at))
    return facts


def _said_here(facts: list[Fact], session_id: str, at: int | None) -> list[Fact]:
    """A fork begins with copies of what was said before it, under new ids: older than the session, and stored once."""

    def unless_copied(fact: Fact) -> Fact:
        def build(index: Index) -> Change:
            keep = fact(index)

            def store(db: Db) -> None:
                if not _is_copy(db, session_id, at):
                    keep(db)

            return Change(store)

        return build

    return [unless_copied(fact) for fact in facts]


_OLDER = "SELECT 1 FROM sessions WHERE id = :id AND created_guessed = 0 AND created_at > :at"
_FORKED = """
    UPDATE sessions SET prompt_tokens = NULL, completion_tokens = NULL, cost = NULL, metadata = json_patch(
        COALESCE(metadata, '{}'), json_object('startedBy', 'fork', 'forkedFrom', (
            SELECT messages.session_id FROM sessions AS other
            JOIN messages ON messages.session_id = other.id AND messages.created_at = :at
            WHERE other.source = 'opencode' AND other.project_path = sessions.project_path AND other.id <> :id
            LIMIT 1)))
    WHERE id = :id AND metadata ->> '$.forkedFrom' IS NULL
"""


def _is_copy(db: Db, session_id: str, at: int | None) -> bool:
    if at is None or not db.value(_OLDER, {"id": session_id, "at": at}):
        return False
    db.execute(_FORKED, {"id": session_id, "at": at})
    return True


def _is_said(part: dict[str, Any]) -> bool:
    return (
        text(part, "type") == "text"
        and not part.get("synthetic")
        and not part.get("ignored")
        and bool(text(part, "text"))
    )


def _asked(info: dict[str, Any], parts: list[dict[str, Any]], session_id: str, words: str | None) -> list[Fact]:
    message_id, when, model = (
        identifier(info, "id") or "",
        number(record(info, "time"), "created"),
        record(info, "model"),
    )
    facts: list[Fact] = []
    for part in parts:
        if text(part, "type") == "compaction":
            cause = "auto" if part.get("auto") else "manual"
            facts.append(payload.compaction(CompactionEvent(message_id, session_id, cause=cause, created_at=when)))
    if words:
        said = MessageEvent(
            message_id, session_id, "user", words, model=text(model, "modelID"), source=HARNESS, created_at=when
        )
        facts += (payload.message(said), payload.first_prompt(session_id, words))
    return facts


def _answer(info: dict[str, Any], session_id: str, words: str | None) -> MessageEvent:
    when = record(info, "time")
    began, ended = number(when, "created"), number(when, "completed")
    given = {"agent": text(info, "agent"), "mode": text(info, "mode"), "parentId": identifier(info, "parentID")}
    return MessageEvent(
        identifier(info, "id") or "",
        session_id,
        "assistant",
        words,
        model=text(info, "modelID"),
        source=HARNESS,
        duration_ms=ended - began if began and ended and ended >= began else None,
        created_at=began,
        completed_at=ended,
        metadata={key: value for key, value in given.items() if value} or None,
        **_usage(info),
    )


def _summary(info: dict[str, Any], session_id: str, words: str | None) -> list[Fact]:
    """A compaction is known by the message that asked for it: that one tells why, the answer into what."""
    asked, usage = identifier(info, "parentID") or identifier(info, "id") or "", _usage(info)
    row = CompactionEvent(
        asked,
        session_id,
        tokens_before=usage["prompt_tokens"],
        tokens_after=usage["completion_tokens"],
        summary=words,
        created_at=number(record(info, "time"), "created"),
    )
    facts = [payload.compaction(row), _only(asked, session_id)]
    return [*facts, payload.summarised(session_id, words)] if words else facts


def _only(compaction_id: str, session_id: str) -> Fact:
    """The bus had told of the compaction before its summary came."""
    sql = """
        DELETE FROM compaction_events
        WHERE session_id = :session AND id LIKE 'evt%' AND summary IS NULL
          AND abs(created_at - (SELECT created_at FROM compaction_events WHERE id = :id)) < 600000
    """
    return lambda _index: Change(lambda db: db.execute(sql, {"session": session_id, "id": compaction_id}))


_EVENTS: dict[str, Callable[[dict[str, Any], dict[str, Any], str, int], list[Fact]]] = {
    "session.created": _created,
    "session.updated": _session,
    "session.deleted": _deleted,
    "session.idle": _idle,
    "session.error": _error,
    "session.compacted": _compacted,
    "message.part.updated": _part,
    "message.updated": _message,
    "clankers.message": _message,
}
