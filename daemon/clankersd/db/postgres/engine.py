"""The PostgreSQL engine: tsvector and GIN for words, pgvector for vectors, the catalogue for the rest."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clankers_protocol.admin import Finding
from clankersd.db.engine import (
    CHUNK_TEXT,
    OCCURRENCES_PER_CHUNK,
    OFFSETS,
    AddedVectors,
    DatabaseSizes,
    Engine,
    FullText,
)
from clankersd.db.postgres.postings import read_chunks, read_occurrences, read_occurrences_after
from clankersd.db.postgres.words import chunk_words, quote_stem, stem_of, text_words, tokenizer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from clankersd.db.backup import Copy
    from clankersd.db.connection import Db, Extension
    from clankersd.db.store import Store

MAX_COMPARED = 20_000
"""Up to this many eligible vectors are all compared, in some 20 ms: of few that pass a filter, HNSW misses more."""

MAX_INDEXED_DIMS, MAX_INDEXED_HALF_DIMS = 2000, 4000
"""Dimensions up to which pgvector indexes vectors of 32-bit and of 16-bit floats."""

INDEX_TABLES = frozenset(
    {
        "chunk_words",
        "memory_words",
        "unindexed_chunks",
        "unindexed_memories",
        "moved_chunks",
        "changed_chunks",
        "added_vectors",
        "project_members",
    }
)
"""Tables that SQLite has no counterpart of."""

_LOCK_KEYS = "hashtext('clankersd lock'), hashtext(current_schema() || ' ' || :name)"
_TABLES = {"chunks_fts": ("chunk_words", "chunk"), "memories_fts": ("memory_words", "memory")}
_PENDING = {"chunks_fts": "unindexed_chunks", "memories_fts": "unindexed_memories"}
_MEMORY_COLUMNS = "content, summary, concepts_json, tags_json"
_DUE_CHUNKS = f"""
    WITH due AS (DELETE FROM unindexed_chunks RETURNING chunk)
    SELECT id, {CHUNK_TEXT}, header, extra FROM due JOIN chunks ON chunks.id = due.chunk
"""
_DUE_MEMORIES = f"""
    WITH due AS (DELETE FROM unindexed_memories RETURNING memory)
    SELECT number, {_MEMORY_COLUMNS} FROM due JOIN memories ON memories.number = due.memory
"""
_STORE_WORDS = """
    INSERT INTO {table} ({key}, words)
    SELECT (item ->> 0)::bigint, (item ->> 1)::tsvector FROM json_array_elements(:items::json) AS items (item)
    ON CONFLICT ({key}) DO UPDATE SET words = excluded.words
"""
_SIZES = """
    SELECT coalesce(sum(pg_total_relation_size(relid)), 0),
        coalesce(sum(pg_table_size(relid) * n_dead_tup / greatest(n_live_tup + n_dead_tup, 1)), 0)
    FROM pg_stat_user_tables WHERE schemaname = current_schema()
"""
"""Bytes of all tables with their indexes, and of the deleted rows in them by the server's statistics."""

_FOREIGN_KEYS = """
    SELECT conname, conrelid::regclass::text, confrelid::regclass::text,
        (SELECT attname FROM pg_attribute WHERE attrelid = conrelid AND attnum = conkey[1]),
        (SELECT attname FROM pg_attribute WHERE attrelid = confrelid AND attnum = confkey[1])
    FROM pg_constraint WHERE contype = 'f' AND conrelid = :table::regclass
"""
_OBJECTS = {
    "table": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
    "index": "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()",
    "trigger": "SELECT DISTINCT trigger_name FROM information_schema.triggers WHERE trigger_schema = current_schema()",
}
_CREATE = re.compile(r"CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER) (\w+)[^;]*;")


class StoredVector(bytes):
    """The 32-bit floats of a vector, to be bound as a value of the type vector."""


