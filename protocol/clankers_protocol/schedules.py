"""Scheduled actions, executed by a client or by the daemon itself."""

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
    """A scheduled action. `nextRun` is null if it will not run again.

    `builtin` names a function that the daemon runs itself. Without it, a subscribed client receives `toolCalls`,
    `synthesisPrompt` and `skillId` and decides how to execute them.
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
    """One run of an action. It waits until a client takes it, is leased until `leaseUntil`, and ends as done, failed or
    skipped; `attempts` counts how often it was handed out."""

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
    """Payload of the notification `schedule.run`. Acknowledge it with `schedule.ack` before `leaseUntil`."""

    run_id: str
    action: ScheduledAction
    scheduled_for: int
    attempt: int
    lease_until: int


class ActionPage(Wire):
    """Actions, the next due first; `cursor` requests the next page and is null on the last one."""

    actions: list[ScheduledAction]
    cursor: str | None = None


class RunPage(Wire):
    """Runs, newest first; `cursor` requests the next page and is null on the last one."""

    runs: list[ScheduleRun]
    cursor: str | None = None


class ActionsDeleted(Wire):
    """Number of deleted actions, or with `dryRun` of those that would be deleted."""

    deleted: int
    dry_run: bool = False


class ScheduleCreate(Method[ScheduledAction]):
    """Schedule an action.

    `schedule` is `HH:MM once`, `HH:MM daily`, `HH:MM weekly(day)`, `HH:MM custom(day,day…)`, `HH:MM monthly(1-31)`
    or a cron expression of five fields. Times are in `timezone`, an IANA name, or else in the machine's own zone. A day
    missing from a month means its last day. A time skipped by a clock change means the first valid time after it; a
    time that occurs twice means the first of the two. After several `missed` runs, `once` runs one and `skip` none.
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
    """Return one action. `id` may be a unique prefix of at least 8 characters."""

    method: ClassVar[str] = "schedule.get"
    id: ActionId


class ScheduleList(Method[ActionPage]):
    """List actions, the next due first: all, or only enabled or disabled ones."""

    method: ClassVar[str] = "schedule.list"
    enabled: bool | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class ScheduleUpdate(Method[ScheduledAction]):
    """Change an action. Omitted fields stay unchanged; null clears an optional field."""

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
    """Enable or disable an action. Runs missed while it was disabled are not made up."""

    method: ClassVar[str] = "schedule.enable"
    id: ActionId
    enabled: bool = True


class ScheduleDelete(Method[Ok]):
    """Delete an action and its history. Requires the complete id."""

    method: ClassVar[str] = "schedule.delete"
    id: ActionId


class ScheduleDeleteAll(Method[ActionsDeleted]):
    """Delete every action."""

    method: ClassVar[str] = "schedule.deleteAll"
    dry_run: bool = False


class ScheduleFind(Method[list[ScheduledAction]]):
    """Find actions whose description contains the text, ignoring case. There are no wildcards."""

    method: ClassVar[str] = "schedule.find"
    description: Annotated[str, Meta(min_length=1, max_length=4096)]
    limit: Limit = 100


class ScheduleDue(Method[list[ScheduledAction]]):
    """List enabled actions that are due now or at the time `at`, the most overdue first."""

    method: ClassVar[str] = "schedule.due"
    at: Time | None = None
    limit: Limit = 100


class ScheduleHistory(Method[RunPage]):
    """List runs, newest first: of one action, in one state, or all."""

    method: ClassVar[str] = "schedule.history"
    action_id: ActionId | None = None
    state: RunState | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ScheduleSubscribe(Method[Subscribed]):
    """Receive due actions on this connection as `schedule.run` notifications; acknowledge each with `schedule.ack`.

    Each run goes to one subscribed client. If it is not acknowledged before its lease ends, it is handed out again with
    a lease twice as long. Runs wait while no client is subscribed.
    """

    method: ClassVar[str] = "schedule.subscribe"


class ScheduleAck(Method[ScheduleRun]):
    """Report the state of a run: `done`, `failed`, or `working`, which renews its lease.

    The first final state counts; a second acknowledgement changes nothing.
    """

    method: ClassVar[str] = "schedule.ack"
    run_id: ActionId
    state: Literal["done", "failed", "working"] = "done"
    result: Any = None
    error: Annotated[str, Meta(max_length=10_000)] | None = None
