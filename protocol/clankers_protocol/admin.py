"""Administration: health, status, read-only SQL, database maintenance, jobs, configuration."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from clankers_protocol.wire import Id, Limit, Method, Wire


class HealthReport(Wire):
    """Health of the daemon. `ok` is false if events cannot be stored or wait long; `problem` says why.

    `degraded` names what does not work although events are stored: vector search, if its model, a library or memory is
    missing. `warnings` name what else needs the owner's attention, each with what to do, and files moved aside or
    rescued. `writeWaitMs` is the wait of the oldest event now, `longestWriteWaitMs` the longest of the last minute.
    `postgresVersion` and `pgvectorVersion` are those of the server, if the database is on one.
    """

    ok: bool
    version: str
    protocol: int
    sqlite_version: str
    sqlite_vec_version: str | None
    schema_version: int | None
    problem: str | None = None
    degraded: str | None = None
    warnings: list[str] = field(default_factory=list)
    write_wait_ms: float = 0.0
    longest_write_wait_ms: float = 0.0
    postgres_version: str | None = None
    pgvector_version: str | None = None


class Health(Method[HealthReport]):
    """Report whether the daemon can store events."""

    method: ClassVar[str] = "health"


class DatabaseFile(Wire):
    db_path: str
    created: bool


class EnsureDb(Method[DatabaseFile], forbid_unknown_fields=False):
    """Create the database if it does not exist; `created` is true if this call created it."""

    method: ClassVar[str] = "ensureDb"
    is_cancellable: ClassVar[bool] = False


class DatabasePath(Wire):
    db_path: str


class GetDbPath(Method[DatabasePath], forbid_unknown_fields=False):
    """Return the path of the database file."""

    method: ClassVar[str] = "getDbPath"


class WriteQueue(Wire):
    """Counters of the write queue: writes waiting now, and writes and commits since the start."""

    waiting: int
    writes: int
    commits: int
    largest_commit: int


class Sizes(Wire):
    """Sizes on disk in bytes; `free` is the part of the database that `clankers-ctl db vacuum` would release."""

    database: int
    wal: int
    free: int


class RetentionRun(Wire):
    """A finished run: when, how many rows of each kind it removed, and why it failed, if it did."""

    at: int
    removed: dict[str, int] = field(default_factory=dict)
    freed_bytes: int = 0
    note: str | None = None
    error: str | None = None


class RetentionReport(Wire):
    """The retention settings, the last run and the next one."""

    rules: list[str]
    megabytes: int
    next_run: int | None = None
    last: RetentionRun | None = None


class StatusReport(Wire):
    """Status of the daemon. In a large database `counts` may be some seconds old; `countedAt` says of when they are.

    For `problem`, `degraded` and `warnings` see `health`.
    """

    ok: bool
    problem: str | None
    version: str
    protocol: int
    python_version: str
    sqlite_version: str
    sqlite_vec_version: str | None
    schema_version: int | None
    pid: int
    uptime_seconds: float
    memory_bytes: int | None
    connections: int
    socket_path: str
    db_path: str
    data_path: str
    log_path: str
    config_path: str
    queue: WriteQueue
    sizes: Sizes | None
    counts: dict[str, int]
    warnings: list[str] = field(default_factory=list)
    subscriptions: int = 0
    counted_at: int | None = None
    retention: RetentionReport | None = None
    postgres_version: str | None = None
    pgvector_version: str | None = None
    database_server: str | None = None
    degraded: str | None = None


class DaemonStatus(Method[StatusReport]):
    """Report version, uptime, paths, queue, sizes and row counts of the daemon."""

    method: ClassVar[str] = "daemon.status"


class Setting(Wire):
    """One configuration key with its value and the origin of that value."""

    key: str
    value: Any
    origin: Literal["default", "file", "environment", "flag"]
    help: str


class IgnoredSetting(Wire):
    """A value that is not in force: where it stands, and why the daemon does not use it."""

    key: str
    source: str
    reason: str


class Settings(Wire):
    """All settings. `notes` says what a change that was just made still needs, or has started."""

    path: str
    settings: list[Setting]
    ignored: list[IgnoredSetting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class DaemonConfig(Method[Settings]):
    """Return the configuration in effect."""

    method: ClassVar[str] = "daemon.config"


class DaemonConfigure(Method[Settings]):
    """Set one key in the configuration file and apply it; null removes it from the file."""

    method: ClassVar[str] = "daemon.configure"
    is_cancellable: ClassVar[bool] = False
    key: str
    value: str | int | float | bool | list[str] | None


class DaemonReload(Method[Settings]):
    """Read the configuration file again, as SIGHUP does."""

    method: ClassVar[str] = "daemon.reload"
    is_cancellable: ClassVar[bool] = False


class Rows(Wire):
    """Result of a query. A blob is shown as text if it is valid text, otherwise as X'…'."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
    took_ms: float


