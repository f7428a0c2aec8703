"""The daemon as a service: systemd's units, launchd's agent, and what the daemon says to them."""

import contextlib
import json
import os
import plistlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import eventually

from clankers.ctl.doctor.setup import check_service
from clankers.ctl.plugin_files import hook_command
from clankers.ctl.service import service
from clankers.ctl.service_managers import LABEL, Launchd, Systemd

UNITS = ("clankersd.socket", "clankersd.service")


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the real user is read or written, and no real manager is reached."""
    for name in list(os.environ):
        if name.startswith(("CLANKERS_", "XDG_", "DBUS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for manager in (Systemd, Launchd):  # the machine of a test often runs neither
        monkeypatch.setattr(manager, "is_usable", lambda self: True)


def run(*arguments: str, exit_code: int = 0) -> Any:
    """What `clankers-ctl service … --json` prints."""
    result = CliRunner().invoke(service, [*arguments, "--json"])
    assert result.exit_code == exit_code, result.output
    return json.loads(result.output)


def unit_folder(home: Path) -> Path:
    return home / ".config" / "systemd" / "user"


def everything_in(home: Path) -> list[Path]:
    return sorted(home.rglob("*"))


@pytest.fixture
def on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


# -- the files


def verified(folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """What systemd-analyze says of the units in the folder."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run(
        ["systemd-analyze", "verify", "--user", "--recursive-errors=yes", *(folder / unit for unit in UNITS)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_units_pass_systemd_analyze(home: Path) -> None:
    run("install")
    verdict = verified(unit_folder(home), home)
    assert (verdict.returncode, verdict.stderr) == (0, "")


def test_units_with_a_fault_do_not_pass_systemd_analyze(home: Path) -> None:
    run("install")
    unit = unit_folder(home) / "clankersd.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=30", "WatchdogSex=30"))
    assert "WatchdogSex" in verified(unit_folder(home), home).stderr


def test_units_quote_spaces_and_percent_signs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = home / 'a "b" 100%h'
    monkeypatch.setenv("CLANKERS_DATA_PATH", str(odd))
    command = home / "c d 100%h" / "clankersd"  # systemd allows no quotes in the name of a program
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command.with_name("python")))
    run("install")
    verdict = verified(unit_folder(home), home)
    assert (verdict.returncode, verdict.stderr) == (0, "")
    socket_unit = (unit_folder(home) / "clankersd.socket").read_text()
    assert f'ListenStream={home}/a "b" 100%%h/clankers/dxta-clankers.sock' in socket_unit


def directives(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_units_have_the_required_directives(home: Path) -> None:
    run("install")
    unit = directives(unit_folder(home) / "clankersd.service")
    assert unit["Type"] == "notify"
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == "78"
    assert unit["ExecStart"] == f'"{Path(sys.executable).with_name("clankersd")}"'
    listening = directives(unit_folder(home) / "clankersd.socket")
    assert listening["ListenStream"] == f"{home}/.local/share/clankers/dxta-clankers.sock"
    assert (listening["SocketMode"], listening["DirectoryMode"]) == ("0600", "0700")


# They keep a unit of a user manager from starting, or do nothing there (systemd 252, tried one by one).
USELESS_OR_WORSE = """
    PrivateDevices ProtectKernelModules ProtectKernelLogs ProtectClock CapabilityBoundingSet DynamicUser User
    ProtectSystem ProtectHome PrivateTmp ProtectProc ReadWritePaths InaccessiblePaths StateDirectory
""".split()  # noqa: SIM905


def test_units_have_no_directive_that_fails_in_a_user_manager(home: Path) -> None:
    run("install")
    assert not directives(unit_folder(home) / "clankersd.service").keys() & set(USELESS_OR_WORSE)


AGENT_KEYS = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "Sockets": dict,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "Umask": int,
    "ProcessType": str,
    "StandardErrorPath": str,
}


