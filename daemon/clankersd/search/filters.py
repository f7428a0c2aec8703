"""Filters: the chunks that a search may find, as one SQL condition. An unknown field or an empty list is an error."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from clankers_protocol.errors import InvalidParams
from clankers_protocol.search import Filter, Source
from clankersd.clock import to_ms
from clankersd.db import Db
from clankersd.index.chunks import HAS_SPEAKER, ROLES_WITHOUT_NAME
from clankersd.projects import PROJECT_NUMBERS, find_project_id

NO_PROJECT = ""
"""Project id of criteria that name a folder without a project: nothing meets them."""

MATCHING_CHUNKS = """
    SELECT chunks.id FROM json_each(:near) CROSS JOIN chunks ON chunks.id = json_each.value WHERE {condition}
"""
"""SQL for those of the chunks in `near`, a JSON array of ids, that pass a filter's condition."""

_FIELD_COLUMNS = {
    "source": "chunks.source",
    "role": "chunks.role",
    "session": "chunks.session_id",
    "path": "(SELECT path FROM files WHERE files.id = chunks.file_id)",
    "project": """coalesce(
        (SELECT project_id FROM sessions WHERE sessions.id = chunks.session_id),
        (SELECT project_id FROM files WHERE files.id = chunks.file_id),
        (SELECT project_id FROM memories WHERE memories.id = chunks.memory_id),
        (SELECT project_id FROM document_chunks JOIN documents ON documents.id = document_chunks.document_id
         WHERE document_chunks.id = chunks.document_chunk_id)
    )""",
    "document": "(SELECT document_id FROM document_chunks WHERE document_chunks.id = chunks.document_chunk_id)",
    "documentSource": """(
        SELECT documents.source FROM document_chunks JOIN documents ON documents.id = document_chunks.document_id
        WHERE document_chunks.id = chunks.document_chunk_id
    )""",
}
_DOCUMENT_COLUMNS = {"document": "documents.id", "documentSource": "documents.source"}
"""Fields whose positive tests start from the documents: there are few documents with many chunks each."""

_IN_DOCUMENTS = """chunks.document_chunk_id IN (
    SELECT document_chunks.id FROM documents CROSS JOIN document_chunks ON document_chunks.document_id = documents.id
    WHERE {test}
)"""
_METADATA_FIELD = re.compile(r"meta\.([A-Za-z0-9_]{1,64})")
_METADATA_COLUMN = """coalesce(
    (SELECT json_extract(metadata, '$.{key}') FROM messages WHERE messages.id = chunks.message_id),
    (SELECT coalesce(json_extract(own.metadata, '$.{key}'), json_extract(documents.metadata, '$.{key}'))
     FROM document_chunks AS own JOIN documents ON documents.id = own.document_id
     WHERE own.id = chunks.document_chunk_id)
)"""
_TIME_OPERATORS = {"before": "<", "after": ">", "notBefore": ">=", "notAfter": "<="}


@dataclass(frozen=True)
class Visibility:
    """Chunks that a caller may see at all: a condition in SQL, and the scopes of the memories among them.

    The scopes exclude vectors by their label before the database is asked. None means every scope.
    """

    condition: str
    params: dict[str, Any]
    scopes: frozenset[str] | None


NO_MEMORIES = Visibility("+chunks.memory_id IS NULL", {}, frozenset())
"""For a search in anything but memories. The plus makes the planner ignore the index on memory ids."""


@dataclass(frozen=True)
class Criteria:
    """Criteria of a request. A chunk must meet all that are given. `resolve_projects` makes ids of projects' names."""

    sources: Sequence[Source] | None = None
    session_id: str | None = None
    since: float | None = None
    until: float | None = None
    project: str | None = None
    filters: Sequence[Filter] = ()


@dataclass(frozen=True)
class LabelTest:
    """Test on the labels of a vector in memory: source, scope of a memory, project. None means all.

    `project` holds the parameters of PROJECT_NUMBERS.
    """

    sources: frozenset[str] | None = None
    scopes: frozenset[str] | None = None
    project: dict[str, Any] | None = None

    def matches_label(self, label: str) -> bool:
        """Return whether a vector with this label (a source, for a memory followed by its scope) can match."""
        source, _, scope = label.partition(" ")
        if self.sources is not None and source not in self.sources:
            return False
        return not scope or self.scopes is None or scope in self.scopes


@dataclass(frozen=True)
class ChunkFilter:
    """Condition on chunks, with its parameters.

    A vector can match if it passes one of the label tests. A filter that is not narrow restricts nothing else.
    `id_query` selects the ids of all matching chunks where a faster query is known than the plain one.
    """

    condition: str
    params: dict[str, Any]
    is_narrow: bool
    label_tests: tuple[LabelTest, ...] = (LabelTest(),)
    id_query: str | None = None

    @property
    def ids(self) -> str:
        """A query for the ids of all matching chunks."""
        return self.id_query or f"SELECT chunks.id FROM chunks WHERE {self.condition}"

    def includes_source(self, source: str) -> bool:
        """Return whether chunks of this source can match."""
        return any(test.sources is None or source in test.sources for test in self.label_tests)

    def restrict(self, condition: str, **params: Any) -> "ChunkFilter":
        """Return a filter that also requires this condition."""
        condition = f"{self.condition} AND {condition}"
        return replace(self, condition=condition, params=self.params | params, is_narrow=True, id_query=None)

    def union(self, other: "ChunkFilter") -> "ChunkFilter":
        """Return a filter that either of two accepts. They share no chunks, and parameters of one name are equal."""
        return ChunkFilter(
            f"(({self.condition}) OR ({other.condition}))",
            self.params | other.params,
            is_narrow=self.is_narrow or other.is_narrow,
            label_tests=self.label_tests + other.label_tests,
            id_query=f"{self.ids} UNION ALL {other.ids}",
        )


