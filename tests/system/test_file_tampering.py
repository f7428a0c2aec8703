"""Another program changes the database's files: no acknowledged event is lost, none is acknowledged in vain."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.documents import finished
from helpers.schedules import create, ended, make_due, wake
from helpers.store import message, upsert
from helpers.waiting import eventually, settled
from helpers.writers import Writer, acknowledged, stored, writing

STORAGE_UNAVAILABLE = 5001


def store_many(daemon: DaemonProcess, prefix: str, count: int = 200) -> set[str]:
    """Store messages, and return the acknowledged ids."""
    names = [f"{prefix}-{number}" for number in range(count)]
    with daemon.connect() as connection:
        connection.call("events.batch", events=[{"message": message(name, text=f"{name} " * 50)} for name in names])
    return set(names)


def beside(database: Path, suffix: str) -> Path:
    return database.with_name(f"{database.name}{suffix}")


def full_check(database: Path) -> str:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return str(db.pragma("integrity_check"))
    finally:
        db.close()


def make_backup(daemon: DaemonProcess) -> Path:
    """A backup by the daemon itself, and its path."""
    with daemon.connect() as connection:
        action = create(connection, builtin="backup")
        make_due(daemon, action)
        wake(connection, action)
        (run,) = ended(connection, action)
    return daemon.data / "backups" / str(run["result"]["result"]["file"])


# -- a backup in the place of a crashed database


def copy_with_cp(backup: Path, database: Path) -> None:
    subprocess.run(["cp", str(backup), str(database)], check=True)


def copy_and_move(backup: Path, database: Path) -> None:
    copy = database.with_name("copy.db")
    shutil.copy(backup, copy)
    copy.rename(database)


def remove_and_copy(backup: Path, database: Path) -> None:
    database.unlink()
    shutil.copy(backup, database)


@pytest.mark.parametrize("put_in_place", [copy_with_cp, copy_and_move, remove_and_copy])
def test_backup_put_in_place_after_a_crash_is_not_destroyed_by_the_old_wal(
    home: Path, put_in_place: Callable[[Path, Path], None]
) -> None:
    with running_daemon(home) as daemon:
        before = store_many(daemon, "before")
        backup = make_backup(daemon)
        store_many(daemon, "after", 1000)
        daemon.kill()
        daemon.close()
        old_wal = beside(daemon.database, "-wal").read_bytes()
        assert old_wal
        put_in_place(backup, daemon.database)
        with daemon.start().connect() as connection:
            health = connection.call("health")
            assert health["ok"]
            assert any("does not belong" in note for note in health["warnings"]), health
            assert "error" not in upsert(connection, "new")
        assert daemon.stop() == 0
    assert full_check(daemon.database) == "ok"
    assert stored(daemon.database) == before | {"new"}
    aside = list(home.glob("clankers/clankers.db-wal.foreign-*"))
    assert [path.read_bytes() for path in aside] == [old_wal]


def test_wal_of_the_crashed_database_itself_is_replayed(home: Path) -> None:
    daemon = DaemonProcess(home)
    promised: set[str] = set()
    try:
        for number in range(3):
            daemon.start()
            promised |= store_many(daemon, f"round{number}", 40)
            daemon.kill()
            daemon.close()
        moved = home / "elsewhere"
        shutil.copytree(daemon.data, moved, ignore=shutil.ignore_patterns("*.sock"))
        assert promised <= stored(moved / "clankers.db")
        # Another inode, another time of change: what counts is what the files hold.
        for path in moved.glob("clankers.db*"):
            shutil.copy(path, daemon.data / path.name)
        with daemon.start().connect() as connection:
            health = connection.call("health")
            assert (health["ok"], health["warnings"]) == (True, [])
        assert daemon.stop() == 0
    finally:
        daemon.close()
    assert promised <= stored(daemon.database)
    assert full_check(daemon.database) == "ok"


# -- files changed under a running daemon


def delete(*suffixes: str) -> Callable[[Path], None]:
    def change(database: Path) -> None:
        for suffix in suffixes:
            beside(database, suffix).unlink(missing_ok=True)  # it is missing while the daemon opens it again

    return change


def empty_database(database: Path) -> None:
    os.truncate(database, 0)


def truncate_wal(database: Path) -> None:
    os.truncate(beside(database, "-wal"), 0)


def replace_wal(database: Path) -> None:
    beside(database, "-wal").unlink(missing_ok=True)
    beside(database, "-wal").write_bytes(b"")


def test_acknowledged_events_survive_changes_of_the_log(home: Path) -> None:
    with running_daemon(home) as daemon:
        writers = writing(daemon, 2, "w")
        for change in (delete("-wal"), delete("-shm"), delete("-wal", "-shm"), replace_wal):
            before = counts(writers)
            eventually(partial(have_grown, writers, before), "events are stored")
            change(daemon.database)
        before = counts(writers)
        eventually(lambda: have_grown(writers, before), "events are stored after the last change")
        for writer in writers:
            writer.stop()
        assert any(writer.refused for writer in writers)
        promised = acknowledged(writers)
        daemon.kill()
    assert promised <= stored(daemon.database)
    assert full_check(daemon.database) == "ok"


def is_stored(connection: RawConnection, name: str) -> bool:
    return "error" not in upsert(connection, name)


def have_grown(writers: list[Writer], before: list[int]) -> bool:
    return all(now > then + 100 for now, then in zip(counts(writers), before, strict=True))


def counts(writers: list[Writer]) -> list[int]:
    return [len(writer.acknowledged) for writer in writers]


def test_deleted_wal_is_noticed_without_any_event(home: Path) -> None:
    with running_daemon(home) as daemon:
        promised = store_many(daemon, "before")
        wal = beside(daemon.database, "-wal")
        old = wal.stat().st_ino
        wal.rename(home / "away")  # keeps its inode from being used again
        eventually(lambda: wal.exists() and wal.stat().st_ino != old, "there is a new log")
        daemon.kill()
    assert promised <= stored(daemon.database)


def test_truncated_shm_is_noticed_before_it_is_used(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        promised = store_many(daemon, "before", 2000)
        settled(connection)
        shm = beside(daemon.database, "-shm")
        before = shm.stat()
        os.truncate(shm, 0)
        eventually(lambda: shm.exists() and shm.stat().st_size == before.st_size, "the file has its size again")
        eventually(partial(is_stored, connection, "new"), "the daemon stores again")
        daemon.kill()
    assert promised | {"new"} <= stored(daemon.database)
    assert full_check(daemon.database) == "ok"


def test_wal_deleted_right_before_a_crash_is_restored(home: Path) -> None:
    with running_daemon(home) as daemon:
        promised = store_many(daemon, "before")
        daemon.signal(signal.SIGSTOP)  # it cannot notice
        delete("-wal", "-shm")(daemon.database)
        daemon.kill()
        daemon.close()
        with daemon.start().connect() as connection:
            assert connection.call("health")["ok"]
        assert daemon.stop() == 0
        assert not list(daemon.data.glob("clankers.db*wal*"))
    assert promised <= stored(daemon.database)
    assert full_check(daemon.database) == "ok"


def test_wal_that_another_program_has_replayed_is_not_replayed_again(home: Path) -> None:
    with running_daemon(home) as daemon:
        promised = store_many(daemon, "before")
        daemon.kill()
        daemon.close()
        program = "import apsw, sys; apsw.Connection(sys.argv[1]).execute('DELETE FROM messages')"
        subprocess.run([sys.executable, "-c", program, str(daemon.database)], check=True)
        assert not beside(daemon.database, "-wal").exists()
        with daemon.start().connect() as connection:
            assert connection.call("health")["ok"]
            assert "error" not in upsert(connection, "new")
        assert daemon.stop() == 0
    assert promised
    assert stored(daemon.database) == {"new"}
    assert full_check(daemon.database) == "ok"


def test_truncated_files_are_replaced_by_what_the_daemon_still_holds(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        promised: set[str] = set()
        for number, truncate in enumerate((empty_database, truncate_wal)):  # opened again, it has cached only the log
            promised |= store_many(daemon, f"round{number}")
            truncate(daemon.database)
            eventually(partial(is_stored, connection, f"new{number}"), "the daemon stores again")
            promised.add(f"new{number}")
            notes = connection.call("health")["warnings"]
            assert sum("truncated" in note for note in notes) == number + 1, notes
        daemon.kill()
    assert promised <= stored(daemon.database)
    assert full_check(daemon.database) == "ok"


def test_truncated_database_that_cannot_be_saved_acknowledges_nothing(home: Path) -> None:
    with running_daemon(home) as daemon:
        store_many(daemon, "before", 2000)
        daemon.stop()
        daemon.close()
        with daemon.start().connect() as connection:  # with nothing of the messages in its cache
            os.truncate(daemon.database, daemon.database.stat().st_size // 2)
            replies = [upsert(connection, f"after-{number}") for number in range(50)]
            health = connection.call("health")
        assert all(reply["error"]["code"] == STORAGE_UNAVAILABLE for reply in replies)
        assert not health["ok"]
        assert "clankers-ctl backup restore" in health["problem"]


@pytest.mark.parametrize("suffixes", [[""], ["", "-wal", "-shm"]], ids=["database only", "with its log"])
def test_deleted_database_is_saved_as_a_backup(home: Path, suffixes: list[str]) -> None:
    with running_daemon(home) as daemon:
        promised = store_many(daemon, "before")
        delete(*suffixes)(daemon.database)
        with daemon.connect() as connection:
            reply = upsert(connection, "refused")
            assert reply["error"]["code"] == STORAGE_UNAVAILABLE
            assert reply["error"]["data"]["retry"] == "spool"
            (note,) = eventually(lambda: connection.call("health")["warnings"], "the database is saved")
            (rescued,) = (daemon.data / "backups").glob("*-rescued.db")
            assert rescued.name in note
            assert rescued.name in upsert(connection, "refused")["error"]["message"]
    assert promised <= stored(rescued)
    assert full_check(rescued) == "ok"


def test_replaced_database_is_saved_and_the_new_one_taken_up(home: Path) -> None:
    with running_daemon(home) as daemon:
        before = store_many(daemon, "before")
        backup = make_backup(daemon)
        promised = store_many(daemon, "after")
        copy_and_move(backup, daemon.database)
        with daemon.connect() as connection:
            eventually(lambda: "error" not in upsert(connection, "new"), "the daemon stores again")
        daemon.kill()
        (rescued,) = (daemon.data / "backups").glob("*-rescued.db")
    assert before | promised <= stored(rescued)
    assert stored(daemon.database) == before | {"new"}
    assert full_check(daemon.database) == "ok"


def test_backup_copied_over_a_running_database_is_not_destroyed(home: Path) -> None:
    with running_daemon(home) as daemon:
        before = store_many(daemon, "before")
        backup = make_backup(daemon)
        store_many(daemon, "after", 500)
        with daemon.connect() as connection:
            settled(connection)
            finished(
                connection, connection.call("db.vacuum")["jobId"]
            )  # leaves nothing to checkpoint: a copy into a checkpoint mixes two databases
        copy_with_cp(backup, daemon.database)
        with daemon.connect() as connection:
            eventually(lambda: "error" not in upsert(connection, "new"), "the daemon stores again")
        daemon.kill()
    assert stored(daemon.database) == before | {"new"}
    assert full_check(daemon.database) == "ok"


def test_checkpoint_by_another_program_refuses_nothing(home: Path) -> None:
    with running_daemon(home) as daemon:
        promised = store_many(daemon, "before")
        program = "import apsw, sys; apsw.Connection(sys.argv[1]).pragma('wal_checkpoint', 'truncate')"
        subprocess.run([sys.executable, "-c", program, str(daemon.database)], check=True)
        with daemon.connect() as connection:
            assert "error" not in upsert(connection, "new")
            assert connection.call("health")["warnings"] == []
        daemon.kill()
        assert not list((daemon.data / "backups").glob("*"))
    assert stored(daemon.database) == promised | {"new"}


def test_stopped_daemon_leaves_everything_readable_when_its_wal_was_deleted(home: Path) -> None:
    with running_daemon(home) as daemon:
        promised = store_many(daemon, "before")
        beside(daemon.database, "-wal").unlink()
        daemon.signal(signal.SIGTERM)
        daemon.wait()
    assert promised <= stored(daemon.database)
    assert full_check(daemon.database) == "ok"


def test_leftover_of_an_interrupted_backup_is_removed_at_the_start(home: Path) -> None:
    backups = home / "clankers" / "backups"
    backups.mkdir(mode=0o700, parents=True)
    left = [backups / "clankers-20250101T000000000000-before-0007.unfinished"]
    left.append(left[0].with_name(f"{left[0].name}-journal"))
    kept = backups / "clankers-20250101T000000000000-before-0006.db"
    for path in (*left, kept):
        path.write_bytes(b"x")
    with running_daemon(home):
        assert [path for path in left if path.exists()] == []
        assert kept.exists()
