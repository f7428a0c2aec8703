"""`recall.ledger`: injections, the candidates that they were chosen from, and whether they were used."""

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from clankers_protocol.recall import (
    Ledger,
    LedgerEntry,
    LedgerItem,
    RecallCandidate,
    RecallLedger,
    RecallTotals,
)
from clankersd.db import Db
from clankersd.db.engine import CHUNK_TEXT
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

PROMPT_CHARACTERS = 2_000
ITEM_CHARACTERS = 600
CANDIDATE_CHARACTERS = 160
EVIDENCE_CHARACTERS = 20_000
MAX_EVIDENCE_ROWS = 60
PROMPT_LAG_MS = 5_000
"""A prompt and its injection are recorded within this time of each other, in either order."""

MAX_DELETION_LAG_MS = 3_600_000
"""An item that is deleted later than this after the session's last activity was not contradicted in it."""

SHORT_ID_CHARACTERS = 8
MIN_SHARED_WORDS = 2
MIN_SHARED_SHARE = 0.4
"""An item counts as used if so many of its words, and this share of them, appear in what followed."""

ENTRIES = """
    SELECT injections.id, at, kind, trigger_event AS trigger, session_id, sessions.title AS session_title, characters,
           ids_json, text, considered_json
    FROM injections LEFT JOIN sessions ON sessions.id = session_id
    WHERE {conditions} ORDER BY injections.id DESC LIMIT :limit
"""
_PROMPT = f"""
    SELECT id, substr(text_content, 1, {PROMPT_CHARACTERS}) AS text FROM messages
    WHERE session_id = :session AND role = 'user' AND created_at <= :at + {PROMPT_LAG_MS}
    ORDER BY created_at DESC, id DESC LIMIT 1
"""
_NEXT_PROMPT = """
    SELECT min(created_at) FROM messages
    WHERE session_id = :session AND role = 'user' AND created_at > :at + :lag
"""
_EVIDENCE = f"""
    SELECT substr(text_content, 1, {EVIDENCE_CHARACTERS}) FROM (
        SELECT text_content FROM messages WHERE session_id = :session AND role = 'assistant'
          AND created_at BETWEEN :at AND :until AND text_content <> '' ORDER BY created_at LIMIT {MAX_EVIDENCE_ROWS}
    ) UNION ALL SELECT substr(tool_input, 1, {EVIDENCE_CHARACTERS}) FROM (
        SELECT tool_input FROM tools WHERE session_id = :session AND created_at BETWEEN :at AND :until
          AND tool_input <> '' ORDER BY created_at LIMIT {MAX_EVIDENCE_ROWS}
    )
"""
_ITEMS: dict[Literal["memory", "session", "passage"], str] = {
    "memory": "SELECT substr(content, 1, :length) FROM memories WHERE id = :id",
    "session": "SELECT substr(coalesce(nullif(summary, ''), title, user_prompt, ''), 1, :length) FROM sessions "
    "WHERE id = :id",
    "passage": "SELECT substr(text_content, 1, :length) FROM messages WHERE id = :id",
}
_CHUNK = f"""
    SELECT substr({CHUNK_TEXT}, 1, :length) FROM chunks
    WHERE chunk_id >= :id AND chunk_id < :id || char(1114111) AND length(:id) >= 16 LIMIT 1
"""
_TIMES_INJECTED = """
    SELECT count(*) FROM injections, json_each(injections.ids_json) AS ids
    WHERE injections.id <= :injection AND ids.value = :id
"""
_WAS_CONTRADICTED = f"""
    SELECT 1 FROM memories JOIN sessions ON sessions.id = :session
    WHERE memories.id = :id AND deleted_at BETWEEN :at AND min(:until, sessions.updated_at + {MAX_DELETION_LAG_MS})
    UNION ALL
    SELECT 1 FROM memory_relationships JOIN memories AS newer ON newer.id = source_memory_id
    WHERE target_memory_id = :id AND relationship_type IN ('SUPERSEDES', 'CONTRADICTS')
      AND newer.source_session_id = :session AND memory_relationships.created_at >= :at
      AND memory_relationships.valid_until IS NULL
"""
_WORD = re.compile(r"[^\W_][\w./-]{3,}[\w]")


