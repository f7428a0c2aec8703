"""The scheduled action that applies the retention settings; it exists while one of them is on."""

from typing import TYPE_CHECKING

from clankers_protocol.schedules import ScheduledAction
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.forgetting.retention import ACTION_ID, JOB_KIND, is_configured
from clankersd.schedule.actions import compute_next_run, insert_action
from clankersd.schedule.grammar import local_timezone

if TYPE_CHECKING:
    from clankersd.app import Daemon

SCHEDULE = "04:00 daily"
"""When a new action runs; its owner may change that."""

_EXISTS = "SELECT 1 FROM scheduled_actions WHERE id = :id"


async def follow_settings(daemon: "Daemon") -> None:
    """Create the action if a retention setting is on, and delete it if none is."""
    if daemon.store.problem:
        return
    exists = bool(await daemon.store.read(lambda db: db.value(_EXISTS, {"id": ACTION_ID})))
    is_wanted = is_configured(daemon.config)
    if exists is is_wanted:
        return
    await daemon.store.write(_create if is_wanted else _delete)
    daemon.scheduler.wake()


def _create(db: Db) -> None:
    if db.value(_EXISTS, {"id": ACTION_ID}):
        return
    now, zone = clock.now(), local_timezone()
    action = ScheduledAction(
        id=ACTION_ID,
        description="Apply the retention settings",
        schedule=SCHEDULE,
        timezone=zone,
        missed="once",
        builtin=JOB_KIND,
        tool_calls=None,
        synthesis_prompt=None,
        skill_id=None,
        enabled=True,
        next_run=compute_next_run(SCHEDULE, zone, now),
        created_at=now,
        updated_at=now,
    )
    insert_action(db, action)


def _delete(db: Db) -> None:
    db.execute("DELETE FROM scheduled_actions WHERE id = :id", {"id": ACTION_ID})
    db.after_commit(Notification("schedule", "deleted", ACTION_ID))
