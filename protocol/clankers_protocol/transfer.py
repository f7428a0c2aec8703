"""The records of an export, which holds everything durable. `exports.py` has the methods that read and write them.

An export is a file of JSON lines. The first line is a header; each other line is a record, and its `kind` names one of
the structs here. A record has the columns of a row, with its id and its times. docs/export.md describes the format.
"""

from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta, Raw

from clankers_protocol.entities import EntityRole, EntityType, ExtractedBy, RelationType
from clankers_protocol.memories import Fraction, Sector, Tier
from clankers_protocol.wire import Scope, Wire

FORMAT = "clankers-export"
VERSION = 1
"""Version of the format. An import accepts this one and earlier ones."""

Key = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
"""An id. Unlike those that peers choose now, it may have any printable character: older versions stored any text."""

Millis = Annotated[int, Meta(ge=0, le=10**15)]
Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Flag = Annotated[int, Meta(ge=0, le=1)]
NO_JSON = Raw(b"null")
"""The value of a JSON field that is absent."""


class Record(msgspec.Struct, tag_field="kind", rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of all records."""


class FolderRecord(Wire, forbid_unknown_fields=True):
    """A folder of a project."""

    path: Key
    seen_at: Millis
    repository: str | None = None


class ProjectRecord(Record, tag="project"):
    """A project, with the repositories that identify it and its folders."""

    id: Key
    path: Key
    created_at: Millis
    updated_at: Millis
    name: str | None = None
    named: Flag = 0
    settings: Raw = NO_JSON
    repositories: list[Key] = []
    folders: list[FolderRecord] = []


class SkillRecord(Record, tag="skill"):
    id: Key
    name: Key
    description: str
    instructions: str
    created_at: Millis
    updated_at: Millis
    tools: Raw = Raw(b"[]")
    model: str | None = None
    tags: Raw = Raw(b"[]")
    references: Raw = Raw(b"[]")
    extra: Raw = Raw(b"{}")
    files: Raw = Raw(b"[]")
    created_by: str | None = None
    version: Whole = 1


class SkillVersionRecord(Record, tag="skillVersion"):
    """A version of a skill. The skill is found by its id, else by its name."""

    skill_id: Key
    skill_name: Key
    version: Whole
    skill: Raw
    created_at: Millis
    created_by: str | None = None


class OptedOutRecord(Record, tag="optedOut"):
    """A session of which nothing is stored, because its project has opted out."""

    session_id: Key
    at: Millis


class SessionRecord(Record, tag="session"):
    """A session; a thread is a session with a `chatId`."""

    id: Key
    created_at: Millis
    updated_at: Millis
    title: str | None = None
    project_id: Key | None = None
    project_path: str | None = None
    project_name: str | None = None
    model: str | None = None
    provider: str | None = None
    source: str | None = None
    status: str | None = None
    prompt_tokens: Whole | None = None
    completion_tokens: Whole | None = None
    cost: float | None = None
    message_count: Whole | None = None
    tool_call_count: Whole | None = None
    permission_mode: str | None = None
    created_guessed: Flag = 0
    ended_at: Millis | None = None
    summary: str | None = None
    user_prompt: str | None = None
    context: Raw = NO_JSON
    chat_id: Key | None = None
    metadata: Raw = NO_JSON


class MessageRecord(Record, tag="message"):
    id: Key
    session_id: Key
    created_at: Millis
    role: str | None = None
    text_content: str | None = None
    model: str | None = None
    source: str | None = None
    prompt_tokens: Whole | None = None
    completion_tokens: Whole | None = None
    duration_ms: Whole | None = None
    completed_at: Millis | None = None
    metadata: Raw = NO_JSON


class ToolRecord(Record, tag="tool"):
    id: Key
    session_id: Key
    tool_name: str
    created_at: Millis
    message_id: Key | None = None
    tool_input: str | None = None
    tool_output: str | None = None
    file_path: str | None = None
    success: Flag | None = None
    error_message: str | None = None
    duration_ms: Whole | None = None


class SessionErrorRecord(Record, tag="sessionError"):
    id: Key
    session_id: Key
    created_at: Millis
    error_type: str | None = None
    error_message: str | None = None


class CompactionRecord(Record, tag="compaction"):
    id: Key
    session_id: Key
    created_at: Millis
    tokens_before: Whole | None = None
    tokens_after: Whole | None = None
    messages_before: Whole | None = None
    messages_after: Whole | None = None
    cause: str | None = None
    summary: str | None = None


class MessageIdentityRecord(Record, tag="messageIdentity"):
    """Names of one message in the hook and in the transcript of a harness, so that neither stores it twice."""

    message_id: Key
    session_id: Key
    prompt_id: str
    message_kind: Literal["prompt", "answer", "compaction"]
    digest: str
    line_id: Key | None = None


class InjectionRecord(Record, tag="injection"):
    """Context that an agent was given."""

    session_id: Key
    at: Millis
    occasion: Literal["start", "prompt"]
    trigger_event: str
    characters: Whole
    ids: Raw
    text: str


class MemoryRowRecord(Record, tag="memory"):
    """A memory in any state. Hashes for finding duplicates are computed again by the import."""

    id: Key
    content: str
    sector: Sector
    tier: Tier
    category: str
    scope: Scope
    importance: Fraction
    confidence: Fraction
    salience: Fraction
    salience_at: Millis
    last_accessed: Millis
    created_at: Millis
    updated_at: Millis
    valid_from: Millis
    project_id: Key | None = None
    summary: str | None = None
    access_count: Whole = 0
    pinned: Flag = 0
    valid_until: Millis | None = None
    expires_at: Millis | None = None
    archived_at: Millis | None = None
    is_deleted: Flag = 0
    deleted_at: Millis | None = None
    source_session_id: Key | None = None
    source_message_id: Key | None = None
    tags: Raw = Raw(b"[]")
    concepts: Raw = Raw(b"[]")
    files: Raw = Raw(b"[]")
    metadata: Raw = NO_JSON


class MemoryChangeRecord(Record, tag="memoryChange"):
    """An entry in the log of a memory; `before` has what the change replaced."""

    memory_id: Key
    at: Millis
    action: str
    by: str
    reason: str | None = None
    before: Raw = NO_JSON


class SessionMemoryRecord(Record, tag="sessionMemory"):
    """A use of a memory by a session."""

    session_id: Key
    memory_id: Key
    created_at: Millis
    usage_type: Literal["created", "recalled", "updated", "reinforced"]


class ExtractionRecord(Record, tag="extraction"):
    """Up to which message a session was read for memories."""

    session_id: Key
    read_until: Millis
    updated_at: Millis
    last_message: str = ""


class EntityRecord(Record, tag="entity"):
    """Something that memories mention. Entities of the same name and type are one."""

    id: Key
    name: str
    entity_type: EntityType
    created_at: Millis
    updated_at: Millis
    summary: str | None = None


class MentionedEntityRecord(Record, tag="mention"):
    """A link between a memory and an entity, which is named by its name and type."""

    memory_id: Key
    entity_name: str
    entity_type: EntityType
    role: EntityRole
    created_at: Millis
    noticed: Flag = 0


class RelationRowRecord(Record, tag="relation"):
    """A relation between two memories."""

    id: Key
    source_memory_id: Key
    target_memory_id: Key
    relationship_type: RelationType
    created_at: Millis
    valid_from: Millis
    extracted_by: ExtractedBy
    valid_until: Millis | None = None
    confidence: Fraction = 1.0


class DocumentRecord(Record, tag="document"):
    """A document without its text."""

    id: Key
    source: Key
    title: str
    document_kind: str
    strategy: str
    bytes: Whole
    created_at: Millis
    updated_at: Millis
    project_id: Key | None = None
    checksum: str | None = None
    characters: Whole = 0
    chunk_count: Whole = 0
    revision: Annotated[int, Meta(ge=0, le=2**53)] = 0
    metadata: Raw = NO_JSON


class DocumentPartRecord(Record, tag="documentPart"):
    """A section of a document's text. It belongs to the state that the document had at `documentUpdatedAt`."""

    document_id: Key
    document_source: Key
    document_updated_at: Millis
    start_offset: Whole
    text: str


class DocumentChunkRecord(Record, tag="documentChunk"):
    """A chunk of a document. A parent comes before its children."""

    id: Key
    document_id: Key
    document_source: Key
    document_updated_at: Millis
    chunk_index: Whole
    revision: Whole
    searchable: Flag
    hash: str
    content: str
    parent_id: Key | None = None
    start_offset: Whole | None = None
    end_offset: Whole | None = None
    start_line: Whole | None = None
    end_line: Whole | None = None
    metadata: Raw = NO_JSON


class EdgeRecord(Record, tag="edge"):
    """An edge between two chunks of documents."""

    source_id: Key
    target_id: Key
    relation: Literal[
        "references", "elaborates", "depends_on", "contradicts", "part_of", "similar_to", "sequence", "caused_by"
    ]
    weight: Annotated[float, Meta(gt=0, le=1)]
    created_at: Millis
    description: str | None = None
    made_at_ingest: Flag = 0


class ScheduleRecord(Record, tag="schedule"):
    """A scheduled action."""

    id: Key
    description: str
    schedule: str
    timezone: str
    created_at: Millis
    updated_at: Millis
    missed: Literal["once", "skip"] = "once"
    builtin: str | None = None
    tool_calls: Raw = NO_JSON
    synthesis_prompt: str | None = None
    skill_id: Key | None = None
    skill_name: Key | None = None
    enabled: Flag = 1
    next_run: Millis | None = None


class ScheduleRunRecord(Record, tag="scheduleRun"):
    """A finished run of a scheduled action."""

    id: Key
    action_id: Key
    scheduled_for: Millis
    state: Literal["done", "failed", "skipped"]
    created_at: Millis
    attempts: Whole = 0
    result: Raw = NO_JSON
    error: str | None = None
    finished_at: Millis | None = None


class ClientSettingRecord(Record, tag="clientSetting"):
    """A setting that a plugin or a program keeps in the daemon."""

    namespace: Key
    key: Key
    value: Raw
    updated_at: Millis


class WatchedPathRecord(Record, tag="watchedPath"):
    """A file or folder that was added to those whose Markdown files are indexed."""

    path: Key
    created_at: Millis


RECORDS: tuple[type[Record], ...] = (
    ProjectRecord,
    SkillRecord,
    SkillVersionRecord,
    OptedOutRecord,
    SessionRecord,
    MessageRecord,
    ToolRecord,
    SessionErrorRecord,
    CompactionRecord,
    MessageIdentityRecord,
    InjectionRecord,
    ExtractionRecord,
    MemoryRowRecord,
    MemoryChangeRecord,
    SessionMemoryRecord,
    EntityRecord,
    MentionedEntityRecord,
    RelationRowRecord,
    DocumentRecord,
    DocumentPartRecord,
    DocumentChunkRecord,
    EdgeRecord,
    ScheduleRecord,
    ScheduleRunRecord,
    ClientSettingRecord,
    WatchedPathRecord,
)
"""Every kind of record, in the order of a file: what a record refers to comes before it."""


ANY_RECORD: Any = Union[RECORDS]  # noqa: UP007  # of a tuple
"""The type of a line that is not the header; its `kind` tells which record it is."""


def kind_of(record: type[Record]) -> str:
    """Return the value of `kind` in records of this type."""
    return str(record.__struct_config__.tag)


class Header(Wire):
    """The first line of an export. `rows` counts the records by kind."""

    format: str
    version: Annotated[int, Meta(ge=1)]
    exported_at: int
    clankers: str
    rows: dict[str, int] = msgspec.field(default_factory=dict)
