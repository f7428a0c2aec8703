"""Identity of messages: which row a message belongs to that a hook and a transcript both report.

A hook knows the prompt's id, a transcript knows the line's. The table `told_messages` links the two by the digest of
the text.
"""

from typing import Any

from clankersd.capture.events import HookIdentity, Identity, TranscriptIdentity
from clankersd.db import Db, Notification

_BY_LINE = "SELECT message_id, session_id, digest FROM told_messages WHERE line_id = :line"
_BY_TEXT = """
    SELECT message_id, line_id FROM told_messages
    WHERE session_id = :session AND prompt_id = :prompt AND kind = :kind AND digest IN (:digest, '')
    ORDER BY line_id IS NOT NULL LIMIT 1
"""
_REPORTED_BY_HOOK = """
    SELECT message_id, (digest = :digest OR :digest = '') AND (prompt_id = :prompt OR :digest <> '') AS is_same
    FROM told_messages WHERE session_id = :session AND kind = :kind AND coalesce(line_id, '') = ''
    ORDER BY is_same DESC, prompt_id <> :prompt, message_id LIMIT 1
"""
_INSERT = """
    INSERT INTO told_messages (message_id, session_id, prompt_id, kind, digest, line_id)
    VALUES (:id, :session, :prompt, :kind, :digest, :line)
"""
_REMEMBER = f"""
    {_INSERT}
    ON CONFLICT (message_id) DO UPDATE SET digest = :digest, line_id = COALESCE(told_messages.line_id, :line)
"""
_REMEMBER_NEW = f"{_INSERT} ON CONFLICT DO NOTHING"
_NOTE_FORK = """
    UPDATE sessions SET metadata = json_set(COALESCE(metadata, '{}'), '$.forkedFrom', :owner)
    WHERE id = :session AND metadata ->> '$.forkedFrom' IS NULL RETURNING id
"""


def resolve_id(db: Db, identity: Identity | None, row: dict[str, Any]) -> str | None:
    """Return the id of the row in which an event is stored; None if it is stored elsewhere already."""
    if identity is None:
        return str(row["id"])
    if isinstance(identity, HookIdentity):
        return _resolve_from_hook(db, identity, row)
    if isinstance(identity, TranscriptIdentity):
        return _resolve_from_transcript(db, identity, row)
    owner = db.value("SELECT session_id FROM messages WHERE id = :id", {"id": row["id"]})
    return str(row["id"]) if owner in (None, row["session_id"]) else None


def _resolve_from_hook(db: Db, identity: HookIdentity, row: dict[str, Any]) -> str | None:
    """Return the id for a message from a hook; None if the transcript reported it first."""
    params = _params(identity, row)
    known = db.fetch_one(_BY_TEXT, params)
    if known:
        return None if known["line_id"] else str(known["message_id"])
    prompt_id = identity.prompt_id
    is_taken = db.value("SELECT 1 FROM told_messages WHERE message_id = :id", {"id": prompt_id})
    if identity.kind == "prompt" and not is_taken:
        message_id = prompt_id
    else:
        message_id = f"{prompt_id or row['session_id']}-{params['digest'][:12] or identity.kind}"
    db.execute(_REMEMBER, {**params, "id": message_id, "line": None})
    db.change_cache.pop(_no_report_by_hook(params), None)
    return message_id


def _resolve_from_transcript(db: Db, identity: TranscriptIdentity, row: dict[str, Any]) -> str | None:
    """Return the id for a message from a transcript: the hook's, if a hook reported it, else the line's.

    None for a message of another session: the transcript of a fork begins with what was said before it.
    """
    line_id = identity.line_id
    params = _params(identity, row) | {"line": line_id}
    no_report_by_hook = _no_report_by_hook(params)
    if no_report_by_hook in db.change_cache and db.modify(_REMEMBER_NEW, {**params, "id": line_id}):
        return line_id  # new, since no other transcript had it
    owner = db.fetch_one(_BY_LINE, {"line": line_id})
    if owner and owner["session_id"] != row["session_id"]:
        if db.value(_NOTE_FORK, {"session": row["session_id"], "owner": owner["session_id"]}) is not None:
            db.after_commit(Notification("session", "stored", row["session_id"]))
        return None
    from_hook = None
    if no_report_by_hook not in db.change_cache:
        reported = db.fetch_one(_REPORTED_BY_HOOK, params)
        if reported is None:
            db.change_cache[no_report_by_hook] = True
        elif reported["is_same"]:
            from_hook = reported["message_id"]
    message_id = str(owner["message_id"]) if owner else line_id
    if from_hook and not owner and db.value("SELECT 1 FROM messages WHERE id = :id", {"id": line_id}) is None:
        message_id = str(from_hook)
    elif from_hook and (not owner or owner["digest"] != params["digest"]):
        # The transcript had reported the beginning of the message before the hook reported all of it.
        db.execute("DELETE FROM told_messages WHERE message_id = :id", {"id": from_hook})
        if db.value("DELETE FROM messages WHERE id = :id RETURNING id", {"id": from_hook}) is not None:
            db.after_commit(Notification("message", "deleted", str(from_hook), {"sessionId": row["session_id"]}))
    db.execute(_REMEMBER, {**params, "id": message_id})
    return message_id


def _no_report_by_hook(params: dict[str, Any]) -> tuple[str, str]:
    """Return the fact that no hook has reported a message of this session and kind that no transcript has."""
    return f"no {params['kind']} by a hook", params["session"]


def _params(identity: HookIdentity | TranscriptIdentity, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "session": row["session_id"],
        "prompt": identity.prompt_id,
        "kind": identity.kind,
        "digest": "" if identity.kind == "compaction" else row["digest"],
    }
