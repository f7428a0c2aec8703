"""`clankers-ctl` without a command, `clankers-ctl top`, and exporting a session."""

from pathlib import Path

from helpers.ctl import ctl, on_a_terminal
from helpers.daemon import DaemonProcess, RawConnection
from helpers.store import message


def test_overview_of_an_empty_store_says_what_to_do_next(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    shown = ctl(shared_daemon)
    assert (shown.code, "clankers-ctl setup" in shown.out, "clankers-ctl search" in shown.out) == (0, True, True)


def test_overview_lists_the_last_sessions_and_what_was_captured_today(
    rpc: RawConnection, shared_daemon: DaemonProcess
) -> None:
    rpc.call("upsertSession", session={"id": "s-1", "title": "Fix the login"})
    rpc.call("upsertMessage", message=message("m-1", session="s-1"))
    rpc.call("upsertSession", session={"id": "s-2", "title": "A script", "metadata": {"entrypoint": "sdk-cli"}})
    rpc.call("capture.pause", project="/src/shop")
    shown = ctl(shared_daemon).out
    rpc.call("capture.resume")
    assert "2 sessions, 1 message" in shown
    assert "Fix the login" in shown
    assert "A script" not in shown
    assert "● Capture is paused in /src/shop." in shown
    assert "clankers-ctl view" in shown


def test_hints_of_the_overview_fit_the_terminal(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    for columns in (40, 60, 80):
        shown = on_a_terminal(shared_daemon, COLUMNS=str(columns)).replace("\r", "")
        hints = shown[shown.index("Try:") : shown.index("Run clankers-ctl")].splitlines()
        assert len(hints) >= 5
        assert max(map(len, hints)) <= columns


def test_overview_without_a_daemon_says_how_to_start_it(home: Path) -> None:
    shown = ctl(DaemonProcess(home))
    assert (shown.code, "clankers-ctl daemon start" in shown.out) == (0, True)


def test_top_reports_the_requests_since_its_last_update(rpc: RawConnection, shared_daemon: DaemonProcess) -> None:
    update = ctl(shared_daemon, "top", "--json", "--count", "1", "--interval", "0.2").json
    [metrics] = [request for request in update["requests"] if request["method"] == "metrics"]
    assert metrics["count"] == 1
    assert update["gauges"]["clankers_database_bytes"] > 0
    assert ctl(shared_daemon, "top", "--count", "2", "--interval", "0.2").out.count("Per second") == 2


def test_session_is_exported_to_a_file_that_only_its_owner_can_read(
    rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    rpc.call("upsertMessage", message=message("m-2", session="exported", text="Why does the login fail?"))
    page = tmp_path / "session.html"
    assert ctl(shared_daemon, "session", "exported", "--html", str(page)).code == 0
    assert "Why does the login fail?" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    assert "Why does the login fail?" in ctl(shared_daemon, "session", "exported", "--markdown", "-").out
