"""The spool: a killed hook leaves nothing half, and what is set aside stays within bounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clankers.spool import keep
from clankersd.capture.spool import MAX_REJECTED, MAX_REJECTED_BYTES, make_room


def put(folder: Path, number: int, size: int) -> str:
    """An event of this size, that takes no room on the disk."""
    path = folder / f"{number:020}-1-{size}.json"
    path.touch()
    os.truncate(path, size)
    return path.name


def kept(folder: Path) -> list[str]:
    make_room(folder)
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_are_kept_as_far_as_they_fit(tmp_path: Path) -> None:
    names = [put(tmp_path, number, MAX_REJECTED_BYTES // 3) for number in range(5)]
    assert kept(tmp_path) == names[-3:]


def test_one_that_is_larger_than_all_may_be_is_kept_alone(tmp_path: Path) -> None:
    put(tmp_path, 1, 10)
    large = put(tmp_path, 2, MAX_REJECTED_BYTES + 1)
    assert kept(tmp_path) == [large]


def test_of_many_small_ones_the_oldest_make_room(tmp_path: Path) -> None:
    names = [put(tmp_path, number, 2) for number in range(MAX_REJECTED + 3)]
    assert kept(tmp_path) == names[3:]


# -- a hook that is killed

EVENT = b'{"harness":"generic","event":{"session":{"id":"s1"}}}'
KILLED = """
import os, sys
from clankers import spool
folder, point, turn = sys.argv[1], sys.argv[2], int(sys.argv[3])
real = getattr(os, point)
def dies(*given):
    global turn
    turn -= 1
    if turn:
        return real(*given)
    if point == "write":
        real(given[0], bytes(given[1])[:20])
    os._exit(9)
setattr(os, point, dies)
spool.keep(folder, sys.argv[4].encode())
"""


@pytest.mark.parametrize(
    ("point", "turn"),
    [("mkdir", 1), ("open", 1), ("write", 1), ("fsync", 1), ("close", 1), ("rename", 1), ("fsync", 2)],
)
def test_a_hook_killed_anywhere_leaves_no_half_event_and_nothing_in_the_way(
    tmp_path: Path, point: str, turn: int
) -> None:
    folder = tmp_path / "spool"
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), point, str(turn), EVENT.decode()], capture_output=True, check=False
    )
    assert ran.returncode == 9, ran.stderr
    left = [path.read_bytes() for path in folder.glob("*.json")]
    assert left == ([EVENT] if (point, turn) == ("fsync", 2) else [])
    later = keep(str(folder), EVENT)
    assert Path(later).read_bytes() == EVENT
    assert len(list(folder.glob("*.json"))) == len(left) + 1


def test_events_stay_in_order_when_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5_000, 3_000, 4_000, 9_000])
    monkeypatch.setattr("clankers.spool.time.time_ns", lambda: next(times))
    spool = tmp_path / "spool"
    paths = [keep(str(spool), b"%d" % number) for number in range(4)]
    assert sorted(paths) == paths
    assert [Path(path).read_bytes() for path in sorted(paths)] == [b"0", b"1", b"2", b"3"]
