"""Scheduled actions: what shall be done when, by a client or by the daemon itself."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from clankers_protocol.skills import SkillRef
from clankers_protocol.subscriptions import Subscribed
from clankers_protocol.wire import Cursor, Limit, Method, Ok, Time, Wire

RUN = "schedule.run"

ActionId = Annotated[str, Meta(min_length=1, max_length=1024)]
About = Annotated[str, Meta(min_length=1, max_length=4096)]
When = Annotated[str, Meta(min_length=1, max_length=200)]
Prompt = Annotated[str, Meta(max_length=262_144)]
ToolCalls = Annotated[list[dict[str, Any]], Meta(max_length=1000)]
Missed = Literal["once", "skip"]
RunState = Literal["waiting", "taken", "done", "failed", "skipped"]


class ScheduledAction(Wire):
    """An action and when it is done next; `nextRun` is null when there will be no run.

    `builtin` names what the daemon does itself; without it a subscribed client gets `toolCalls`, `synthesisPrompt`
    and `skillId`, and makes of them what it likes.
    """

    id: str
    description: str
    schedule: str
    timezone: str
    missed: Missed
    builtin: str | None
    tool_calls: list[dict[str, Any]] | None
    synthesis_prompt: str | None
    skill_id: str | None
    enabled: bool
    next_run: int | None
    created_at: int
    updated_at: int


class ScheduleRun(Wire):
    """One run of an action. It waits for a client to take it, is taken until `leaseUntil`, and then ends done,
    failed or skipped; `attempts` counts how often it was handed out."""

    id: str
    action_id: str
    description: str
    scheduled_for: int
    state: RunState
    attempts: int
    lease_until: int | None
    result: Any
    error: str | None
    created_at: int
    finished_at: int | None


class DueRun(Wire):
    """What the notification `schedule.run` holds: do this, and answer with `schedule.ack` before `leaseUntil`."""

    run_id: str
    action: ScheduledAction
    scheduled_for: int
    attempt: int
    lease_until: int


class ActionPage(Wire):
    """Actions, the one due next first; `cursor` asks for the next page and is null on the last one."""

    actions: list[ScheduledAction]
    cursor: str | None = None


class RunPage(Wire):
    """Runs, newest first; `cursor` asks for the next page and is null on the last one."""

    runs: list[ScheduleRun]
    cursor: str | None = None


class ActionsDeleted(Wire):
    """How many actions were deleted, or with `dryRun` would be."""

    deleted: int
    dry_run: bool = False


class ScheduleCreate(Method[ScheduledAction]):
    """Schedule an action.

    `schedule` is `HH:MM once`, `HH:MM daily`, `HH:MM weekly(day)`, `HH:MM custom(day,day…)`, `HH:MM monthly(1-31)`
    or a cron expression of five fields. Times are those of `timezone`, an IANA name, or else of the machine. A day
    that a month lacks is its last; a time that a clock change skips is the first after it, one that comes twice is
    the first of the two. Of several runs that were `missed`, `once` does one, `skip` none.
    """

    method: ClassVar[str] = "schedule.create"
    description: About
    schedule: When
    timezone: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    missed: Missed = "once"
    builtin: str | None = None
    tool_calls: ToolCalls | None = None
    synthesis_prompt: Prompt | None = None
    skill_id: SkillRef | None = None
    enabled: bool = True


class ScheduleGet(Method[ScheduledAction]):
    """One action. `id` may be a unique beginning of 8 characters or more."""

    method: ClassVar[str] = "schedule.get"
    id: ActionId


class ScheduleList(Method[ActionPage]):
    """Actions, the one due next first: all, or only those that are `enabled` or not."""

    method: ClassVar[str] = "schedule.list"
    enabled: bool | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class ScheduleUpdate(Method[ScheduledAction]):
    """Change an action. What is left out stays as it is; null takes away what may be missing."""

    method: ClassVar[str] = "schedule.update"
    id: ActionId
    description: About | UnsetType = UNSET
    schedule: When | UnsetType = UNSET
    timezone: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    builtin: str | UnsetType | None = UNSET
    tool_calls: ToolCalls | UnsetType | None = UNSET
    synthesis_prompt: Prompt | UnsetType | None = UNSET
    skill_id: SkillRef | UnsetType | None = UNSET


class ScheduleEnable(Method[ScheduledAction]):
    """Let an action run, or not. What it missed while it was off is not made up for."""

    method: ClassVar[str] = "schedule.enable"
    id: ActionId
    enabled: bool = True


class ScheduleDelete(Method[Ok]):
    """Delete an action and its history. The whole id is needed."""

    method: ClassVar[str] = "schedule.delete"
    id: ActionId


class ScheduleDeleteAll(Method[ActionsDeleted]):
    """Delete every action."""

    method: ClassVar[str] = "schedule.deleteAll"
    dry_run: bool = False


class ScheduleFind(Method[list[ScheduledAction]]):
    """Actions whose description contains the text, in any case; nothing in it is a wildcard."""

    method: ClassVar[str] = "schedule.find"
    description: Annotated[str, Meta(min_length=1, max_length=4096)]
    limit: Limit = 100


class ScheduleDue(Method[list[ScheduledAction]]):
    """Enabled actions that are due now, or would be at the time `at`, the most overdue first."""

    method: ClassVar[str] = "schedule.due"
    at: Time | None = None
    limit: Limit = 100


class ScheduleHistory(Method[RunPage]):
    """Runs, newest first: of one action, in one state, or all."""

    method: ClassVar[str] = "schedule.history"
    action_id: ActionId | None = None
    state: RunState | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ScheduleSubscribe(Method[Subscribed]):
    """Get due actions on this connection as the notification `schedule.run`, each to be answered by `schedule.ack`.

    A run goes to one of the subscribed clients. When it is not acknowledged before its lease ends it is handed out
    again, the lease twice as long each time. Runs wait while nobody is subscribed.
    """

    method: ClassVar[str] = "schedule.subscribe"


class ScheduleAck(Method[ScheduleRun]):
    """Say what became of a run: `done`, `failed`, or still `working`, which renews its lease.

    The first end counts; acknowledging it again changes nothing.
    """

    method: ClassVar[str] = "schedule.ack"
    run_id: ActionId
    state: Literal["done", "failed", "working"] = "done"
    result: Any = None
    error: Annotated[str, Meta(max_length=10_000)] | None = None
