"""How SQLite goes about the statements that every event and every search runs: never through a whole table."""

from pathlib import Path

import apsw
import pytest

from clankers_protocol.search import Filter, Search
from clankersd.db.connection import Db
from clankersd.db.migrations import migrate
from clankersd.memories.scopes import AllowedScopes
from clankersd.memories.store import CURRENT
from clankersd.search.filters import Visible, eligible


@pytest.fixture
def db(tmp_path: Path) -> Db:
    made = Db(apsw.Connection(str(tmp_path / "test.db")))
    migrate(made, tmp_path)
    return made


def plan(db: Db, sql: str, params: dict[str, object]) -> str:
    return " | ".join(row["detail"] for row in db.fetch(f"EXPLAIN QUERY PLAN {sql}", params))


@pytest.mark.parametrize("owner", ["message_id", "tool_id", "file_id"])
def test_the_chunks_of_an_owner_are_found_by_their_owner(db: Db, owner: str) -> None:
    sql = f"SELECT id FROM chunks WHERE {owner} = :owner AND chunking = :chunking ORDER BY position"
    assert f"idx_chunks_{owner.removesuffix('_id')}" in plan(db, sql, {"owner": 1, "chunking": 1})


@pytest.mark.parametrize(
    ("request_", "index"),
    [
        (Search("q", project="/p"), "idx_chunks_turn"),
        (Search("q", session_id="s"), "idx_chunks_turn"),
        (Search("q", since=5), "idx_chunks_created"),
        (Search("q", filters=[Filter("role", "eq", "Ada")]), "idx_chunks_role"),
        (Search("q", sources=["memory"]), "idx_chunks_chunking"),
    ],
)
def test_what_a_filter_leaves_is_found_by_an_index(db: Db, request_: Search, index: str) -> None:
    visible = Visible(AllowedScopes(("global",)), CURRENT, {"now": 1})
    allowed = eligible(request_, 1, visible)
    shown = plan(db, allowed.ids, allowed.params)
    assert index in shown
    assert "SCAN chunks" not in shown
