"""`clankers-ctl backup`: a crashed or running daemon's database is replaced by a backup, and nothing is destroyed."""

import shutil
from pathlib import Path

import apsw
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, running_daemon
from helpers.schedules import create, ended, make_due, wake
from helpers.store import message
from helpers.writers import stored


def store(daemon: DaemonProcess, *names: str) -> None:
    with daemon.connect() as connection:
        connection.call("events.batch", events=[{"message": message(name)} for name in names])


def make_backup(daemon: DaemonProcess) -> str:
    with daemon.connect() as connection:
        action = create(connection, builtin="backup")
        make_due(daemon, action)
        wake(connection, action)
        (run,) = ended(connection, action)
    return str(run["result"]["result"]["file"])


def integrity(database: Path) -> str:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return str(db.pragma("integrity_check"))
    finally:
        db.close()


def test_backup_restore_replaces_the_database_of_a_running_and_of_a_crashed_daemon(home: Path) -> None:
    with running_daemon(home) as daemon:
        assert ctl(daemon, "backup", "list").out.startswith("There are no backups")
        store(daemon, "first")
        backup = make_backup(daemon)
        store(daemon, *(f"later-{number}" for number in range(300)))

        listed = ctl(daemon, "backup", "list", "--json").json["backups"]
        assert [(each["name"], each["sessions"], each["problem"]) for each in listed] == [(backup, 1, None)]
        refused = ctl(daemon, "backup", "restore", backup, typed="n\n")
        assert refused.code == 1
        assert "later-7" in stored(daemon.database)

        done = ctl(daemon, "backup", "restore", backup, "--yes", "--json")
        assert done.code == 0, done.err
        assert daemon.process
        assert done.json["stoppedDaemon"] == daemon.process.pid
        assert daemon.wait() == 0
        daemon.close()
        assert stored(daemon.database) == {"first"}
        assert "later-7" in stored(Path(done.json["replaced"]))

        daemon.start()
        store(daemon, "second")
        daemon.kill()
        daemon.close()
        done = ctl(daemon, "backup", "restore", str(daemon.data / "backups" / backup), "--yes", "--json")
        assert done.code == 0, done.err
        assert done.json["stoppedDaemon"] is None
        replaced = Path(done.json["replaced"])
        assert replaced.with_name(f"{replaced.name}-wal").exists()
        assert stored(replaced) == {"first", "second"}
        with daemon.start().connect() as connection:
            health = connection.call("health")
            assert (health["ok"], health["warnings"]) == (True, [])
        assert stored(daemon.database) == {"first"}
        assert integrity(daemon.database) == "ok"
        checks = {check["name"]: check for check in ctl(daemon, "doctor", "--json").json["checks"]}
        assert replaced.name in checks["replaced files"]["advice"]


def test_backup_restore_refuses_what_is_damaged_or_missing_and_changes_nothing(home: Path) -> None:
    with running_daemon(home) as daemon:
        store(daemon, *(f"kept-{number}" for number in range(300)))
        daemon.stop()
        daemon.close()
        before = daemon.database.read_bytes()
        damaged = home / "damaged.db"
        shutil.copy(daemon.database, damaged)
        with damaged.open("r+b") as file:
            file.seek(8 * 4096)
            file.write(b"\xa5" * 4096 * 20)
        assert "damaged" in ctl(daemon, "backup", "restore", str(damaged), "--yes").err
        text = home / "text.db"
        text.write_text("not a database " * 1000)
        assert ctl(daemon, "backup", "restore", str(text), "--yes").code == 1
        missing = ctl(daemon, "backup", "restore", "nothing.db", "--yes")
        assert (missing.code, "backup list" in missing.err) == (1, True)
        assert daemon.database.read_bytes() == before
        assert not list(daemon.data.glob("*restoring*"))
        assert not list(daemon.data.glob("*replaced*"))