@pytest.mark.usefixtures("on_macos")
def test_launchd_agent_has_known_keys_and_types(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLANKERS_DATA_PATH", str(home / "a & b"))
    run("install")
    agent = plistlib.loads((home / "Library" / "LaunchAgents" / f"{LABEL}.plist").read_bytes())
    assert {key: type(value) for key, value in agent.items()} == AGENT_KEYS
    assert agent["Label"] == LABEL
    assert agent["ProgramArguments"] == [str(Path(sys.executable).with_name("clankersd"))]
    assert agent["Sockets"] == {
        "rpc": {
            "SockFamily": "Unix",
            "SockType": "stream",
            "SockPathName": str(home / "a & b" / "clankers" / "dxta-clankers.sock"),
            "SockPathMode": 0o600,
        }
    }
    assert agent["Umask"] == 0o077
    assert agent["EnvironmentVariables"] == {"CLANKERS_DATA_PATH": str(home / "a & b")}
    assert "@" not in json.dumps(agent)


# -- install, uninstall, status


def test_service_install_again_changes_nothing(home: Path) -> None:
    assert [file["action"] for file in run("install")["files"]] == ["wrote", "wrote"]
    before = {path: path.stat().st_mtime_ns for path in everything_in(home)}
    assert [file["action"] for file in run("install")["files"]] == ["unchanged", "unchanged"]
    assert {path: path.stat().st_mtime_ns for path in everything_in(home)} == before


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_service_uninstall_leaves_nothing_behind(home: Path, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    run("install")
    assert everything_in(home)
    run("uninstall")
    assert everything_in(home) == []
    assert {file["action"] for file in run("uninstall")["files"]} == {"absent"}


def test_service_uninstall_removes_only_our_links(home: Path) -> None:
    run("install")
    wants = unit_folder(home) / "default.target.wants"
    wants.mkdir()
    (wants / "clankersd.service").symlink_to("../clankersd.service")
    (unit_folder(home) / "other.service").touch()
    run("uninstall")
    assert [path.name for path in unit_folder(home).iterdir()] == ["other.service"]


def test_service_dry_run_shows_the_files_and_writes_none(home: Path) -> None:
    report = run("install", "--dry-run")
    assert "[Service]" in report["files"][1]["text"]
    assert report["leftToRun"]
    assert everything_in(home) == []
    run("install")
    before = everything_in(home)
    run("uninstall", "--dry-run")
    assert everything_in(home) == before


def test_service_install_without_systemctl_lists_the_commands_to_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    report = run("install")
    assert report["leftToRun"] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now clankersd.socket clankersd.service",
    ]
    assert sorted(path.name for path in unit_folder(home).iterdir()) == [
        "clankersd.service",
        "clankersd.socket",
    ]
    assert "--now" not in " ".join(run("install", "--no-start")["leftToRun"])


def test_service_install_without_a_service_manager_fails_and_says_what_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Systemd, "is_usable", lambda self: False)
    result = CliRunner().invoke(service, ["install"])
    assert result.exit_code == 1
    assert "clankers-ctl daemon start" in result.output
    assert everything_in(home) == []
    assert "not available here" in CliRunner().invoke(service, ["status"]).output
    assert check_service().state == "ok"
    monkeypatch.setattr(Systemd, "is_usable", lambda self: True)
    run("install")
    monkeypatch.setattr(Systemd, "is_usable", lambda self: False)
    assert check_service().advice == "clankers-ctl service uninstall"


def test_service_status_distinguishes_missing_current_and_outdated(home: Path) -> None:
    assert {file["is"] for file in run("status", exit_code=3)["files"]} == {"missing"}
    run("install")
    assert {file["is"] for file in run("status")["files"]} == {"current"}
    (unit_folder(home) / "clankersd.service").write_text("[Service]\n")
    assert [file["is"] for file in run("status")["files"]] == ["current", "outdated"]


