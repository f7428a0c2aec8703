"""Settings: defaults, overridden by clankers.toml, then by the environment, then by flags."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from clankers_protocol.admin import IgnoredSetting, Setting, Settings
from clankers_protocol.safe_writes import write_file
from clankersd.hook_start import HookStart
from clankersd.safe_files import UnsafeFile, read_regular

Origin = Literal["default", "file", "environment", "flag"]
LogLevel = Literal["debug", "info", "warn", "error"]
IndexSource = Literal["files", "sessions", "tools"]
RetentionRule = Annotated[
    str, Meta(pattern=r"^([A-Za-z0-9._:-]{1,100}/)?(tool-outputs|tools|messages|sessions|documents)=[1-9][0-9]{0,4}d\Z")
]
"""What to delete after how many days: `KIND=DAYSd`, or `HARNESS/KIND=DAYSd` for one harness."""

PATH_LISTS = ("watch_roots", "watch_extra", "transcript_folders")
"""Settings that list files and folders."""

MAX_FILE_BYTES = 1024 * 1024

_URL_PASSWORD = re.compile(r"(//[^:/?#]*:)[^/?#]*(?=@)|(password=)[^&\s]+")


class ConfigError(Exception):
    """A setting is invalid; the message names it and its source."""


class Config(msgspec.Struct, forbid_unknown_fields=True):
    """Every setting. The environment variable of a setting is CLANKERS_ and its name in capitals."""

    log_level: Annotated[LogLevel, Meta(description="Log events of this level and above.")] = "info"
    log_retention_days: Annotated[
        int, Meta(ge=1, le=3650, description="Delete daily log files after this many days.")
    ] = 30
    durability: Annotated[
        Literal["full", "normal"],
        Meta(
            description='"full" syncs each commit to the disk; "normal" may lose the last commits in a power failure.'
        ),
    ] = "full"
    database_url: Annotated[
        str,
        Meta(
            pattern=r"^(postgres(ql)?://.*)?\Z",
            description="URL of the PostgreSQL database that stores everything; empty uses a local file.",
        ),
    ] = ""
    database_read_url: Annotated[
        str,
        Meta(
            pattern=r"^(postgres(ql)?://.*)?\Z",
            description="URL of a read replica of the PostgreSQL database that serves searches; empty uses none.",
        ),
    ] = ""
    database_schema: Annotated[
        str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,62}\Z", description="Schema of the PostgreSQL database.")
    ] = "clankers"
    database_shared: Annotated[
        bool, Meta(description="Let daemons of several machines use one schema of a PostgreSQL database.")
    ] = False
    database_write_seconds: Annotated[
        float,
        Meta(ge=0.1, le=3600, description="Seconds after which the PostgreSQL server ends a statement of a write."),
    ] = 60.0
    hnsw_m: Annotated[
        int, Meta(ge=2, le=100, description="Links of a vector in an HNSW index that PostgreSQL builds from now on.")
    ] = 16
    hnsw_ef_construction: Annotated[
        int,
        Meta(ge=4, le=1000, description="Candidates that PostgreSQL compares for each vector of a new HNSW index."),
    ] = 128
    hnsw_ef_search: Annotated[
        int, Meta(ge=10, le=1000, description="Candidates that PostgreSQL compares in a search of an HNSW index.")
    ] = 400
    embedder: Annotated[
        Literal["static", "onnx", "openai", "ollama", "gemini", "none"],
        Meta(description="Embedder that turns texts into vectors; none disables vector search."),
    ] = "static"
    embedder_model: Annotated[str, Meta(description="Name of the embedding model, or the folder of an ONNX model.")] = (
        ""
    )
    embedder_url: Annotated[str, Meta(description="Base URL of a remote embedder.")] = ""
    embedder_key_file: Annotated[
        str, Meta(description="File (mode 0600) that holds the API key of a remote embedder.")
    ] = ""
    embedder_dims: Annotated[
        int, Meta(ge=0, le=8192, description="Vector dimensions to request; 0 uses the model's default.")
    ] = 0
    embedder_weight: Annotated[
        float,
        Meta(
            ge=0, le=1, description="Weight of vector search in a hybrid search, 0 to 1; 0 uses the embedder's default."
        ),
    ] = 0
    embedder_fallback: Annotated[
        Literal["none", "onnx", "openai", "ollama", "gemini"],
        Meta(description="Embedder with the same model that takes over while the configured one does not answer."),
    ] = "none"
    embedder_fallback_model: Annotated[
        str, Meta(description="Name of the same model at the fallback, or its ONNX folder; empty uses embedder_model.")
    ] = ""
    embedder_fallback_url: Annotated[str, Meta(description="Base URL of a remote fallback embedder.")] = ""
    embedder_fallback_key_file: Annotated[
        str, Meta(description="File (mode 0600) that holds the API key of a remote fallback embedder.")
    ] = ""
    reranker: Annotated[
        Literal["none", "onnx", "jina", "cohere", "voyage", "tei", "vllm"],
        Meta(
            description="Reranker that judges the best hits of a search; none disables it. All but onnx send the query "
            "and the texts of these hits to reranker_url."
        ),
    ] = "none"
    reranker_model: Annotated[
        str, Meta(description="Name of the reranker's model, or the folder of an ONNX cross-encoder.")
    ] = ""
    reranker_url: Annotated[
        str, Meta(description="Base URL of a reranker on the network, to which /rerank is appended.")
    ] = ""
    reranker_key_file: Annotated[str, Meta(description="File (mode 0600) that holds the reranker's API key.")] = ""
    reranker_candidates: Annotated[
        int, Meta(ge=2, le=100, description="Maximum number of hits that the reranker judges in a search.")
    ] = 20
    reranker_seconds: Annotated[
        float, Meta(gt=0, le=30, description="Seconds to wait for the reranker; then hits stay in their order.")
    ] = 1
    reranker_weight: Annotated[
        float, Meta(ge=0, le=1, description="Weight of the reranker's judgement in a score, 0 to 1.")
    ] = 0.6
    embedding_cache_entries: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Number of vectors to cache for texts seen before; the static embedder needs none.",
        ),
    ] = 50_000
    chunk_tokens: Annotated[int, Meta(ge=32, le=4000, description="Maximum length of a chunk, in tokens.")] = 400
    chunk_overlap: Annotated[int, Meta(ge=0, le=1000, description="Overlap of consecutive chunks, in tokens.")] = 80
    index_sources: Annotated[
        list[IndexSource],
        Meta(description="What to index: files (memory files), sessions (messages, titles), tools (all of a call)."),
    ] = msgspec.field(default_factory=lambda: ["files", "sessions"])
    index_tools: Annotated[
        bool,
        Meta(description="Index all of a tool call, not only its file, command and error: as tools in index_sources."),
    ] = False
    search_seconds: Annotated[
        float, Meta(gt=0, le=60, description="Seconds after which a search returns the results it has so far.")
    ] = 2
    memory_salience_weight: Annotated[
        float, Meta(ge=0, le=0.3, description="Weight of a memory's salience in its search score.")
    ] = 0.2
    memory_importance_weight: Annotated[
        float, Meta(ge=0, le=0.3, description="Weight of a memory's importance in its search score.")
    ] = 0.1
    memory_recency_weight: Annotated[
        float, Meta(ge=0, le=0.3, description="Weight of the time since a memory was last used in its search score.")
    ] = 0.1
    memory_outdated_factor: Annotated[
        float, Meta(ge=0, le=1, description="Factor applied to the score of a superseded or expired memory.")
    ] = 0.5
    memory_pinned_factor: Annotated[
        float, Meta(ge=1, le=2, description="Factor applied to the score of a pinned memory.")
    ] = 1.25
    memory_archive_below: Annotated[
        float,
        Meta(ge=0, le=1, description="Archive memories whose salience has decayed below this value; 0 archives none."),
    ] = 0.1
    memory_promote_uses: Annotated[
        int, Meta(ge=1, le=1000, description="Move a session's memory to its project after this many uses.")
    ] = 2
    maintain_hours: Annotated[
        float,
        Meta(ge=0, le=8760, description="Run memory maintenance every this many hours; 0 runs it on request only."),
    ] = 24
    extract: Annotated[
        Literal["off", "rules", "model"],
        Meta(description="Extract memories from sessions, by rules or by a model; only model sends data, to chat_url."),
    ] = "off"
    extract_quiet_minutes: Annotated[
        float,
        Meta(gt=0, le=1440, description="Minutes that a session must be idle before memories are extracted from it."),
    ] = 10
    extract_days: Annotated[
        float, Meta(gt=0, le=3650, description="Skip sessions that have been idle for more than this many days.")
    ] = 7
    extract_memories: Annotated[
        int, Meta(ge=1, le=50, description="Maximum number of memories to extract from a session at a time.")
    ] = 5
    chat_url: Annotated[
        str, Meta(description="Base URL of an OpenAI-compatible chat service, for extraction and summaries.")
    ] = ""
    chat_model: Annotated[str, Meta(description="Name of the chat service's model.")] = ""
    chat_key_file: Annotated[str, Meta(description="File (mode 0600) that holds the chat service's API key.")] = ""
    chat_seconds: Annotated[
        float, Meta(gt=0, le=600, description="Timeout of a request to the chat service, in seconds.")
    ] = 60
    chat_messages: Annotated[
        int, Meta(ge=2, le=1000, description="Maximum number of messages in a request to the chat service.")
    ] = 60
    chat_characters: Annotated[
        int, Meta(ge=1000, le=400_000, description="Maximum number of characters in a request to the chat service.")
    ] = 24_000
    chat_calls_per_hour: Annotated[
        int, Meta(ge=0, le=10_000, description="Maximum number of requests to the chat service per hour.")
    ] = 20
    chat_calls_per_session: Annotated[
        int, Meta(ge=0, le=1000, description="Maximum number of requests to the chat service about one session.")
    ] = 10
    watch_roots: Annotated[
        list[str], Meta(description="Workspaces whose MEMORY.md, memory.md and memory/**/*.md files to index.")
    ] = msgspec.field(default_factory=list)
    watch_projects: Annotated[
        bool, Meta(description="Index these files of every project in which a session runs, too.")
    ] = True
    watch_extra: Annotated[list[str], Meta(description="Additional Markdown files and folders to index.")] = (
        msgspec.field(default_factory=list)
    )
    watch_agent_files: Annotated[bool, Meta(description="Index CLAUDE.md and AGENTS.md of the workspaces too.")] = False
    watch_debounce_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="Milliseconds that a file must be unchanged before it is indexed.")
    ] = 1500
    watch_poll: Annotated[bool, Meta(description="Poll for file changes, for file systems that send no events.")] = (
        False
    )
    sync_minutes: Annotated[
        float,
        Meta(ge=0, description="Compare all watched files with the index every this many minutes; 0 disables it."),
    ] = 0
    recall: Annotated[
        Literal["off", "minimal", "full"],
        Meta(description="Context for agents: off; minimal, at session start only; or full, with each prompt too."),
    ] = "full"
    recall_characters: Annotated[
        int, Meta(ge=500, le=9000, description="Maximum length of a recalled text, in characters.")
    ] = 2000
    recall_seconds: Annotated[
        float, Meta(gt=0, le=60, description="Seconds to wait for recall before a prompt continues without it.")
    ] = 1
    hook_autostart: Annotated[
        bool,
        Meta(description="Let hooks and clankers-ctl start the daemon if it is not running and no service manages it."),
    ] = True
    tool_output_characters: Annotated[
        int, Meta(ge=100, le=10_000_000, description="Maximum length of a stored tool output, in characters.")
    ] = 10_240
    transcript_folders: Annotated[
        list[str], Meta(description="Additional folders with transcripts of harnesses, such as a CLAUDE_CONFIG_DIR.")
    ] = msgspec.field(default_factory=list)
    document_megabytes: Annotated[int, Meta(ge=1, le=1024, description="Maximum size of a document, in megabytes.")] = (
        50
    )
    document_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="Timeout for extracting the text of a document, in seconds.")
    ] = 120
    backup_hours: Annotated[
        float, Meta(ge=0, le=8760, description="Make a backup every this many hours; 0 makes none by itself.")
    ] = 24
    backup_keep: Annotated[int, Meta(ge=1, le=1000, description="Number of automatic backups to keep.")] = 7
    retention: Annotated[
        list[RetentionRule],
        Meta(
            description="Delete captured data for good after a time, such as tool-outputs=30d, sessions=365d or "
            "opencode/sessions=90d."
        ),
    ] = msgspec.field(default_factory=list)
    retention_megabytes: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Maximum size of the database: beyond it, the oldest tool outputs, then tool calls, then "
            "sessions are deleted for good; 0 sets no limit.",
        ),
    ] = 0
    slow_request_seconds: Annotated[
        float,
        Meta(gt=0, le=3600, description="Log requests that take longer than this many seconds."),
    ] = 1
    request_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400,
            description="Cancel a request that has stored nothing after this many seconds; jobs may take longer.",
        ),
    ] = 600
    max_connections: Annotated[
        int,
        Meta(ge=1, le=4096, description="Maximum number of concurrent connections; one process may hold half of them."),
    ] = 256
    schedule_lease_seconds: Annotated[
        float,
        Meta(ge=0.1, le=86_400, description="Seconds that a client has to acknowledge a scheduled action."),
    ] = 60
    idle_exit_seconds: Annotated[
        float,
        Meta(ge=0, description="Exit after this many seconds without a client, if socket-activated; 0 disables it."),
    ] = 0
    query_seconds: Annotated[
        float, Meta(gt=0, le=60, description="Timeout of a `clankers-ctl query` statement, in seconds.")
    ] = 2
    query_rows: Annotated[
        int, Meta(ge=1, le=100_000, description="Default maximum number of rows that `clankers-ctl query` returns.")
    ] = 1000


@dataclass(frozen=True)
class Loaded:
    """The settings in force, and the source of each."""

    config: Config
    origins: dict[str, Origin]
    path: Path
    hook_start: HookStart | None = None
    ignored: tuple[IgnoredSetting, ...] = ()

    def warnings(self) -> list[str]:
        """Describe the ignored settings, one line for each source and reason."""
        keys: dict[tuple[str, str], list[str]] = {}
        for setting in self.ignored:
            source = "the environment" if setting.source.startswith("CLANKERS_") else setting.source
            keys.setdefault((source, setting.reason), []).append(setting.key)
        return [f"ignored {', '.join(names)} from {source}: {reason}" for (source, reason), names in keys.items()]

    def describe(self) -> Settings:
        """Return the settings with their sources and descriptions, as clients see them."""
        settings = []
        for key, hint in get_type_hints(Config, include_extras=True).items():
            description = next((meta.description or "" for meta in get_args(hint) if isinstance(meta, Meta)), "")
            value = getattr(self.config, key)
            if key in ("database_url", "database_read_url"):
                value = _URL_PASSWORD.sub(r"\1\2***", value)
            settings.append(Setting(key, value, self.origins.get(key, "default"), description))
        return Settings(path=str(self.path), settings=settings, ignored=list(self.ignored))


def load(
    path: Path,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    hook_start: HookStart | None = None,
) -> Loaded:
    """Read all sources; raises ConfigError for an unknown key or an invalid value.

    A daemon that a hook started ignores the environment, and those settings of the file that it may not trust.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    text = _read_file(path)
    file_values = _parse_file(path, text)
    ignored: list[IgnoredSetting] = []
    if hook_start:
        environ = {}
        file_values, ignored = hook_start.select(path, file_values)
    for key, value in file_values.items():
        found = re.search(rf"^[ \t]*[\"']?{re.escape(key)}[\"']?[ \t]*=", text, re.MULTILINE)
        where = f"{path}, line {_position(text[: found.start()])[0]}" if found else str(path)
        values[key], origins[key] = _convert(key, value, where), "file"
    for key in Config.__struct_fields__:
        variable = f"CLANKERS_{key.upper()}"
        if environ.get(variable):
            values[key], origins[key] = (
                _convert(key, environ[variable], variable, strict=False),
                "environment",
            )
    for key, value in flags.items():
        values[key], origins[key] = _convert(key, value, f"--{key.replace('_', '-')}"), "flag"
    return Loaded(Config(**values), origins, path, hook_start, tuple(ignored))


