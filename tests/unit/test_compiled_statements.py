"""A statement is compiled once, whatever is bound to it and whatever else runs in between."""

from pathlib import Path
from typing import Any

import pytest

from clankersd.db import Db, migrations
from clankersd.db.connection import connect

OTHER_STATEMENTS = 100
LATEST = "SELECT max(turn) FROM chunks WHERE session_id = :session"


@pytest.mark.anyio
async def test_statement_is_not_compiled_again_for_other_values(tmp_path: Path) -> None:
    connection = await connect(tmp_path / "clankers.db", "full")
    compiled: list[str] = []

    def authorize(_operation: int, table: str | None, *_: Any) -> int:
        compiled.append(table or "")  # SQLite asks while it compiles
        return 0

    def run(db: Db) -> None:
        migrations.migrate(db, tmp_path)
        db.raw.authorizer = authorize  # which has SQLite compile everything once more
        db.value(LATEST, {"session": "first"})
        for number in range(OTHER_STATEMENTS):
            db.value("SELECT 1 WHERE :number >= 0", {"number": number})
            db.value(f"SELECT {number % 10}")
        compiled.clear()
        db.value(LATEST, {"session": "second"})

    try:
        await connection.run(run)
    finally:
        await connection.close()
    assert compiled == []
