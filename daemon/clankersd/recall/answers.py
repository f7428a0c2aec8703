"""Answers: what the assistant said last after a question, or after a tool call that failed, among recalled passages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clankersd.db import Db

MAX_QUESTIONS = 3
MAX_FAILED_CALLS = 2
"""Number of questions and failed calls that are recalled with their answers; more would leave no room for others."""

MAX_TEXT_CHARACTERS = 2_000

# The next message of the user is found first: it bounds the search for the last answer before it, which ends at the
# first row that it reads. Both follow the index of a session's messages.
_ANSWERS = f"""
    SELECT asked.id, answer.id, substr(answer.text_content, 1, {MAX_TEXT_CHARACTERS})
    FROM json_each(:ids) CROSS JOIN {{table}} AS asked ON asked.id = json_each.value
    LEFT JOIN messages AS next_prompt ON next_prompt.id = (
        SELECT later.id FROM messages AS later
        WHERE later.session_id = asked.session_id AND later.role = 'user'
          AND (later.created_at, later.id) > (asked.created_at, {{id}})
        ORDER BY later.created_at, later.id LIMIT 1
    )
    CROSS JOIN messages AS answer ON answer.id = (
        SELECT later.id FROM messages AS later
        WHERE later.session_id = asked.session_id AND later.role = 'assistant' AND later.text_content <> ''
          AND (later.created_at, later.id) > (asked.created_at, {{id}})
          AND (later.created_at, later.id) < (coalesce(next_prompt.created_at, :end), coalesce(next_prompt.id, ''))
        ORDER BY later.created_at DESC, later.id DESC LIMIT 1
    )
    WHERE {{condition}}
"""
ANSWERS_TO_QUESTIONS = _ANSWERS.format(table="messages", id="asked.id", condition="asked.role = 'user'")
# Ids of calls and of messages have no common order: a message of the same millisecond counts as later.
ANSWERS_TO_CALLS = _ANSWERS.format(table="tools", id="''", condition="asked.success = 0")
END_OF_TIME_MS = 2**53


@dataclass(frozen=True)
class Answer:
    """A message of the assistant: its id, and the beginning of its text."""

    message_id: str
    text: str


def find_answers(db: Db, questions: Sequence[str], calls: Mapping[str, str]) -> dict[str, Answer]:
    """Return the answers to the first of the questions and failed calls, by the id of the passage.

    `questions` are ids of messages, which are the ids of their passages; `calls` are ids of tool calls by passage.
    """
    to_questions = _read(db, ANSWERS_TO_QUESTIONS, questions[:MAX_QUESTIONS])
    to_calls = _read(db, ANSWERS_TO_CALLS, list(calls.values()))
    failed = [passage for passage, call in calls.items() if call in to_calls]
    return to_questions | {passage: to_calls[calls[passage]] for passage in failed[:MAX_FAILED_CALLS]}


def _read(db: Db, sql: str, ids: Sequence[str]) -> dict[str, Answer]:
    if not ids:
        return {}
    rows = db.tuples(sql, {"ids": json.dumps(ids), "end": END_OF_TIME_MS})
    return {asked: Answer(message_id, text) for asked, message_id, text in rows}
