"""What stands around the daemon: its service, the plugins of harnesses, what comes from them, its settings."""

import subprocess
import time

import click

from clankers.ctl.formatting import format_duration, plural
from clankers.ctl.plugin import HARNESSES
from clankers.ctl.plugin import plugin_status as plugin_standing
from clankers.ctl.service import clankersd_path
from clankers.ctl.service import unit_file_states as service_standing
from clankers.ctl.service_managers import platform_manager
from clankers_protocol.admin import Finding
from clankers_protocol.capture import CaptureReport, HarnessCapture

REFUSED_MS = 24 * 3_600_000
"""What was refused longer ago is no news."""

CHECK_SECONDS = 60


def service() -> Finding:
    """Whether the service, if there is one, is the one this program would install."""
    here = platform_manager()
    try:
        files = service_standing(here)
    except click.ClickException as error:
        return Finding("service", "problem", error.message, "pip install clankers")
    states = {file["is"] for file in files}
    if states == {"missing"}:
        return Finding("service", "ok", "None is installed: the first hook starts the daemon.")
    if states != {"current"}:
        told = f"The service of {here.name} was made for another version or other paths."
        return Finding("service", "warning", told, "clankers-ctl service install")
    if "failed" in (here.state() if here.reachable() else {}).values():
        told = f"{here.name} could not keep the daemon running."
        return Finding("service", "problem", told, "clankers-ctl service status; clankers-ctl logs --level error")
    return Finding("service", "ok", f"{here.name} starts the daemon when it is needed.")


def plugins() -> list[Finding]:
    """Whether each harness that is used here has our plugin."""
    return [_plugin(name) for name in HARNESSES]


def _plugin(name: str) -> Finding:
    check, install = f"plugin {name}", f"clankers-ctl plugin install {name}"
    here = HARNESSES[name]()
    state: str = plugin_standing(here)["state"]
    if state == "installed":
        return Finding(check, "ok", "It is installed and up to date.")
    if state != "not installed":
        return Finding(check, "problem", f"It is {state.partition(':')[0]}.", install)
    if here.home.exists():
        return Finding(check, "warning", f"It is not installed, though {name} is used here ({here.home}).", install)
    return Finding(check, "ok", f"It is not installed, and {name} is not used here.")


def captures(report: CaptureReport) -> list[Finding]:
    """What comes from each harness that was ever heard of or is used here."""
    known = [each for each in report.harnesses if each.last_event_at is not None or each.last_activity_at is not None]
    return [_capture(each) for each in known]


def _capture(harness: HarnessCapture) -> Finding:
    check = f"capture {harness.harness}"
    told = harness.explanation
    if harness.state == "dead" or (harness.state == "never" and harness.last_activity_at):
        told, _, advice = told.rpartition(": ")
        return Finding(check, "warning", f"{told}.", advice)
    now = time.time() * 1000
    if harness.last_refused_at and now - harness.last_refused_at < REFUSED_MS:
        told = f"{plural(harness.refused, 'event')} {'was' if harness.refused == 1 else 'were'} refused"
        ago = format_duration(max(now - harness.last_refused_at, 0) / 1000)
        return Finding(
            check, "warning", f"{told}, the last {ago} ago: {harness.last_refusal}", "clankers-ctl capture status"
        )
    return Finding(check, "ok", f"{told}.")


def settings() -> Finding:
    """Whether the daemon would start with the settings as they are: it is asked without being started."""
    try:
        command = [str(clankersd_path()), "--check-config"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_SECONDS)  # noqa: S603  # our own
    except (click.ClickException, OSError, subprocess.TimeoutExpired) as error:
        return Finding("settings", "warning", f"They cannot be checked: {error}", "pip install clankers")
    if asked.returncode:
        return Finding("settings", "problem", asked.stderr.strip(), "clankers-ctl config path says where to correct it")
    return Finding("settings", "ok", "The settings are valid.")
