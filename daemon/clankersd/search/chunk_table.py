"""Columns of all chunks in memory: what ranking needs of each, by its id.

A search looks up thousands of chunks and their neighbours, which took longer in the database than everything else.
Chunk ids only grow, so new chunks are read when a search comes; the connection logs the chunks that are changed or
deleted. What the log does not show yet does no harm: a search fetches the full rows of what it returns.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from msgspec.json import decode as decode_json

from clankersd.db import Db
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.rows import RankingRow

CHUNKS_PER_READ = 2_000
MAX_CHUNKS_READ_INLINE = 6_000
"""Up to this many new chunks are read while a search waits; more of them in the background."""

CHANGES_PER_READ = 1_000
MAX_CHANGES_READ_INLINE = 3_000
"""The same for chunks that were changed or deleted. Each step of reading their log is kept: a read that takes long is
interrupted and begins again on a snapshot, which has no log."""

MIN_CAPACITY = 4_096
MAX_NEW_TURNS = 5_000
"""Newest chunks whose turns are sorted by themselves: to insert into all of them takes milliseconds."""

TURNS_PER_SESSION = 1 << 32
"""Factor of the session in the key of a turn, which is `session * TURNS_PER_SESSION + turn`."""

_COLUMNS = """
    json_group_array(id), json_group_array(coalesce(session_id, '')), json_group_array(coalesce(turn, -1)),
    json_group_array(tokens), json_group_array(coalesce(project, 0)), json_group_array(chunking || ' ' || source),
    json_group_array(coalesce(role, '')), json_group_array(position), json_group_array(created_at)
"""
_CHUNK_COLUMNS = """
    chunks.id, chunks.session_id, chunks.turn, chunks.tokens, chunks.project, chunks.chunking, chunks.source,
    chunks.role, chunks.position, chunks.created_at
"""
_NEXT_CHUNKS = f"""
    SELECT {_COLUMNS}
    FROM (SELECT {_CHUNK_COLUMNS} FROM chunks WHERE chunks.id > :after ORDER BY chunks.id LIMIT {CHUNKS_PER_READ})
"""
_CHANGED_CHUNKS = f"""
    SELECT {_COLUMNS}
    FROM (SELECT {_CHUNK_COLUMNS} FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value)
"""
_MANY_NEW_CHUNKS = "SELECT 1 FROM chunks WHERE id > :last LIMIT 1 OFFSET :many"
_CHANGES = f"""
    SELECT position, chunk FROM changed_chunks WHERE position > :after ORDER BY position LIMIT {CHANGES_PER_READ}
"""

_LOGGED = "SELECT (SELECT min(position) FROM changed_chunks), (SELECT max(position) FROM changed_chunks)"


@dataclass(frozen=True)
class ChunkColumns:
    """Arrays by chunk id. Sessions, partitions and roles are numbers, 0 for none; a turn of -1 is none.

    A partition is a chunking and a source. Where it is 0, there is no chunk.
    """

    sessions: Any
    turns: Any
    tokens: Any
    projects: Any
    partitions: Any
    roles: Any
    positions: Any
    created_at: Any

    @staticmethod
    def allocate(size: int, old: "ChunkColumns | None" = None) -> "ChunkColumns":
        """Return columns for ids below `size`, with the content of the old ones."""
        import numpy as np

        types = (np.int32, np.int32, np.int32, np.int32, np.int16, np.int32, np.int32, np.int64)
        columns = ChunkColumns(*(np.zeros(size, column_type) for column_type in types))
        if old is not None:
            first = int(np.argmax(old.partitions > 0))  # pages that are never written take no memory
            for name, column in vars(columns).items():
                column[first : len(old.partitions)] = getattr(old, name)[first:]
        return columns

    def keys(self, chunks: Any) -> Any:
        """Return the key of each chunk's turn; a chunk without a turn has its negative id."""
        import numpy as np

        sessions, turns = self.sessions[chunks].astype(np.int64), self.turns[chunks]
        return np.where((sessions > 0) & (turns >= 0), sessions * TURNS_PER_SESSION + turns, -chunks)


_ROW_COLUMNS = ("created_at", "sessions", "turns", "positions", "tokens", "roles", "partitions")


class _Numbers:
    """Numbers of texts in the order in which they came; the empty text is 0."""

    def __init__(self) -> None:
        self.by_text = {"": 0}
        self.texts = [""]

    def of(self, texts: list[str]) -> list[int]:
        """Return the number of each text; new ones are numbered."""
        for text in texts:
            if text not in self.by_text:
                self.by_text[text] = len(self.texts)
                self.texts.append(text)
        return [self.by_text[text] for text in texts]


