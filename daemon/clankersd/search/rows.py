"""Rows of chunks that a search reads: a few columns of all candidates, and all columns of the best ones.

Features add columns of their own.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from clankers_protocol.search import Source
from clankersd.db import Db
from clankersd.db.engine import CHUNK_TEXT
from clankersd.search.filters import ChunkFilter

END_CHARACTERS = 200
"""End of a text that is compared by itself: a question after a long paste is a small part of all words."""


@dataclass(slots=True)
class RankingRow:
    """Columns of `chunks` that ranking needs."""

    id: int
    created_at: int
    session_id: str | None
    turn: int | None
    position: int
    tokens: int
    role: str | None
    source: str


@dataclass(slots=True)
class ChunkRow(RankingRow):
    """Columns of `chunks` that results need as well."""

    source: Source
    chunk_id: str
    text: str
    message_id: str | None
    memory_id: str | None
    tool_id: str | None
    skill_id: str | None
    document_chunk_id: str | None
    start_line: int | None
    end_line: int | None
    project: int | None

    @property
    def shown_text(self) -> str:
        """The text that a result shows, or its beginning: two results with the same one are duplicates."""
        return self.text

    @property
    def shown_length(self) -> int:
        """The number of characters that a result shows."""
        return len(self.shown_text)

    @property
    def shown_end(self) -> str:
        """The last END_CHARACTERS of the text that a result shows."""
        return self.shown_text[-END_CHARACTERS:]


R = TypeVar("R", bound=ChunkRow)
AnyRow = TypeVar("AnyRow", bound=RankingRow)

RANKING_COLUMNS = ", ".join(f"chunks.{column.name}" for column in fields(RankingRow))
CHUNK_COLUMNS = ", ".join(
    CHUNK_TEXT if column.name == "text" else f"chunks.{column.name}" for column in fields(ChunkRow)
)


def fetch_ranking_rows(db: Db, ids: Iterable[int], chunk_filter: ChunkFilter) -> dict[int, RankingRow]:
    """Return the rows of those of the chunks that still pass the filter, by id."""
    sql = f"""
        SELECT {RANKING_COLUMNS} FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value
        WHERE {chunk_filter.condition}
    """
    params = chunk_filter.params | {"ids": json.dumps(sorted(set(ids)))}
    return {row[0]: RankingRow(*row) for row in db.tuples(sql, params)}


@dataclass(frozen=True)
class RowQuery(Generic[R]):
    """Columns that a feature adds to those of the chunk, the joins that they come from, and the type of the rows.

    The columns are in the order of the type's fields.
    """

    row_type: type[R]
    columns: str = ""
    joins: str = ""
    params: dict[str, Any] = field(default_factory=dict)

    def fetch(self, db: Db, ids: Iterable[int], chunk_filter: ChunkFilter) -> dict[int, R]:
        """Return the rows of those of the chunks that still pass the filter, by id."""
        columns = f"{CHUNK_COLUMNS}, {self.columns}" if self.columns else CHUNK_COLUMNS
        sql = f"""
            SELECT {columns} FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value
            {self.joins} WHERE {chunk_filter.condition}
        """
        params = chunk_filter.params | self.params | {"ids": json.dumps(sorted(set(ids)))}
        return {row[0]: self.row_type(*row) for row in db.tuples(sql, params)}


CHUNK_ROWS = RowQuery(ChunkRow)
"""Rows without further columns."""
