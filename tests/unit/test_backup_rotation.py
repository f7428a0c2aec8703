"""Which scheduled backups are removed when another one was made."""

from pathlib import Path

from clankersd.schedule.builtins import MAX_SCHEDULED_BACKUPS, backups_to_delete


def backup(folder: Path, stamp: str) -> Path:
    path = folder / f"clankers-{stamp}-scheduled.db"
    path.touch()
    return path


def test_backup_just_made_stays_though_older_ones_have_later_dates(tmp_path: Path) -> None:
    ahead = [backup(tmp_path, f"2036010{day}T000000000000") for day in range(1, MAX_SCHEDULED_BACKUPS + 1)]
    made = backup(tmp_path, "20260101T000000000000")
    assert backups_to_delete(tmp_path, made) == ahead[:1]


def test_backups_beyond_the_number_kept_go_oldest_first(tmp_path: Path) -> None:
    made = [backup(tmp_path, f"2026010{day}T000000000000") for day in range(1, MAX_SCHEDULED_BACKUPS + 3)]
    (tmp_path / "clankers-20250101T000000000000-before-0007.db").touch()
    assert backups_to_delete(tmp_path, made[-1]) == made[:2]