class _Turns:
    """Chunks in the order of the keys of their turns, those of one turn in the order of their ids."""

    def __init__(self, keys: Any, chunks: Any) -> None:
        self.keys = keys
        self.chunks = chunks

    def with_chunks(self, keys: Any, chunks: Any) -> "_Turns":
        """Return these turns with more chunks, whose ids are higher."""
        import numpy as np

        order = np.argsort(keys, kind="stable")
        keys, chunks = keys[order], chunks[order]
        positions = np.searchsorted(self.keys, keys, side="right")
        return _Turns(np.insert(self.keys, positions, keys), np.insert(self.chunks, positions, chunks))

    def find_chunks(self, wanted: Any, is_fitting: Callable[[Any], Any]) -> Any:
        """Return for each wanted key the first chunk that fits, 0 for none."""
        import numpy as np

        found = np.zeros(len(wanted), np.int64)
        positions, rest = np.searchsorted(self.keys, wanted), np.arange(len(wanted))
        while len(rest):
            is_same = positions < len(self.keys)
            is_same[is_same] = self.keys[positions[is_same]] == wanted[rest[is_same]]
            positions, rest = positions[is_same], rest[is_same]
            chunks = self.chunks[positions]
            fits = is_fitting(chunks)
            found[rest[fits]] = chunks[fits]
            positions, rest = positions[~fits] + 1, rest[~fits]
        return found


