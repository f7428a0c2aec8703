"""The seam between features and the database engine: what SQLite and PostgreSQL do in different ways.

Features run SQL that both engines understand through `Db`. For the rest they call `db.engine`, which has one
implementation for each: db/sqlite_engine.py and db/postgres/engine.py (docs/decisions/0025).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clankers_protocol.admin import Finding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from clankersd.db.backup import Copy
    from clankersd.db.connection import Db, Extension
    from clankersd.db.store import Store

OFFSET_BITS = 13
OFFSETS = 1 << (OFFSET_BITS - 1)
"""Offsets that an occurrence can have; words farther back all have the last one."""

HEADER = OFFSETS
"""Bit of an occurrence in the header."""

OCCURRENCES_PER_CHUNK = 1 << OFFSET_BITS

MAX_EXACT_COUNT = 20_000
"""Texts with a word up to which they are counted exactly."""

CHUNK_TEXT = """coalesce(nullif(chunks.text, ''), (
    SELECT substr(text_content, chunks.start_offset + 1, chunks.end_offset - chunks.start_offset)
    FROM messages WHERE messages.id = chunks.message_id), '')"""
"""SQL for the text of a chunk: most chunks of messages have none of their own, but are a part of the message's text."""

CHUNK_TEXTS = f"(SELECT id, {CHUNK_TEXT} AS text, header, extra FROM chunks) AS chunk_texts"
"""SQL for a table of what the full-text index of chunks is made from."""

TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2"])
"""FTS5 tokenizer of all texts and queries, on every engine."""


MAX_UNINDEXED_CHUNKS = 32
"""Chunks from which on their words are indexed. The index of one message takes a third of the time that storing it
takes, that of many a tenth: the words of a few wait for more of them, a search or a quiet second."""

MAX_CHUNKS_INDEXED_AT_ONCE = 100
"""Chunks whose words are indexed by the commit that stores them, at most. Those of more are indexed by the next commit,
right after it: meanwhile their sender knows that they are stored, and prepares more."""


@dataclass(frozen=True)
class FullText:
    """A full-text index, and the table with its texts: key and indexed columns."""

    name: str
    content: str
    key: str
    columns: str


@dataclass(frozen=True)
class HnswOptions:
    """Parameters of an HNSW index: links of each vector, and candidates during its build and in a search."""

    m: int = 16
    ef_construction: int = 128
    ef_search: int = 400


DEFAULT_HNSW = HnswOptions()


@dataclass(frozen=True)
class ServerOptions:
    """The server that a store is on; without a URL it is a file."""

    url: str = ""
    schema: str = ""
    is_shared: bool = False
    read_url: str = ""
    """URL of a replica that serves searches, if any."""
    hnsw: HnswOptions = DEFAULT_HNSW
    write_seconds: float = 60.0
    """Time after which the server ends a statement that writes."""


@dataclass(frozen=True)
class DatabaseSizes:
    """Bytes of the database, of its write-ahead log, and of the part that a vacuum would release."""

    database: int
    wal: int
    free: int


@dataclass(frozen=True)
class AddedVectors:
    """Chunks whose vectors were stored, up to a position of the log; not all of them if it is not complete."""

    position: int
    chunks: list[int]
    is_complete: bool


