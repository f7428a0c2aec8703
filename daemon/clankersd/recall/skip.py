"""Trivial prompts, for which nothing is searched: greetings, affirmations, commands."""

import re
import unicodedata

from clankersd.index.tokenize import CJK_CHARACTER, STOP_WORDS, WORD
from clankersd.search.small_talk import AFFIRMATIONS, GREETINGS

MIN_LETTERS = 8
"""Letters of the significant words in a prompt that is worth a search."""

MIN_WORD_LETTERS, MIN_PROMPT_LETTERS = 5, 12
"""A whole question with one significant word is worth a search, too: "when do we deploy"."""

LETTERS_PER_CJK_CHARACTER = 3
"""Two or three CJK characters say as much as a word of eight letters."""

_COMMAND = re.compile(r"/[\w:.-]+(\s|$)")  # a path has another slash
_HARNESS_MESSAGE = re.compile(
    r"<(command|local-command|task|system|bash|user-memory)-|This session is being continued from a previous"
    r"|(Please )?continue the conversation from where (it|we|you) left",
    re.IGNORECASE,
)


def why_trivial(prompt: str) -> str | None:
    """Return why a prompt is not worth a search; None if it is."""
    text = unicodedata.normalize("NFC", prompt).strip()
    if _COMMAND.match(text):
        return "a slash command"
    if _HARNESS_MESSAGE.match(text):
        return "the harness's own message"
    words = [word.casefold() for word in WORD.findall(text)]
    if not words:
        return "no words"
    significant = [word for word in words if word not in AFFIRMATIONS | GREETINGS | STOP_WORDS]
    if not significant:
        return "a greeting" if any(word in GREETINGS for word in words) else "an affirmation"
    letters = 0
    for word in significant:
        letters += len(word) + (LETTERS_PER_CJK_CHARACTER - 1) * len(CJK_CHARACTER.findall(word))
    is_question = max(map(len, significant)) >= MIN_WORD_LETTERS and sum(map(len, words)) >= MIN_PROMPT_LETTERS
    return None if letters >= MIN_LETTERS or is_question else "too short"