def write_setting(path: Path, key: str, value: Any) -> None:
    """Set one key in the file (None removes it) and preserve the rest of its text."""
    write_settings(path, {key: value})


def write_settings(path: Path, values: Mapping[str, Any]) -> None:
    """Set keys in the file (None removes one) all at once, and preserve the rest of its text."""
    converted: dict[str, Any] = {}
    for key, value in values.items():
        if key not in Config.__struct_fields__:
            raise _unknown_key(key, path.name)
        converted[key] = None
        if value is not None:
            converted[key] = checked = _convert(key, value, path.name, strict=False)
            for each in checked if key in PATH_LISTS else ():
                folder = os.path.expanduser(each)  # noqa: PTH111 - pathlib's raises for an unknown user
                if not folder.startswith("/"):
                    raise ConfigError(f"{key}: {each!r} must begin with / or ~")
                if not os.path.exists(folder):  # noqa: PTH110 - pathlib's raises for a path that is too long
                    raise ConfigError(f"{key}: {each!r} does not exist: create it first")
    text = _read_file(path)
    _parse_file(path, text)  # says better than tomlkit what is wrong
    import tomlkit  # only needed here, and not at the start

    document = tomlkit.parse(text)
    for key, value in converted.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = value
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, tomlkit.dumps(document).encode())
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from error


