"""The daily log files."""

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
import structlog

from clankersd.log import DailyFile, configure


@pytest.fixture(autouse=True)
def nothing_configured_afterwards() -> Iterator[None]:
    """Other tests must not log into a file that this one has closed."""
    yield
    structlog.reset_defaults()


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_events_and_facts_become_json_lines_at_or_above_the_level(tmp_path: Path) -> None:
    file = DailyFile(tmp_path / "logs")
    configure(file, "info", lambda event: event)
    log = structlog.get_logger(component="test")
    log.debug("unheard")
    log.info("indexed", messages=3, odd=object)
    file.close()
    (line,) = lines(tmp_path / "logs")
    assert (line["level"], line["component"], line["message"], line["messages"]) == (
        "info",
        "test",
        "indexed",
        3,
    )
    assert str(line["timestamp"]).endswith("Z")


def test_lines_are_appended_to_the_file_of_the_day(tmp_path: Path) -> None:
    for text in (b'{"n":1}', b'{"n":2}'):
        file = DailyFile(tmp_path)
        file.write(text)
        file.close()
        file.close()
    assert [line["n"] for line in lines(tmp_path)] == [1, 2]


def test_only_our_own_files_older_than_the_limit_are_removed(tmp_path: Path) -> None:
    names = [
        "clankers-2026-01-01.jsonl", "clankers-2026-01-31.jsonl", "clankers-2026-02-01.jsonl",
        "clankers-2026-03-02.jsonl", "clankers-2026-99-99.jsonl", "clankers-old.jsonl",
        "notes-2026-01-01.jsonl",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).touch()
    removed = DailyFile(tmp_path).remove_older_than(30, date(2026, 3, 3))
    assert removed == ["clankers-2026-01-01.jsonl", "clankers-2026-01-31.jsonl"]
    assert {path.name for path in tmp_path.iterdir()} == set(names) - set(removed)


def test_missing_folder_is_no_trouble(tmp_path: Path) -> None:
    assert DailyFile(tmp_path / "none").remove_older_than(30, date(2026, 3, 3)) == []


def test_line_that_cannot_be_written_is_counted_and_dropped(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    file = DailyFile(tmp_path / "logs")
    file.write(b"{}")
    assert file.dropped == 1


def test_clock_that_jumps_forward_does_not_delete_all_logs(tmp_path: Path) -> None:
    names = ["clankers-2026-03-01.jsonl", "clankers-2026-03-02.jsonl", "clankers-2036-03-03.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    assert DailyFile(tmp_path).remove_older_than(30, date(2036, 3, 3)) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    (tmp_path / "clankers-2036-03-04.jsonl").touch()
    assert DailyFile(tmp_path).remove_older_than(30, date(2036, 3, 4)) == names[:2], "the clock has gone on since"