class Query(Method[Rows]):
    """Run one read-only SQL statement. Rows beyond `limit` are omitted and `truncated` is true."""

    method: ClassVar[str] = "query"
    ends_with_client: ClassVar[bool] = True
    sql: Annotated[str, Meta(min_length=1, max_length=100_000)]
    limit: Annotated[int, Meta(ge=1, le=100_000)] | None = None


class Job(Wire):
    """A long-running job. `total` is null while unknown; `result` is set once `state` is "done"."""

    id: str
    kind: str
    state: Literal["running", "done", "failed", "cancelled"]
    done: int
    total: int | None
    note: str | None
    result: Any
    error: str | None
    created_at: int
    finished_at: int | None


class JobStarted(Wire):
    job_id: str


class JobStatus(Method[Job]):
    """Return the progress of a job. While it runs, `$/progress` notifications go to the connection that started it."""

    method: ClassVar[str] = "job.status"
    id: Id


class JobList(Method[list[Job]]):
    """List jobs, newest first."""

    method: ClassVar[str] = "job.list"
    limit: Limit = 20


class JobCancel(Method[Job]):
    """Cancel a running job. Completed steps are not undone."""

    method: ClassVar[str] = "job.cancel"
    id: Id


class Migrated(Wire):
    from_version: int
    to_version: int
    applied: list[str]
    backup: str | None = None


class DbMigrate(Method[Migrated]):
    """Migrate the database to the schema of this version. The daemon does so by itself when it starts."""

    method: ClassVar[str] = "db.migrate"
    is_cancellable: ClassVar[bool] = False


class DbRollback(Method[Migrated]):
    """Undo the last migration after a backup. Events are refused until `db.migrate` runs or an older version starts."""

    method: ClassVar[str] = "db.rollback"
    is_cancellable: ClassVar[bool] = False


class DbCheck(Method[JobStarted]):
    """Check the database's integrity, as a job; its result is `{ok, problems}`."""

    method: ClassVar[str] = "db.check"


class DbVacuum(Method[JobStarted]):
    """Release free pages to the file system in small steps, as a job; its result is `{freedBytes}`."""

    method: ClassVar[str] = "db.vacuum"


class EngineCopy(Method[JobStarted]):
    """Copy everything but the index into another database, and verify the copy, as a job; its result is `{rows}`.

    `to` is a URL that begins with `postgresql://`, or the absolute path of a SQLite file. Rows that are there already
    stay, so that an interrupted copy can be started again. Events that are stored meanwhile may be missing.
    """

    method: ClassVar[str] = "engine.copy"

    to: Annotated[str, Meta(min_length=1, max_length=4096)]
    schema: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,62}\Z")] = "clankers"


class Finding(Wire):
    """Result of one check with advice on what to do next. `doctor.repair` fixes it if it is `repairable`."""

    name: str
    state: Literal["ok", "warning", "problem"]
    finding: str
    advice: str | None = None
    repairable: bool = False


class Diagnosis(Wire):
    """Findings of all checks, and what was `repaired` before them."""

    checks: list[Finding]
    repaired: list[str]


class DoctorCheck(Method[JobStarted]):
    """Check the database, the index and the daemon, as a job; its result is a Diagnosis.

    Long checks read on connections of their own, so events are stored without delay while it runs.
    """

    method: ClassVar[str] = "doctor.check"


class DoctorRepair(Method[JobStarted]):
    """Run the checks of `doctor.check` and rebuild derived data that is wrong, as a job.

    Captured data is never changed or removed. The result is a Diagnosis taken after the repair.
    """

    method: ClassVar[str] = "doctor.repair"


class Discover(Method[dict[str, Any]]):
    """Describe this interface as an OpenRPC document."""

    method: ClassVar[str] = "rpc.discover"
