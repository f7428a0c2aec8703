"""Group commit: many changes, one transaction, one sync to the disk; a failing change fails alone."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec

from clankersd.db.connection import Db, Notification
from clankersd.db.errors import STORAGE_ERRORS

Change = Callable[[Db], Any]


class ChangeResult(msgspec.Struct, frozen=True):
    """Result or error of one change of a batch. A change that failed has no notifications."""

    value: Any = None
    error: Exception | None = None
    notifications: list[Notification] = []

    def resolve(self, future: asyncio.Future[Any]) -> None:
        """Complete the future, unless its caller was cancelled."""
        if future.done():
            return
        if self.error is None:
            future.set_result(self.value)
        else:
            future.set_exception(self.error)


def commit_together(db: Db, changes: Iterable[Change]) -> list[ChangeResult]:
    """Commit the changes together; return their results, in order.

    Errors of the file itself are raised: then none is stored.
    """
    remaining = iter(changes)
    run: list[Change] = []
    try:
        with db.transaction():
            results = []
            for change in remaining:
                run.append(change)
                results.append(ChangeResult(change(db), notifications=db.end_change()))
            return results
    except STORAGE_ERRORS:
        raise
    except Exception as error:  # one of the changes failed; the replay finds out which
        if len(run) == 1:
            return [ChangeResult(error=error)]
    with db.transaction():
        return [_run_in_savepoint(db, change) for change in chain(run, remaining)]


def _run_in_savepoint(db: Db, change: Change) -> ChangeResult:
    db.execute("SAVEPOINT change")
    try:
        result = ChangeResult(change(db), notifications=db.end_change())
        db.confirm()
    except STORAGE_ERRORS:
        raise
    except Exception as error:  # returned to the sender of the change
        db.execute("ROLLBACK TO change")
        db.end_change()
        result = ChangeResult(error=error)
    db.execute("RELEASE change")
    return result