class ChunkTable:
    """Columns of the chunks up to the id `last`, extended by reads in the connection's thread or on a snapshot."""

    def __init__(self) -> None:
        self.on_words_changed: list[Callable[[], None]] = []
        """Called when words of chunks may have changed that were indexed before."""
        self._lock = Lock()
        self._is_logged = False
        self.is_loaded = False
        """True once all chunks have been read."""
        self.is_behind = False
        """True while there are more new or changed chunks than a search waits for, until they are read in the
        background."""
        self.has_unread_changes = False
        """True from when the log of changes is read until all of it was: what is in memory may be out of date."""
        self.problem: str | None = None
        """The reason why not all chunks could be loaded, until they are."""
        self._clear()

    def on_database_opened(self, db: Db) -> None:
        """Begin anew with a connection, whose database may be another one, and have it log changes."""
        self._is_logged = db.engine.log_changed_chunks(db)
        with self._lock:
            self._clear()

    @property
    def can_follow(self) -> bool:
        """False without numpy, or on an engine that does not log changes: then searches ask the database."""
        return self._is_logged and numpy_if_available() is not None

    def catch_up(self, db: Db) -> bool:
        """Read the chunks that are new; return False if they are too many to wait for, or cannot be followed."""
        if not self.can_follow:
            return False
        with self._lock:
            for _ in range(MAX_CHANGES_READ_INLINE // CHANGES_PER_READ):
                if not self._follow_changes(db):
                    break
        # Counted, since ids above the last one may be those of deleted chunks.
        has_many = bool(db.value(_MANY_NEW_CHUNKS, {"last": self.last, "many": MAX_CHUNKS_READ_INLINE}))
        self.is_behind = has_many or self.has_unread_changes
        if self.is_behind:
            return False
        while not self.has_unread_changes and self.extend(db):
            pass
        return not self.has_unread_changes

    def extend(self, db: Db) -> bool:
        """Read which chunks were changed or deleted, and then the next ones; return False once there are no more."""
        with self._lock:
            if self._follow_changes(db):
                return True
            [row] = db.tuples(_NEXT_CHUNKS, {"after": self.last})
            ids = decode_json(row[0], type=list[int])
            if ids:
                self._add(ids, *map(decode_json, row[1:]))
            if not ids:
                self.is_loaded, self.is_behind, self.problem = True, False, None
            return bool(ids)

    def count(self) -> int:
        """Return the number of chunks; the highest id is higher after chunks were deleted."""
        import numpy as np

        return 0 if self.columns is None else int(np.count_nonzero(self.columns.partitions))

    def partition_mask(self, chunking: int, fits: Callable[[str], bool]) -> Any:
        """Return an array that is True at the number of each partition of this chunking whose source fits."""
        import numpy as np

        names = [name.partition(" ") for name in self._partitions.texts]
        return np.array([number == str(chunking) and fits(source) for number, _, source in names], np.bool_)

    def existing(self, chunks: list[int]) -> Any:
        """Return those of the chunks that exist, each once, as an ordered array."""
        import numpy as np

        ids = np.unique(np.array(chunks, np.int64))
        return ids if self.columns is None else ids[self.columns.partitions[ids] > 0]

    def of_source(self, chunks: Any, source: str) -> Any:
        """Return an array that tells of each of the chunks, an array, whether it is of this source."""
        import numpy as np

        if self.columns is None:
            return np.zeros(len(chunks), np.bool_)
        names = [name.partition(" ")[2] == source for name in self._partitions.texts]
        return np.array(names, np.bool_)[self.columns.partitions[chunks]]

    def chunks_at(self, turns: Any, chunking: int) -> Any:
        """Return for each turn, given by its key, its first chunk of this chunking; 0 for none."""
        import numpy as np

        found = np.zeros(len(turns), np.int64)
        columns = self.columns
        if columns is not None:
            partitions = self.partition_mask(chunking, lambda _: True)
            for part in self._turns:
                if not len(part.keys):
                    continue
                missing = np.flatnonzero(found == 0)
                found[missing] = part.find_chunks(turns[missing], lambda chunks: partitions[columns.partitions[chunks]])
        return found

    def rows(self, chunks: list[int]) -> dict[int, RankingRow]:
        """Return the rows of those of the chunks that exist, by id."""
        import numpy as np

        columns = self.columns
        if columns is None:
            return {}
        ids = np.array(chunks, np.int64)
        ids = ids[columns.partitions[ids] > 0]
        arrays = (ids, *(getattr(columns, name)[ids] for name in _ROW_COLUMNS))
        sessions, roles = self.sessions.texts, self.roles.texts
        sources = [name.partition(" ")[2] for name in self._partitions.texts]
        return {
            row[0]: RankingRow(
                row[0],
                row[1],
                sessions[row[2]] or None,
                None if row[3] < 0 else row[3],
                row[4],
                row[5],
                roles[row[6]] or None,
                sources[row[7]],
            )
            for row in zip(*(array.tolist() for array in arrays), strict=True)
        }

    def _clear(self) -> None:
        self.last = 0
        self.is_loaded = self.is_behind = self.has_unread_changes = False
        self.columns: ChunkColumns | None = None
        self.sessions, self._partitions, self.roles = _Numbers(), _Numbers(), _Numbers()
        self._turns: tuple[_Turns, ...] = ()
        self.changes_seen = 0
        """Position up to which the log of changes has been read."""
        self._announce_changed_words()

    def _announce_changed_words(self) -> None:
        for forget in self.on_words_changed:
            forget()

    def _add(self, ids: list[int], *texts_and_numbers: Any) -> None:
        """Add new chunks."""
        import numpy as np

        size = ids[-1] + 1
        if self.columns is None or len(self.columns.partitions) < size:
            self.columns = ChunkColumns.allocate(max(MIN_CAPACITY, size + size // 4), self.columns)
        chunks = np.array(ids, np.int64)
        self._set(chunks, *texts_and_numbers)
        keys = self.columns.keys(chunks)
        chunks, keys = chunks[keys >= 0].astype(np.int32), keys[keys >= 0]
        none = _Turns(np.zeros(0, np.int64), np.zeros(0, np.int32))
        old, new = self._turns or (none, none)
        new = new.with_chunks(keys, chunks)
        self._turns = (old.with_chunks(new.keys, new.chunks), none) if len(new.keys) > MAX_NEW_TURNS else (old, new)
        self.last = ids[-1]

    def _set(
        self,
        chunks: Any,
        sessions: list[str],
        turns: list[int],
        tokens: list[int],
        projects: list[int],
        partitions: list[str],
        roles: list[str],
        positions: list[int],
        created_at: list[int],
    ) -> None:
        columns = self.columns
        assert columns is not None
        columns.sessions[chunks], columns.turns[chunks] = self.sessions.of(sessions), turns
        columns.tokens[chunks], columns.projects[chunks] = tokens, projects
        columns.partitions[chunks], columns.roles[chunks] = self._partitions.of(partitions), self.roles.of(roles)
        columns.positions[chunks], columns.created_at[chunks] = positions, created_at

    def _follow_changes(self, db: Db) -> bool:
        """Read again some of what was changed or deleted; return whether there is more.

        A snapshot connection has no log: there, nothing is read, and what is unread stays so.
        """
        if not db.engine.has_changed_chunks(db):
            return self.has_unread_changes
        self.has_unread_changes = True
        changes = db.tuples(_CHANGES, {"after": self.changes_seen})
        if changes:
            self._apply_changes(db, changes)
        self.has_unread_changes = len(changes) == CHANGES_PER_READ
        return self.has_unread_changes

    def _apply_changes(self, db: Db, changes: list[tuple[int, int]]) -> None:
        [(oldest, newest)] = db.tuples(_LOGGED)
        if oldest > self.changes_seen + 1:  # the log does not reach back so far
            self._clear()
            self.changes_seen = newest
            return
        if any(chunk == 0 for _, chunk in changes):
            self._announce_changed_words()
        chunks = sorted({chunk for _, chunk in changes if 0 < chunk <= self.last})
        if chunks and self.columns is not None:
            [row] = db.tuples(_CHANGED_CHUNKS, {"ids": json.dumps(chunks)})
            self.columns.partitions[chunks] = 0
            self._set(decode_json(row[0], type=list[int]), *map(decode_json, row[1:]))
        self.changes_seen = changes[-1][0]
