"""Search, and the index behind it."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from clankers_protocol.admin import JobStarted
from clankers_protocol.projects import ProjectReference
from clankers_protocol.wire import MAX_INTEGER, Cursor, Id, Method, Name, ScopeSelector, Time, Wire

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
"""A vector as numbers or as base64 of little-endian float32. It must come from the model of the index."""


class Filter(Wire, forbid_unknown_fields=True):
    """A filter on search results. All given filters must hold.

    `source`, `role`, `path`, `session`, `project`, `document`, `documentSource` and `meta.<key>` (metadata of a
    message, of a document chunk or of its document) take `eq` and `ne` with a value, `in` and `notIn` with a list;
    `created` takes `before`, `after`, `notBefore` and `notAfter` with a time.
    """

    field: str
    op: Literal["eq", "ne", "in", "notIn", "before", "after", "notBefore", "notAfter"]
    value: Value | Annotated[list[Value], Meta(max_length=1000)]


class Ref(Wire, omit_defaults=True):
    """Origin of a hit. Fields that do not apply are omitted."""

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
    memory_category: str | None = None
    project_path: str | None = None
    document_id: str | None = None
    document_title: str | None = None
    document_source: str | None = None
    document_chunk_id: str | None = None
    matched_chunk_id: str | None = None


class Step(Wire):
    """One edge of a path through the graph; `backwards` if it was followed against its direction."""

    from_id: str
    to_id: str
    relation: str
    weight: float
    backwards: bool


class GraphOptions(Wire, forbid_unknown_fields=True):
    """Graph expansion: follow up to `hops` edges from the `seeds` best document hits. A chunk reached this way has the
    score of its seed, multiplied by the weight of each edge and by `decay` for each hop."""

    seeds: Annotated[int, Meta(ge=1, le=50)] = 10
    hops: Hops = 1
    decay: Weight = 0.7
    relations: Relations | None = None
    direction: Direction = "both"


class Hit(Wire):
    """A chunk found by a search. Matches in `snippet` are enclosed in « and ».

    `score` is between 0 and 1 and only comparable within one search. `components` is present with `explain`, `way` if
    the hit was reached through the graph. If a child chunk of a document matched, the text is that of its parent and
    `ref.matchedChunkId` names the child. `duplicates` counts further messages, tool calls, files or documents with the
    same or nearly the same words, which are not listed.
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
    duplicates: int = 0


class SearchResult(Wire):
    """Search result. `mode` is the mode actually used; `pending` chunks have no vector yet; `degraded` states what is
    missing from this result and why. `weak` means that nothing close to the query was found, and that the hits are only
    the nearest of what there is."""

    hits: list[Hit]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float
    cursor: str | None = None
    weak: bool = False


class Search(Method[SearchResult]):
    """Search messages, files, documents, skills and memories by keyword and vector, best first.

    The query is plain text without any syntax. `minScore` never removes a keyword hit. `halfLifeDays` halves the score
    of a hit for each such period of age; `diversity` (0 to 1) ranks near-duplicates lower. Messages, tool calls,
    files and documents with the same or nearly the same words are one hit, unless `collapse` is false.

    `vectorWeight` is the weight of vector search in a hybrid search, instead of the one that fits the model and the
    query; `pool` is the number of candidates that keyword and vector search each contribute. If a reranker is
    configured, it judges the best hits, unless `rerank` is false.

    Long-term memories are limited to `scopes`, or by default to the global scope, the `agent`'s and the project's;
    without `scopes`, `project` narrows everything but memories. `asOf` and `validAt` select memories that were known,
    and that were true, at a time (see `memory.list`).

    `recall.recent` lists the search afterwards, unless `recorded` is false, as it is where people look around.
    """

    method: ClassVar[str] = "search"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    sources: Annotated[list[Source], Meta(min_length=1)] | None = None
    project: ProjectReference | None = None
    scopes: Annotated[list[ScopeSelector], Meta(max_length=100)] | None = None
    agent: Name | None = None
    as_of: Time | None = None
    valid_at: Time | None = None
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
    vector_weight: Annotated[float, Meta(ge=0, le=1)] | None = None
    pool: Annotated[int, Meta(ge=10, le=1000)] | None = None
    collapse: bool = True
    rerank: bool = True
    explain: bool = False
    cursor: Cursor | None = None
    recorded: bool = True


class FacetCount(Wire):
    """Number of chunks with one value of a facet."""

    value: str
    count: int