@pytest.fixture
def manager_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl and a launchctl that write down how they are called; the real ones need a session."""
    calls = tmp_path / "calls"
    calls.touch()
    for name in ("systemctl", "launchctl"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n[ ! -e {tmp_path}/fail-"$2" ] || exit 1\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return calls


def test_service_install_and_uninstall_run_systemctl(manager_calls: Path) -> None:
    (manager_calls.parent / "fail-is-active").touch()
    ran = [step["command"] for step in run("install")["ran"]]
    assert ran == [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now clankersd.socket clankersd.service",
    ]
    ran = [step["command"] for step in run("uninstall")["ran"]]
    assert ran == [
        "systemctl --user disable --now clankersd.socket clankersd.service",
        "systemctl --user daemon-reload",
    ]
    assert "systemctl --user disable --now" in manager_calls.read_text()


@pytest.mark.usefixtures("on_macos")
def test_service_install_loads_the_agent_into_the_users_domain(home: Path, manager_calls: Path) -> None:
    ran = [step["command"] for step in run("install")["ran"]]
    place = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    assert ran[-1] == f"launchctl bootstrap gui/{os.getuid()} {place}"
    assert (home / "Library").exists()


def test_service_install_stops_after_a_failed_command(manager_calls: Path) -> None:
    script = manager_calls.parent / "bin" / "systemctl"
    script.write_text('#!/bin/sh\n[ "$2" != daemon-reload ] || { echo "no such luck" >&2; exit 1; }\n')
    report = run("install", exit_code=1)
    assert "no such luck" in report["problem"]
    assert report["leftToRun"] == ["systemctl --user enable --now clankersd.socket clankersd.service"]


def test_service_install_refuses_while_another_daemon_runs(
    home: Path, manager_calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (manager_calls.parent / "bin" / "systemctl").write_text('#!/bin/sh\n[ "$2" != is-active ]\n')
    monkeypatch.setenv("CLANKERS_DATA_PATH", str(home))
    (home / "clankers").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "clankers" / "dxta-clankers.sock"))
        listener.listen()
        report = run("install", exit_code=1)
    assert str(os.getpid()) in report["problem"]
    assert report["leftToRun"][0] == f"kill {os.getpid()}"


def test_service_is_part_of_clankers_ctl() -> None:
    command = Path(sys.executable).with_name("clankers-ctl")
    shown = subprocess.run([command, "service", "--help"], capture_output=True, text=True, check=True)
    for name in ("install", "uninstall", "status"):
        assert name in shown.stdout


# -- the daemon's side


LISTENING = "00010000"
"""Flag __SO_ACCEPTCON in /proc/net/unix."""


class Activated:
    """A daemon behind the real systemd-socket-activate, which becomes the daemon at the first connection."""

    def __init__(self, home: Path, **environ: str) -> None:
        if shutil.which("systemd-socket-activate") is None:
            pytest.skip("systemd-socket-activate is not installed")
        self.paths = DaemonProcess(home, **environ)
        self.paths.data.mkdir(mode=0o700)
        passed = {name: value for name, value in self.paths.environ.items() if name.startswith("CLANKERS_")}
        self.process = subprocess.Popen(
            ["systemd-socket-activate", f"--listen={self.paths.socket_path}", "--fdname=rpc"]
            + [f"--setenv={name}={value}" for name, value in passed.items()]
            + [sys.executable, "-m", "clankersd"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self.is_listening, "systemd-socket-activate listens")

    def is_listening(self) -> bool:
        """Tell by the kernel's list: a connection would start the daemon, and the file is there a moment earlier."""
        sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        return any(one[3] == LISTENING and one[-1] == str(self.paths.socket_path) for one in sockets)

    def connect(self) -> RawConnection:
        return self.paths.connect()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def test_first_connection_starts_the_daemon(home: Path) -> None:
    with contextlib.closing(Activated(home)) as activated:
        assert not activated.paths.database.exists()
        with activated.connect() as connection:
            assert connection.call("health")["ok"]
            assert connection.call("daemon.status")["pid"] == activated.process.pid
        assert activated.paths.database.exists()


