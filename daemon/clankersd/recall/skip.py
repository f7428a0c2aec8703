"""Prompts with nothing to search for: greetings, affirmations, commands, and routine of any session."""

import re
import unicodedata

from clankersd.index.tokenize import CJK_CHARACTER, WORD, searched_part
from clankersd.search.small_talk import EMPTY_WORDS, GREETINGS

MIN_LETTERS = 8
"""Letters of the significant words in a prompt that is worth a search."""

MIN_WORD_LETTERS, MIN_PROMPT_LETTERS = 5, 12
"""A whole question with one significant word is worth a search, too: "when do we deploy"."""

LETTERS_PER_CJK_CHARACTER = 3
"""Two or three CJK characters say as much as a word of eight letters."""

MIN_NAME_LETTERS, MIN_WORDS_WITH_NAME = 3, 3
"""Letters of a name, such as JWT or OptiX, that is worth a search by itself, and words of a prompt that has it."""

MAX_ROUTINE_CHARACTERS = 200
MIN_NUMBER_DIGITS = 3
"""Digits of a number that may be that of an issue or an error; a shorter one counts options or files."""

_NAME = re.compile(r"(?=.*[^\W\d_])\w+[A-Z\d_]\w*")
_COMMAND = re.compile(r"/[\w:.-]+(\s|$)")  # a path has another slash
_HARNESS_MESSAGE = re.compile(
    r"<(command|local-command|task|system|bash|user-memory)-|This session is being continued from a previous"
    r"|(Please )?continue the conversation from where (it|we|you) left",
    re.IGNORECASE,
)


QUESTION_WORDS = frozenset({"how", "where", "which", "when", "who", "whose", "why"})
"""Words of a question about how things are done, which earlier sessions may answer, however common the others are."""

ROUTINE_WORDS = frozenset(
    """run rerun running execute build rebuild compile test tests testing tested suite lint linter format check verify
    commit commits push pull pr request merge rebase branch diff patch open create make made write add remove delete
    update change changes changed revert reset restore fix fixed solve correct improve clean tidy show print display
    list read see look explain describe summarise summarize review think mean suggest start begin keep going finish
    finished complete ship apply use work works working worked happen happened fail fails failed failing pass passes
    passed passing break broke broken code file files folder directory output outputs result results error errors
    warning warnings issue issues problem problems bug bugs message messages log logs line lines function functions
    thing things step steps part parts point option options approach solution idea plan question answer detail details
    task tasks job one two three first second third 1st 2nd 3rd last previous rest everything anything something nothing
    way version time times new old different else instead better best worse shorter longer short long simple simpler
    smaller bigger faster slower cleaner full whole less quick quickly still yet already together back without until
    let lets put give take move leave wrong missing squash amend stash tag bump split rename name names type types
    comment comments changelog note notes status progress reason reasoning summary overview refactoring unit green red
    """.split()  # noqa: SIM905
)
"""Words of what is asked in every session: to run, to fix, to commit, to explain what is there already."""


def names_no_subject(prompt: str) -> bool:
    """Return whether a prompt is about the work at hand, such as "run the tests again", and names nothing else.

    Earlier sessions have many passages with such words, none of which helps.
    """
    if len(prompt) > MAX_ROUTINE_CHARACTERS:
        return False
    words = [word.casefold() for word in WORD.findall(prompt)]
    return QUESTION_WORDS.isdisjoint(words) and all(
        word in ROUTINE_WORDS | EMPTY_WORDS or (word.isdecimal() and len(word) < MIN_NUMBER_DIGITS) for word in words
    )


def why_trivial(prompt: str) -> str | None:
    """Return why a prompt is not worth a search; None if it is."""
    text = unicodedata.normalize("NFC", searched_part(prompt)).strip()
    if _COMMAND.match(text):
        return "a slash command"
    if _HARNESS_MESSAGE.match(text):
        return "the harness's own message"
    words = [word.casefold() for word in WORD.findall(text)]
    if not words:
        return "no words"
    significant = [word for word in words if word not in EMPTY_WORDS]
    if not significant:
        return "a greeting" if any(word in GREETINGS for word in words) else "an affirmation"
    letters = 0
    for word in significant:
        letters += len(word) + (LETTERS_PER_CJK_CHARACTER - 1) * len(CJK_CHARACTER.findall(word))
    if len(words) >= MIN_WORDS_WITH_NAME and not text.isupper() and any(_is_name(word) for word in WORD.findall(text)):
        return None
    is_question = max(map(len, significant)) >= MIN_WORD_LETTERS and sum(map(len, words)) >= MIN_PROMPT_LETTERS
    return None if letters >= MIN_LETTERS or is_question else "too short"


def _is_name(word: str) -> bool:
    """Return whether a word has a capital or a digit after its beginning, as the names of programs have."""
    if len(word) < MIN_NAME_LETTERS or word.casefold() in EMPTY_WORDS:
        return False
    return _NAME.fullmatch(word) is not None
