"""Settings: defaults, then clankers.toml, then the environment, then flags; read once and handed down."""

import os
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
MAX_FILE_BYTES = 1024 * 1024


class ConfigError(Exception):
    """A setting is wrong; the message names it and where it stands."""


class Config(msgspec.Struct, forbid_unknown_fields=True):
    """Every setting, each also the variable CLANKERS_ and its name in capitals."""

    log_level: Annotated[LogLevel, Meta(description="The least level that is logged.")] = "info"
    log_retention_days: Annotated[int, Meta(ge=1, le=3650, description="How long daily log files are kept.")] = 30
    durability: Annotated[
        Literal["full", "normal"],
        Meta(description='"full" syncs each commit to the disk; "normal" may lose the last at a power cut.'),
    ] = "full"
    embedder: Annotated[
        Literal["static", "onnx", "openai", "ollama", "gemini", "none"],
        Meta(description="What makes vectors of texts; none searches by words alone."),
    ] = "static"
    embedder_model: Annotated[str, Meta(description="The model's name, or the folder of an ONNX model.")] = ""
    embedder_url: Annotated[str, Meta(description="The base URL of a remote embedder.")] = ""
    embedder_key_file: Annotated[str, Meta(description="A file (mode 0600) with the remote embedder's API key.")] = ""
    embedder_dims: Annotated[int, Meta(ge=0, le=8192, description="Dimensions to ask for; 0 is the model's own.")] = 0
    embedder_weight: Annotated[
        float, Meta(ge=0, le=1, description="The vectors' share in a hybrid search; 0 is the embedder's own.")
    ] = 0
    embedding_cache_entries: Annotated[
        int, Meta(ge=0, le=10_000_000, description="How many vectors are kept for texts seen before.")
    ] = 50_000
    chunk_tokens: Annotated[int, Meta(ge=32, le=4000, description="How long a chunk may be.")] = 400
    chunk_overlap: Annotated[int, Meta(ge=0, le=1000, description="What consecutive chunks share.")] = 80
    index_tools: Annotated[bool, Meta(description="Whether tool inputs and outputs are searchable too.")] = False
    search_seconds: Annotated[
        float, Meta(gt=0, le=60, description="After so long a search answers with what it has.")
    ] = 2
    memory_salience_weight: Annotated[
        float, Meta(ge=0, le=0.3, description="How much a memory's strength moves its place in a search.")
    ] = 0.2
    memory_importance_weight: Annotated[
        float, Meta(ge=0, le=0.3, description="How much a memory's importance moves its place in a search.")
    ] = 0.1
    memory_recency_weight: Annotated[
        float, Meta(ge=0, le=0.3, description="How much it moves a memory's place when it was used last.")
    ] = 0.1
    memory_outdated_factor: Annotated[
        float, Meta(ge=0, le=1, description="What the score of a superseded or expired memory is multiplied by.")
    ] = 0.5
    memory_pinned_factor: Annotated[
        float, Meta(ge=1, le=2, description="What the score of a pinned memory is multiplied by.")
    ] = 1.25
    memory_archive_below: Annotated[
        float, Meta(ge=0, le=1, description="Memories that have faded below this are archived; 0 archives none.")
    ] = 0.1
    memory_promote_uses: Annotated[
        int, Meta(ge=1, le=1000, description="A session's memory that was used so often becomes the project's.")
    ] = 2
    maintain_hours: Annotated[
        float, Meta(ge=0, le=8760, description="Look after all memories every so often; 0 is only when asked.")
    ] = 24
    extract: Annotated[
        Literal["off", "rules", "model"],
        Meta(description="Whether memories are drawn from sessions; only model sends anything, to chat_url."),
    ] = "off"
    extract_quiet_minutes: Annotated[
        float, Meta(gt=0, le=1440, description="How long a session must rest before memories are drawn from it.")
    ] = 10
    extract_days: Annotated[
        float, Meta(gt=0, le=3650, description="Sessions that have rested for longer than this are left alone.")
    ] = 7
    extract_memories: Annotated[
        int, Meta(ge=1, le=50, description="How many memories one reading of a session may bring.")
    ] = 5
    chat_url: Annotated[
        str, Meta(description="The base URL of an OpenAI-compatible chat service, for extract and summaries.")
    ] = ""
    chat_model: Annotated[str, Meta(description="The chat service's model.")] = ""
    chat_key_file: Annotated[str, Meta(description="A file (mode 0600) with the chat service's API key.")] = ""
    chat_seconds: Annotated[float, Meta(gt=0, le=600, description="How long the chat service may take to answer.")] = 60
    chat_messages: Annotated[
        int, Meta(ge=2, le=1000, description="How many messages one question to the chat service may hold.")
    ] = 60
    chat_characters: Annotated[
        int, Meta(ge=1000, le=400_000, description="How many characters one question to the chat service may hold.")
    ] = 24_000
    chat_calls_per_hour: Annotated[
        int, Meta(ge=0, le=10_000, description="How often the chat service may be asked in an hour, in all.")
    ] = 20
    chat_calls_per_session: Annotated[
        int, Meta(ge=0, le=1000, description="How often the chat service may be asked about one session, ever.")
    ] = 10
    watch_roots: Annotated[
        list[str], Meta(description="Workspaces whose MEMORY.md, memory.md and memory/**/*.md are indexed.")
    ] = msgspec.field(default_factory=list)
    watch_extra: Annotated[list[str], Meta(description="Further markdown files and folders that are indexed.")] = (
        msgspec.field(default_factory=list)
    )
    watch_agent_files: Annotated[
        bool, Meta(description="Whether CLAUDE.md and AGENTS.md of the workspaces are indexed too.")
    ] = False
    watch_debounce_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="How long a file must rest before it is indexed.")
    ] = 1500
    watch_poll: Annotated[bool, Meta(description="Look for changes by polling, where events do not arrive.")] = False
    sync_minutes: Annotated[float, Meta(ge=0, description="Compare all files every so often; 0 is never.")] = 0
    recall: Annotated[
        Literal["off", "minimal", "full"],
        Meta(description="What agents are told: nothing; at a session's start the pinned and the recent; or all."),
    ] = "full"
    recall_characters: Annotated[
        int, Meta(ge=500, le=9000, description="How long a text for an agent's context may be.")
    ] = 2000
    recall_seconds: Annotated[
        float, Meta(gt=0, le=60, description="After so long a prompt goes on without what could be recalled.")
    ] = 1
    hook_autostart: Annotated[
        bool, Meta(description="Whether a hook starts the daemon when nobody listens and no service keeps it.")
    ] = True
    tool_output_characters: Annotated[
        int, Meta(ge=100, le=10_000_000, description="How much of a tool's output is kept.")
    ] = 10_240
    transcript_folders: Annotated[
        list[str], Meta(description="Further folders that harnesses keep transcripts in, such as a CLAUDE_CONFIG_DIR.")
    ] = msgspec.field(default_factory=list)
    document_megabytes: Annotated[int, Meta(ge=1, le=1024, description="How large a document may be.")] = 50
    document_seconds: Annotated[int, Meta(ge=1, le=3600, description="How long taking one apart may take.")] = 120
    max_connections: Annotated[
        int, Meta(ge=1, le=4096, description="How many clients may be connected at once, half of them of one process.")
    ] = 256
    schedule_lease_seconds: Annotated[
        float,
        Meta(ge=0.1, le=86_400, description="How long a client has to acknowledge a scheduled action it was handed."),
    ] = 60
    idle_exit_seconds: Annotated[
        float,
        Meta(ge=0, description="Exit after so long without a client, when socket-activated; 0 is never."),
    ] = 0
    query_seconds: Annotated[
        float, Meta(gt=0, le=60, description="How long a statement of `clankers-ctl query` may run.")
    ] = 2
    query_rows: Annotated[
        int, Meta(ge=1, le=100_000, description="How many rows `clankers-ctl query` returns unless told.")
    ] = 1000


