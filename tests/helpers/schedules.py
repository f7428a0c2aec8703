"""Scheduled actions made due at once, and the client that does them."""

import time
from typing import Any

import apsw

from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import eventually


def create(connection: RawConnection, schedule: str = "09:00 daily", **more: Any) -> str:
    return str(connection.call("schedule.create", **({"description": "d", "schedule": schedule} | more))["id"])


def runs(connection: RawConnection, action_id: str | None = None) -> list[dict[str, Any]]:
    return list(connection.call("schedule.history", actionId=action_id)["runs"])


def ended(connection: RawConnection, action_id: str) -> list[dict[str, Any]]:
    """The runs of an action, once none is open."""

    def all_over() -> list[dict[str, Any]] | None:
        found = runs(connection, action_id)
        return found if found and all(run["finishedAt"] for run in found) else None

    return list(eventually(all_over, "the action's runs are over"))


def change_database(daemon: DaemonProcess, sql: str, *params: Any) -> None:
    """Change the daemon's database behind its back."""
    db = apsw.Connection(str(daemon.database))
    try:
        db.set_busy_timeout(5000)
        db.execute(sql, params)
    finally:
        db.close()


def make_due(daemon: DaemonProcess, action_id: str, seconds_ago: float = 0.0) -> int:
    """Let an action's next run have been so long ago; tells when."""
    at = round((time.time() - seconds_ago) * 1000)
    change_database(daemon, "UPDATE scheduled_actions SET next_run = ? WHERE id = ?", at, action_id)
    return at


def wake(connection: RawConnection, action_id: str) -> None:
    """Let the scheduler look again: enabling what is enabled changes nothing else."""
    connection.call("schedule.enable", id=action_id)


def next_run_of(worker: RawConnection, timeout: float = 30) -> dict[str, Any]:
    """The next `schedule.run` that this client is handed."""
    worker.socket.settimeout(timeout)
    while True:
        for place, message in enumerate(worker.notifications):
            if message["method"] == "schedule.run":
                del worker.notifications[place]
                return dict(message["params"])
        message = worker.receive()
        assert message is not None, "the daemon hung up"
        worker.notifications.append(message)


def nothing_comes(worker: RawConnection, seconds: float) -> bool:
    """Whether no run is handed to this client for a while."""
    try:
        next_run_of(worker, timeout=seconds)
    except TimeoutError:
        return True
    return False