@dataclass(frozen=True)
class _Aftermath:
    """Answers and tool calls between an injection and the next prompt: their period, words and text."""

    session: str
    at: int
    until: int
    words: frozenset[str]
    text: str

    def outcome_of(
        self, db: Db, item_id: str, text: str | None, prompt: frozenset[str]
    ) -> Literal["used", "contradicted", "ignored"] | None:
        """Judge what became of an item; words of the prompt are no evidence that it was used."""
        period = {"id": item_id, "at": self.at, "until": self.until, "session": self.session}
        if db.value(_WAS_CONTRADICTED, period):
            return "contradicted"
        if text is None or not self.text:
            return None
        own = _words(text) - prompt
        shared = own & self.words
        is_named = item_id[:SHORT_ID_CHARACTERS] in self.text
        if is_named or (len(shared) >= MIN_SHARED_WORDS and len(shared) >= MIN_SHARED_SHARE * len(own)):
            return "used"
        return "ignored"


@handles(RecallLedger)
async def recall_ledger(daemon: "Daemon", request: RecallLedger) -> Ledger:
    conditions, filters = selection(request)
    count = f"SELECT count(*) FROM injections WHERE {' AND '.join(conditions)}"
    paged, page = list(conditions), dict(filters)
    if request.cursor:
        paged.append("injections.id < :before")
        (page["before"],) = decode_cursor(request.cursor, int)
    sql = ENTRIES.format(conditions=" AND ".join(paged))

    def ledger(db: Db) -> Ledger:
        rows = db.fetch(sql, page | {"limit": request.limit + 1})
        shown = rows[: request.limit]
        cursor = encode_cursor(shown[-1]["id"]) if len(shown) < len(rows) else None
        return Ledger([ledger_entry(db, row) for row in shown], db.value(count, filters), cursor)

    return await daemon.store.read(ledger)


def selection(request: RecallLedger | RecallTotals) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions on injections, and their parameters."""
    conditions = ["characters > 0"]
    filters: dict[str, Any] = {}
    if request.session_id is not None:
        conditions.append("session_id = :session")
        filters["session"] = request.session_id
    if request.memory_id is not None:
        conditions.append("EXISTS (SELECT 1 FROM json_each(ids_json) WHERE value = :memory)")
        filters["memory"] = request.memory_id
    return conditions, filters


def ledger_entry(db: Db, row: dict[str, Any]) -> LedgerEntry:
    """Describe an injection: its prompt, its items, and what became of them."""
    ids = json.loads(row.pop("ids_json"))
    considered = row.pop("considered_json")
    prompt = None
    if row["trigger"] != "startup":
        prompt = find_prompt(db, row["session_id"], row["at"])
    prompt_text = prompt["text"] if prompt else None
    period = {"session": row["session_id"], "at": row["at"]}
    following = db.value(_NEXT_PROMPT, period | {"lag": PROMPT_LAG_MS})
    until = following - 1 if following else 2**53
    evidence = [text for (text,) in db.tuples(_EVIDENCE, period | {"until": until})]
    words = frozenset[str]().union(*map(_words, evidence))  # one by one: a match of all would hold the interpreter
    aftermath = _Aftermath(row["session_id"], row["at"], until, words, "\n".join(evidence))
    return LedgerEntry(
        **row,
        prompt_id=prompt["id"] if prompt else None,
        prompt=prompt_text,
        items=[_item(db, row["id"], item_id, _words(prompt_text or ""), aftermath) for item_id in ids],
        considered=with_texts(db, msgspec.json.decode(considered, type=list[RecallCandidate])) if considered else None,
    )


def find_prompt(db: Db, session: str, at: int) -> dict[str, Any] | None:
    """Return the id and the text of the prompt that a session sent last before a time."""
    return db.fetch_one(_PROMPT, {"session": session, "at": at})


def with_texts(db: Db, candidates: list[RecallCandidate]) -> list[RecallCandidate]:
    """Add the beginning of each candidate's text, as far as it still exists."""
    return [msgspec.structs.replace(one, text=find_text(db, one.id, CANDIDATE_CHARACTERS)[1]) for one in candidates]


def find_text(
    db: Db, item_id: str, length: int
) -> tuple[Literal["memory", "session", "passage", "unknown"], str | None]:
    """Return the kind and the beginning of the text behind an id."""
    for kind, sql in _ITEMS.items():
        text = db.value(sql, {"id": item_id, "length": length})
        if text is not None:
            return kind, text
    text = db.value(_CHUNK, {"id": item_id, "length": length})
    return ("unknown", None) if text is None else ("passage", text)


def _item(db: Db, injection: int, item_id: str, prompt: frozenset[str], aftermath: _Aftermath) -> LedgerItem:
    kind, text = find_text(db, item_id, ITEM_CHARACTERS)
    times_injected = db.value(_TIMES_INJECTED, {"injection": injection, "id": item_id})
    return LedgerItem(item_id, kind, text, times_injected, aftermath.outcome_of(db, item_id, text, prompt))


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text))
