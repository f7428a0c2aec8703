"""Extraction of a session's summary: goal, result, decisions, changed files, fixed commands and open ends."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clankersd.db.commit_priority import yield_to_commits
from clankersd.memories.extraction.message_text import authored_text, split_sentences
from clankersd.memories.extraction.rules import (
    EDITING_TOOLS,
    MAX_CALLS_TO_FIX,
    SessionMessage,
    ToolCall,
    command_of,
    find_statements,
    parse_command,
)
from clankersd.recall.block import shorten
from clankersd.recall.skip import why_trivial
from clankersd.recall.summaries.shell_files import Patches, files_changed_by, patched_files

MAX_SUMMARY_CHARACTERS = 599
MAX_SENTENCE_CHARACTERS = 150
MAX_DECISION_CHARACTERS = 90
MAX_COMMAND_CHARACTERS = 60
MAX_OPEN_END_CHARACTERS = 80
LINE_CHARACTERS = (180, 150, 120, 100, 80, 60)
"""Lengths of a line that are tried until all lines fit."""

MAX_DECISIONS = MAX_FIXES = MAX_OPEN_ENDS = 2
MIN_FILES_CHARACTERS = 160
"""Room for the changed files that the other lines leave."""

ENDS_OF_SENTENCES = (".", "!", "?", "…", "。", "！", "？")
DECIDING_RULES = frozenset({"decision", "correction", "from-now-on"})
"""Rules of statement extraction that find decisions; the others find facts, preferences and causes."""

PLANNING_TOOLS = frozenset({"todowrite", "todo_write", "update_plan", "write_todos"})
FINISHED = frozenset({"completed", "cancelled", "canceled", "done"})

_PATCHED_FILE = re.compile(r"\*\*\* (?:(?:Add|Update|Delete) File|Move to): ([^\n\"\\]+)")


@dataclass(frozen=True)
class SessionRows:
    """Stored rows of a session: its first prompts, recent messages, tool calls and last error, oldest first."""

    project: str | None
    prompts: list[str]
    messages: list[SessionMessage]
    calls: list[ToolCall]
    error: str | None = None


@dataclass
class Summary:
    """The parts of a summary, each as it is listed."""

    goal: str = ""
    result: str = ""
    decisions: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    fixes: list[str] = field(default_factory=list)
    open_ends: list[str] = field(default_factory=list)

    def render(self) -> str | None:
        """Return the summary in less than 600 characters; None if there is no more to it than a question and an answer.

        Lines become shorter until they fit. The changed files get the room that the other lines leave.
        """
        if not (self.decisions or self.files or self.fixes or self.open_ends):
            return None
        lines = {
            "Goal": self.goal,
            "Result": self.result,
            "Decided": "; ".join(self.decisions),
            "Changed": "",
            "Failed, then worked": ", ".join(self.fixes),
            "Open": "; ".join(self.open_ends),
        }
        limit = MAX_SUMMARY_CHARACTERS - (MIN_FILES_CHARACTERS if self.files else 0)
        for max_line in LINE_CHARACTERS:
            shown = {label: shorten(text, max_line) for label, text in lines.items() if text}
            if len(_join(shown)) <= limit:
                break
        if not self.files:
            return _join(shown)
        room = MAX_SUMMARY_CHARACTERS - len(_join({**shown, "Changed": ""}))
        shown["Changed"] = list_files(self.files, room)
        return _join({label: shown[label] for label in lines if label in shown})


def _join(lines: dict[str, str]) -> str:
    ends = {label: "" if text.endswith(ENDS_OF_SENTENCES) else "." for label, text in lines.items()}
    return "\n".join(f"{label}: {text}{ends[label]}" for label, text in lines.items())


def extract(rows: SessionRows) -> str | None:
    """Return the summary of a session; None if there is nothing to say beyond its prompt and answer."""
    commands = [(call, command_of(call)) for call in rows.calls]
    fixes, failing = _follow_commands([(call, line) for call, line in commands if line])
    last_answer = next((one.text for one in reversed(rows.messages) if one.role == "assistant"), "")
    decisions = [one for one in find_statements(rows.messages) if one.rule in DECIDING_RULES]
    project_folder = rows.project.rstrip("/") + "/" if rows.project else ""
    return Summary(
        goal=_first_words(next((one for one in rows.prompts if why_trivial(one) is None), ""), MAX_SENTENCE_CHARACTERS),
        result=_first_words(last_answer, MAX_SENTENCE_CHARACTERS),
        decisions=[shorten(one.content.rstrip("."), MAX_DECISION_CHARACTERS) for one in decisions[-MAX_DECISIONS:]],
        files=list(dict.fromkeys(path.removeprefix(project_folder) for path in changed_files(rows.calls))),
        fixes=fixes[-MAX_FIXES:],
        open_ends=_find_open_ends(rows, failing),
    ).render()


def changed_files(calls: Iterable[ToolCall]) -> list[str]:
    """Return the files that tool calls changed, in order of their first change; failed calls changed none."""
    files: dict[str, None] = {}
    patches: Patches = {}
    for call in calls:
        yield_to_commits()
        if call.failed:
            continue
        if "*** Begin Patch" in call.input:
            patched = [path.strip() for path in _PATCHED_FILE.findall(call.input.replace("\\n", "\n"))]
            folder = ""  # where the files lie, which the path of the call tells: it is that of the first one
            if patched and call.path and call.path.endswith(f"/{patched[0]}"):
                folder = call.path.removesuffix(patched[0])
            files.update((path if path.startswith("/") else folder + path, None) for path in patched)
        elif call.path and call.name.rpartition("__")[2].lower() in EDITING_TOOLS:
            files[call.path] = None
            if "+++ " in call.input:
                with suppress(msgspec.DecodeError):
                    written = msgspec.json.decode(call.input, type=dict[str, Any]).values()
                    patched = [path for text in written if isinstance(text, str) for path in patched_files(text)]
                    patches[call.path.rpartition("/")[2]] = (call.path, patched)
        elif command := parse_command(call.input):
            files.update(dict.fromkeys(files_changed_by(command, patches)))
    return list(files)


def list_files(files: list[str], max_characters: int) -> str:
    """Join paths into a list of limited length: shortened to names if they do not fit, then counted."""
    for names in (files, [path.rpartition("/")[2] or path for path in files]):
        if len(listed := ", ".join(names)) <= max_characters:
            return listed
    listed = ""
    for number, name in enumerate(names):
        rest = f" and {len(names) - number} more"
        if len(listed) + len(name) + len(", ") + len(rest) > max_characters:
            return (listed or f"{len(names)} files") + (rest if listed else "")
        listed += f", {name}" if listed else name
    return listed


def _follow_commands(commands: list[tuple[ToolCall, str]]) -> tuple[list[str], list[str]]:
    """Return the commands that failed and then worked, and those that failed to the end.

    A command worked later if it succeeded as it was, or another one with the same program and subcommand did soon.
    """
    fixed: dict[str, None] = {}
    failing: dict[str, int] = {}
    for number, (call, line) in enumerate(commands):
        if call.failed:
            failing.pop(line, None)
            failing[line] = number
        elif call.success and line in failing:
            del failing[line]
            fixed[_quote(line)] = None
        elif call.success and len(program := line.split()[:2]) == 2:
            recent = [one for one, at in failing.items() if number - at <= MAX_CALLS_TO_FIX]
            for wrong in [one for one in recent if one.split()[:2] == program]:
                del failing[wrong]
                fixed[f"{_quote(wrong)} (as {_quote(line)})"] = None
    return list(fixed), list(failing)


def _find_open_ends(rows: SessionRows, failing: list[str]) -> list[str]:
    """Return what was left undone: steps of the last plan, an unanswered prompt, an error, failing commands."""
    found = _unfinished_steps(rows.calls)
    last = rows.messages[-1] if rows.messages else None
    if last and last.role == "user" and why_trivial(last.text) is None:
        is_only_prompt = len(rows.messages) == 1
        unanswered = "" if is_only_prompt else f": {_first_words(last.text, MAX_OPEN_END_CHARACTERS)}"
        found.append(f"not answered{unanswered}")
    if rows.error:
        found.append(f"error: {_first_words(rows.error, MAX_OPEN_END_CHARACTERS)}")
    found += [f"{_quote(line)} still fails" for line in reversed(failing)]
    return found[:MAX_OPEN_ENDS]


def _unfinished_steps(calls: list[ToolCall]) -> list[str]:
    plan = next((call for call in reversed(calls) if call.name.lower() in PLANNING_TOOLS and not call.failed), None)
    if plan is None:
        return []
    try:
        given: Any = msgspec.json.decode(plan.input)
    except msgspec.DecodeError:
        return []
    steps = (given.get("todos") or given.get("plan")) if isinstance(given, dict) else None
    unfinished = []
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("status") not in FINISHED:
            text = step.get("content") or step.get("step") or step.get("description")
            if isinstance(text, str):
                unfinished.append(shorten(" ".join(text.split()), MAX_OPEN_END_CHARACTERS))
    return unfinished


def _quote(command: str) -> str:
    return f"`{shorten(command, MAX_COMMAND_CHARACTERS)}`"


def _first_words(text: str, max_characters: int) -> str:
    """Return the beginning of what an author wrote, without code, injected text and line breaks."""
    authored = authored_text(text[: 20 * max_characters])
    words = " ".join(" ".join(split_sentences(authored) or authored.split()).split())
    return shorten(words, max_characters)
