"""Extraction by rules: plain statements in messages, corrected commands, and files that are edited together."""

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from clankers_protocol.memory_maintenance import Candidate
from clankersd.db.commit_priority import yield_to_commits
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
from clankersd.memories.extraction.phrases import ANNOUNCEMENT, ASSISTANT_RULES, USER_RULES, Rule
from clankersd.memories.similarity import content_hash

MAX_FIXES = 3
MAX_CALLS_TO_FIX = 10
"""A command that succeeds after more tool calls has little to do with the failure."""

MAX_COMMAND_CHARS = 200
MIN_COMMAND_SIMILARITY = 0.6
"""Similarity ratio from which one command counts as the correction of another."""

MAX_EDITED_FILES = 20
"""A session that edits more files says nothing about which belong together."""

MIN_SHARED_SESSIONS = 3
"""Sessions in which two files must have been edited together."""

MAX_GROUP_FILES = 6

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
    """A tool call of a session; `success` is None if the harness did not report it."""

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


_RULES = {"user": USER_RULES, "assistant": ASSISTANT_RULES}
_REASON = re.compile(
    r"^(?:because|otherwise|since|the reason|reason:|that way|weil|denn|sonst|andernfalls|因为|否则|这样)",
    re.IGNORECASE,
)
_LEADING_TO = re.compile(r"^to (?=[a-z])", re.IGNORECASE)
_PREFERENCE = re.compile(
    r"\b(?:prefer\w*|always|never|immer|nie|niemals|bevorzug\w*)\b|喜欢|总是"
    r"|^(?:use|do|don'?t|put|call|name|write|run|take|nimm|nutze?|benutze?|verwende|schreib\w*)\b|^(?:不要|别|不用|改?用)",
    re.IGNORECASE,
)
_LOWERCASE_STARTS = frozenset(
    """use run put call name write keep make take always never prefer let
    wir ich es immer nie niemals stets nimm nutz nutze benutze verwende""".split()  # noqa: SIM905
)

# Commands that only inspect: neither their failure nor the next attempt is worth remembering.
_INSPECTING = frozenset(
    """ls cat head tail grep rg find fd cd echo pwd which sed awk wc tree stat file less diff test true sleep kill ps
    curl""".split()  # noqa: SIM905
)
# Errors in the command itself. A failing test or an unreachable server says nothing about the command.
_USAGE_ERROR = re.compile(
    r"not found|no such|not recogni[sz]ed|unknown|unrecogni[sz]ed|invalid|illegal|unexpected|usage:|missing|no module"
    r"|cannot find|could not find|can't open|permission denied|no rule|not allowed|did you mean|is required|ambiguous"
    r"|unsupported|not supported|deprecated|too many arguments|bad option|externally-managed",
    re.IGNORECASE,
)
_COMMAND_PREFIX = re.compile(r"^(?:sudo |time |env |[A-Z_][A-Z0-9_]*=\S+ |cd [^&;|]+ && )+")


# -- statements in messages


def find_statements(messages: Iterable[SessionMessage]) -> list[Candidate]:
    """Return the statements worth remembering in the messages, in order and without repetitions."""
    candidates: dict[str, Candidate] = {}
    for message in messages:
        yield_to_commits()
        for candidate in _find_in_message(message):
            candidates.setdefault(content_hash(candidate.content), candidate)
    return list(candidates.values())


def _find_in_message(message: SessionMessage) -> Iterable[Candidate]:
    rules = _RULES.get(message.role, ())
    if not rules:
        return
    sentences = split_sentences(first_and_last_lines(authored_text(message.text)))
    for number, sentence in enumerate(sentences):
        following = sentences[number + 1] if number + 1 < len(sentences) else ""
        if ANNOUNCEMENT.match(sentence) and following:
            sentence, following = f"Remember: {following}", ""
        for rule in rules:
            match = rule.regex.search(sentence)
            if match is None:
                continue
            fact = next((group for group in match.groups() if group), sentence).strip(" ,:：，")
            if fact:
                if not noise_reason(sentence) and not noise_reason(fact):
                    yield _to_candidate(rule, fact, following, message)
                break


def _to_candidate(rule: Rule, fact: str, following: str, message: SessionMessage) -> Candidate:
    """Make a candidate of a fact, with the following sentence if that gives a reason."""
    fact = _LEADING_TO.sub("", fact)
    first_word = re.split(r"[ '’,]", fact, maxsplit=1)[0].lower()
    if first_word in STOP_WORDS or first_word in _LOWERCASE_STARTS:  # any other may be a name in lower case
        fact = fact[0].upper() + fact[1:]
    content = end_with_period(fact)
    if _REASON.match(following) and not noise_reason(following):
        content = shorten(f"{content} {end_with_period(following)}")
    category = "preference" if rule.category == "fact" and _PREFERENCE.search(content) else rule.category
    return Candidate(
        content=content,
        category=category,
        sector=classify(content, category),  # type: ignore[arg-type]  # it returns only sectors
        importance=rule.importance,
        confidence=rule.confidence,
        rule=rule.name,
        message_id=message.id,
    )


