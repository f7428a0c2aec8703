"""Wait for a condition instead of for a time."""

import time
from collections.abc import Callable
from typing import Any

from helpers.daemon import RawConnection


def eventually(condition: Callable[[], Any], what: str, within: float = 75) -> Any:
    """Wait until `condition` gives something true, and return it."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError(f"waited {within:g} s in vain until {what}")


def settled(connection: RawConnection) -> dict[str, Any]:
    """The index's status, once everything stored is cut and has its vector."""

    def status() -> dict[str, Any] | None:
        now: dict[str, Any] = connection.call("index.status")
        return None if now["backlog"] or now["live"]["pending"] else now

    return dict(eventually(status, "every chunk has its vector"))
