"""Random changes between searches: a daemon that went through them answers as one that has just been started."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.documents import finished
from helpers.waiting import settled

ROUNDS, CHANGES, QUERIES = 3, 40, 20

# Caches serve words and vectors of a small store as they do those of a large one. What is only approximate, the
# frequency of a word and the centre of a project, is computed each time.
PROGRAM = """
from clankersd.db import sqlite_engine
from clankersd.index import mirror, vector_block
from clankersd.search import centres, chunk_table, keyword, term_index
sqlite_engine._LOG_CHANGED_CHUNKS = sqlite_engine._LOG_CHANGED_CHUNKS.replace("100000", "60")
term_index.MIN_CACHED_FREQUENCY, term_index.MAX_ADDED_CHUNKS = 6, 12
term_index.TermFrequencies.get = lambda self, db, one, *_: db.engine.count_texts(db, self._full_text, one.word)
mirror.ROWS_PER_BLOCK = vector_block.ROWS_PER_BLOCK = 64
mirror.IDS_PER_PAGE, mirror.MAX_RANKED_DIRECTLY = 32, 16
keyword.MIN_PREFIXED_MESSAGES, chunk_table.MAX_NEW_TURNS = 5, 15
centres.CENTRE_TTL_SECONDS, centres.MIN_CENTRE_SAMPLE = -1.0, 12
from clankersd.__main__ import main
main()
"""
TEXT = """
    harbour lighthouse sprocket boat keeper lamp export parser_config getUser buffer index zorblax umbrella walnut
    quartz string str directory café 数据库的索引 検索の結果
