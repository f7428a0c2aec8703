"""What may be found, as one SQL condition on chunks. An unknown field or an empty list is an error."""

import re
from dataclasses import dataclass
from typing import Any

from clankers_protocol.errors import InvalidParams
from clankers_protocol.search import Filter, Search
from clankersd import clock
from clankersd.clock import to_ms
from clankersd.index.vectors import LabelFilter
from clankersd.memories.scopes import AllowedScopes
from clankersd.projects import IN_PROJECT, PROJECT_IDS, project_params

_PROJECT = f"""(
    chunks.session_id IN (SELECT id FROM sessions WHERE {IN_PROJECT})
    OR chunks.file_id IN (SELECT id FROM files WHERE project_id IN {PROJECT_IDS})
    OR chunks.memory_id IN (SELECT id FROM memories WHERE project_id IN {PROJECT_IDS})
    OR chunks.document_chunk_id IN (
        SELECT document_chunks.id FROM document_chunks JOIN documents ON documents.id = document_chunks.document_id
        WHERE documents.project_id IN {PROJECT_IDS}
    )
)"""
_TEXT_FIELDS = {
    "source": "chunks.source",
    "role": "chunks.role",
    "session": "chunks.session_id",
    "path": "(SELECT path FROM files WHERE files.id = chunks.file_id)",
    "project": """coalesce(
        (SELECT project_path FROM sessions WHERE sessions.id = chunks.session_id),
        (SELECT projects.path FROM files JOIN projects ON projects.id = files.project_id
         WHERE files.id = chunks.file_id),
        (SELECT projects.path FROM document_chunks JOIN documents ON documents.id = document_chunks.document_id
         JOIN projects ON projects.id = documents.project_id WHERE document_chunks.id = chunks.document_chunk_id)
    )""",
    "document": "(SELECT document_id FROM document_chunks WHERE document_chunks.id = chunks.document_chunk_id)",
    "documentSource": """(
        SELECT documents.source FROM document_chunks JOIN documents ON documents.id = document_chunks.document_id
        WHERE document_chunks.id = chunks.document_chunk_id
    )""",
}
_DOCUMENTS = {"document": "documents.id", "documentSource": "documents.source"}
"""What is asked for positively is looked up from the document's side: few documents have many chunks."""

_OF_DOCUMENTS = """chunks.document_chunk_id IN (
    SELECT document_chunks.id FROM documents CROSS JOIN document_chunks ON document_chunks.document_id = documents.id
    WHERE {test}
)"""
_META = re.compile(r"meta\.([A-Za-z0-9_]{1,64})")
_META_COLUMN = """coalesce(
    (SELECT json_extract(metadata, '$.{key}') FROM messages WHERE messages.id = chunks.message_id),
    (SELECT coalesce(json_extract(own.metadata, '$.{key}'), json_extract(documents.metadata, '$.{key}'))
     FROM document_chunks AS own JOIN documents ON documents.id = own.document_id
     WHERE own.id = chunks.document_chunk_id)
)"""
_TIMES = {"before": "<", "after": ">", "notBefore": ">=", "notAfter": "<="}


@dataclass(frozen=True)
class Visible:
    """Which memories may be found: those of these scopes that meet the condition."""

    allowed: AllowedScopes
    condition: str
    params: dict[str, Any]

    def sql(self) -> str:
        """As a condition on chunks; chunks of anything else meet it."""
        scoped = "(:every_scope OR chunks.scope IN (SELECT value FROM json_each(:scopes)))"
        known = f"EXISTS (SELECT 1 FROM memories WHERE memories.id = chunks.memory_id AND {self.condition})"
        return f"(chunks.memory_id IS NULL OR ({scoped} AND {known}))"


def without_memories() -> Visible:
    """For a search in something else."""
    return Visible(AllowedScopes(()), "0", {"as_of": None, "now": clock.now()})


@dataclass(frozen=True)
class Eligible:
    """A condition, and its parameters. Unless it is `narrow` it only asks for a source and a scope, which `fits` tells
    from a chunk's label. `quicker` is a query for all that meet it, where a better one is known."""

    condition: str
    params: dict[str, Any]
    narrow: bool
    fits: LabelFilter
    quicker: str | None = None

    @property
    def ids(self) -> str:
        """A query for the eligible chunks."""
        return self.quicker or f"SELECT chunks.id FROM chunks WHERE {self.condition}"


