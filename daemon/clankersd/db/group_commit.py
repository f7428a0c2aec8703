"""Group commit: many changes, one transaction, one sync to the disk; a failing change fails alone."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from clankersd.db.connection import Db, Notification
from clankersd.db.errors import STORAGE_ERRORS

Change = Callable[[Db], Any]


@dataclass(frozen=True)
class Outcome:
    """Result or error of one change of a batch. A change that failed has no notifications."""

    value: Any = None
    error: Exception | None = None
    notifications: list[Notification] = field(default_factory=list)

    def resolve(self, future: asyncio.Future[Any]) -> None:
        """Complete the future, unless its caller was cancelled."""
        if future.done():
            return
        if self.error is None:
            future.set_result(self.value)
        else:
            future.set_exception(self.error)


def commit_together(db: Db, changes: list[Change], bulk: list[Change], bulk_seconds: float) -> list[Outcome]:
    """Commit all `changes` together, and as many of `bulk` as start within `bulk_seconds`, at least one.

    Returns an outcome for each change that ran, in order. Errors of the file itself are raised: then none is stored.
    """
    run: list[Change] = []
    try:
        with db.transaction():
            outcomes = []
            for change in _select_changes(changes, bulk, bulk_seconds):
                run.append(change)
                outcomes.append(Outcome(change(db), notifications=db.take_notifications()))
            return outcomes
    except STORAGE_ERRORS:
        raise
    except Exception as error:  # one of the changes failed; the replay finds out which
        if len(run) == 1:
            return [Outcome(error=error)]
    with db.transaction():
        return [_run_in_savepoint(db, change) for change in run]


def _select_changes(changes: list[Change], bulk: list[Change], seconds: float) -> Iterator[Change]:
    yield from changes
    deadline = time.monotonic() + seconds
    for number, change in enumerate(bulk):
        if number and time.monotonic() > deadline:
            return
        yield change


def _run_in_savepoint(db: Db, change: Change) -> Outcome:
    db.execute("SAVEPOINT change")
    try:
        outcome = Outcome(change(db), notifications=db.take_notifications())
    except STORAGE_ERRORS:
        raise
    except Exception as error:  # returned to the sender of the change
        db.execute("ROLLBACK TO change")
        db.take_notifications()
        outcome = Outcome(error=error)
    db.execute("RELEASE change")
    return outcome
