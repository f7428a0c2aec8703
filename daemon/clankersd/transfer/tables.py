"""The durable tables, with the record of each: one declaration that the export reads and the import writes by.

Where two machines have a row with the same key, both must come to the same row, whichever imports first. So the rows
are ordered: by the columns of `newest`, then by the number of values, then by the values themselves. The greater one
stays. `filled` columns take the value of the other row where the greater one has none, and `highest` columns the higher
value of both.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw

from clankers_protocol import transfer as records
from clankers_protocol.subscriptions import ChangeKind
from clankers_protocol.transfer import Record, kind_of
from clankersd.forgetting.retention import ACTION_ID

Row = dict[str, Any]
"""The columns of a row by name."""


@dataclass(frozen=True)
class Table:
    """A durable table. `columns` maps fields of its record to columns of another name.

    `reference_fields` are fields that name another row, and no columns; `reference_columns` are found by them.
    `joined` is the FROM clause of the export, `expressions` the SQL of fields that are no columns. Rows that the index
    holds have a `text_kind` there, and an `index_owner`: the column of `chunks` with their id.
    """

    record: type[Record]
    name: str
    key: tuple[str, ...] = ("id",)
    newest: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    highest: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    reference_fields: tuple[str, ...] = ()
    reference_columns: tuple[str, ...] = ()
    joined: str | None = None
    expressions: dict[str, str] = field(default_factory=dict)
    text_kind: str | None = None
    index_owner: str | None = None
    notification: ChangeKind | None = None

    @cached_property
    def kind(self) -> str:
        """Value of `kind` in the records of this table."""
        return kind_of(self.record)

    @cached_property
    def json_fields(self) -> frozenset[str]:
        """Fields whose columns hold JSON."""
        hints = msgspec.structs.fields(self.record)
        return frozenset(one.name for one in hints if one.type is Raw)

    @cached_property
    def optional_json(self) -> frozenset[str]:
        """JSON fields whose column is null without a value."""
        return frozenset(one.name for one in msgspec.structs.fields(self.record) if one.default is records.NO_JSON)

    @cached_property
    def column_of(self) -> dict[str, str]:
        """Columns by field, without the fields that are no columns of this table."""
        fields = [name for name in self.record.__struct_fields__ if name not in self.reference_fields]
        return {name: self.columns.get(name, name) for name in fields}

    @cached_property
    def stored_columns(self) -> list[str]:
        """Columns that a record decides."""
        return [*self.column_of.values(), *self.reference_columns]

    @cached_property
    def select(self) -> str:
        """Statement that reads the fields of all records; the values of JSON fields are valid JSON on one line."""
        fields = []
        for name in self.record.__struct_fields__:
            sql = self.expressions.get(name) or f"{self.name}.{self.columns.get(name, name)}"
            fields.append(_ONE_LINE_JSON.format(sql) if name in self.json_fields else sql)
        return f"SELECT {', '.join(fields)} FROM {self.joined or self.name}"

    @cached_property
    def count(self) -> str:
        return f"SELECT count(*) FROM {(self.joined or self.name).partition(' ORDER BY ')[0]}"

    @cached_property
    def by_key(self) -> str:
        """Statement that reads the stored row with a key."""
        return f"SELECT {', '.join(self.stored_columns)} FROM {self.name} WHERE {self._has_key}"

    @cached_property
    def insert(self) -> str:
        values = ", ".join(f":{name}" for name in self.stored_columns)
        return f"INSERT INTO {self.name} ({', '.join(self.stored_columns)}) VALUES ({values})"

    @cached_property
    def update(self) -> str:
        changed = [f"{column} = :{column}" for column in self.stored_columns if column not in self.key]
        return f"UPDATE {self.name} SET {', '.join(changed)} WHERE {self._has_key}"

    @cached_property
    def _has_key(self) -> str:
        return " AND ".join(f"{column} IS :{column}" for column in self.key)

    def to_row(self, record: Record) -> Row:
        """Return the columns of a record; JSON fields are text as in the file."""
        row: Row = {}
        for name, column in self.column_of.items():
            value = getattr(record, name)
            if isinstance(value, Raw):
                text = bytes(value).decode()
                value = None if text == "null" and name in self.optional_json else text
            row[column] = value
        return row


_ONE_LINE_JSON = (
    "CASE WHEN NOT json_valid({0}) THEN json_quote({0}) WHEN instr({0}, char(10)) > 0 THEN json({0}) ELSE {0} END"
)

_EVENT_TEXTS = ("model", "source", "metadata")

TABLES: tuple[Table, ...] = (
    Table(
        records.ProjectRecord,
        "projects",
        newest=("updated_at",),
        columns={"settings": "settings_json"},
        reference_fields=("repositories", "folders"),
        expressions={
            "repositories": "(SELECT json_group_array(repository) FROM project_repositories"
            " WHERE project_id = projects.id)",
            "folders": "(SELECT json_group_array(json_object("
            "'path', path, 'seenAt', seen_at, 'repository', repository))"
            " FROM project_folders WHERE project_id = projects.id)",
        },
    ),
    Table(
        records.SkillRecord,
        "skills",
        newest=("updated_at", "version"),
        columns={name: f"{name}_json" for name in ("tools", "tags", "references", "extra", "files")},
        text_kind="skill",
        index_owner="skill_id",
        notification="skill",
    ),
    Table(
        records.SkillVersionRecord,
        "skill_versions",
        key=("skill_id", "version"),
        newest=("created_at",),
        columns={"skill": "skill_json"},
        reference_fields=("skill_name",),
        joined="skill_versions JOIN skills ON skills.id = skill_versions.skill_id",
        expressions={"skill_name": "skills.name"},
    ),
    Table(records.OptedOutRecord, "opted_out", key=("session_id",)),
    Table(
        records.SessionRecord,
        "sessions",
        newest=("updated_at",),
        filled=(
            "title",
            "project_id",
            "project_path",
            "project_name",
            "model",
            "provider",
            "source",
            "permission_mode",
            "summary",
            "user_prompt",
            "context_json",
            "chat_id",
            "metadata",
        ),
        highest=("prompt_tokens", "completion_tokens", "cost", "message_count", "tool_call_count"),
        columns={"context": "context_json"},
        notification="session",
    ),
    Table(
        records.MessageRecord,
        "messages",
        newest=("completed_at",),
        filled=("role", "text_content", "duration_ms", *_EVENT_TEXTS),
        highest=("prompt_tokens", "completion_tokens"),
        text_kind="message",
        index_owner="message_id",
        notification="message",
    ),
    Table(
        records.ToolRecord,
        "tools",
        filled=("message_id", "tool_input", "tool_output", "file_path", "success", "error_message", "duration_ms"),
        text_kind="tool",
        index_owner="tool_id",
    ),
    Table(records.SessionErrorRecord, "session_errors", filled=("error_type", "error_message")),
    Table(
        records.CompactionRecord,
        "compaction_events",
        filled=("tokens_before", "tokens_after", "messages_before", "messages_after", "cause", "summary"),
    ),
    Table(
        records.MessageIdentityRecord,
        "told_messages",
        key=("message_id",),
        filled=("line_id",),
        columns={"message_kind": "kind"},
    ),
    Table(
        records.InjectionRecord,
        "injections",
        key=("session_id", "at", "kind", "trigger_event", "text"),
        columns={"occasion": "kind", "ids": "ids_json"},
    ),
    Table(records.ExtractionRecord, "extractions", key=("session_id",), newest=("read_until", "updated_at")),
    Table(
        records.MemoryRowRecord,
        "memories",
        newest=("updated_at", "last_accessed", "access_count", "salience_at"),
        columns={"tags": "tags_json", "concepts": "concepts_json", "files": "files_json"},
        text_kind="memory",
        index_owner="memory_id",
        notification="memory",
    ),
    Table(
        records.MemoryChangeRecord,
        "memory_log",
        key=("memory_id", "at", "action", "by", "reason", "before_json"),
        columns={"before": "before_json"},
    ),
    Table(
        records.SessionMemoryRecord,
        "session_memories",
        key=("session_id", "memory_id", "usage_type", "created_at"),
    ),
    Table(records.EntityRecord, "entities", newest=("updated_at",), filled=("summary",)),
    Table(
        records.MentionedEntityRecord,
        "memory_entities",
        key=("memory_id", "entity_id"),
        reference_fields=("entity_name", "entity_type"),
        reference_columns=("entity_id",),
        joined="memory_entities JOIN entities ON entities.id = memory_entities.entity_id",
        expressions={"entity_name": "entities.name", "entity_type": "entities.entity_type"},
    ),
    Table(records.RelationRowRecord, "memory_relationships", newest=("valid_until",)),
    Table(
        records.DocumentRecord,
        "documents",
        newest=("updated_at", "revision"),
        columns={"document_kind": "kind"},
        joined="documents WHERE revision >= 0",
    ),
    Table(
        records.DocumentPartRecord,
        "document_parts",
        key=("document_id", "start_offset"),
        reference_fields=("document_source", "document_updated_at"),
        joined="document_parts JOIN documents ON documents.id = document_id WHERE documents.revision >= 0",
        expressions={"document_source": "documents.source", "document_updated_at": "documents.updated_at"},
    ),
    Table(
        records.DocumentChunkRecord,
        "document_chunks",
        reference_fields=("document_source", "document_updated_at"),
        joined="document_chunks JOIN documents ON documents.id = document_id WHERE documents.revision >= 0"
        " ORDER BY document_id, chunk_index, document_chunks.id",
        expressions={"document_source": "documents.source", "document_updated_at": "documents.updated_at"},
        text_kind="document chunk",
        index_owner="document_chunk_id",
    ),
    Table(
        records.EdgeRecord,
        "chunk_edges",
        key=("source_id", "target_id", "relation"),
        newest=("created_at",),
        filled=("description",),
    ),
    Table(
        records.ScheduleRecord,
        "scheduled_actions",
        newest=("updated_at",),
        highest=("next_run",),
        columns={"tool_calls": "tool_calls_json"},
        reference_fields=("skill_name",),
        joined="scheduled_actions LEFT JOIN skills ON skills.id = scheduled_actions.skill_id"
        f" WHERE scheduled_actions.id <> '{ACTION_ID}'",  # it follows from the settings of each machine
        expressions={"skill_name": "skills.name"},
        notification="schedule",
    ),
    Table(
        records.ScheduleRunRecord,
        "schedule_runs",
        newest=("finished_at",),
        columns={"result": "result_json"},
        joined=f"schedule_runs WHERE state IN ('done', 'failed', 'skipped') AND action_id <> '{ACTION_ID}'",
    ),
    Table(
        records.ClientSettingRecord,
        "config",
        key=("namespace", "key"),
        newest=("updated_at",),
        columns={"value": "value_json"},
    ),
    Table(records.WatchedPathRecord, "watched_paths", key=("path",)),
)
"""In the order of a file: what a row refers to comes before it."""

TABLE_OF: dict[type[Record], Table] = {table.record: table for table in TABLES}


def rank(table: Table, row: Row) -> tuple[Any, ...]:
    """Return the place of a row among all rows with its key; no two different rows have the same."""
    newest = tuple(-1 if row[column] is None else row[column] for column in table.newest)
    values = sum(value is not None for value in row.values())
    return (*newest, values, msgspec.json.encode(list(row.values())))


def combine(table: Table, stored: Row, given: Row) -> Row:
    """Return the row that both rows of one key become; the order of the two does not matter."""
    greater, lesser = (given, stored) if rank(table, given) > rank(table, stored) else (stored, given)
    row = dict(greater)
    for column in table.filled:
        if row[column] is None:
            row[column] = lesser[column]
    for column in table.highest:
        present = [value for value in (greater[column], lesser[column]) if value is not None]
        row[column] = max(present, default=None)
    return row