class Engine(ABC):
    """Operations that engines do in different ways. Methods run in the thread of the connection that they are given.

    An occurrence is `chunk * OCCURRENCES_PER_CHUNK + offset`, plus HEADER in the header.
    """

    name: str
    """Name of the folder with its migrations."""

    vector_extension: str
    """Name of the extension for vectors."""

    indexes_vectors = False
    """True if the nearest of many stored vectors are found without comparing all of them."""

    migrations_table: str
    """SQL that creates the table of applied migrations unless it exists."""

    # -- daemons that share tables

    def lock(self, db: "Db", name: str) -> bool:
        """Take a lock until it is released or the connection ends; return False if another daemon has it."""
        return True

    def unlock(self, db: "Db", name: str) -> None:
        """Release a lock."""
        return

    # -- full text

    @abstractmethod
    def tokenizer(self, db: "Db") -> Any:
        """Return FTS5's tokenizer: a function of a text in UTF-8, a reason and None."""

    @abstractmethod
    def index_full_text(self, db: "Db") -> None:
        """Index the words of all chunks that have been stored and are not indexed yet."""

    def count_unindexed_chunks(self, db: "Db") -> int:
        """Count the newest chunks, whose words are not indexed yet; 0 on an engine that indexes them at once."""
        return 0

    def last_indexed_chunk(self, db: "Db") -> int:
        """Return the highest id of a chunk whose words are indexed; those of all chunks below are, too."""
        return db.value("SELECT max(id) FROM chunks") or 0

    @abstractmethod
    def count_texts(self, db: "Db", index: str, word: str) -> int:
        """Return the number of texts of a full-text index that contain a word or another form of it.

        Above MAX_EXACT_COUNT it may be an estimate: to count all of a million texts takes tens of milliseconds.
        """

    @abstractmethod
    def occurrences(self, db: "Db", stem: str) -> Sequence[int]:
        """Return all occurrences of a stem in chunks, in order."""

    @abstractmethod
    def chunks_with(self, db: "Db", word: str, first: int, last: int) -> list[int]:
        """Return an occurrence without an offset for each of these chunks that contains the word."""

    @abstractmethod
    def occurrences_after(self, db: "Db", word: str, last: int, limit: int) -> list[list[int]]:
        """Return the occurrences of a word in each of the first `limit` chunks after `last` that contain it."""

    @abstractmethod
    def find_fault(self, db: "Db", index: FullText, newest_chunk: int) -> str | None:
        """Return the reason why a search in this index cannot be trusted; None if it can.

        The words of chunks up to `newest_chunk` must be indexed, those of later ones may be.
        """

    @abstractmethod
    def rebuild(self, db: "Db", index: FullText) -> None:
        """Rebuild an index from its texts, in the caller's transaction."""

    @abstractmethod
    def clear_full_text(self, db: "Db") -> None:
        """Remove the words of all chunks, to index them again in steps."""

    @abstractmethod
    def index_full_text_below(self, db: "Db", below: int, limit: int) -> int | None:
        """Index `limit` chunks below an id, highest first; return the lowest of their ids, None if there are none."""

    # -- vectors

    @abstractmethod
    def create_vectors(self, db: "Db", table: str, dims: int) -> None:
        """Create a table of vectors unless it exists; the vector of a deleted chunk goes with it."""

    @abstractmethod
    def drop_vectors(self, db: "Db", table: str) -> None:
        """Drop a table of vectors if it exists."""

    @abstractmethod
    def insert_vector(self, db: "Db", table: str, chunk: int, embedding: bytes) -> None:
        """Store the vector of a chunk in place of the one that it may have."""

    @abstractmethod
    def note_new_chunk(self, db: "Db") -> None:
        """Have the chunk queued for the embedder that the statement before has stored.

        The chunks of a transaction are queued together at its end, since a statement for each would take longer.
        """

    @abstractmethod
    def queue_new_chunks(self, db: "Db") -> None:
        """Queue the chunks that the running transaction has stored so far, for changes that read the queue."""

    @abstractmethod
    def delete_vector(self, db: "Db", table: str, chunk: int) -> None:
        """Delete the vector of a chunk if it has one."""

    @abstractmethod
    def nearest(
        self, db: "Db", table: str, query: bytes, k: int, eligible: str, params: dict[str, Any]
    ) -> list[tuple[int, float]]:
        """Return the `k` chunks nearest to a vector among those that the SQL `eligible` lists, with their cosines."""

    @abstractmethod
    def log_moved_chunks(self, db: "Db") -> None:
        """Begin to log chunks that move to another project in the table moved_chunks."""

    @abstractmethod
    def has_moved_chunks(self, db: "Db") -> bool:
        """Return True if this connection can read the log of moved chunks."""

    @abstractmethod
    def log_changed_chunks(self, db: "Db") -> bool:
        """Begin to log chunks that are changed or deleted in the table changed_chunks; return False if it cannot."""

    @abstractmethod
    def has_changed_chunks(self, db: "Db") -> bool:
        """Return True if this connection can read the log of changed chunks."""

    def log_changed_words(self, db: "Db") -> None:
        """Log, as a change of the chunk 0, that words of chunks changed that were indexed before."""
        if self.has_changed_chunks(db):
            db.execute("INSERT INTO changed_chunks (chunk) VALUES (0)")

    def added_vectors(self, db: "Db", table: str, after: int) -> "AddedVectors | None":
        """Return the vectors that were stored since the log's position `after`; None if no other daemon stores any."""
        return None

    # -- storage

    @abstractmethod
    def measure(self, db: "Db") -> DatabaseSizes:
        """Return the sizes of the database."""

    @abstractmethod
    def table_names(self, db: "Db") -> list[str]:
        """List all tables, including those that belong to an index."""

    @abstractmethod
    def column_names(self, db: "Db", table: str) -> list[str]:
        """List the columns of a table."""

    @abstractmethod
    def integrity_errors(self, db: "Db", table: str) -> list[str]:
        """Return the errors in the structure of a table and its indexes. Slow: run it on a snapshot."""

    @abstractmethod
    def orphans(self, db: "Db", table: str) -> list[Any]:
        """Return the keys of the rows whose foreign keys refer to missing rows."""

    @abstractmethod
    def references(self, db: "Db") -> dict[str, set[str]]:
        """Return the tables that the foreign keys of each table refer to."""

    @abstractmethod
    def primary_key(self, db: "Db", table: str) -> list[str]:
        """Return the columns of the primary key."""

    @abstractmethod
    def copied_tables(self, db: "Db") -> list[str]:
        """List the ordinary tables, which hold what is not part of an index."""

    @abstractmethod
    def stored_order(self, db: "Db", table: str) -> str | None:
        """Return SQL for the order in which the rows were stored; None if it is not known."""

    @abstractmethod
    def triggers_disabled(self, db: "Db") -> AbstractContextManager[None]:
        """Run the block without triggers: a copy brings what they would store."""

    @abstractmethod
    def insert_rows(self, db: "Db", table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        """Insert rows; those whose key is there already are left alone."""

    @abstractmethod
    def set_sequences(self, db: "Db") -> None:
        """Have new rows numbered after the highest number that was inserted."""

    @abstractmethod
    def back_up(
        self,
        db: "Db",
        folder: Path,
        reason: str,
        is_stopped: "Callable[[], bool]" = lambda: False,
        copy: "Copy | None" = None,
    ) -> Path:
        """Make a verified backup of the committed data in `folder`, and return its file."""

    def full_backup_problem(self, db: "Db") -> str | None:
        """Return the reason why backups are made without the index; None if they have it."""
        return None

    async def merge_full_text(self, store: "Store") -> list[str]:
        """Merge the full-text indexes that deleted texts have made slow, and return their names.

        A server does that by itself.
        """
        return []

    @abstractmethod
    async def erase_free_space(self, store: "Store", progress: "Callable[..., Awaitable[None]]") -> None:
        """Erase what deleting leaves behind in the files of the database."""

    @abstractmethod
    def findings(self, db: "Db", vec: "Extension") -> list[Finding]:
        """Check the engine itself: its version, extensions and rights, and what only it knows of."""

    @abstractmethod
    def missing_objects(self, db: "Db") -> dict[tuple[str, str], str]:
        """Return the SQL of the tables, indexes and triggers that this database lacks, by kind and name."""