def eligible(request: Search, chunking: int, visible: Visible, quicker: str | None = None) -> Eligible:
    """What the request's filters leave, all of them together."""
    params: dict[str, Any] = {"chunking": chunking} | visible.allowed.params | visible.params
    conditions = _conditions(request, params)
    narrow = bool(conditions or quicker)
    if request.sources is not None:
        conditions.append(_one_of("chunks.source", "source", list(request.sources), params))
    conditions.append(visible.sql())
    # The plus keeps the planner from going through every chunk of the chunking when something narrower is asked for.
    cut = f"{'+' if narrow else ''}chunks.chunking = :chunking"
    return Eligible(" AND ".join([cut, *conditions]), params, narrow, _fits(request, visible.allowed), quicker)


def _conditions(request: Search, params: dict[str, Any]) -> list[str]:
    conditions: list[str] = []
    given: dict[str, tuple[str, Any]] = {
        "session_id": ("chunks.session_id = :session_id", request.session_id),
        "since": ("chunks.created_at >= :since", to_ms(request.since)),
        "until": ("chunks.created_at < :until", to_ms(request.until)),
    }
    for name, (test, value) in given.items():
        if value is not None:
            conditions.append(test)
            params[name] = value
    if request.project is not None:
        conditions.append(_PROJECT)
        params |= project_params(request.project)
    return conditions + [_condition(one, f"filter{number}", params) for number, one in enumerate(request.filters or [])]


def _fits(request: Search, permitted: AllowedScopes) -> LabelFilter:
    def fits(label: str) -> bool:
        source, _, scope = label.partition(" ")
        return (request.sources is None or source in request.sources) and (not scope or scope in permitted)

    return fits


def _condition(one: Filter, name: str, params: dict[str, Any]) -> str:
    if one.field == "created":
        return _time_condition(one, name, params)
    if one.field in _DOCUMENTS and one.op in ("eq", "in"):
        return _OF_DOCUMENTS.format(test=_test(one, _DOCUMENTS[one.field], name, params))
    return _test(one, _TEXT_FIELDS.get(one.field) or _meta_column(one.field), name, params)


def _test(one: Filter, column: str, name: str, params: dict[str, Any]) -> str:
    if one.op in ("eq", "ne"):
        if isinstance(one.value, list):
            raise _wrong(one, "takes one value, not a list")
        params[name] = one.value
        return f"{column} {'IS NOT' if one.op == 'ne' else '='} :{name}"
    if one.op in ("in", "notIn"):
        if not isinstance(one.value, list) or not one.value:
            raise _wrong(one, "takes a list with something in it")
        test = _one_of(column, name, one.value, params)
        return f"coalesce(NOT {test}, 1)" if one.op == "notIn" else test
    raise _wrong(one, "takes eq, ne, in and notIn")


def _meta_column(field: str) -> str:
    found = _META.fullmatch(field)
    if not found:
        known = ", ".join([*_TEXT_FIELDS, "created", "meta.<key>"])
        raise InvalidParams(f"invalid params: there is no field {field!r} to filter by; there are {known}")
    return _META_COLUMN.format(key=found[1])


def _time_condition(one: Filter, name: str, params: dict[str, Any]) -> str:
    if one.op not in _TIMES or isinstance(one.value, bool | str | list):
        raise _wrong(one, f"takes {', '.join(_TIMES)} with a time")
    params[name] = to_ms(one.value) or 0
    return f"chunks.created_at {_TIMES[one.op]} :{name}"


def _one_of(column: str, name: str, values: list[Any], params: dict[str, Any]) -> str:
    names = []
    for number, value in enumerate(values):
        params[f"{name}_{number}"] = value
        names.append(f":{name}_{number}")
    return f"{column} IN ({', '.join(names)})"


def _wrong(one: Filter, what: str) -> InvalidParams:
    return InvalidParams(f"invalid params: the filter on {one.field!r} {what}")