class PostgresEngine(Engine):
    name = "postgres"
    vector_extension = "pgvector"
    indexes_vectors = True
    migrations_table = """
        CREATE TABLE IF NOT EXISTS _migrations (
            version    bigint PRIMARY KEY,
            name       text NOT NULL,
            checksum   text NOT NULL,
            applied_at bigint NOT NULL
        )
    """

    def tokenizer(self, db: "Db") -> Any:
        return tokenizer()

    def index_full_text(self, db: "Db") -> None:
        """Index the texts of the tables that the transaction has stored some in."""
        tables: set[str] = db.has_new_words  # type: ignore[attr-defined]
        for table in tables:
            _index_due(db, f"{table}_fts")
        tables.clear()

    def count_texts(self, db: "Db", index: str, word: str) -> int:
        table, _ = _TABLES[index]
        counted = f"SELECT count(*) FROM {table} WHERE words @@ :query::tsquery"
        return int(db.value(counted, {"query": quote_stem(stem_of(word))}))

    def occurrences(self, db: "Db", stem: str) -> Sequence[int]:
        return read_occurrences(db, stem)

    def chunks_with(self, db: "Db", word: str, first: int, last: int) -> list[int]:
        chunks = read_chunks(db, stem_of(word), first, last)
        return [chunk * OCCURRENCES_PER_CHUNK + OFFSETS - 1 for chunk in chunks]

    def occurrences_after(self, db: "Db", word: str, last: int, limit: int) -> list[list[int]]:
        return read_occurrences_after(db, stem_of(word), last, limit)

    def find_fault(self, db: "Db", index: FullText, newest_chunk: int) -> str | None:
        table, key = _TABLES[index.name]
        without = f"SELECT count(*) FROM {index.content} LEFT JOIN {table} ON {key} = {index.key} WHERE {key} IS NULL"
        if count := db.value(without):
            return f"{count:,} texts are not in it"
        wrong = 0
        columns = f"{index.key}, words::text, {index.columns}"
        for _, (_, words, *texts) in db.stream(
            f"SELECT {columns} FROM {index.content} JOIN {table} ON {key} = {index.key}"
        ):
            expected = chunk_words(*texts) if index.name == "chunks_fts" else text_words(texts)
            wrong += {one.rpartition(":")[0] for one in expected.split()} != {
                one.rpartition(":")[0] for one in words.split()
            }
        return f"the words of {wrong:,} texts in it are not theirs" if wrong else None

    def rebuild(self, db: "Db", index: FullText) -> None:
        db.execute(f"DELETE FROM {_TABLES[index.name][0]}")
        db.execute(f"INSERT INTO {_PENDING[index.name]} SELECT {index.key} FROM {index.content} ON CONFLICT DO NOTHING")
        _index_due(db, index.name)

    def clear_full_text(self, db: "Db") -> None:
        db.execute("DELETE FROM chunk_words")

    def index_full_text_below(self, db: "Db", below: int, limit: int) -> int | None:
        rows = db.tuples(
            f"SELECT id, {CHUNK_TEXT}, header, extra FROM chunks WHERE id < :below ORDER BY id DESC LIMIT :limit",
            {"below": below, "limit": limit},
        )
        _store_words(db, "chunks_fts", [(row[0], chunk_words(*row[1:])) for row in rows])
        return rows[-1][0] if rows else None

    def create_vectors(self, db: "Db", table: str, dims: int) -> None:
        if db.value("SELECT to_regclass(:table) IS NOT NULL", {"table": table}):
            self._log_added_vectors(db, table)
            return
        db.execute("SELECT create_vectors(:table, :dims)", {"table": table, "dims": dims})
        self._log_added_vectors(db, table)

    def drop_vectors(self, db: "Db", table: str) -> None:
        db.execute(f"DROP TABLE IF EXISTS {table}_rowids, {table}_distinct CASCADE")

    def insert_vector(self, db: "Db", table: str, chunk: int, embedding: bytes) -> None:
        params = {"id": chunk, "embedding": StoredVector(embedding)}
        # A conflict target would apply the policy for reading, and refuse a vector that only other members have.
        db.execute(
            f"INSERT INTO {table}_distinct (embedding) VALUES (:embedding::vector) ON CONFLICT DO NOTHING", params
        )
        db.execute(
            f"INSERT INTO {table}_rowids (rowid, vector) VALUES (:id, vector_id(vector_send(:embedding::vector))) "
            "ON CONFLICT (rowid) DO UPDATE SET vector = excluded.vector",
            params,
        )

    def note_new_chunk(self, db: "Db") -> None:
        """Do nothing: a trigger has queued it."""

    def queue_new_chunks(self, db: "Db") -> None:
        """Do nothing: a trigger has queued them."""

    def delete_vector(self, db: "Db", table: str, chunk: int) -> None:
        db.execute(f"DELETE FROM {table}_rowids WHERE rowid = :id", {"id": chunk})

    def nearest(
        self, db: "Db", table: str, query: bytes, k: int, eligible: str, params: dict[str, Any]
    ) -> list[tuple[int, float]]:
        """Search the HNSW index, further until `k` eligible chunks are found; or compare all, if these are few."""
        counted = f"SELECT count(*) FROM (SELECT 1 FROM ({eligible}) AS eligible LIMIT {MAX_COMPARED + 1}) AS counted"
        params = params | {"query": StoredVector(query)}
        rows: list[tuple[int, float]] = []
        if db.value(counted, params) > MAX_COMPARED:
            cast = index_cast(len(query) // 4)
            # OFFSET 0 has the chunks of each vector looked up as the index returns it, whatever the planner expects.
            chunks = f"SELECT rowid FROM {table}_rowids WHERE vector = near.id AND rowid IN ({eligible}) OFFSET 0"
            rows = db.tuples(
                f"SELECT rowid, embedding <=> :query::vector "
                f"FROM {table}_distinct AS near, LATERAL ({chunks}) AS chunks "
                f"ORDER BY embedding{cast} <=> :query::vector{cast} LIMIT {k}",
                params,
            )
        if len(rows) < k:  # few are eligible, or the nearest of them are farther away than the index is searched
            rows = db.tuples(
                f"SELECT rowid, embedding <=> :query::vector FROM {table} WHERE rowid IN ({eligible}) "
                f"ORDER BY (embedding <=> :query::vector) + 0 LIMIT {k}",  # the index does not know a sum
                params,
            )
        return sorted(((rowid, 1.0 - distance) for rowid, distance in rows), key=lambda row: -row[1])

    def _log_added_vectors(self, db: "Db", table: str) -> None:
        """Have vectors logged for other daemons, if there are any."""
        name = f"{table}_added"
        params = {"name": name, "table": f"{table}_rowids"}
        if db.is_shared and not db.value(
            "SELECT 1 FROM pg_trigger WHERE tgname = :name AND tgrelid = :table::regclass", params
        ):
            db.execute(
                f"CREATE TRIGGER {name} AFTER INSERT OR UPDATE ON {table}_rowids "
                "FOR EACH ROW EXECUTE FUNCTION vectors_added()"
            )

    def added_vectors(self, db: "Db", table: str, after: int) -> AddedVectors | None:
        if not db.is_shared:
            return None
        [(first, last)] = db.tuples("SELECT min(position), max(position) FROM added_vectors")
        if last is None or last <= after:
            return AddedVectors(last or 0, [], is_complete=True)
        sql = "SELECT DISTINCT chunk FROM added_vectors WHERE position > :after AND vectors = :table"
        chunks = [chunk for (chunk,) in db.tuples(sql, {"after": after, "table": table})]
        return AddedVectors(last, chunks, is_complete=first <= after + 1)

    def lock(self, db: "Db", name: str) -> bool:
        return bool(db.value(f"SELECT pg_try_advisory_lock({_LOCK_KEYS})", {"name": name}))

    def unlock(self, db: "Db", name: str) -> None:
        db.execute(f"SELECT pg_advisory_unlock({_LOCK_KEYS})", {"name": name})

    def log_moved_chunks(self, db: "Db") -> None:
        """Do nothing: the table and its trigger are part of the schema."""

    def has_moved_chunks(self, db: "Db") -> bool:
        return True

    def log_changed_chunks(self, db: "Db") -> bool:
        """Begin a new log, unless other daemons read it too."""
        if not db.is_shared:
            db.execute("DELETE FROM changed_chunks")
        return True

    def has_changed_chunks(self, db: "Db") -> bool:
        return True

    def measure(self, db: "Db") -> DatabaseSizes:
        [(database, free)] = db.tuples(_SIZES)
        return DatabaseSizes(int(database), wal=0, free=int(free))  # the log of the server is that of all its databases

    def table_names(self, db: "Db") -> list[str]:
        return sorted(name for (name,) in db.tuples(_OBJECTS["table"]))

    def column_names(self, db: "Db", table: str) -> list[str]:
        sql = """
            SELECT attname FROM pg_attribute
            WHERE attrelid = :table::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'rowid' ORDER BY attnum
        """
        return [name for (name,) in db.tuples(sql, {"table": table})]

    def integrity_errors(self, db: "Db", table: str) -> list[str]:
        """Read every row, which fails for a damaged page: `pg_amcheck` checks indexes too."""
        db.value(f"SELECT count({table}::text) FROM {table}")
        return []

    def orphans(self, db: "Db", table: str) -> list[Any]:
        keys: list[Any] = []
        for _, own, other, column, referenced in db.tuples(_FOREIGN_KEYS, {"table": table}):
            keys += db.tuples(
                f"SELECT {column} FROM {own} AS own WHERE {column} IS NOT NULL "
                f"AND NOT EXISTS (SELECT 1 FROM {other} AS other WHERE other.{referenced} = own.{column})"
            )
        return [key for (key,) in keys]

    def findings(self, db: "Db", vec: "Extension") -> list[Finding]:
        from clankersd.db.postgres.checks import check_server  # which imports the connection, and that this module

        return check_server(db, vec)

    def missing_objects(self, db: "Db") -> dict[tuple[str, str], str]:
        from clankersd.db.migrations import bundled  # which imports the engines

        present = {(kind, name) for kind, sql in _OBJECTS.items() for (name,) in db.tuples(sql)}
        statements = [found for one in bundled("postgres") for found in _CREATE.finditer(one.up)]
        expected = {(found[1].lower(), found[2]): found[0] for found in statements}
        return {key: sql for key, sql in expected.items() if key not in present}

    def references(self, db: "Db") -> dict[str, set[str]]:
        sql = """
            SELECT own.relname, other.relname FROM pg_constraint
            JOIN pg_class AS own ON own.oid = conrelid JOIN pg_class AS other ON other.oid = confrelid
            WHERE contype = 'f' AND connamespace = current_schema()::regnamespace
        """
        found: dict[str, set[str]] = {}
        for name, other in db.tuples(sql):
            found.setdefault(name, set()).add(other)
        return found

    def primary_key(self, db: "Db", table: str) -> list[str]:
        sql = """
            SELECT attname FROM pg_constraint, unnest(conkey) WITH ORDINALITY AS keys (number, place)
            JOIN pg_attribute ON attnum = keys.number
            WHERE contype = 'p' AND conrelid = :table::regclass AND attrelid = conrelid ORDER BY place
        """
        return [name for (name,) in db.tuples(sql, {"table": table})]

    def copied_tables(self, db: "Db") -> list[str]:
        return [name for name in self.table_names(db) if name not in INDEX_TABLES and "chunk_vectors_" not in name]

    def stored_order(self, db: "Db", table: str) -> str | None:
        sql = "SELECT 1 FROM pg_attribute WHERE attrelid = :table::regclass AND attname = 'rowid'"
        return "rowid" if db.value(sql, {"table": table}) else None

    @contextmanager
    def triggers_disabled(self, db: "Db") -> Iterator[None]:
        """Disable our triggers, but not those of foreign keys."""
        tables = self.copied_tables(db)
        try:
            for table in tables:
                db.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            yield
        finally:
            for table in tables:
                db.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
            with db.transaction():
                db.execute(
                    "INSERT INTO unindexed_memories SELECT number FROM memories "
                    "WHERE number NOT IN (SELECT memory FROM memory_words) ON CONFLICT DO NOTHING"
                )
                _index_due(db, "memories_fts")

    def insert_rows(self, db: "Db", table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        db.run_many(  # type: ignore[attr-defined]
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) ON CONFLICT DO NOTHING", rows
        )

    def set_sequences(self, db: "Db") -> None:
        sql = """
            SELECT attrelid::regclass::text, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            WHERE relnamespace = current_schema()::regnamespace AND attidentity <> '' AND relkind = 'r'
        """
        for table, column in db.tuples(sql):
            highest = f"(SELECT coalesce(max({column}), 0) + 1 FROM {table})"
            db.execute(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), {highest}, false)")

    def back_up(
        self,
        db: "Db",
        folder: Path,
        reason: str,
        is_stopped: "Callable[[], bool]" = lambda: False,
        copy: "Copy | None" = None,
    ) -> Path:
        """Dump the schema; with a `copy`, or without pg_dump, copy all but the index into a SQLite file."""
        from clankersd.db.postgres.backup import back_up  # which imports the migrations, and they this module

        return back_up(db, folder, reason, is_stopped, without_index=copy is not None)

    def full_backup_problem(self, db: "Db") -> str | None:
        from clankersd.db.postgres.dump import find_problem

        return find_problem(db)

    async def erase_free_space(self, store: "Store", progress: "Callable[..., Awaitable[None]]") -> None:
        """Rewrite the tables with texts: an ordinary vacuum leaves the bytes of deleted rows in their pages."""
        tables = await store.read(self.table_names)
        for number, table in enumerate(tables):
            await progress(number, len(tables), f"vacuuming {table}")
            options = "" if table.startswith("chunk_vectors_") else "(FULL)"
            await store.run_exclusive(methodcaller("execute", f"VACUUM {options} {table}"))
        await progress(len(tables), len(tables))


def index_cast(dims: int) -> str:
    """Return the SQL that casts a vector to what the index holds: if it has many dimensions, 16-bit floats."""
    return f"::halfvec({dims})" if MAX_INDEXED_DIMS < dims <= MAX_INDEXED_HALF_DIMS else ""


def _index_due(db: "Db", index: str) -> None:
    """Index the texts that are listed as not indexed yet."""
    if index == "chunks_fts":
        rows = [(row[0], chunk_words(*row[1:])) for row in db.tuples(_DUE_CHUNKS)]
    else:
        rows = [(row[0], text_words(row[1:])) for row in db.tuples(_DUE_MEMORIES)]
    _store_words(db, index, rows)


def _store_words(db: "Db", index: str, rows: list[tuple[int, str]]) -> None:
    if rows:
        table, key = _TABLES[index]
        db.execute(_STORE_WORDS.format(table=table, key=key), {"items": json.dumps(rows)})