def test_hook_starts_a_socket_activated_daemon_and_its_event_is_stored(home: Path) -> None:
    """The daemon may take longer to start than the hook waits: then the event comes by way of the spool."""
    event = b'{"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "hello"}}'
    with contextlib.closing(Activated(home, CLANKERS_HOOK_AUTOSTART="true")) as activated:
        command = [*hook_command(), "generic"]
        subprocess.run(command, input=event, env=activated.paths.environ, check=True, timeout=60)
        spool = activated.paths.data / "spool"
        eventually(
            lambda: activated.paths.database.exists() and not list(spool.glob("*.json")), "the spool is replayed"
        )
        with activated.connect() as connection:
            eventually(lambda: connection.call("message.list", sessionId="s")["messages"], "the event is stored")
            assert connection.call("daemon.status")["pid"] == activated.process.pid
        assert not (activated.paths.data / "autostart.lock").exists()


def test_socket_handed_over_is_left_in_place_at_the_end(home: Path) -> None:
    with contextlib.closing(Activated(home)) as activated:
        with activated.connect() as connection:
            connection.call("health")
        activated.process.send_signal(signal.SIGTERM)
        assert activated.process.wait(30) == 0
        assert activated.paths.socket_path.is_socket()


def test_activated_daemon_exits_when_it_has_been_idle(home: Path) -> None:
    with contextlib.closing(Activated(home, CLANKERS_IDLE_EXIT_SECONDS="0.5")) as activated:
        with activated.connect() as connection:
            connection.call("health")
        assert activated.process.wait(60) == 0
        assert activated.paths.socket_path.is_socket()


def test_connected_client_keeps_an_activated_daemon_from_leaving(home: Path) -> None:
    with contextlib.closing(Activated(home, CLANKERS_IDLE_EXIT_SECONDS="0.3")) as activated:
        with activated.connect() as connection:
            connection.call("health")
            time.sleep(1.5)  # several times what it waits when alone
            assert connection.call("health")["ok"]
        assert activated.process.wait(60) == 0


def test_daemon_that_was_not_activated_does_not_exit_when_idle(home: Path) -> None:
    daemon = DaemonProcess(home, CLANKERS_IDLE_EXIT_SECONDS="0.2")
    try:
        daemon.start()
        time.sleep(1.5)
        with daemon.connect() as connection:
            assert connection.call("health")["ok"]
    finally:
        daemon.close()


@contextlib.contextmanager
def listening_for_states(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + address[1:] if address.startswith("@") else address)
        listener.settimeout(30)
        yield listener


def next_state(listener: socket.socket, wanted: str) -> list[str]:
    """Every state sent up to the wanted one."""
    seen: list[str] = []
    while wanted not in seen:
        seen += listener.recv(4096).decode().splitlines()
    return seen


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_told_when_it_is_ready_alive_and_stopping(home: Path, kind: str) -> None:
    address = str(home / "notify") if kind == "path" else f"@clankers-test-{os.getpid()}"
    with listening_for_states(address) as states:
        daemon = DaemonProcess(home, NOTIFY_SOCKET=address, WATCHDOG_USEC="400000")
        try:
            daemon.start(wait=False)
            next_state(states, "READY=1")
            with daemon.connect() as connection:
                assert connection.call("health")["ok"], "ready means that it answers"
            for _ in range(3):
                next_state(states, "WATCHDOG=1")
            daemon.signal(signal.SIGTERM)
            next_state(states, "STOPPING=1")
            assert daemon.wait() == 0
        finally:
            daemon.close()


def test_watchdog_meant_for_another_process_is_not_fed(home: Path) -> None:
    with listening_for_states(str(home / "notify")) as states:
        daemon = DaemonProcess(home, NOTIFY_SOCKET=str(home / "notify"), WATCHDOG_USEC="100000", WATCHDOG_PID="1")
        try:
            daemon.start()
            time.sleep(0.5)
            daemon.stop()
            assert "WATCHDOG=1" not in next_state(states, "STOPPING=1")
        finally:
            daemon.close()