def resolve_projects(db: Db, criteria: Criteria) -> Criteria:
    """Replace folders and names of projects by ids; raises NotFound or Conflict for a name of none or several."""
    project = criteria.project and (find_project_id(db, criteria.project) or NO_PROJECT)
    filters = []
    for one in criteria.filters:
        if one.field == "project" and isinstance(one.value, str):
            filters.append(structs.replace(one, value=find_project_id(db, one.value) or one.value))
        elif one.field == "project" and isinstance(one.value, list):
            names = [find_project_id(db, str(value)) or value for value in one.value]
            filters.append(structs.replace(one, value=names))
        else:
            filters.append(one)
    return replace(criteria, project=project, filters=filters)


def build_filter(
    criteria: Criteria, chunking: int, visibility: Visibility, id_query: str | None = None
) -> ChunkFilter:  # fmt: skip
    """Combine the criteria of a request with what its caller may see."""
    params: dict[str, Any] = {"chunking": chunking} | visibility.params
    conditions: list[str] = []
    if criteria.session_id is not None:
        conditions.append("chunks.session_id = :session_id")
        params["session_id"] = criteria.session_id
    if (since := to_ms(criteria.since)) is not None:
        conditions.append("chunks.created_at >= :since")
        params["since"] = since
    if (until := to_ms(criteria.until)) is not None:
        conditions.append("chunks.created_at < :until")
        params["until"] = until
    for number, one in enumerate(criteria.filters):
        conditions.append(_filter_condition(one, f"filter{number}", params))
    is_narrow = bool(conditions or id_query)
    project = None if criteria.project is None else {"project_id": criteria.project}
    if project is not None:
        conditions.append(f"chunks.project IN {PROJECT_NUMBERS}")
        params |= project
    if criteria.sources is not None:
        names = ", ".join(f"'{source}'" for source in criteria.sources)  # constants of the protocol
        conditions.append(f"chunks.source IN ({names})")
    # The plus makes the planner use the index of a narrower condition, not that of all chunks of the chunking.
    of_chunking = "+chunks.chunking = :chunking" if is_narrow or project else "chunks.chunking = :chunking"
    return ChunkFilter(
        " AND ".join([of_chunking, *conditions, visibility.condition]),
        params,
        is_narrow,
        (LabelTest(None if criteria.sources is None else frozenset(criteria.sources), visibility.scopes, project),),
        id_query=id_query,
    )


def _filter_condition(one: Filter, name: str, params: dict[str, Any]) -> str:
    """Translate one filter of a request; its value goes into `params` under the name."""
    if one.field == "created":
        if one.op not in _TIME_OPERATORS or isinstance(one.value, bool | str | list):
            raise _invalid(one, f"takes {', '.join(_TIME_OPERATORS)} with a time")
        params[name] = to_ms(one.value) or 0
        return f"chunks.created_at {_TIME_OPERATORS[one.op]} :{name}"
    if one.field in _DOCUMENT_COLUMNS and one.op in ("eq", "in"):
        return _IN_DOCUMENTS.format(test=_value_test(one, _DOCUMENT_COLUMNS[one.field], name, params))
    column = _FIELD_COLUMNS.get(one.field)
    if one.field == "role" and one.op == "eq" and one.value not in ROLES_WITHOUT_NAME:
        return f"{_value_test(one, str(column), name, params)} AND {HAS_SPEAKER}"
    if column is None:
        metadata = _METADATA_FIELD.fullmatch(one.field)
        if not metadata:
            known = ", ".join([*_FIELD_COLUMNS, "created", "meta.<key>"])
            raise InvalidParams(f"invalid params: there is no field {one.field!r} to filter by; there are {known}")
        column = _METADATA_COLUMN.format(key=metadata[1])
    return _value_test(one, column, name, params)


def _value_test(one: Filter, column: str, name: str, params: dict[str, Any]) -> str:
    if one.op in ("eq", "ne"):
        if isinstance(one.value, list):
            raise _invalid(one, "takes one value, not a list")
        params[name] = one.value
        return f"{column} {'IS NOT' if one.op == 'ne' else '='} :{name}"
    if one.op in ("in", "notIn"):
        if not isinstance(one.value, list) or not one.value:
            raise _invalid(one, "takes a list with at least one value")
        names = []
        for number, value in enumerate(one.value):
            params[f"{name}_{number}"] = value
            names.append(f":{name}_{number}")
        test = f"{column} IN ({', '.join(names)})"
        return f"coalesce(NOT {test}, true)" if one.op == "notIn" else test
    raise _invalid(one, "takes eq, ne, in and notIn")


def _invalid(one: Filter, problem: str) -> InvalidParams:
    return InvalidParams(f"invalid params: the filter on {one.field!r} {problem}")
