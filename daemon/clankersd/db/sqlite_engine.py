"""The SQLite engine: FTS5 for words, sqlite-vec for vectors, pragmas for the rest."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import apsw
import msgspec

from clankers_protocol.admin import Finding
from clankersd.db import fts
from clankersd.db.engine import (
    CHUNK_TEXT,
    HEADER,
    MAX_EXACT_COUNT,
    OCCURRENCES_PER_CHUNK,
    OFFSETS,
    TOKENIZER,
    DatabaseSizes,
    Engine,
    FullText,
)
from clankersd.db.fts import quote_phrase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from clankersd.db.backup import Copy
    from clankersd.db.connection import Db, Extension
    from clankersd.db.store import Store

HASH_BYTES = 16 * 1024 * 1024
"""Memory for words before they are written out; more makes the comparison faster."""

PAGES_PER_STEP = 32
"""Pages that a step of a vacuum frees, which events wait for."""

_INCREMENTAL = 2

COUNTED_TEXTS = 2_000
MIN_ESTIMATE = 3 * MAX_EXACT_COUNT
"""So many of the oldest and of the newest texts with a word are counted first. If they are so dense that there must be
many more than are counted exactly, their density is taken for that of all."""

MAX_LOGGED_CHANGES = 100_000
"""Changes of chunks that are logged: a reader that missed some reads all chunks again."""


_QUEUE_CHUNKS = """
    INSERT INTO index_queue (generation, chunk)
    SELECT index_generations.id, chunks.id FROM chunks CROSS JOIN index_generations
    ON +index_generations.chunking = chunks.chunking  -- the plus: there are one or two generations, not worth an index
    WHERE chunks.id >= :first AND state IN ('live', 'building') AND provider <> 'none'
    ON CONFLICT DO NOTHING
"""
_LAST_INDEXED = "(SELECT coalesce(max(id), 0) FROM chunks_fts_docsize)"
_INDEX_NEW = f"""
    INSERT INTO chunks_fts (rowid, text, header, extra)
    SELECT id, {CHUNK_TEXT}, header, extra FROM chunks WHERE id > {_LAST_INDEXED} ORDER BY id
"""
_BELOW = "SELECT id FROM chunks WHERE id < :below ORDER BY id DESC LIMIT :limit"
_INDEX_BELOW = f"""
    INSERT INTO chunks_fts (rowid, text, header, extra)
    SELECT id, {CHUNK_TEXT}, header, extra FROM chunks WHERE id IN ({_BELOW}) ORDER BY id
"""
_COUNT_OLDEST = """
    SELECT count(*), max(rowid) FROM (SELECT rowid FROM {index} WHERE {index} MATCH :phrase ORDER BY rowid LIMIT :limit)
"""
_COUNT_NEWEST = """
    SELECT count(*), min(rowid)
    FROM (SELECT rowid FROM {index} WHERE {index} MATCH :phrase ORDER BY rowid DESC LIMIT :limit)
"""
_LOCATED = f"""
    SELECT json_group_array(
        doc * {OCCURRENCES_PER_CHUNK} + iif(col = 'header', {HEADER}, 0)
        + iif(col = 'text', min(offset, {OFFSETS - 1}), {OFFSETS - 1})
    ) FROM chunks_instances WHERE term = :stem
"""
_CHUNKS = f"""
    SELECT json_group_array(rowid * {OCCURRENCES_PER_CHUNK} + {OFFSETS - 1}) FROM chunks_fts
    WHERE chunks_fts MATCH :phrase AND rowid BETWEEN :first AND :last
"""
_ADDED = """
    SELECT clankers_occurrences(chunks_fts) FROM chunks_fts
    WHERE chunks_fts MATCH :phrase AND rowid > :last ORDER BY rowid LIMIT :limit
"""
_LOG_MOVED_CHUNKS = """
    CREATE TABLE IF NOT EXISTS temp.moved_chunks (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        chunk    INTEGER NOT NULL UNIQUE
    );
    CREATE TEMP TRIGGER IF NOT EXISTS moved_chunks_au AFTER UPDATE OF project ON main.chunks BEGIN
        DELETE FROM moved_chunks WHERE chunk = NEW.id;
        INSERT INTO moved_chunks (chunk) VALUES (NEW.id);
    END;
