"""For the owner: health, status, read-only SQL, the database's upkeep, jobs, configuration."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.wire import Id, Limit, Method, Wire


class HealthReport(Wire):
    """`ok` is false when events cannot be stored; `problem` then says why and what to do. `degraded` says what does not
    work although events are stored: vector search, when its model, a library or memory is missing."""

    ok: bool
    version: str
    protocol: int
    sqlite_version: str
    sqlite_vec_version: str | None
    schema_version: int | None
    problem: str | None = None
    degraded: str | None = None


class Health(Method[HealthReport]):
    """Whether the daemon can do its work."""

    method: ClassVar[str] = "health"


class DatabaseFile(Wire):
    db_path: str
    created: bool


class EnsureDb(Method[DatabaseFile], forbid_unknown_fields=False):
    """Make sure there is a database; `created` tells whether this call made it."""

    method: ClassVar[str] = "ensureDb"


class DatabasePath(Wire):
    db_path: str


class GetDbPath(Method[DatabasePath], forbid_unknown_fields=False):
    """Where the database is."""

    method: ClassVar[str] = "getDbPath"


class WriteQueue(Wire):
    """The group commit: what waits, and what has been committed since the start."""

    waiting: int
    writes: int
    commits: int
    largest_commit: int


class Sizes(Wire):
    """Bytes on disk; `free` is the part of the database that `clankers-ctl db vacuum` would give back."""

    database: int
    wal: int
    free: int


class StatusReport(Wire):
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


class DaemonStatus(Method[StatusReport]):
    """What the daemon is, does and holds."""

    method: ClassVar[str] = "daemon.status"


class Setting(Wire):
    """One key of the configuration: its value, and where that came from."""

    key: str
    value: Any
    origin: Literal["default", "file", "environment", "flag"]
    help: str


class Settings(Wire):
    path: str
    settings: list[Setting]


class DaemonConfig(Method[Settings]):
    """The configuration in force."""

    method: ClassVar[str] = "daemon.config"


class DaemonConfigure(Method[Settings]):
    """Set one key in the configuration file and apply it; null removes it from the file."""

    method: ClassVar[str] = "daemon.configure"
    key: str
    value: str | int | float | bool | None


class DaemonReload(Method[Settings]):
    """Read the configuration file again, as SIGHUP does."""

    method: ClassVar[str] = "daemon.reload"


class Rows(Wire):
    """A query's answer. Blobs are shown as text where they are text, else as X'…'."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
    took_ms: float


class Query(Method[Rows]):
    """Run one read-only SQL statement. Rows beyond `limit` are left out and `truncated` says so."""

    method: ClassVar[str] = "query"
    sql: Annotated[str, Meta(min_length=1, max_length=100_000)]
    limit: Annotated[int, Meta(ge=1, le=100_000)] | None = None


class Job(Wire):
    """Long work: `total` is null while unknown; `result` is there once `state` is "done"."""

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
    """How far a job is. While it runs, `$/progress` notifications go to the connection that began it."""

    method: ClassVar[str] = "job.status"
    id: Id


class JobList(Method[list[Job]]):
    """Jobs, newest first."""

    method: ClassVar[str] = "job.list"
    limit: Limit = 20


class JobCancel(Method[Job]):
    """Stop a running job; what it has finished stays."""

    method: ClassVar[str] = "job.cancel"
    id: Id


class Migrated(Wire):
    from_version: int
    to_version: int
    applied: list[str]
    backup: str | None = None


class DbMigrate(Method[Migrated]):
    """Bring the database to this program's schema; the daemon does so by itself when it starts."""

    method: ClassVar[str] = "db.migrate"


class DbRollback(Method[Migrated]):
    """Undo the last migration, after a backup. Events are refused until `db.migrate` or an older program."""

    method: ClassVar[str] = "db.rollback"


class DbCheck(Method[JobStarted]):
    """Check the database's integrity, as a job; its result is `{ok, problems}`."""

    method: ClassVar[str] = "db.check"


class DbVacuum(Method[JobStarted]):
    """Give free pages back to the disk in small steps, as a job; its result is `{freedBytes}`."""

    method: ClassVar[str] = "db.vacuum"


class Finding(Wire):
    """What one check found, in a sentence, and what to do next. Where it is `repairable`, `doctor.repair` does it."""

    name: str
    state: Literal["ok", "warning", "problem"]
    finding: str
    advice: str | None = None
    repairable: bool = False


class Diagnosis(Wire):
    """Every check with what it found, after what was `repaired`."""

    checks: list[Finding]
    repaired: list[str]


class DoctorCheck(Method[JobStarted]):
    """Look for what is wrong with the database, the index and the daemon, as a job; its result is a Diagnosis.

    Events are stored meanwhile: what takes long reads beside them.
    """

    method: ClassVar[str] = "doctor.check"


class DoctorRepair(Method[JobStarted]):
    """Look as `doctor.check` does, and make anew what is wrong and follows from something else, as a job.

    Nothing that was captured is changed or removed. The result is a Diagnosis of how it is then.
    """

    method: ClassVar[str] = "doctor.repair"


class Discover(Method[dict[str, Any]]):
    """This interface as an OpenRPC document."""

    method: ClassVar[str] = "rpc.discover"
