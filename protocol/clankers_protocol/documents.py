"""Documents: ingested from files and text or stored in given chunks, and searched by chunk."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.admin import JobStarted
from clankers_protocol.ids import NewId
from clankers_protocol.search import Embedding, Filter, Mode
from clankers_protocol.wire import Cursor, Id, Limit, Method, Time, Wire

Kind = Literal["text", "markdown", "html", "csv", "json", "code", "pdf", "docx"]
Strategy = Literal["recursive", "markdown", "semantic", "parentChild", "code"]
Outcome = Literal["stored", "updated", "unchanged"]

SUFFIXES: dict[str, Kind] = {
    "md": "markdown", "markdown": "markdown", "mdx": "markdown", "htm": "html", "html": "html", "xhtml": "html",
    "csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "pdf": "pdf", "docx": "docx",
    "txt": "text", "rst": "text", "adoc": "text", "org": "text", "log": "text",
}  # fmt: skip
SUFFIXES |= dict.fromkeys(
    ("bash", "c", "cc", "cjs", "clj", "cpp", "cs", "css", "cxx", "dart", "erl", "ex", "exs", "go", "h", "hh", "hpp",
     "hs", "java", "jl", "js", "jsx", "kt", "kts", "lua", "mjs", "ml", "nix", "php", "pl", "proto", "py", "pyi", "r",
     "rb", "rs", "scala", "scss", "sh", "sql", "svelte", "swift", "tf", "toml", "ts", "tsx", "vue", "yaml", "yml",
     "zig"), "code"
)  # fmt: skip
"""Document kind by file name suffix."""

SourceName = Annotated[str, Meta(min_length=1, max_length=4096)]
Title = Annotated[str, Meta(min_length=1, max_length=1000)]
Metadata = dict[Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_]+\Z")], Any]
"""Keys consist of letters, digits and underscores, so that the filter field `meta.<key>` can name them."""

ChunkId = Annotated[str, Meta(min_length=1, max_length=256)]
ChunkIds = Annotated[list[ChunkId], Meta(min_length=1, max_length=1000)]
Filters = Annotated[list[Filter], Meta(max_length=32)]


class Document(Wire):
    """A document without its text. `source` identifies it, `strategy` is how it was chunked, and `chunks` counts the
    searchable chunks."""

    id: str
    source: str
    title: str
    kind: str
    strategy: str
    project_path: str | None
    bytes: int
    characters: int
    chunks: int
    complete: bool
    metadata: dict[str, Any]
    created_at: int
    updated_at: int


class DocumentChunk(Wire):
    """A chunk of a document. Lines count from 1; offsets are character offsets in the document's text."""

    id: str
    document_id: str
    parent_id: str | None
    index: int
    content: str
    start_offset: int | None
    end_offset: int | None
    start_line: int | None
    end_line: int | None
    metadata: dict[str, Any]


class Ingested(Wire):
    """Result of storing or ingesting a document."""

    document: Document
    outcome: Outcome


class ChunkInput(Wire, forbid_unknown_fields=True):
    """A chunk made by the client. A chunk that others name as `parentId` is not searched itself: a hit in one of its
    children returns the parent."""

    content: Annotated[str, Meta(min_length=1, max_length=32_000)]
    id: ChunkId | None = None
    parent_id: ChunkId | None = None
    start_offset: Annotated[int, Meta(ge=0)] | None = None
    end_offset: Annotated[int, Meta(ge=0)] | None = None
    metadata: Metadata | None = None
    embedding: Embedding | None = None


class DocumentStore(Method[Ingested]):
    """Store a document in chunks made by the client, in one transaction.

    A stored document with the same source or id is updated in place; `source` defaults to a hash of the text.
    Given embeddings are used until the next reindex, which computes all vectors from the texts. `sequence`
    links consecutive chunks with edges.
    """

    method: ClassVar[str] = "document.store"
    chunks: Annotated[list[ChunkInput], Meta(min_length=1, max_length=5000)]
    title: Title | None = None
    source: SourceName | None = None
    id: NewId | None = None
    content: str | None = None
    kind: Kind = "text"
    project: SourceName | None = None
    metadata: Metadata | None = None
    created_at: Time | None = None
    sequence: bool = True


class Ingest(Wire, forbid_unknown_fields=True):
    """A document to ingest: exactly one of `text`, `data` (base64) and `path` (absolute, of a regular file).

    `source` identifies the document. It defaults to the path of a file, or to a hash of the text. A URL is only a name:
    nothing is fetched. `kind` defaults to what the file name or the first bytes indicate, `strategy` to the one for
    that kind. `chunkTokens` and `overlap` apply to chunks (with parentChild, to child chunks).
    """

    text: str | None = None
    data: str | None = None
    path: SourceName | None = None
    source: SourceName | None = None
    title: Title | None = None
    kind: Kind | None = None
    strategy: Strategy | None = None
    chunk_tokens: Annotated[int, Meta(ge=32, le=4000)] | None = None
    overlap: Annotated[int, Meta(ge=0, le=1000)] | None = None
    parent_tokens: Annotated[int, Meta(ge=64, le=8000)] | None = None
    project: SourceName | None = None
    metadata: Metadata | None = None
    created_at: Time | None = None


