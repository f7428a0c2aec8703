"""Finding it again: search, and the index behind it."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.admin import JobStarted
from clankers_protocol.wire import MAX_INTEGER, Cursor, Id, Method, Name, Reach, Time, Wire

Value = str | Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)] | float | bool
Source = Literal["memory", "sessions", "memories", "documents", "skills"]
Mode = Literal["hybrid", "keyword", "vector"]
Relation = Literal[
    "references", "elaborates", "depends_on", "contradicts", "part_of", "similar_to", "sequence", "caused_by"
]
Relations = Annotated[list[Relation], Meta(min_length=1)]
Direction = Literal["out", "in", "both"]
Weight = Annotated[float, Meta(gt=0, le=1)]
Hops = Annotated[int, Meta(ge=1, le=5)]
Embedding = Annotated[list[float], Meta(min_length=1, max_length=16_384)] | Annotated[str, Meta(min_length=1)]
"""Numbers, or base64 of little-endian float32: of the model of the index, whose dimensions it must have."""


class Filter(Wire, forbid_unknown_fields=True):
    """A condition on what may be found. All given conditions must hold.

    `source`, `role`, `path`, `session`, `project`, `document`, `documentSource` and `meta.<key>` (of the metadata of a
    message, or of a document's chunk, else of the document) take `eq` and `ne` with a value, `in` and `notIn` with
    a list; `created` takes `before`, `after`, `notBefore` and `notAfter` with a time.
    """

    field: str
    op: Literal["eq", "ne", "in", "notIn", "before", "after", "notBefore", "notAfter"]
    value: Value | Annotated[list[Value], Meta(max_length=1000)]


class Ref(Wire, omit_defaults=True):
    """Where a hit comes from; what does not apply is left out."""

    session_id: str | None = None
    session_title: str | None = None
    message_id: str | None = None
    tool_id: str | None = None
    skill_id: str | None = None
    role: str | None = None
    path: str | None = None
    start_line: int | None = None
    end_line: int | None = None
    memory_id: str | None = None
    project_path: str | None = None
    document_id: str | None = None
    document_title: str | None = None
    document_source: str | None = None
    document_chunk_id: str | None = None
    matched_chunk_id: str | None = None


class Step(Wire):
    """One edge on a way through the graph, as it was gone: `backwards` when against its direction."""

    from_id: str
    to_id: str
    relation: str
    weight: float
    backwards: bool


class GraphOptions(Wire, forbid_unknown_fields=True):
    """Follow the graph from the `seeds` best hits in documents, up to `hops` edges far. What is reached has the
    score of where the way began, times the weight of each edge and `decay` for each hop."""

    seeds: Annotated[int, Meta(ge=1, le=50)] = 10
    hops: Hops = 1
    decay: Weight = 0.7
    relations: Relations | None = None
    direction: Direction = "both"


class Hit(Wire):
    """A chunk that was found. In `snippet` what matched stands between « and ».

    `score` is between 0 and 1 and only compares hits of one search. `components` is there with `explain`, `way`
    when the hit was reached through the graph. Where a child of a document's chunk was found, the text is the
    parent's and `ref.matchedChunkId` the child.
    """

    chunk_id: str
    source: Source
    score: float
    text: str
    snippet: str
    created_at: int
    ref: Ref
    components: dict[str, float] | None = None
    way: list[Step] | None = None


class SearchResult(Wire):
    """`mode` is how it was searched; `pending` chunks cannot be found by meaning yet; `degraded` says what is
    missing from this answer and why."""

    hits: list[Hit]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float
    cursor: str | None = None


class Search(Method[SearchResult]):
    """Find what is nearest to a query, by words and by meaning, best first.

    The query is plain text: nothing in it is syntax. A hit by words is never lost to `minScore`.
    `halfLifeDays` lets older text count less, `diversity` (0 to 1) lets like hits make room for others.

    Of long-term memories those of `scopes` are found; without it the global ones, the `agent`'s and the project's.
    With `asOf` they are those that were known and true then.
    """

    method: ClassVar[str] = "search"
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    sources: Annotated[list[Source], Meta(min_length=1)] | None = None
    project: str | None = None
    scopes: Annotated[list[Reach], Meta(max_length=100)] | None = None
    agent: Name | None = None
    as_of: Time | None = None
    session_id: Id | None = None
    since: Time | None = None
    until: Time | None = None
    filters: Annotated[list[Filter], Meta(max_length=32)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    mode: Mode = "hybrid"
    min_score: Annotated[float, Meta(ge=0, le=1)] = 0.0
    half_life_days: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    diversity: Annotated[float, Meta(ge=0, le=1)] = 0.0
    graph: GraphOptions | None = None
    explain: bool = False
    cursor: Cursor | None = None


class FilesStatus(Wire):
    """What the file sync watches. `dirty` when changes were noticed that are not indexed yet."""

    mode: Literal["watching", "polling", "off"]
    problem: str | None
    dirty: bool
    watched: list[str]
    last_sync: int | None
    files: int


class GenerationStatus(Wire):
    """One index: with which model, in which dimensions, how far."""

    provider: str
    model: str
    dims: int | None
    chunk_tokens: int
    chunk_overlap: int
    vectors: int
    pending: int
    failed: int


class IndexReport(Wire):
    """`vectors` is "ready", or why there is no search by meaning; `building` is a reindex under way."""

    vectors: str
    chunks: dict[str, int]
    backlog: int
    live: GenerationStatus | None
    building: GenerationStatus | None
    rate: float
    last_error: str | None
    cache_entries: int
    in_memory: bool
    files: FilesStatus


class IndexStatus(Method[IndexReport]):
    """What is indexed, how freshly, and what is in the way."""

    method: ClassVar[str] = "index.status"


class Synced(Wire):
    """What comparing the watched files with the index came to."""

    added: int
    changed: int
    removed: int
    moved: int
    unchanged: int
    failed: list[str]
    seconds: float


class IndexSync(Method[Synced]):
    """Compare all watched files with the index now."""

    method: ClassVar[str] = "index.sync"


class IndexAdd(Method[Synced]):
    """Watch and index a markdown file, or the markdown files of a folder."""

    method: ClassVar[str] = "index.add"
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class IndexRemove(Method[Synced]):
    """No longer watch a path that was added, and forget its files."""

    method: ClassVar[str] = "index.remove"
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class Reindex(Method[JobStarted]):
    """Build the index anew beside the live one, as a job, and put it in its place when it is whole.

    With `embedder` (and `model`) the configuration is changed first. Without, the configured one is used.
    """

    method: ClassVar[str] = "reindex"
    embedder: Literal["static", "onnx", "openai", "ollama", "gemini", "none"] | None = None
    model: str | None = None


class Model(Wire):
    """An embedder that could be used here."""

    embedder: str
    model: str
    dims: int | None
    in_use: bool
    available: bool
    note: str


class ModelList(Method[list[Model]]):
    """The embedders that are there, and what the others lack."""

    method: ClassVar[str] = "model.list"