"""
_LOG_CHANGED_CHUNKS = f"""
    CREATE TABLE IF NOT EXISTS temp.changed_chunks (position INTEGER PRIMARY KEY AUTOINCREMENT, chunk INTEGER NOT NULL);
    CREATE TEMP TRIGGER IF NOT EXISTS changed_chunks_au
    AFTER UPDATE OF project, role, position, created_at ON main.chunks BEGIN
        INSERT INTO changed_chunks (chunk) VALUES (NEW.id);
    END;
    CREATE TEMP TRIGGER IF NOT EXISTS changed_chunks_ad AFTER DELETE ON main.chunks BEGIN
        INSERT INTO changed_chunks (chunk) VALUES (OLD.id);
    END;
    CREATE TEMP TRIGGER IF NOT EXISTS changed_chunks_ai AFTER INSERT ON temp.changed_chunks BEGIN
        DELETE FROM changed_chunks WHERE position <= NEW.position - {MAX_LOGGED_CHANGES};
    END;
"""
_IS_SPARSE = """
    SELECT sum(pgsize) > 100 * max(pgsize) AND sum(payload) < 0.5 * sum(pgsize) FROM dbstat WHERE name = 'chunks'
"""
_OBJECTS = """
    SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'index', 'trigger') AND sql IS NOT NULL
