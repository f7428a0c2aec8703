"""Checks of everything around the daemon: its service, the plugins of harnesses, capture, and the settings."""

import subprocess
import time

import click

from clankers.ctl.codex_plugin import HOW_TO_TRUST, UNTRUSTED
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.plugin import HARNESSES, plugin_status
from clankers.ctl.service import clankersd_path, unit_file_states
from clankers.ctl.service_managers import platform_manager
from clankers_protocol.admin import Finding
from clankers_protocol.capture import CaptureReport, HarnessCapture

RECENT_REFUSAL_MS = 24 * 3_600_000
CHECK_CONFIG_TIMEOUT_SECONDS = 60


def check_service() -> Finding:
    """Check that an installed service is up to date and has not failed."""
    manager = platform_manager()
    try:
        files = unit_file_states(manager)
    except click.ClickException as error:
        return Finding("service", "problem", error.message, "pip install clankers")
    states = {file.state for file in files}
    if not manager.is_usable():
        finding = f"{manager.name} does not run services here. Hooks and clankers-ctl start the daemon."
        if states == {"missing"}:
            return Finding("service", "ok", finding)
        return Finding(
            "service", "warning", f"{finding} The installed service never runs.", "clankers-ctl service uninstall"
        )
    if states == {"missing"}:
        return Finding("service", "ok", "No service is installed. Hooks and clankers-ctl start the daemon.")
    if states != {"current"}:
        finding = f"The {manager.name} service was installed by another version or for other paths."
        return Finding("service", "warning", finding, "clankers-ctl service install")
    if manager.is_reachable() and "failed" in manager.state().values():
        finding = f"The {manager.name} service has failed."
        return Finding("service", "problem", finding, "clankers-ctl service status; clankers-ctl logs --level error")
    return Finding("service", "ok", f"{manager.name} starts the daemon on demand.")


def check_plugins(report: CaptureReport | None) -> list[Finding]:
    """Check that each harness in use has an up-to-date plugin whose hooks run; `report` says which events arrived."""
    return [_check_plugin(name, report) for name in HARNESSES]


def _check_plugin(name: str, report: CaptureReport | None) -> Finding:
    check, install = f"plugin {name}", f"clankers-ctl plugin install {name}"
    harness = HARNESSES[name]()
    status = plugin_status(harness, report)
    state = status.state
    if state == "installed":
        finding = f"The plugin is installed and up to date; {status.explanation}."
        if status.trust in UNTRUSTED:
            return Finding(check, "problem", finding, HOW_TO_TRUST)
        if status.hooks == "silent":
            return Finding(check, "problem", finding, f"{install}; clankers-ctl capture status")
        return Finding(check, "ok", finding)
    if state.startswith("broken"):
        return Finding(check, "problem", f"The plugin is {state.partition('. ')[0]}. Nothing is captured.", install)
    if state != "not installed":
        return Finding(check, "problem", f"The plugin is {state.partition(':')[0]}.", install)
    if harness.home.exists():
        finding = f"The plugin is not installed, but {name} is in use ({harness.home})."
        return Finding(check, "warning", finding, install)
    return Finding(check, "ok", f"The plugin is not installed, and {name} is not in use.")


def check_capture(report: CaptureReport) -> list[Finding]:
    """Check that capture is not paused, and each harness that has ever sent an event or is in use."""
    paused = []
    for pause in report.paused:
        place = f" in {pause.project}" if pause.project else ""
        until = f" until {format_time(pause.until)}" if pause.until else ""
        paused.append(Finding("capture", "warning", f"Capture is paused{place}{until}.", "clankers-ctl capture resume"))
    return paused + [
        _check_harness_capture(harness)
        for harness in report.harnesses
        if harness.last_event_at is not None or harness.last_activity_at is not None
    ]


def _check_harness_capture(harness: HarnessCapture) -> Finding:
    check = f"capture {harness.harness}"
    if harness.state == "dead" or (harness.state == "never" and ": " in harness.explanation):
        finding, _, advice = harness.explanation.rpartition(": ")
        return Finding(check, "warning", f"{finding}.", advice)
    now = time.time() * 1000
    if harness.last_refused_at and now - harness.last_refused_at < RECENT_REFUSAL_MS:
        refused = f"{plural(harness.refused, 'event')} {'was' if harness.refused == 1 else 'were'} refused"
        ago = format_duration(max(now - harness.last_refused_at, 0) / 1000)
        finding = f"{refused}, the last one {ago} ago: {harness.last_refusal}"
        return Finding(check, "warning", finding, "clankers-ctl capture status")
    return Finding(check, "ok", f"{harness.explanation}.")


def check_settings() -> Finding:
    """Check that the daemon would start with the current settings, without starting it."""
    try:
        command = [str(clankersd_path()), "--check-config"]
        done = subprocess.run(  # noqa: S603  # our own program
            command, capture_output=True, text=True, check=False, timeout=CHECK_CONFIG_TIMEOUT_SECONDS
        )
    except (click.ClickException, OSError, subprocess.TimeoutExpired) as error:
        return Finding("settings", "warning", f"The settings cannot be checked: {error}", "pip install clankers")
    if done.returncode:
        advice = "correct the settings file; clankers-ctl config path shows where it is"
        return Finding("settings", "problem", done.stderr.strip(), advice)
    return Finding("settings", "ok", "The settings are valid.")
