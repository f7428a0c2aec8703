"""Candidates for memories, by rules: what was said plainly, which command worked, which files change together."""

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from clankers_protocol.memory_maintenance import Candidate
from clankersd.index.tokenize import STOP_WORDS
from clankersd.memories.classify import classify
from clankersd.memories.extraction.message_text import (
    authored_text,
    end_with_period,
    first_and_last_lines,
    shorten,
    split_sentences,
)
from clankersd.memories.extraction.noise import harm_reason, noise_reason
from clankersd.memories.extraction.phrases import ANNOUNCED, BY_ASSISTANT, BY_USER, Rule
from clankersd.memories.similarity import content_hash

MAX_FIXES = 3
MAX_CALLS_TO_FIX = 10
"""Calls. What succeeds later than that has little to do with the failure."""

LONGEST_COMMAND = 200
ALIKE = 0.6
"""How alike two command lines are when one is the other put right."""

MAX_EDITED_FILES = 20
"""A session that edits more files says nothing about which belong together."""

OFTEN_TOGETHER = 3
"""Sessions in which files were edited together before that is worth knowing."""

LARGEST_GROUP = 6

EDITING_TOOLS = frozenset(
    """edit write multiedit multi_edit notebookedit notebook_edit apply_patch patch create create_file str_replace
    str_replace_editor str_replace_based_edit_tool write_file edit_file replace""".split()  # noqa: SIM905
)
"""Tools that change a file, in lower case."""


@dataclass(frozen=True)
class SessionMessage:
    """A message of a session."""

    id: str
    role: str
    text: str
    at: int


@dataclass(frozen=True)
class ToolCall:
    """A tool call of a session; `success` is None where nobody told."""

    message_id: str | None
    name: str
    input: str
    success: bool | None
    error: str
    path: str | None
    at: int

    @property
    def failed(self) -> bool:
        return self.success is False or (self.success is None and bool(self.error))


_RULES = {"user": BY_USER, "assistant": BY_ASSISTANT}
_REASON = re.compile(
    r"^(?:because|otherwise|since|the reason|reason:|that way|weil|denn|sonst|andernfalls|因为|否则|这样)",
    re.IGNORECASE,
)
_TO = re.compile(r"^to (?=[a-z])", re.IGNORECASE)
_PREFERENCE = re.compile(
    r"\b(?:prefer\w*|always|never|immer|nie|niemals|bevorzug\w*)\b|喜欢|总是"
    r"|^(?:use|do|don'?t|put|call|name|write|run|take|nimm|nutze?|benutze?|verwende|schreib\w*)\b|^(?:不要|别|不用|改?用)",
    re.IGNORECASE,
)
_BEGINNING = frozenset(
    """use run put call name write keep make take always never prefer let
    wir ich es immer nie niemals stets nimm nutz nutze benutze verwende""".split()  # noqa: SIM905
)

# Commands that look around: their failing says nothing, and neither does what is tried after them.
_LOOKING = frozenset(
    """ls cat head tail grep rg find fd cd echo pwd which sed awk wc tree stat file less diff test true sleep kill ps
    curl""".split()  # noqa: SIM905
)
# The command itself was wrong; a test that fails, or a server that is away, says nothing about the command.
_MISUSED = re.compile(
    r"not found|no such|not recogni[sz]ed|unknown|unrecogni[sz]ed|invalid|illegal|unexpected|usage:|missing|no module"
    r"|cannot find|could not find|can't open|permission denied|no rule|not allowed|did you mean|is required|ambiguous"
    r"|unsupported|not supported|deprecated|too many arguments|bad option|externally-managed",
    re.IGNORECASE,
)
_WORDLESS = re.compile(r"^(?:sudo |time |env |[A-Z_][A-Z0-9_]*=\S+ |cd [^&;|]+ && )+")


def find_statements(messages: Iterable[SessionMessage]) -> list[Candidate]:
    """What the messages say plainly and is worth keeping, in their order, each once."""
    found: dict[str, Candidate] = {}
    for message in messages:
        for candidate in _of_message(message):
            found.setdefault(content_hash(candidate.content), candidate)
    return list(found.values())


def _of_message(message: SessionMessage) -> Iterable[Candidate]:
    rules = _RULES.get(message.role, ())
    told = split_sentences(first_and_last_lines(authored_text(message.text))) if rules else []
    for number, sentence in enumerate(told):
        after = told[number + 1] if number + 1 < len(told) else ""
        if ANNOUNCED.match(sentence) and after:
            sentence, after = f"Remember: {after}", ""
        for rule in rules:
            if fact := _fact(rule, sentence):
                if not noise_reason(sentence) and not noise_reason(fact):
                    yield _candidate(rule, fact, after, message)
                break


def _fact(rule: Rule, sentence: str) -> str | None:
    match = rule.signs.search(sentence)
    if match is None:
        return None
    return next((part for part in match.groups() if part), sentence).strip(" ,:：，")


