"""Spool: a killed hook leaves no partial event, and the folder of rejected events is bounded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clankers.spool import is_opted_out, make_folder, spool_event, without_private
from clankersd.capture.spool import MAX_REJECTED, MAX_REJECTED_BYTES, make_room
from clankersd.redaction.engine import redact


def put(folder: Path, number: int, size: int) -> str:
    """Create a sparse file for an event of this size; return its name."""
    path = folder / f"{number:020}-1-{size}.json"
    path.touch()
    os.truncate(path, size)
    return path.name


def remaining(folder: Path) -> list[str]:
    make_room(folder)
    return sorted(path.name for path in folder.iterdir())


def test_make_room_deletes_the_oldest_rejected_events_beyond_the_size_limit(tmp_path: Path) -> None:
    names = [put(tmp_path, number, MAX_REJECTED_BYTES // 3) for number in range(5)]
    assert remaining(tmp_path) == names[-3:]


def test_make_room_leaves_one_event_even_if_it_exceeds_the_limit(tmp_path: Path) -> None:
    large = put(tmp_path, 2, MAX_REJECTED_BYTES + 1)
    assert remaining(tmp_path) == [large]


def test_make_room_deletes_a_file_beyond_the_limit_rather_than_all_others(tmp_path: Path) -> None:
    names = [put(tmp_path, number, 10) for number in (1, 3)]
    put(tmp_path, 2, MAX_REJECTED_BYTES + 1)
    assert remaining(tmp_path) == names


def test_make_room_deletes_the_oldest_events_beyond_the_count_limit(tmp_path: Path) -> None:
    names = [put(tmp_path, number, 2) for number in range(MAX_REJECTED + 3)]
    assert remaining(tmp_path) == names[3:]


# -- a hook that is killed

EVENT = b'{"harness":"generic","event":{"session":{"id":"s1"}}}'
KILLED = """
import os, sys
from clankers import spool
folder, point, turn = sys.argv[1], sys.argv[2], int(sys.argv[3])
real = getattr(os, point)
def die(*args):
    global turn
    turn -= 1
    if turn:
        return real(*args)
    if point == "write":
        real(args[0], bytes(args[1])[:20])
    os._exit(9)
setattr(os, point, die)
spool.spool_event(folder, sys.argv[4].encode())
"""


@pytest.mark.parametrize(
    ("point", "turn"),
    [("mkdir", 1), ("open", 1), ("write", 1), ("fsync", 1), ("close", 1), ("rename", 1), ("fsync", 2)],
)
def test_spool_event_killed_at_any_point_leaves_no_partial_event(tmp_path: Path, point: str, turn: int) -> None:
    folder = tmp_path / "spool"
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), point, str(turn), EVENT.decode()], capture_output=True, check=False
    )
    assert ran.returncode == 9, ran.stderr
    left = [path.read_bytes() for path in folder.glob("*.json")]
    assert left == ([EVENT] if (point, turn) == ("fsync", 2) else [])
    later = spool_event(str(folder), EVENT)
    assert Path(later).read_bytes() == EVENT
    assert len(list(folder.glob("*.json"))) == len(left) + 1


def test_spool_event_preserves_order_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([5_000, 3_000, 4_000, 9_000])
    monkeypatch.setattr("clankers.spool.time.time_ns", lambda: next(times))
    spool = tmp_path / "spool"
    paths = [spool_event(str(spool), b"%d" % number) for number in range(4)]
    assert sorted(paths) == paths
    assert [Path(path).read_bytes() for path in sorted(paths)] == [b"0", b"1", b"2", b"3"]


PRIVATE = [
    'nothing to hide "quoted" \\ here',
    "before <private>mine</private> after",
    "<PRIVATE>Mine</Private>",
    'a <private>with "quotes", \\ and \\" and \n lines</private> b',
    "one <private>1</private> two <private>2</private> three",
    "outer <private>a <private>b</private> c</private> end",
    "never closed <private>x </privat",
    '<private reason="salary">mine</private > and <private\n>more</private>',
    "no tags: <private key>, <private/> and <privately>",
    "<PRIVATE why=x/>not a tag, <private why=x>a tag",
    "</private> closed before <private>y</private>",
    "<private>" * 3 + "z" + "</private>" * 2 + " still private",
]


@pytest.mark.parametrize("text", PRIVATE)
@pytest.mark.parametrize("escaped", [False, True])
def test_without_private_leaves_what_the_daemon_would_store(text: str, escaped: bool) -> None:
    event = {"event": {"prompt": text, "other": "<kept>", "list": [text, 7]}}
    raw = json.dumps(event).replace("/", "\\/") if escaped else json.dumps(event)
    found = json.loads(without_private(raw.encode()))
    redacted = redact(text)[0]
    assert found == {"event": {"prompt": redacted, "other": "<kept>", "list": [redacted, 7]}}


def test_without_private_takes_linear_time() -> None:
    """A megabyte of quotation marks in a private block; quadratic code would take minutes."""
    event = json.dumps({"prompt": "<private>" + '"' * 1_000_000 + "</private>" + "<private>x</private>" * 10_000})
    assert json.loads(without_private(event.encode()))["prompt"] == "[redacted:private]" * 10_001


def test_is_opted_out_looks_in_the_folder_and_above(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert not is_opted_out(str(deep))
    (tmp_path / "a" / ".clankers-ignore").symlink_to("nowhere")
    assert is_opted_out(str(deep))
    assert not is_opted_out(str(tmp_path))


def test_is_opted_out_follows_links_and_worktrees(tmp_path: Path) -> None:
    repository, worktree, link = tmp_path / "repository", tmp_path / "worktree", tmp_path / "link"
    (repository / "sub" / "deep").mkdir(parents=True)
    (worktree / "deep").mkdir(parents=True)
    (worktree / ".git").write_text(f"gitdir: {repository}/.git/worktrees/worktree\n")
    link.symlink_to(repository / "sub")
    folders = [str(link / "deep"), str(worktree), str(worktree / "deep")]
    assert not any(map(is_opted_out, folders))
    (repository / ".clankers-ignore").touch()
    assert all(map(is_opted_out, folders))


def test_folder_made_by_another_hook_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, mkdir = tmp_path / "clankers" / "spool", os.mkdir

    def mkdir_beside_another_hook(path: str, mode: int) -> None:
        mkdir(path, mode)
        if Path(path) == folder.parent:
            mkdir(folder, mode)

    monkeypatch.setattr(os, "mkdir", mkdir_beside_another_hook)
    make_folder(str(folder))
    assert folder.is_dir()