"""

_connections_with_function: WeakSet[apsw.Connection] = WeakSet()


class SqliteEngine(Engine):
    name = "sqlite"
    vector_extension = "sqlite-vec"
    migrations_table = """
        CREATE TABLE IF NOT EXISTS _migrations (
            version    INTEGER PRIMARY KEY,
            name       TEXT NOT NULL,
            checksum   TEXT NOT NULL,
            applied_at INTEGER NOT NULL
        ) STRICT
    """

    def tokenizer(self, db: "Db") -> Any:
        return db.raw.fts5_tokenizer(*TOKENIZER)

    def index_full_text(self, db: "Db") -> None:
        db.execute(_INDEX_NEW)

    def count_unindexed_chunks(self, db: "Db") -> int:
        return int(db.value(f"SELECT count(*) FROM chunks WHERE id > {_LAST_INDEXED}"))

    def last_indexed_chunk(self, db: "Db") -> int:
        return int(db.value(f"SELECT {_LAST_INDEXED}"))

    def count_texts(self, db: "Db", index: str, word: str) -> int:
        """Events wait for these statements: a frequent word is counted only among the oldest and the newest texts."""
        params = {"phrase": quote_phrase(word), "limit": COUNTED_TEXTS}
        [(oldest, highest)] = db.tuples(_COUNT_OLDEST.format(index=index), params)
        if oldest < COUNTED_TEXTS:
            return int(oldest)
        [(newest, lowest)] = db.tuples(_COUNT_NEWEST.format(index=index), params)
        last = db.value(f"SELECT max(id) FROM {index}_docsize")
        estimate = int((oldest / highest + newest / (last - lowest + 1)) / 2 * last)
        if estimate > MIN_ESTIMATE:
            return estimate
        [(count, _)] = db.tuples(_COUNT_OLDEST.format(index=index), params | {"limit": MAX_EXACT_COUNT + 1})
        return int(count) if count <= MAX_EXACT_COUNT else max(int(count), estimate)

    def occurrences(self, db: "Db", stem: str) -> list[int]:
        return _decode(db.value(_LOCATED, {"stem": stem}))

    def chunks_with(self, db: "Db", word: str, first: int, last: int) -> list[int]:
        return _decode(db.value(_CHUNKS, {"phrase": quote_phrase(word), "first": first, "last": last}))

    def occurrences_after(self, db: "Db", word: str, last: int, limit: int) -> list[list[int]]:
        if db.raw not in _connections_with_function:
            db.raw.register_fts5_function("clankers_occurrences", _encode_occurrences)
            _connections_with_function.add(db.raw)
        rows = db.tuples(_ADDED, {"phrase": quote_phrase(word), "last": last, "limit": limit})
        return [_decode(array) for (array,) in rows]

    def find_fault(self, db: "Db", index: FullText, newest_chunk: int) -> str | None:
        """FTS5's own check takes the write lock for as long as it runs.

        So all texts are tokenized again into a temporary table, and the words of both are compared: on a read-only
        connection this delays no write. The words of later chunks may be indexed or not.
        """
        texts, indexed = f"SELECT {index.key} FROM {index.content}", f"SELECT id FROM {index.name}_docsize"
        if index.name == "chunks_fts":
            texts, indexed = f"{texts} WHERE id <= {newest_chunk}", f"{indexed} WHERE id <= {newest_chunk}"
            index = replace(index, content=f"{index.content} WHERE id IN (SELECT id FROM {index.name}_docsize)")
        try:
            verdict = db.value(f'PRAGMA integrity_check("{index.name}")')
            if verdict != "ok":
                return "it is damaged"
            if count := db.value(f"SELECT count(*) FROM ({_symmetric_difference(texts, indexed)})"):
                return f"{count:,} texts are not in it, or no longer there"
            if count := _count_wrong_words(db, index):
                return f"{count:,} words in it are not those of the texts"
        except apsw.CorruptError:
            return "it is damaged"
        return None

    def rebuild(self, db: "Db", index: FullText) -> None:
        fts.rebuild(db, index.name)

    def clear_full_text(self, db: "Db") -> None:
        fts.clear(db, "chunks_fts")

    def index_full_text_below(self, db: "Db", below: int, limit: int) -> int | None:
        params = {"below": below, "limit": limit}
        db.execute(_INDEX_BELOW, params)
        return db.value(f"SELECT min(id) FROM ({_BELOW})", params)  # type: ignore[no-any-return]

    def create_vectors(self, db: "Db", table: str, dims: int) -> None:
        db.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING vec0 (embedding float[{dims}] distance_metric=cosine)"
        )
        # Temporary: a database opened without sqlite-vec must still be able to delete chunks.
        db.execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS {table}_ad AFTER DELETE ON main.chunks "
            f"BEGIN DELETE FROM {table} WHERE rowid = OLD.id; END"
        )

    def drop_vectors(self, db: "Db", table: str) -> None:
        db.execute(f"DROP TRIGGER IF EXISTS temp.{table}_ad")
        db.execute(f"DROP TABLE IF EXISTS {table}")

    def insert_vector(self, db: "Db", table: str, chunk: int, embedding: bytes) -> None:
        params = {"id": chunk, "embedding": embedding}
        db.execute(f"DELETE FROM {table} WHERE rowid = :id", params)
        db.execute(f"INSERT INTO {table} (rowid, embedding) VALUES (:id, :embedding)", params)

    def note_new_chunk(self, db: "Db") -> None:
        if db.first_new_chunk is None:
            db.first_new_chunk = db.raw.last_insert_rowid()
            db.before_commit(self.queue_new_chunks)

    def queue_new_chunks(self, db: "Db") -> None:
        if db.first_new_chunk is not None:
            db.execute(_QUEUE_CHUNKS, {"first": db.first_new_chunk})
            db.first_new_chunk = None

    def delete_vector(self, db: "Db", table: str, chunk: int) -> None:
        db.execute(f"DELETE FROM {table} WHERE rowid = :id", {"id": chunk})

    def nearest(
        self, db: "Db", table: str, query: bytes, k: int, eligible: str, params: dict[str, Any]
    ) -> list[tuple[int, float]]:
        """Compare with every vector in vec0: for small sets."""
        sql = (
            f"SELECT rowid, distance FROM {table} "
            f"WHERE embedding MATCH :query AND k = :k AND rowid IN ({eligible}) ORDER BY distance"
        )
        rows = db.fetch(sql, params | {"query": query, "k": k})
        return [(row["rowid"], 1.0 - row["distance"]) for row in rows]

    def log_moved_chunks(self, db: "Db") -> None:
        db.execute(_LOG_MOVED_CHUNKS)

    def has_moved_chunks(self, db: "Db") -> bool:
        return bool(db.value("SELECT 1 FROM sqlite_temp_master WHERE name = 'moved_chunks'"))

    def log_changed_chunks(self, db: "Db") -> bool:
        db.execute(_LOG_CHANGED_CHUNKS)
        return True

    def has_changed_chunks(self, db: "Db") -> bool:
        return bool(db.value("SELECT 1 FROM sqlite_temp_master WHERE name = 'changed_chunks'"))

    def measure(self, db: "Db") -> DatabaseSizes:
        page = db.value("PRAGMA page_size")
        wal = f"{db.raw.db_filename('main')}-wal"
        return DatabaseSizes(
            database=page * db.value("PRAGMA page_count"),
            wal=os.stat(wal).st_size if os.path.exists(wal) else 0,  # noqa: PTH110, PTH116  # SQLite names it, not us
            free=page * db.value("PRAGMA freelist_count"),
        )

    def table_names(self, db: "Db") -> list[str]:
        return [row[0] for row in db.tuples("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]

    def column_names(self, db: "Db", table: str) -> list[str]:
        return [name for (name,) in db.tuples(f"SELECT name FROM pragma_table_info('{table}')")]

    def integrity_errors(self, db: "Db", table: str) -> list[str]:
        verdicts = [row["integrity_check"] for row in db.fetch(f'PRAGMA integrity_check("{table}")')]
        return [text for text in verdicts if text != "ok"]

    def findings(self, db: "Db", vec: "Extension") -> list[Finding]:
        from clankersd.db.connection import has_wal_reset_bug  # which imports this module

        version = apsw.sqlite_lib_version()
        if has_wal_reset_bug(version):
            text = f"SQLite {version} may lose commits when it restarts its write-ahead log."
            return [Finding("sqlite", "problem", text, "pip install --upgrade apsw, then restart the daemon")]
        if vec.version is None:
            text = f"SQLite {version} cannot load sqlite-vec: vector search is unavailable ({vec.problem})."
            return [Finding("sqlite", "warning", text, "pip install sqlite-vec, then restart the daemon")]
        return [Finding("sqlite", "ok", f"SQLite {version} with sqlite-vec {vec.version}.")]

    def missing_objects(self, db: "Db") -> dict[tuple[str, str], str]:
        from clankersd.db.migrations import migrated_in_memory  # which imports this module

        expected = {(row["type"], row["name"]): row["sql"] for row in migrated_in_memory().fetch(_OBJECTS)}
        present = {(row["type"], row["name"]) for row in db.fetch(_OBJECTS)}
        return {key: sql for key, sql in expected.items() if key not in present}

    def references(self, db: "Db") -> dict[str, set[str]]:
        sql = "SELECT name, \"table\" FROM sqlite_master, pragma_foreign_key_list(name) WHERE type = 'table'"
        found: dict[str, set[str]] = {}
        for name, other in db.tuples(sql):
            found.setdefault(name, set()).add(other)
        return found

    def primary_key(self, db: "Db", table: str) -> list[str]:
        sql = f"SELECT name FROM pragma_table_info('{table}') WHERE pk > 0 ORDER BY pk"
        return [name for (name,) in db.tuples(sql)]

    def copied_tables(self, db: "Db") -> list[str]:
        sql = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite^_%' ESCAPE '^'"
        tables: dict[str, str] = dict(db.tuples(sql))
        virtual = [name for name, statement in tables.items() if statement.startswith("CREATE VIRTUAL")]
        shadows = tuple(f"{name}_" for name in virtual)  # not all of them are marked as such in pragma_table_list
        return [name for name in tables if name not in virtual and not name.startswith(shadows)]

    def stored_order(self, db: "Db", table: str) -> str | None:
        sql = "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = :table"
        return None if db.value(sql, {"table": table}) else "rowid"

    @contextmanager
    def triggers_disabled(self, db: "Db") -> Iterator[None]:
        """Drop the triggers and create them again, as a repair does if the copy is interrupted."""
        for (name,) in db.tuples("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            db.execute(f"DROP TRIGGER {name}")
        try:
            yield
        finally:
            for (kind, _), sql in self.missing_objects(db).items():
                if kind == "trigger":
                    db.execute(sql)
            for name in ("chunks_fts", "memories_fts"):
                fts.rebuild(db, name)

    def insert_rows(self, db: "Db", table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        places = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) ON CONFLICT DO NOTHING"
        db.raw.executemany(sql, rows)

    def set_sequences(self, db: "Db") -> None:
        """Do nothing: SQLite numbers after the highest number."""

    def back_up(
        self,
        db: "Db",
        folder: Path,
        reason: str,
        is_stopped: "Callable[[], bool]" = lambda: False,
        copy: "Copy | None" = None,
    ) -> Path:
        from clankersd.db.backup import back_up  # which imports the connection, and that this module

        return back_up(db, folder, reason, is_stopped, copy)

    async def merge_full_text(self, store: "Store") -> list[str]:
        slow = await store.read(fts.list_slow_tables)
        for name in slow:
            await fts.merge_segments(store, name)
        return slow

    async def erase_free_space(self, store: "Store", progress: "Callable[..., Awaitable[None]]") -> None:
        """Erase words in full-text segments, free pages, and old pages in the WAL."""
        for name in await store.read(fts.list_tables):
            await progress(0, None, f"rewriting {name}")
            await fts.merge_segments(store, name)
        await store.run_exclusive(_vacuum_if_sparse)
        total = free = await store.read(_free_pages)
        while free:
            await progress(total - free, total, "freeing pages")
            await store.run_exclusive(lambda db: db.fetch(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})"))
            free = await store.read(_free_pages)
        await progress(total, total)
        await store.truncate_wal()  # it still holds old versions of the pages

    def orphans(self, db: "Db", table: str) -> list[Any]:
        return [row["rowid"] for row in db.fetch(f'PRAGMA foreign_key_check("{table}")')]


def _vacuum_if_sparse(db: "Db") -> None:
    """Run a full VACUUM if the pages of chunks are half empty, as those are whose texts a migration has removed.

    A database that was created without incremental vacuum needs one as well.
    """
    if db.value("PRAGMA auto_vacuum") != _INCREMENTAL or db.value(_IS_SPARSE):
        db.execute("PRAGMA auto_vacuum = incremental")
        db.execute("VACUUM")


def _free_pages(db: "Db") -> int:
    return int(db.value("PRAGMA freelist_count"))


def _count_wrong_words(db: "Db", index: FullText) -> int:
    # The tokenizer is the last option in the table's SQL.
    tokenizer = db.value(
        "SELECT substr(sql, instr(sql, 'tokenize')) FROM sqlite_master WHERE name = :name", {"name": index.name}
    )
    db.execute(f"CREATE VIRTUAL TABLE temp.expected USING fts5 ({index.columns}, content = '', {tokenizer}")
    db.execute("INSERT INTO temp.expected (expected, rank) VALUES ('hashsize', :bytes)", {"bytes": HASH_BYTES})
    db.execute(
        f"INSERT INTO temp.expected (rowid, {index.columns}) SELECT {index.key}, {index.columns} FROM {index.content}"
    )
    db.execute("CREATE VIRTUAL TABLE temp.expected_words USING fts5vocab (temp, expected, row)")
    db.execute(f"CREATE VIRTUAL TABLE temp.indexed_words USING fts5vocab (main, {index.name}, row)")
    difference = _symmetric_difference(
        "SELECT term, doc, cnt FROM temp.expected_words", "SELECT term, doc, cnt FROM temp.indexed_words"
    )
    return int(db.value(f"SELECT count(DISTINCT term) FROM ({difference})"))


def _symmetric_difference(one: str, other: str) -> str:
    return f"SELECT * FROM ({one} EXCEPT {other}) UNION ALL SELECT * FROM ({other} EXCEPT {one})"


def _encode_occurrences(row: apsw.FTS5ExtensionApi, *_: Any) -> str:
    text, header, extra = row.phrase_locations(0)
    base = row.rowid * OCCURRENCES_PER_CHUNK
    encoded = [base + min(offset, OFFSETS - 1) for offset in text]
    encoded += [base + HEADER + OFFSETS - 1 for _ in header]
    encoded += [base + OFFSETS - 1 for _ in extra]
    return msgspec.json.encode(encoded).decode()


def _decode(array: str) -> list[int]:
    return msgspec.json.decode(array, type=list[int])
