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