class Facets(Wire):
    """Chunks that contain `words` of the query, all or any of them, by source, role and project.

    `total` counts those that pass all filters. The counts of a facet ignore its own filter. `capped` if there are more
    chunks than were counted. `degraded` states which words of a long query were left out.
    """

    words: Literal["all", "any"]
    total: int
    capped: bool
    sources: list[FacetCount]
    roles: list[FacetCount]
    projects: list[FacetCount]
    degraded: str | None = None


class SearchFacets(Method[Facets]):
    """Count the chunks that contain the words of a query: all words, or any if no chunk has all. Projects are ids."""

    method: ClassVar[str] = "search.facets"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    sources: Annotated[list[Source], Meta(min_length=1)] | None = None
    role: Annotated[str, Meta(max_length=64)] | None = None
    project: ProjectReference | None = None
    scopes: Annotated[list[ScopeSelector], Meta(max_length=100)] | None = None
    since: Time | None = None
    until: Time | None = None


class ToolHit(Wire):
    """A tool call whose texts have all terms of a query. Matches in `snippet` are enclosed in « and »."""

    tool_id: str
    session_id: str
    session_title: str | None
    project_path: str | None
    tool_name: str
    file_path: str | None
    success: bool | None
    created_at: int
    snippet: str


class ToolHits(Wire):
    """Tool calls, newest first. `scanned` counts the calls whose texts were read.

    `cursor` continues with older calls; null if all were read. Otherwise `scannedBackTo` is the time of the oldest call
    that was read: older calls were not searched yet.
    """

    hits: list[ToolHit]
    scanned: int
    scanned_back_to: int | None
    took_ms: float
    cursor: str | None = None


class ToolSearch(Method[ToolHits]):
    """Search the full inputs, outputs and errors of tool calls, newest first.

    A call is found if its texts contain every term of the query. Terms, at most 64, are separated by spaces; case is
    ignored (on SQLite only that of ASCII letters). Whole outputs are not in the index of `search`, so the stored texts
    are read: for one second at most, then `cursor` continues.
    """

    method: ClassVar[str] = "tool.search"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    project: ProjectReference | None = None
    session_id: Id | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    cursor: Cursor | None = None


class FilesStatus(Wire):
    """Status of the file watcher. `dirty` is true while detected changes are not indexed yet."""

    mode: Literal["watching", "polling", "off"]
    problem: str | None
    dirty: bool
    watched: list[str]
    last_sync: int | None
    files: int


class GenerationStatus(Wire):
    """One generation of the index: its model, chunking and progress."""

    provider: str
    model: str
    dims: int | None
    chunk_tokens: int
    chunk_overlap: int
    vectors: int
    pending: int
    failed: int


class IndexReport(Wire):
    """Index status. `vectors` is "ready", or the reason why vector search is unavailable; `building` is a running
    reindex. `fallback` says why the fallback embedder makes the vectors at present, if it does. The numbers of chunks,
    vectors and cache entries may be some seconds old if there are many."""

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
    fallback: str | None = None


class IndexStatus(Method[IndexReport]):
    """Report what is indexed, how much is pending, and any problem."""

    method: ClassVar[str] = "index.status"


class Synced(Wire):
    """Result of synchronising the index with the watched files."""

    added: int
    changed: int
    removed: int
    moved: int
    unchanged: int
    failed: list[str]
    seconds: float


class IndexSync(Method[Synced]):
    """Synchronise the index with all watched files now."""

    method: ClassVar[str] = "index.sync"


class IndexAdd(Method[Synced]):
    """Watch and index a markdown file, or the markdown files of a folder."""

    method: ClassVar[str] = "index.add"
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class IndexRemove(Method[Synced]):
    """Stop watching an added path and remove its files from the index."""

    method: ClassVar[str] = "index.remove"
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class Reindex(Method[JobStarted]):
    """Rebuild the index as a job. The live index stays in use until the new one is complete and replaces it.

    With `embedder` (and `model`) the job switches to that embedder; otherwise the configured embedder is used.
    `settings` changes further settings of the embedder at the same time: `embedder_url`, `embedder_key_file`,
    `embedder_dims`, `embedder_weight` and those of its fallback; null removes one. If the embedder does not answer, the
    job fails before it changes anything. If it fails later or is cancelled, it restores the settings.
    """

    method: ClassVar[str] = "reindex"
    embedder: Literal["static", "onnx", "openai", "ollama", "gemini", "none"] | None = None
    model: str | None = None
    settings: dict[str, str | int | float | None] = field(default_factory=dict)


class Model(Wire):
    """An embedding model and whether it is available."""

    embedder: str
    model: str
    dims: int | None
    in_use: bool
    available: bool
    note: str


class ModelList(Method[list[Model]]):
    """List embedding models: available ones, and what the others require."""

    method: ClassVar[str] = "model.list"
