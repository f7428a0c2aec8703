"""Evaluation sets as events and questions: LoCoMo, BEAM and CoSQA, and other texts to hide them among.

The files are not part of the project. `load_sets` takes a folder with `locomo*.json`, `beam*.json` and `cosqa*.json`.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

ADVERSARIAL = 5
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MESSAGES_PER_SESSION = 40
OTHER_PROJECTS = 20

Event = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A question about a project, with the ids of the messages (or titles of documents) that answer it."""

    text: str
    project: str
    evidence: frozenset[str]


@dataclass
class EvaluationSet:
    """A set to be measured: its messages by project, or documents, and the questions about them."""

    name: str
    messages: dict[str, list[Event]] = field(default_factory=dict)
    documents: list[Event] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)

    def events(self) -> Iterator[Event]:
        """Yield sessions and messages in the order in which they are to be stored."""
        for project, messages in self.messages.items():
            known: set[str] = set()
            for message in messages:
                if message["sessionId"] not in known:
                    known.add(message["sessionId"])
                    session = {"id": message["sessionId"], "projectPath": project, "createdAt": message["createdAt"]}
                    yield {"session": session}
                yield {"message": message}

    @property
    def texts(self) -> list[str]:
        of_messages = [message["textContent"] for messages in self.messages.values() for message in messages]
        return of_messages or [document["text"] for document in self.documents]


def load_sets(folder: Path, names: list[str]) -> list[EvaluationSet]:
    """Load the sets with these names: locomo, roles, beam, cosqa, documents."""
    loaded = []
    for name in names:
        file = {"roles": "locomo", "documents": "cosqa"}.get(name, name)
        [path] = folder.glob(f"{file}*.json")
        loaded.append(_LOADERS[name](json.loads(path.read_text())))
    return loaded


def locomo(items: list[Event], as_roles: bool = False) -> EvaluationSet:
    """Short turns of two people. As roles, one is the user and the other the assistant, with the name in the text."""
    loaded = EvaluationSet("roles" if as_roles else "locomo")
    for item in items:
        conversation, project = item["conversation"], f"/{loaded.name}/{item['sample_id']}"
        messages = loaded.messages.setdefault(project, [])
        for key in sorted((key for key in conversation if re.fullmatch(r"session_\d+", key)), key=_number):
            at = _moment(conversation[f"{key}_date_time"])
            for place, turn in enumerate(conversation[key]):
                role, text = turn["speaker"], turn["text"]
                if as_roles:
                    text = f"{role}: {text}"
                    role = "user" if role == conversation["speaker_a"] else "assistant"
                messages.append(_message(project, key, turn["dia_id"], role, text, at + place * 1000))
        known = {message["id"] for message in messages}
        for qa in item["qa"]:
            evidence = {f"{project}/{one}" for text in qa["evidence"] for one in re.findall(r"D\d+:\d+", text)} & known
            if qa["category"] != ADVERSARIAL and evidence:
                loaded.questions.append(Question(qa["question"], project, frozenset(evidence)))
    return loaded


def beam(chats: list[Event]) -> EvaluationSet:
    """Long messages of a user and an assistant; a question without evidence is answered nowhere."""
    loaded = EvaluationSet("beam")
    for chat in chats:
        project = f"/beam/{chat['chat']}"
        messages = loaded.messages.setdefault(project, [])
        for number, session in enumerate(chat["sessions"]):
            for place, one in enumerate(session):
                at = START_MS + number * 7 * DAY_MS + place * 60_000
                messages.append(_message(project, number, one["id"], one["role"], one["content"], at))
        for one in chat["questions"]:
            evidence = frozenset(f"{project}/{message}" for message in one["evidence"])
            loaded.questions.append(Question(one["question"], project, evidence))
    return loaded


def cosqa(data: Event, as_documents: bool = False) -> EvaluationSet:
    """Functions, each a message in a session of its own or a document, and questions that people asked the web."""
    loaded = EvaluationSet("documents" if as_documents else "cosqa")
    project = f"/{loaded.name}"
    for number, text in enumerate(data["functions"]):
        if as_documents:
            loaded.documents.append({"title": f"{project}/{number}", "text": text, "project": project})
        else:
            loaded.messages.setdefault(project, []).append(_message(project, number, number, "user", text, START_MS))
    for one in data["questions"]:
        loaded.questions.append(Question(one["question"], project, frozenset([f"{project}/{one['function']}"])))
    return loaded


_LOADERS: dict[str, Any] = {
    "locomo": locomo,
    "roles": lambda items: locomo(items, as_roles=True),
    "beam": beam,
    "cosqa": cosqa,
    "documents": lambda data: cosqa(data, as_documents=True),
}


def other_events(sets: list[EvaluationSet], count: int, seed: int = 7) -> Iterator[Event]:
    """Yield `count` messages of other projects, made of sentences of all sets: the same words in other company."""
    chance = random.Random(seed)
    sentences = [part for one in sets for text in one.texts for part in re.split(r"(?<=[.!?\n])\s+", text) if part]
    for number in range(count):
        session = f"other-{number // MESSAGES_PER_SESSION}"
        if number % MESSAGES_PER_SESSION == 0:
            path = f"/other/{chance.randrange(OTHER_PROJECTS)}"
            yield {"session": {"id": session, "projectPath": path, "createdAt": START_MS}}
        text = " ".join(chance.choice(sentences)[:400] for _ in range(chance.choice((1, 2, 3, 6))))
        role = "user" if number % 2 == 0 else "assistant"
        yield {
            "message": {
                "id": f"other-{number}",
                "sessionId": session,
                "role": role,
                "textContent": text,
                "createdAt": START_MS + number,
            }
        }


def failed_tools(one: EvaluationSet, seed: int = 7) -> Iterator[Event]:
    """Yield a failed tool call for every message of a set: a command and a stack trace that use some of its words."""
    chance = random.Random(seed)
    for messages in one.messages.values():
        for message in messages:
            words = re.findall(r"[A-Za-z]{4,}", message["textContent"])[:200] or ["nothing"]
            chosen = [chance.choice(words).lower() for _ in range(6)]
            path = f"src/{chosen[0]}/{chosen[1]}.py"
            error = (
                f"Exit code 1\nTraceback (most recent call last):\n"
                f'  File "{path}", line {chance.randrange(500)}, in {chosen[2]}_{chosen[3]}\n'
                f"ValueError: {chosen[4]} {chosen[5]} is not supported"
            )
            yield {
                "tool": {
                    "id": f"{message['id']}/failed",
                    "sessionId": message["sessionId"],
                    "toolName": "Bash",
                    "toolInput": json.dumps({"command": f"python -m {chosen[0]}.{chosen[1]} --{chosen[2]}"}),
                    "success": False,
                    "errorMessage": error,
                    "createdAt": message["createdAt"] + 1,
                }
            }


def _message(project: str, session: object, number: object, role: str, text: str, at: int) -> Event:
    return {
        "id": f"{project}/{number}",
        "sessionId": f"{project}#{session}",
        "role": role,
        "textContent": text,
        "createdAt": at,
    }


def _number(key: str) -> int:
    return int(key.rpartition("_")[2])


def _moment(text: str) -> int:
    return int(datetime.strptime(text, "%I:%M %p on %d %B, %Y").astimezone().timestamp() * 1000)
