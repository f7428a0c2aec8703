"""A power cut: what was acknowledged was synced to the disk, and what was not synced damages nothing."""

from pathlib import Path

import pytest
from tests.faults.harness import Run, integrity_check
from tests.faults.power import RecordedDaemon, cut_power


def cut(home: Path, durability: str) -> set[str]:
    """Cut the power of a daemon under load a few times; returns the acknowledged events that are lost."""
    daemon = RecordedDaemon(home)
    daemon.environ["CLANKERS_DURABILITY"] = durability
    run = Run(daemon)
    try:
        daemon.start()
        run.begin_writing()
        cut_power(run)
        run.stop_writing()
        run.crash()
        assert integrity_check(daemon.database) == "ok"
        return run.missing(set())
    finally:
        daemon.close()


@pytest.mark.soak
def test_power_cut_loses_no_acknowledged_event(home: Path) -> None:
    assert cut(home, "full") == set()


@pytest.mark.soak
def test_power_cut_is_noticed_where_commits_are_not_synced(home: Path) -> None:
    """The layer that drops unsynced writes works: with the setting that allows a loss there is one."""
    assert cut(home, "normal")