@dataclass(frozen=True)
class Loaded:
    """The settings in force, and where each came from."""

    config: Config
    origins: dict[str, Origin]
    path: Path
    hook_start: HookStart | None = None
    ignored: tuple[IgnoredSetting, ...] = ()

    def warnings(self) -> list[str]:
        """Describe the settings that are not in force, one line for each reason."""
        keys: dict[tuple[str, str], list[str]] = {}
        for each in self.ignored:
            source = "the environment" if each.source.startswith("CLANKERS_") else each.source
            keys.setdefault((source, each.reason), []).append(each.key)
        return [f"ignored {', '.join(found)} from {source}: {reason}" for (source, reason), found in keys.items()]

    def described(self) -> Settings:
        """The settings as clients see them."""
        hints = get_type_hints(Config, include_extras=True)
        return Settings(
            path=str(self.path),
            settings=[
                Setting(key, getattr(self.config, key), self.origins.get(key, "default"), _help(hints[key]))
                for key in Config.__struct_fields__
            ],
            ignored=list(self.ignored),
        )


def load(
    path: Path,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    hook_start: HookStart | None = None,
) -> Loaded:
    """Read all sources; raises ConfigError for a key or value that is wrong.

    A daemon that a hook started ignores the environment, and of the file what it may not trust.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    in_file = _from_file(path)
    ignored: list[IgnoredSetting] = []
    if hook_start:
        environ = {}
        in_file, ignored = hook_start.select(path, in_file)
    for key, value in in_file.items():
        values[key], origins[key] = _checked(key, value, str(path)), "file"
    for key in Config.__struct_fields__:
        variable = f"CLANKERS_{key.upper()}"
        if environ.get(variable):
            values[key], origins[key] = (
                _checked(key, environ[variable], variable, strict=False),
                "environment",
            )
    for key, value in flags.items():
        values[key], origins[key] = _checked(key, value, f"--{key.replace('_', '-')}"), "flag"
    return Loaded(Config(**values), origins, path, hook_start, tuple(ignored))


def write_setting(path: Path, key: str, value: Any) -> None:
    """Put one key into the file (None takes it out), keeping the rest of the text as it is."""
    if value is not None:
        value = _checked(key, value, path.name, strict=False)
    elif key not in Config.__struct_fields__:
        raise _unknown(key, path.name)
    import tomlkit  # needed by nobody else, and not at the start

    document = tomlkit.parse(path.read_text("utf-8")) if path.exists() else tomlkit.document()
    if value is None:
        document.pop(key, None)
    else:
        document[key] = value
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, tomlkit.dumps(document).encode())
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from error


def _from_file(path: Path) -> dict[str, Any]:
    try:  # it may be a link, but not a device or a pipe
        return tomllib.loads(read_regular(os.path.realpath(path), max_bytes=MAX_FILE_BYTES).decode())
    except FileNotFoundError:
        return {}
    except (OSError, UnsafeFile, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _checked(key: str, value: Any, where: str, *, strict: bool = True) -> Any:
    hints = get_type_hints(Config, include_extras=True)
    if key not in hints:
        raise _unknown(key, where)
    kind = get_origin(get_args(hints[key])[0])
    if kind is list and isinstance(value, str):  # in a variable or on a command line, commas part a list
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, hints[key], strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {key} = {value!r} is wrong: {_reason(error, hints[key])}") from error


def _reason(error: Exception, hint: Any) -> str:
    choices = get_args(get_args(hint)[0]) if get_origin(get_args(hint)[0]) is Literal else ()
    return f"it must be one of {', '.join(map(str, choices))}" if choices else str(error)


def _unknown(key: str, where: str) -> ConfigError:
    return ConfigError(f"{where}: there is no setting {key!r}; there are {', '.join(Config.__struct_fields__)}")


def _help(hint: Any) -> str:
    return next((meta.description or "" for meta in get_args(hint) if isinstance(meta, Meta)), "")