"""
WORDS = TEXT.split()
PROJECTS = [f"/nowhere/{name}" for name in ("shop", "parser", "wiki")]
ROLES = ["user", "assistant", "user", "Grace", "Linus"]


class Changes:
    """Changes and searches, chosen by a seed."""

    def __init__(self, connection: RawConnection, seed: int) -> None:
        self.connection = connection
        self.chance = random.Random(seed)
        self.number = 0
        self.ids: dict[str, list[str]] = {"message": [], "session": [], "memory": [], "document": [], "skill": []}
        self.backups: list[str] = []
        rare: list[Callable[[], None]] = [self.repair, self.back_up, self.restore, self.merge]
        frequent = [self.store_messages, self.skill, self.memory, self.document, self.delete_session]
        self.all = [*rare, *frequent * 4]

    def text(self) -> str:
        self.number += 1
        words = self.chance.choices(WORDS, [1 / n for n in range(1, len(WORDS) + 1)], k=self.chance.choice([3, 8, 20]))
        return f"{self.chance.choice(['', '', 'Ada: ', 'Caroline: '])}{' '.join(words)} {self.number}"

    def one(self, kind: str) -> str | None:
        return self.chance.choice(self.ids[kind]) if self.ids[kind] else None

    def do(self, method: str, **params: Any) -> Any:
        """Change something; an id may be that of something that was deleted."""
        reply = self.connection.request(method, params)
        assert reply.get("error", {}).get("code") != -32603, (method, params, reply)
        return reply.get("result")

    def add(self, kind: str, result: Any) -> None:
        if result is not None:
            self.ids[kind].append(result["id"])

    def store_messages(self) -> None:
        session = f"s{self.chance.randrange(15)}"
        project = self.chance.choice(PROJECTS)
        self.do("upsertSession", session={"id": session, "projectPath": project, "title": f"titleword {self.text()}"})
        for _ in range(self.chance.choice([1, 3, 20])):
            name = self.one("message") if self.chance.random() < 0.1 else f"m{self.number}"
            message = {"id": name, "sessionId": session, "role": self.chance.choice(ROLES), "textContent": self.text()}
            self.do("upsertMessage", message=message)
            self.ids["message"].append(str(name))

    def delete_session(self) -> None:
        self.do("session.delete", id=f"s{self.chance.randrange(15)}")

    def skill(self) -> None:
        tags = self.chance.sample(WORDS[:8], 2)
        if (known := self.one("skill")) and self.chance.random() < 0.7:
            self.do("skill.update", id=known, tags=tags)
        else:
            self.add("skill", self.do("skill.create", name=f"skill{self.number}", description=self.text(), tags=tags))

    def memory(self) -> None:
        known = self.one("memory")
        if known is None or self.chance.random() < 0.5:
            project = self.chance.choice([None, *PROJECTS])
            added = self.do("memory.add", content=self.text(), force=True, project=project)
            self.add("memory", added["memory"])
        elif self.chance.random() < 0.5:
            self.do("memory.update", id=known, content=self.text(), scopes=["*"])
        else:
            self.do("memory.promote", id=known, tier="global", scope="global", scopes=["*"])

    def document(self) -> None:
        if (known := self.one("document")) and self.chance.random() < 0.5:
            self.do("document.update", id=known, title=f"{self.chance.choice(WORDS)} {self.number}")
        else:
            source = f"d{self.chance.randrange(4)}"
            text = "\n\n".join(f"# {self.text()}\n{self.text()}" for _ in range(3))
            self.add("document", self.do("document.ingest", text=text, source=source, title=self.text())["document"])

    def merge(self) -> None:
        project, into = self.chance.sample(PROJECTS, 2)
        self.do("project.merge", project=project, into=into)

    def repair(self) -> None:
        finished(self.connection, self.do("doctor.repair")["jobId"])

    def back_up(self) -> None:
        self.backups.append(finished(self.connection, self.do("backup.create")["jobId"])["path"])

    def restore(self) -> None:
        if self.backups:
            self.do("backup.restore", path=self.chance.choice(self.backups))

    def search(self) -> tuple[str, dict[str, Any]]:
        words = " ".join(self.chance.choices([*WORDS, "titleword"], k=self.chance.choice([1, 2, 4])))
        name = self.chance.choice(["", "", "What did Ada say about ", "What did Grace say about "])
        params: dict[str, Any] = {"query": name + words}
        method = self.chance.choice(["search", "search", "message.search", "memory.search", "skill.search"])
        params["mode"] = self.chance.choice(["keyword", "vector", "hybrid"])
        if method != "skill.search" and self.chance.random() < 0.4:
            params["project"] = self.chance.choice(PROJECTS)
        elif method == "search" and self.chance.random() < 0.3:
            params["filters"] = [{"field": "role", "op": "eq", "value": "Grace"}]
        return method, params


def answer(connection: RawConnection, method: str, params: dict[str, Any]) -> tuple[list[str], list[float], Any]:
    """The ids of what is found, their scores, and what is said about them."""
    connection.request(method, params)  # replaces vectors of deleted texts, which takes several searches after many
    reply = connection.call(method, **params)
    hits = reply.get("hits") or reply.get("messages") or reply.get("skills") or []
    names = [
        hit.get("chunkId") or next(hit[kind]["id"] for kind in ("message", "memory", "skill") if kind in hit)
        for hit in hits
    ]
    return names, [hit["score"] for hit in hits], (reply["mode"], reply["pending"], reply["weak"])


@pytest.mark.parametrize("seed", [1])
def test_search_after_changes_equals_that_of_a_new_daemon(home: Path, seed: int) -> None:
    daemon = DaemonProcess(home)
    daemon.program = ("-c", PROGRAM)
    try:
        changes = Changes(daemon.start().connect(120), seed)
        for _ in range(ROUNDS):
            queries = [changes.search() for _ in range(QUERIES)]
            for _ in range(CHANGES):
                changes.chance.choice(changes.all)()
                method, params = changes.chance.choice(queries)
                changes.connection.call(method, **params)
            settled(changes.connection)
            before = [answer(changes.connection, *query) for query in queries]
            changes.connection.socket.close()
            daemon.close()  # kills it
            changes.connection = daemon.start().connect(120)
            settled(changes.connection)
            for query, (names, scores, about) in zip(queries, before, strict=True):
                names_now, scores_now, about_now = answer(changes.connection, *query)
                assert (names_now, about_now) == (names, about), query
                # The salience of memories decays with time.
                assert scores_now == pytest.approx(scores, abs=1e-3 if query[0] == "memory.search" else 1e-4), query
        changes.connection.socket.close()
    finally:
        daemon.close()