# -- corrected commands


def find_fixes(calls: list[ToolCall]) -> list[Candidate]:
    """Return commands that failed, each with the similar command that succeeded soon after."""
    candidates: dict[str, Candidate] = {}
    for number, call in enumerate(calls):
        if not call.failed or not _USAGE_ERROR.search(call.error):
            continue
        failed_command = command_of(call)
        if failed_command is None:
            continue
        next_calls = calls[number + 1 : number + 1 + MAX_CALLS_TO_FIX]
        later = [later_call for later_call in next_calls if later_call.name == call.name]
        fix = _find_fix(failed_command, later)
        if fix is None:
            continue
        command, succeeded = fix
        error = next(line.strip() for line in call.error.splitlines() if _USAGE_ERROR.search(line))
        candidate = Candidate(
            content=f"`{failed_command}` failed ({shorten(error, 100).rstrip('.')}); `{command}` worked.",
            category="fix",
            sector="procedural",
            importance=0.6,
            confidence=0.6,
            rule="fix",
            message_id=succeeded.message_id or call.message_id,
        )
        if not harm_reason(candidate.content):
            candidates.setdefault(candidate.content, candidate)
    return list(candidates.values())[:MAX_FIXES]


def _find_fix(failed_command: str, later: list[ToolCall]) -> tuple[str, ToolCall] | None:
    """Find a command that succeeded with the same program and subcommand, or most of the characters."""
    program = failed_command.split()[:2]
    for call in later:
        command = command_of(call)
        if command is None or call.success is not True:
            continue
        if command == failed_command:  # something else was fixed, not the command
            return None
        if len(program) == 2 and program == command.split()[:2]:
            return command, call
        similarity = difflib.SequenceMatcher(None, failed_command, command, autojunk=False).ratio()
        if similarity >= MIN_COMMAND_SIMILARITY:
            return command, call
    return None


def command_of(call: ToolCall) -> str | None:
    """Return the command line of a call; None if there is none, or none worth remembering."""
    line = _COMMAND_PREFIX.sub("", parse_command(call.input) or "").strip()
    program = line.partition(" ")[0].rpartition("/")[2]
    if not line or len(line) > MAX_COMMAND_CHARS or "\n" in line or "`" in line or program in _INSPECTING:
        return None
    return line


def parse_command(tool_input: str) -> str | None:
    """Return the shell command in a tool input as harnesses write it: `{"command": …}` with a string or a list."""
    try:
        command: Any = msgspec.json.decode(tool_input)
    except msgspec.DecodeError:
        return None
    if isinstance(command, dict):
        command = command.get("command", command.get("cmd"))
    if isinstance(command, list) and all(isinstance(part, str) for part in command):
        command = command[-1] if command[:2] == ["bash", "-lc"] else " ".join(command)
    return command if isinstance(command, str) else None


# -- files that are edited together


def group_edited_files(own: set[str], files_by_session: Mapping[str, set[str]]) -> list[list[str]]:
    """Group the files of a session that are often edited in the same sessions, and rarely one without the other."""
    if not 2 <= len(own) <= MAX_EDITED_FILES:
        return []
    groups: list[set[str]] = []
    for one, other in itertools.combinations(sorted(own), 2):
        both = sum(1 for edited in files_by_session.values() if one in edited and other in edited)
        either = sum(1 for edited in files_by_session.values() if one in edited or other in edited)
        if both >= MIN_SHARED_SESSIONS and both * 2 >= either:
            overlapping = [group for group in groups if group & {one, other}]
            groups = [group for group in groups if group not in overlapping] + [{one, other}.union(*overlapping)]
    return [sorted(group) for group in groups if len(group) <= MAX_GROUP_FILES]


def describe_file_groups(groups: Iterable[list[str]], root: str | None) -> list[Candidate]:
    """Make a candidate of each group of files, with paths relative to the project."""
    candidates = []
    for files in groups:
        paths = [path.removeprefix(root.rstrip("/") + "/") if root else path for path in files]
        listed = ", ".join(f"`{path}`" for path in paths[:-1])
        candidate = Candidate(
            content=f"{listed} and `{paths[-1]}` are edited together.",
            category="codebase",
            sector="semantic",
            importance=0.4,
            confidence=0.6,
            rule="files",
            message_id=None,
            files=files,
        )
        candidates.append(candidate)
    return candidates
