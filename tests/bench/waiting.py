"""Wait until the index of a daemon is ready to be measured."""

import time

from helpers.daemon import RawConnection


def wait_for_vectors(connection: RawConnection) -> None:
    """Wait until everything that is stored has been embedded."""
    while (status := connection.call("index.status"))["live"]["pending"] or status["backlog"]:
        time.sleep(0.2)


def wait_until_in_memory(connection: RawConnection) -> None:
    """Wait until all vectors are loaded into memory; the first search has begun that."""
    while not connection.call("index.status")["inMemory"]:
        time.sleep(0.1)
