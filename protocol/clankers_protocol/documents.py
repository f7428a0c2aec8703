"""Documents: handed over whole or in chunks, and found again chunk by chunk."""

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
"""What kind of document a file is, by the end of its name."""

SourceName = Annotated[str, Meta(min_length=1, max_length=4096)]
Title = Annotated[str, Meta(min_length=1, max_length=1000)]
Metadata = dict[Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_]+\Z")], Any]
"""Keys are letters, digits and underscores, so that `meta.<key>` can name them."""

ChunkId = Annotated[str, Meta(min_length=1, max_length=256)]
ChunkIds = Annotated[list[ChunkId], Meta(min_length=1, max_length=1000)]
Filters = Annotated[list[Filter], Meta(max_length=32)]


class Document(Wire):
    """A document without its text. `source` is what it is known by, `strategy` how it was cut; `chunks` counts
    those that are searched."""

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
    """A piece of a document. Lines count from 1; offsets are those of the characters of the document's text."""

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
    """What became of a document that was handed over."""

    document: Document
    outcome: Outcome


class GivenChunk(Wire, forbid_unknown_fields=True):
    """A chunk as its sender cut it. One that others name as `parentId` is not searched itself: a hit in a child
    answers with it."""

    content: Annotated[str, Meta(min_length=1, max_length=32_000)]
    id: ChunkId | None = None
    parent_id: ChunkId | None = None
    start_offset: Annotated[int, Meta(ge=0)] | None = None
    end_offset: Annotated[int, Meta(ge=0)] | None = None
    metadata: Metadata | None = None
    embedding: Embedding | None = None


class DocumentStore(Method[Ingested]):
    """Store a document in the chunks its sender made, all in one transaction.

    With the source or id of a stored document that one is changed in place; without `source` the text is its own
    name. Embeddings are kept until the index is built anew, which makes all vectors from the texts. `sequence`
    links consecutive chunks.
    """

    method: ClassVar[str] = "document.store"
    chunks: Annotated[list[GivenChunk], Meta(min_length=1, max_length=5000)]
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
    """A document to take apart: exactly one of `text`, `data` (base64) and `path` (of a regular file, absolute).

    `source` is what the document is known by: of a file its path, else given, else the text itself. A URL is
    only a name: nothing is fetched. `kind` is told by the name or the first bytes unless given; `strategy` follows
    from the kind. `chunkTokens` and `overlap` are those of a chunk (of a child, with parentChild).
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
    """Take a document apart, cut it into chunks and store it. Unchanged it is left as it is."""

    method: ClassVar[str] = "document.ingest"


class DocumentIngestMany(Method[JobStarted]):
    """Ingest many documents as a job; one that fails fails alone.

    What is accepted is ingested even if the daemon is killed meanwhile: the next one goes on. The job's result is
    `{stored, updated, unchanged, failed: [{position, source, error}]}`.
    """

    method: ClassVar[str] = "document.ingestMany"
    documents: Annotated[list[Ingest], Meta(min_length=1, max_length=10_000)]


class DocumentText(Wire):
    """A document, and its text from `offset` on; `nextOffset` when there is more of it."""

    document: Document
    text: str
    offset: int
    next_offset: int | None


class DocumentGet(Method[DocumentText]):
    """A document by its id, a unique beginning of it (8 characters or more), or its source, with its text.

    At most `length` characters of the text are sent.
    """

    method: ClassVar[str] = "document.get"
    id: Id | None = None
    source: SourceName | None = None
    offset: Annotated[int, Meta(ge=0)] = 0
    length: Annotated[int, Meta(ge=0, le=4_000_000)] = 1_000_000


class DocumentPage(Wire):
    documents: list[Document]
    cursor: str | None


class DocumentList(Method[DocumentPage]):
    """Documents, newest first. `source` is the beginning of theirs: of a folder or a site."""

    method: ClassVar[str] = "document.list"
    project: str | None = None
    source: str | None = None
    kind: Kind | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class DocumentUpdate(Method[Document]):
    """Change what is known of a document; its text is changed by storing it again. `metadata` replaces all of it."""

    method: ClassVar[str] = "document.update"
    id: Id
    title: Title | None = None
    metadata: Metadata | None = None
    project: SourceName | None = None


class DocumentDeleted(Wire):
    """What went, or would go."""

    id: str
    chunks: int
    edges: int
    dry_run: bool


class DocumentDelete(Method[DocumentDeleted]):
    """Delete a document, its chunks, their edges and what the index holds of them.

    In one transaction, or when there are more than 1,000 chunks in several, so that others get in between.
    """

    method: ClassVar[str] = "document.delete"
    id: Id
    dry_run: bool = False


class ScoredChunk(Wire):
    """A chunk that was found. `score` is the cosine of its vector with the asked one, or between 0 and 1 with words.

    Of a parent and its children the parent is the `chunk`, and `matched` the child that was found.
    """

    chunk: DocumentChunk
    document_title: str
    document_source: str
    score: float
    matched: str


class ChunksFound(Wire):
    """`mode` is how it was searched; `pending` chunks have no vector yet; `degraded` says what is missing and why."""

    hits: list[ScoredChunk]
    mode: Mode
    pending: int
    degraded: str | None


class ChunkSearch(Method[ChunksFound]):
    """The chunks of documents nearest in meaning to a query or to a given embedding (exactly one of them), best first.

    Filters are applied first: as many as asked for are found wherever there are so many. They take the fields
    `document`, `documentSource`, `project`, `meta.<key>` and `created` of `search`.
    """

    method: ClassVar[str] = "chunk.search"
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)] | None = None
    embedding: Embedding | None = None
    filters: Filters | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class ChunkSearchKeyword(Method[ChunksFound]):
    """The chunks of documents in which the words of the query stand, best first. Nothing in it is syntax."""

    method: ClassVar[str] = "chunk.searchKeyword"
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    filters: Filters | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class ChunkGet(Method[list[DocumentChunk]]):
    """Chunks by their ids or unique beginnings of them (8 characters or more), in their order; those that are gone are
    left out."""

    method: ClassVar[str] = "chunk.get"
    ids: ChunkIds


class ChunkPage(Wire):
    chunks: list[DocumentChunk]
    cursor: str | None


class ChunkList(Method[ChunkPage]):
    """The chunks of a document in their order, parents before their children."""

    method: ClassVar[str] = "chunk.list"
    document_id: Id
    limit: Limit = 100
    cursor: Cursor | None = None


def by_document(*ids: str) -> Filter:
    """Chunks of these documents."""
    return Filter("document", "in", list(ids))


def by_source(source: str) -> Filter:
    """Chunks of the document with this source."""
    return Filter("documentSource", "eq", source)


def by_meta(key: str, value: Any) -> Filter:
    """Chunks with this value in their metadata, or else in their document's."""
    return Filter(f"meta.{key}", "eq", value)


def created_after(moment: float) -> Filter:
    """Chunks of documents created after this moment."""
    return Filter("created", "after", moment)


def created_before(moment: float) -> Filter:
    """Chunks of documents created before this moment."""
    return Filter("created", "before", moment)


def negated(one: Filter) -> Filter:
    """What the filter leaves out."""
    opposites = (("eq", "ne"), ("in", "notIn"), ("before", "notBefore"), ("after", "notAfter"))
    opposite = {a: b for pair in opposites for a, b in (pair, pair[::-1])}
    return Filter(one.field, opposite[one.op], one.value)  # type: ignore[arg-type]  # every op has one
