"""The daemon as a process: signals, file modes, who may connect, and what is in the wheel."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import request, upsert
from helpers.waiting import eventually
from helpers.writers import acknowledged, stored, writing

ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
ROOT = Path(__file__).parents[2]


def begin_endless_query(connection: RawConnection) -> None:
    """Send a query that ends only by its deadline, and wait until the daemon has taken it up."""
    connection.send(request("endless", "query", sql=ENDLESS))
    connection.send(request("health", "health"))
    assert connection.receive()["id"] == "health"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_exit_code_0_and_removes_the_socket(fresh_daemon: DaemonProcess, number: int) -> None:
    with fresh_daemon.connect() as connection:
        connection.call("upsertMessage", message={"id": "m", "sessionId": "s"})
        fresh_daemon.signal(number)
        assert fresh_daemon.wait() == 0
        assert connection.receive() is None
    assert not fresh_daemon.socket_path.exists()
    assert stored(fresh_daemon.database) == {"m"}
    assert fresh_daemon.errors() == "" or "Traceback" not in fresh_daemon.errors()


def test_after_a_clean_end_everything_is_in_the_one_file(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        connection.call("upsertMessage", message={"id": "m", "sessionId": "s"})
    assert fresh_daemon.stop() == 0
    assert sorted(path.name for path in fresh_daemon.data.glob("clankers.db-*")) == []


def test_request_in_flight_is_answered_before_the_end(home: Path) -> None:
    with running_daemon(home, CLANKERS_QUERY_SECONDS="1") as daemon, daemon.connect() as connection:
        begin_endless_query(connection)
        daemon.signal(signal.SIGTERM)
        reply = connection.receive()
        assert reply is not None, "the daemon hung up without an answer"
        assert reply["id"] == "endless"
        assert daemon.wait() == 0


def test_request_that_takes_too_long_does_not_keep_it_from_ending(home: Path) -> None:
    with running_daemon(home, CLANKERS_QUERY_SECONDS="60") as daemon, daemon.connect() as connection:
        begin_endless_query(connection)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait(timeout=30) == 0  # half of what the query may take


def test_somebody_who_reads_the_file_does_not_keep_it_from_ending(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        upsert(connection, "first")
        reader = apsw.Connection(str(fresh_daemon.database), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchall()
        upsert(connection, "second")
    assert fresh_daemon.stop() == 0
    reader.close()
    assert {"first", "second"} <= stored(fresh_daemon.database)


def test_every_write_acknowledged_before_the_end_is_stored(fresh_daemon: DaemonProcess) -> None:
    writers = writing(fresh_daemon, 4, "")
    eventually(lambda: all(writer.acknowledged for writer in writers), "all connections write")
    assert fresh_daemon.stop() == 0
    for writer in writers:
        writer.join()
    assert not [refused for writer in writers for refused in writer.refused]
    assert acknowledged(writers) <= stored(fresh_daemon.database)


def test_second_signal_does_not_wait_for_what_is_in_flight(home: Path) -> None:
    with running_daemon(home, CLANKERS_QUERY_SECONDS="60") as daemon, daemon.connect() as connection:
        begin_endless_query(connection)
        daemon.signal(signal.SIGTERM)
        eventually(lambda: not accepts(daemon), "the daemon has begun to stop")
        daemon.signal(signal.SIGTERM)
        code = daemon.wait(timeout=30)  # half of what the query may take
        assert code != 0, "an end that drops requests is not a clean one"
    with running_daemon(home) as again, again.connect() as connection:
        assert connection.call("health")["ok"]


def accepts(daemon: DaemonProcess) -> bool:
    try:
        with daemon.connect(timeout=1) as connection:
            return connection.request("health") is not None
    except (OSError, AssertionError):
        return False


def setting(connection: RawConnection, key: str) -> tuple[object, str]:
    """The value in force, and where it came from."""
    settings = connection.call("daemon.config")["settings"]
    return next((one["value"], one["origin"]) for one in settings if one["key"] == key)


def test_sighup_reads_the_configuration_again(home: Path, fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        assert setting(connection, "log_level") == ("info", "default")
        (home / "clankers.toml").write_text('log_level = "debug"\n')
        fresh_daemon.signal(signal.SIGHUP)
        eventually(lambda: setting(connection, "log_level") == ("debug", "file"), "the new level is in force")


def test_sighup_with_a_wrong_configuration_keeps_the_one_in_force(home: Path, fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        (home / "clankers.toml").write_text('log_level = "debug"\n')
        fresh_daemon.signal(signal.SIGHUP)
        eventually(lambda: setting(connection, "log_level") == ("debug", "file"), "the new level is in force")
        (home / "clankers.toml").write_text('log_level = "loud"\n')
        fresh_daemon.signal(signal.SIGHUP)
        eventually(lambda: "loud" in logged(fresh_daemon), "the log names the wrong value")
        assert setting(connection, "log_level") == ("debug", "file")


def logged(daemon: DaemonProcess) -> str:
    return "".join(path.read_text() for path in daemon.logs.iterdir() if path.is_file())


@pytest.mark.parametrize(
    ("text", "named"),
    [('log_level = "loud"', "loud"), ("log_levle = 1", "log_levle"), ("log_level = ", "clankers.toml")],
)
def test_wrong_configuration_ends_the_start_with_78_and_names_it(home: Path, text: str, named: str) -> None:
    daemon = DaemonProcess(home)
    (home / "clankers.toml").write_text(text)
    daemon.start(wait=False)
    try:
        assert daemon.wait() == 78
        said = daemon.errors()
        assert named in said
        assert "Traceback" not in said
    finally:
        daemon.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_for_the_owner_only_whatever_the_umask(home: Path) -> None:
    old = os.umask(0)
    try:
        daemon = DaemonProcess(home).start()
    finally:
        os.umask(old)
    try:
        with daemon.connect() as connection:
            connection.call("upsertMessage", message={"id": "m", "sessionId": "s"})
        assert mode(daemon.data) == 0o700
        assert mode(daemon.socket_path) == 0o600
        assert mode(daemon.logs) == 0o700
        files = [path for path in daemon.data.rglob("*") if path.is_file()]
        assert {daemon.database, Path(f"{daemon.database}-wal")} <= set(files)
        assert {path.name: oct(mode(path)) for path in files} == {path.name: "0o600" for path in files}
    finally:
        daemon.close()


ASK_AS_NOBODY = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
os.setgid(65534)
os.setuid(65534)
connection.settimeout(20)
connection.connect(sys.argv[1])
try:
    connection.sendall(b'Content-Length: 42\\r\\n\\r\\n{"jsonrpc":"2.0","id":1,"method":"health"}')
    print("answered" if connection.recv(100) else "refused")
except (BrokenPipeError, ConnectionResetError):
    print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_peer_of_another_user_is_refused(home: Path, fresh_daemon: DaemonProcess) -> None:
    for folder in (home, fresh_daemon.data):
        folder.chmod(0o755)
    fresh_daemon.socket_path.chmod(0o666)
    asked = subprocess.run(
        [sys.executable, "-c", ASK_AS_NOBODY, str(fresh_daemon.socket_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == "refused"
    with fresh_daemon.connect() as connection:
        assert connection.call("health")["ok"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode and "hatchling" in built.stderr and "No matching distribution" in built.stderr:
        pytest.skip("building the wheel needs hatchling from the package index")
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("clankers-*.whl")
    return found


def test_wheel_holds_migrations_and_service_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        "clankersd/main.py",
        "clankersd/migrations/sqlite/0001_events.sql",
        "clankersd/migrations/sqlite/0001_events.down.sql",
        "clankers/ctl/systemd/clankersd.service",
        "clankers/ctl/systemd/clankersd.socket",
        "clankers/ctl/launchd/dev.clankers.clankersd.plist",
        "clankers_protocol/framing.py",
        "clankers/py.typed",
    }
    assert expected - names == set()
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


def test_installed_wheel_has_its_commands_and_a_daemon_that_answers(
    wheel: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = install(wheel, tmp_path / "venv")
    for command in ("clankersd", "clankers-ctl", "clankers-hook"):
        assert shutil.which(command, path=str(python.parent)), command
    shown = subprocess.run([python.parent / "clankers-ctl", "--help"], capture_output=True, text=True, check=True)
    assert "service" in shown.stdout
    monkeypatch.setattr(sys, "executable", str(python))
    with running_daemon(home) as daemon, daemon.connect() as connection:
        assert connection.call("health")["ok"]


def install(wheel: Path, folder: Path) -> Path:
    """A virtualenv with the wheel and, for what it depends on, this one's packages; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched last, and the .pth of our editable install in there is not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python
