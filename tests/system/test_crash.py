"""kill -9 at any moment: what was acknowledged is there afterwards."""

import random
import time
from functools import partial
from pathlib import Path

from helpers.daemon import DaemonProcess
from helpers.waiting import eventually
from helpers.writers import Writer, acknowledged, quick_check, stored, writing

ROUNDS = 12
CONNECTIONS = 4


def test_no_acknowledged_write_is_lost_to_kill_9_under_load(home: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    promised: set[str] = set()
    daemon = DaemonProcess(home)
    try:
        for number in range(ROUNDS):
            daemon.start()
            with daemon.connect() as connection:
                assert connection.call("health")["problem"] is None, f"round {number}, seed {seed}"
            writers = writing(daemon, CONNECTIONS, f"r{number}")
            eventually(partial(all_have_begun, writers), "every connection has an acknowledgement")
            time.sleep(chance.uniform(0, 0.4))
            daemon.kill()
            daemon.close()
            for writer in writers:
                writer.join()
            promised |= acknowledged(writers)
            assert quick_check(daemon.database) == "ok", f"round {number}, seed {seed}"
            assert promised <= stored(daemon.database), f"round {number}, seed {seed}"
        with daemon.start().connect() as connection:
            assert connection.call("health")["problem"] is None
        assert daemon.stop() == 0
        assert promised <= stored(daemon.database)
    finally:
        daemon.close()


def test_kill_9_while_starting_leaves_a_database_that_the_next_start_opens(home: Path) -> None:
    chance = random.Random(20)
    daemon = DaemonProcess(home)
    try:
        for _ in range(10):
            daemon.start(wait=False)
            time.sleep(chance.uniform(0.05, 0.6))
            daemon.kill()
            daemon.close()
        with daemon.start().connect() as connection:
            assert connection.call("health")["ok"]
            assert connection.call("upsertMessage", message={"id": "m", "sessionId": "s"}) == {"ok": True}
        assert quick_check(daemon.database) == "ok"
    finally:
        daemon.close()


def all_have_begun(writers: list[Writer]) -> bool:
    return all(writer.acknowledged for writer in writers)
