"""`clankers-ctl daemon`, and commands that start the daemon as hooks do."""

import os
import signal
import socket
from pathlib import Path

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess
from helpers.hook import autostarting, is_dead
from helpers.waiting import eventually


def test_daemon_starts_restarts_and_stops(home: Path) -> None:
    with autostarting(home) as daemon:
        assert (ctl(daemon, "daemon", "status").code, ctl(daemon, "daemon", "stop").code) == (3, 0)
        started = ctl(daemon, "daemon", "start", "--json").json
        assert started["running"]
        assert "already running" in ctl(daemon, "daemon", "start").out
        assert f"process {started['pid']}" in ctl(daemon, "daemon", "status").out
        assert ctl(daemon, "daemon", "stop", "--json").json == {"stopped": True, "pid": started["pid"]}
        assert ctl(daemon, "sessions").code == 0  # starts it again at once
        restarted = ctl(daemon, "daemon", "restart", "--json").json
        assert restarted["pid"] != started["pid"]
        with daemon.connect() as connection:
            assert connection.call("daemon.status")["pid"] == restarted["pid"]
        settings = Path(ctl(daemon, "config", "path").out.strip())
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("chunk_tokens = = 3\n")
        refused = ctl(daemon, "daemon", "restart")
        assert (refused.code, "line 1, column" in refused.err) == (1, True)
        assert f"process {restarted['pid']}" in ctl(daemon, "daemon", "status").out
        environ = Path(f"/proc/{restarted['pid']}/environ")
        assert not environ.exists() or b"SECRET_TOKEN" not in environ.read_bytes()


def test_command_starts_the_daemon_once_as_hooks_do(home: Path) -> None:
    with autostarting(home) as daemon:
        ran = ctl(daemon, "memory", "add", "We deploy on Tuesdays", CLANKERS_LOG_LEVEL="debug")
        assert ran.code == 0, ran.err
        with daemon.connect() as connection:
            ignored = connection.call("daemon.config")["ignored"]
        assert [each["key"] for each in ignored] == ["log_level"]


def test_command_says_why_the_daemon_does_not_start_and_does_not_try_again(home: Path) -> None:
    with autostarting(home) as daemon:
        (home / "clankers.toml").write_text("log_level = \n")
        ran = ctl(daemon, "sessions")
        assert ran.code == 3
        assert "line 1, column 13" in ran.err
        started = (home / "clankers" / "autostart.lock").read_text()
        assert ctl(daemon, "sessions").code == 3
        assert (home / "clankers" / "autostart.lock").read_text() == started


def test_command_says_that_the_path_of_the_socket_is_too_long(home: Path) -> None:
    ran = ctl(DaemonProcess(home / ("a" * 120)), "daemon", "start")
    assert ran.code == 3
    assert "set CLANKERS_SOCKET_PATH to a shorter one" in ran.err
    assert "daemon start" not in ran.err


def test_command_starts_a_daemon_again_that_was_killed_right_after_its_start(home: Path) -> None:
    with autostarting(home) as daemon:
        killed = ctl(daemon, "daemon", "start", "--json").json["pid"]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: is_dead(killed), "it is dead")  # until then, its socket accepts connections
        ran = ctl(daemon, "sessions")
        assert ran.code == 0, ran.err
        assert ctl(daemon, "daemon", "status", "--json").json["pid"] != killed


@pytest.mark.parametrize("words", [["status"], ["health"], ["daemon", "status"], ["config", "show"], ["doctor"]])
def test_command_that_only_looks_starts_nothing(home: Path, words: list[str]) -> None:
    with autostarting(home) as daemon:
        assert ctl(daemon, *words).code == (0 if words[0] == "config" else 3)
        assert not daemon.database.exists()


def test_command_starts_nothing_when_it_must_not(home: Path) -> None:
    with autostarting(home) as daemon:
        assert ctl(daemon, "sessions", CLANKERS_HOOK_AUTOSTART="false").code == 3
        assert ctl(daemon, "sessions", "--socket", str(home / "other.sock")).code == 3
        daemon.data.mkdir(exist_ok=True)
        daemon.socket_path.symlink_to(home / "elsewhere.sock")  # whose it is cannot be known
        assert ctl(daemon, "sessions").code == 3
        assert not daemon.database.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_command_starts_nothing_in_the_place_of_another_users_socket(home: Path) -> None:
    with autostarting(home) as daemon:
        daemon.data.mkdir()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(daemon.socket_path))  # and nobody listens
        os.chown(daemon.socket_path, 12345, 12345)
        assert ctl(daemon, "sessions").code == 3
        assert not daemon.database.exists()


def test_stop_of_a_daemon_that_the_test_started(fresh_daemon: DaemonProcess) -> None:
    assert ctl(fresh_daemon, "daemon", "stop").code == 0
    assert fresh_daemon.wait() == 0
