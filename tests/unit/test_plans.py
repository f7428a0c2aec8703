"""Query plans of the statements that every event and every search runs: no full table scans."""

from pathlib import Path

import apsw
import pytest

from clankers_protocol.search import Filter
from clankersd.capture.identity import _REPORTED_BY_HOOK
from clankersd.db.connection import Db
from clankersd.db.migrations import migrate
from clankersd.memories.filters import memory_visibility
from clankersd.memories.scopes import AllowedScopes
from clankersd.memories.store import CURRENT
from clankersd.recall.answers import ANSWERS_TO_CALLS, ANSWERS_TO_QUESTIONS, find_answers
from clankersd.search.filters import NO_MEMORIES, Criteria, build_filter


@pytest.fixture
def db(tmp_path: Path) -> Db:
    made = Db(apsw.Connection(str(tmp_path / "test.db")))
    migrate(made, tmp_path)
    return made


def plan(db: Db, sql: str, params: dict[str, object]) -> str:
    return " | ".join(row["detail"] for row in db.fetch(f"EXPLAIN QUERY PLAN {sql}", params))


@pytest.mark.parametrize("owner", ["message_id", "tool_id", "file_id"])
def test_query_for_the_chunks_of_an_owner_uses_its_index(db: Db, owner: str) -> None:
    sql = f"SELECT id FROM chunks WHERE {owner} = :owner AND chunking = :chunking ORDER BY position"
    assert f"idx_chunks_{owner.removesuffix('_id')}" in plan(db, sql, {"owner": 1, "chunking": 1})


@pytest.mark.parametrize(
    ("criteria", "index"),
    [
        (Criteria(project="/p"), "idx_chunks_project"),
        (Criteria(session_id="s"), "idx_chunks_turn"),
        (Criteria(since=5), "idx_chunks_created"),
        (Criteria(filters=[Filter("role", "eq", "Ada")]), "idx_chunks_role"),
        (Criteria(sources=["memory"]), "idx_chunks_chunking"),
    ],
)
def test_query_of_a_filter_uses_an_index(db: Db, criteria: Criteria, index: str) -> None:
    for visibility in (memory_visibility(AllowedScopes(("global",)), CURRENT, {"now": 1}), NO_MEMORIES):
        chunk_filter = build_filter(criteria, 1, visibility)
        shown = plan(db, chunk_filter.ids, chunk_filter.params)
        assert index in shown
        assert "SCAN chunks" not in shown


def test_query_of_a_union_of_filters_uses_the_indexes_of_both(db: Db) -> None:
    memories = build_filter(
        Criteria(sources=["memories"]), 1, memory_visibility(AllowedScopes(("global",)), CURRENT, {"now": 1})
    )
    passages = build_filter(Criteria(sources=["sessions"], project="/p"), 1, NO_MEMORIES)
    both = memories.union(passages)
    shown = plan(db, both.ids, both.params)
    assert "idx_chunks_chunking" in shown
    assert "idx_chunks_project" in shown
    assert "SCAN chunks" not in shown


def test_query_for_what_a_hook_reported_reads_only_messages_of_the_session(db: Db) -> None:
    shown = plan(db, _REPORTED_BY_HOOK, {"session": "s", "kind": "prompt", "digest": "d", "prompt": "p"})
    assert "idx_told_messages_by_hook (session_id=? AND kind=?)" in shown


@pytest.mark.parametrize("sql", [ANSWERS_TO_QUESTIONS, ANSWERS_TO_CALLS])
def test_query_for_answers_reads_the_messages_of_a_session_in_order(db: Db, sql: str) -> None:
    shown = plan(db, sql, {"ids": "[]", "end": 1})
    assert shown.count("SEARCH later USING INDEX idx_messages_session") == 2
    assert "SCAN later" not in shown
    assert "TEMP B-TREE" not in shown


def test_query_for_answers_takes_time_in_proportion_to_the_length_of_a_turn(db: Db) -> None:
    def instructions(length: int) -> int:
        """Store a turn with this many answers between two prompts; return what finding the last one takes."""
        session = f"s{length}"
        add = "INSERT INTO messages (id, session_id, role, text_content, created_at) VALUES (:id, :s, :role, 'x', :at)"
        db.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES (:s, 0, 0)", {"s": session})
        roles = ["user", *["assistant"] * length, "user", *["assistant"] * length]
        for at, role in enumerate(roles):
            db.execute(add, {"id": f"{session}-{at}", "s": session, "role": role, "at": at})
        call = "INSERT INTO tools (id, session_id, tool_name, success, created_at) VALUES (:id, :s, 'Bash', 0, 1)"
        db.execute(call, {"id": f"{session}-call", "s": session})
        count = 0

        def is_stopped() -> bool:
            nonlocal count
            count += 1
            return False

        db.raw.set_progress_handler(is_stopped, 1)
        answers = find_answers(db, [f"{session}-0"], {"passage": f"{session}-call"})
        db.raw.set_progress_handler(None)
        last = f"{session}-{length}"
        assert {asked: one.message_id for asked, one in answers.items()} == {f"{session}-0": last, "passage": last}
        return count

    assert instructions(1_000) < 15 * instructions(100)