class DocumentIngest(Ingest, Method[Ingested]):
    """Extract the text of a document, split it into chunks and store it. An unchanged document is not stored again."""

    method: ClassVar[str] = "document.ingest"


class DocumentIngestMany(Method[JobStarted]):
    """Ingest many documents as a job. A document that fails does not affect the others.

    Accepted documents are stored first, so if the daemon is killed the next one resumes. The job's result is
    `{stored, updated, unchanged, failed: [{position, source, error}]}`.
    """

    method: ClassVar[str] = "document.ingestMany"
    documents: Annotated[list[Ingest], Meta(min_length=1, max_length=10_000)]


class DocumentText(Wire):
    """A document with its text from `offset` on; `nextOffset` is set if there is more."""

    document: Document
    text: str
    offset: int
    next_offset: int | None


class DocumentGet(Method[DocumentText]):
    """Return a document by id, unique id prefix (8 characters or more) or source, with at most `length` characters of
    its text."""

    method: ClassVar[str] = "document.get"
    id: Id | None = None
    source: SourceName | None = None
    offset: Annotated[int, Meta(ge=0)] = 0
    length: Annotated[int, Meta(ge=0, le=4_000_000)] = 1_000_000


class DocumentPage(Wire):
    documents: list[Document]
    cursor: str | None


class DocumentList(Method[DocumentPage]):
    """List documents, newest first. `source` filters by prefix, for example a folder or a site."""

    method: ClassVar[str] = "document.list"
    project: str | None = None
    source: str | None = None
    kind: Kind | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class DocumentUpdate(Method[Document]):
    """Change a document's title, metadata or project. `metadata` replaces the stored object. To change the text, store
    the document again."""

    method: ClassVar[str] = "document.update"
    id: Id
    title: Title | None = None
    metadata: Metadata | None = None
    project: SourceName | None = None


class DocumentDeleted(Wire):
    """Rows deleted with a document, or with `dryRun` the rows that would be deleted."""

    id: str
    chunks: int
    edges: int
    dry_run: bool


class DocumentDelete(Method[DocumentDeleted]):
    """Delete a document with its chunks, their edges and their index entries.

    The deletion is one transaction, or several for more than 1,000 chunks, so that other writes are not delayed.
    """

    method: ClassVar[str] = "document.delete"
    id: Id
    dry_run: bool = False


class ScoredChunk(Wire):
    """A chunk found by a search. `score` is the cosine similarity (0 if it is negative), or a value between 0 and 1 for
    keyword search.

    If a child chunk matched, `chunk` is its parent and `matched` is the id of the child.
    """

    chunk: DocumentChunk
    document_title: str
    document_source: str
    score: float
    matched: str


class ChunksFound(Wire):
    """Search result. `pending` chunks have no vector yet; `degraded` states what is missing and why."""

    hits: list[ScoredChunk]
    mode: Mode
    pending: int
    degraded: str | None


class ChunkSearch(Method[ChunksFound]):
    """Find document chunks by vector similarity to a query or to an embedding (exactly one of them), best first.

    Filters are applied before ranking, so the result is full whenever enough chunks match. They accept the fields
    `document`, `documentSource`, `project`, `meta.<key>` and `created` of `search`.
    """

    method: ClassVar[str] = "chunk.search"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)] | None = None
    embedding: Embedding | None = None
    filters: Filters | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class ChunkSearchKeyword(Method[ChunksFound]):
    """Find document chunks by keyword, best first. The query is plain text without any syntax."""

    method: ClassVar[str] = "chunk.searchKeyword"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    filters: Filters | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class ChunkGet(Method[list[DocumentChunk]]):
    """Return chunks by id or unique id prefix (8 characters or more), in the given order. Missing ones are omitted."""

    method: ClassVar[str] = "chunk.get"
    ids: ChunkIds


class ChunkPage(Wire):
    chunks: list[DocumentChunk]
    cursor: str | None


class ChunkList(Method[ChunkPage]):
    """List the chunks of a document in order, parents before their children."""

    method: ClassVar[str] = "chunk.list"
    document_id: Id
    limit: Limit = 100
    cursor: Cursor | None = None


def by_document(*ids: str) -> Filter:
    """Build a filter for chunks of these documents."""
    return Filter("document", "in", list(ids))


def by_source(source: str) -> Filter:
    """Build a filter for chunks of the document with this source."""
    return Filter("documentSource", "eq", source)


def by_meta(key: str, value: Any) -> Filter:
    """Build a filter for chunks with this value in their own metadata or in their document's."""
    return Filter(f"meta.{key}", "eq", value)


def created_after(moment: float) -> Filter:
    """Build a filter for chunks of documents created after this time."""
    return Filter("created", "after", moment)


def created_before(moment: float) -> Filter:
    """Build a filter for chunks of documents created before this time."""
    return Filter("created", "before", moment)


def negated(one: Filter) -> Filter:
    """Negate a filter."""
    opposites = (("eq", "ne"), ("in", "notIn"), ("before", "notBefore"), ("after", "notAfter"))
    opposite = {a: b for pair in opposites for a, b in (pair, pair[::-1])}
    return Filter(one.field, opposite[one.op], one.value)  # type: ignore[arg-type]  # every op has one
