"""Which automatic backups are deleted when another one was made."""

import os
from pathlib import Path

from clankers_protocol.backups import BackupFile
from clankers_protocol.database_files import find_backups, list_backups, select_obsolete


def backup(day: int, rows: int | None = 1000) -> BackupFile:
    return BackupFile(f"clankers-{day:02}-daily.db", "", made_at=day, bytes=1, reason="daily", sessions=1, rows=rows)


def names(backups: list[BackupFile]) -> list[int]:
    return sorted(backup.made_at for backup in backups)


def test_oldest_backups_beyond_the_number_kept_are_deleted() -> None:
    assert names(select_obsolete([backup(day) for day in range(1, 10)], keep=7)) == [1, 2]


def test_last_full_backup_stays_however_many_empty_ones_follow() -> None:
    backups = [backup(1), backup(2), *(backup(day, rows=0) for day in range(3, 20))]
    assert names(select_obsolete(backups, keep=7)) == [1, *range(3, 13)]


def test_backup_with_less_than_half_the_rows_does_not_replace_an_earlier_one() -> None:
    assert names(select_obsolete([backup(1, rows=1000), backup(2, rows=499), backup(3, rows=499)], keep=1)) == [2]
    assert names(select_obsolete([backup(1, rows=1000), backup(2, rows=500)], keep=1)) == [1]


def test_damaged_backup_does_not_replace_an_intact_one() -> None:
    assert names(select_obsolete([backup(1), backup(2, rows=None)], keep=1)) == []


def test_backup_from_the_future_counts_as_the_oldest() -> None:
    assert names(select_obsolete([backup(1), backup(2), backup(2**62)], keep=2)) == [2**62]


def test_files_that_are_no_regular_files_are_no_backups(tmp_path: Path) -> None:
    real = tmp_path / "clankers-20250101T000000000000-daily.db"
    real.write_bytes(b"")
    os.mkfifo(tmp_path / "clankers-20250102T000000000000-daily.db")  # opening it would wait for a writer
    (tmp_path / "clankers-20250103T000000000000-daily.db").symlink_to("/dev/zero")
    (tmp_path / "clankers-20250104T000000000000-daily.db").symlink_to(tmp_path / "nothing")
    (tmp_path / "clankers-20250105T000000000000-daily.db").mkdir()
    assert find_backups(tmp_path, "clankers-*-daily") == [real]
    assert [one.name for one in list_backups(tmp_path)] == [real.name]