def _read_file(path: Path) -> str:
    """Return the text of the file; empty if there is none."""
    try:  # the path may be a link, but not a device or a pipe
        data = read_regular(os.path.realpath(path), max_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        return ""
    except (OSError, UnsafeFile) as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, column = _position(data[: error.start].decode(errors="replace"))
        raise ConfigError(f"{path}, line {line}, column {column}: it is not UTF-8") from error


def _parse_file(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, place = str(error).rpartition(" (at ")
        if found := re.fullmatch(r"line (\d+), column (\d+)\)", place):
            line, column = int(found[1]), int(found[2])
        else:
            line, column = _position(text.rstrip())
        advice = "correct it, or remove the line"
        raise ConfigError(f"{path}, line {line}, column {column}: {problem or error}; {advice}") from error


def _position(text: str) -> tuple[int, int]:
    """Return the line and column after `text`."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _convert(key: str, value: Any, where: str, *, strict: bool = True) -> Any:
    hints = get_type_hints(Config, include_extras=True)
    if key not in hints:
        raise _unknown_key(key, where)
    kind = get_args(hints[key])[0]
    is_list = get_origin(kind) is list
    if is_list and isinstance(value, str):  # in a variable or on a command line, commas separate items
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, hints[key], strict=strict)
    except msgspec.ValidationError as error:
        item = get_args(kind)[0] if is_list else kind
        reason = f"it must be a list: {error}" if is_list else str(error)
        if get_origin(item) is Literal:
            choices = ", ".join(map(str, get_args(item)))
            reason = f"{'each item' if is_list else 'it'} must be one of {choices}"
        elif item is RetentionRule:
            reason = (
                "each item must be KIND=DAYSd or HARNESS/KIND=DAYSd, such as tool-outputs=30d; a kind is tool-outputs, "
                "tools, messages, sessions or documents"
            )
        raise ConfigError(f"{where}: {key} = {value!r} is invalid: {reason}") from error


def _unknown_key(key: str, where: str) -> ConfigError:
    import difflib  # only needed for a mistake

    near = difflib.get_close_matches(key, Config.__struct_fields__, 3, 0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else "`clankers-ctl config show` lists the settings"
    return ConfigError(f"{where}: unknown setting {key!r}; {advice}")