def _candidate(rule: Rule, fact: str, after: str, message: SessionMessage) -> Candidate:
    content = _clean(fact)
    if _REASON.match(after) and not noise_reason(after):
        content = shorten(f"{content} {end_with_period(after)}")
    category = "preference" if rule.category == "fact" and _PREFERENCE.search(content) else rule.category
    return Candidate(
        content=content,
        category=category,
        sector=classify(content, category),  # type: ignore[arg-type]  # it knows only sectors
        importance=rule.importance,
        confidence=rule.confidence,
        rule=rule.name,
        message_id=message.id,
    )


def _clean(fact: str) -> str:
    fact = _TO.sub("", fact)
    first = re.split(r"[ '’,]", fact, maxsplit=1)[0].lower()
    if first in STOP_WORDS or first in _BEGINNING:  # any other may be a name that is written small
        fact = fact[0].upper() + fact[1:]
    return end_with_period(fact)


def find_fixes(calls: list[ToolCall]) -> list[Candidate]:
    """Commands that failed, and what worked in their place soon after."""
    found: dict[str, Candidate] = {}
    for number, failed in enumerate(calls):
        wrong = _command(failed) if failed.failed and _MISUSED.search(failed.error) else None
        right = wrong and _worked_instead(failed, wrong, calls[number + 1 : number + 1 + MAX_CALLS_TO_FIX])
        if wrong and right:
            candidate = _fix(wrong, right[0], failed, right[1])
            if not harm_reason(candidate.content):
                found.setdefault(candidate.content, candidate)
    return list(found.values())[:MAX_FIXES]


def _worked_instead(failed: ToolCall, wrong: str, later: list[ToolCall]) -> tuple[str, ToolCall] | None:
    for call in later:
        command = _command(call) if call.name == failed.name else None
        if command is None or call.success is not True:
            continue
        if command == wrong:  # something else was put right, not the command
            return None
        if _alike(wrong, command):
            return command, call
    return None


def _alike(wrong: str, right: str) -> bool:
    program, other = wrong.split()[:2], right.split()[:2]
    if len(program) == 2 and program == other:
        return True
    return difflib.SequenceMatcher(None, wrong, right, autojunk=False).ratio() >= ALIKE


def _fix(wrong: str, right: str, failed: ToolCall, worked: ToolCall) -> Candidate:
    why = next(line.strip() for line in failed.error.splitlines() if _MISUSED.search(line))
    return Candidate(
        content=f"`{wrong}` failed ({shorten(why, 100).rstrip('.')}); `{right}` worked.",
        category="fix",
        sector="procedural",
        importance=0.6,
        confidence=0.6,
        rule="fix",
        message_id=worked.message_id or failed.message_id,
    )


def _command(call: ToolCall) -> str | None:
    """The command line of a call; None where there is none, or none worth remembering."""
    line = _WORDLESS.sub("", parse_command(call.input) or "").strip()
    program = line.partition(" ")[0].rpartition("/")[2]
    if not line or "\n" in line or "`" in line or len(line) > LONGEST_COMMAND or program in _LOOKING:
        return None
    return line


def parse_command(tool_input: str) -> str | None:
    """What a shell was given, as harnesses write it down: `{"command": …}` with a line or a list."""
    try:
        given: Any = msgspec.json.decode(tool_input)
    except msgspec.DecodeError:
        return None
    if isinstance(given, dict):
        given = given.get("command", given.get("cmd"))
    if isinstance(given, list) and all(isinstance(part, str) for part in given):
        given = given[-1] if given[:2] == ["bash", "-lc"] else " ".join(given)
    return given if isinstance(given, str) else None


def group_edited_files(own: set[str], by_session: Mapping[str, set[str]]) -> list[list[str]]:
    """Of the files a session edited, those that are edited together: often, and rarely one without the other."""
    if not 2 <= len(own) <= MAX_EDITED_FILES:
        return []
    groups: list[set[str]] = []
    for one, other in itertools.combinations(sorted(own), 2):
        if _belong_together(one, other, by_session):
            touching = [group for group in groups if group & {one, other}]
            groups = [group for group in groups if group not in touching] + [{one, other}.union(*touching)]
    return [sorted(group) for group in groups if len(group) <= LARGEST_GROUP]


def _belong_together(one: str, other: str, by_session: Mapping[str, set[str]]) -> bool:
    both = sum(1 for edited in by_session.values() if one in edited and other in edited)
    either = sum(1 for edited in by_session.values() if one in edited or other in edited)
    return both >= OFTEN_TOGETHER and both * 2 >= either


def describe_file_groups(groups: Iterable[list[str]], root: str | None) -> list[Candidate]:
    """A candidate for each group of files that change together; inside the project paths are its own."""
    return [_together([_inside(path, root) for path in group], group) for group in groups]


def _together(names: list[str], files: list[str]) -> Candidate:
    listed = ", ".join(f"`{name}`" for name in names[:-1])
    return Candidate(
        content=f"{listed} and `{names[-1]}` are edited together.",
        category="codebase",
        sector="semantic",
        importance=0.4,
        confidence=0.6,
        rule="files",
        message_id=None,
        files=files,
    )


def _inside(path: str, root: str | None) -> str:
    return path.removeprefix(root.rstrip("/") + "/") if root else path
