"""`clankers-ctl capture status` and `recall`, and the manual of how harnesses are wired."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import Ran, ctl
from helpers.daemon import DaemonProcess
from helpers.waiting import eventually

from clankers.spool import spool_event

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

MANUAL = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
EXAMPLES = re.findall(r"<<'EVENT'\n(.*?)\nEVENT", MANUAL, re.DOTALL)
SETTINGS = re.findall(r"```json\n(.*?)```", MANUAL, re.DOTALL)


def tell(daemon: DaemonProcess, harness: str, event: dict[str, Any]) -> None:
    with daemon.connect() as connection:
        connection.call("hook.event", harness=harness, event=event)


def standing(daemon: DaemonProcess, harness: str) -> dict[str, Any]:
    found = ctl(daemon, "capture", "status", "--json").json["harnesses"]
    return dict(next(each for each in found if each["harness"] == harness))


def line(ran: Ran, beginning: str) -> str:
    return next(each for each in ran.out.splitlines() if each.startswith(beginning))


def test_capture_status_shows_the_last_event_of_a_harness(shared_daemon: DaemonProcess) -> None:
    tell(shared_daemon, "generic", {"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "hello"}})
    stop = {"hook_event_name": "Stop", "session_id": "c", "cwd": "/src", "last_assistant_message": "done"}
    tell(shared_daemon, "claude-code", stop)
    ran = ctl(shared_daemon, "capture", "status")
    assert ran.code == 0
    assert line(ran, "claude-code ").split()[:3] == ["claude-code", "alive", "Stop"]
    assert line(ran, "spool").split() == ["spool", "empty"]
    assert standing(shared_daemon, "claude-code")["lastSessionId"] == "c"


def test_capture_status_exits_4_while_events_are_rejected(shared_daemon: DaemonProcess) -> None:
    spool_event(str(shared_daemon.home / "clankers" / "spool"), b"{not json")
    eventually(lambda: ctl(shared_daemon, "capture", "status").code == 4, "the event is set aside")
    ran = ctl(shared_daemon, "capture", "status")
    assert "1 event that cannot be stored" in line(ran, "rejected")
    for rejected in (shared_daemon.home / "clankers" / "spool" / "rejected").iterdir():
        rejected.unlink()
    assert ctl(shared_daemon, "capture", "status").code == 0


def test_recall_shows_the_context_of_an_agent(shared_daemon: DaemonProcess) -> None:
    project = shared_daemon.home / "shop"
    project.mkdir()
    tell(shared_daemon, "generic", {"session": {"id": "s", "projectPath": str(project), "title": "Login"}})
    said = "The login cookie lacks the Secure attribute on Safari, so that the session is lost."
    tell(shared_daemon, "generic", {"message": {"id": "m", "sessionId": "s", "role": "assistant", "textContent": said}})

    at_the_start = ctl(shared_daemon, "recall", cwd=project)
    assert "[s]" in at_the_start.out

    def recalled() -> Ran | None:  # a slow machine exceeds the time limit of recall at first
        ran = ctl(shared_daemon, "recall", "why", "does the login cookie fail on Safari?", "--project", str(project))
        return ran if "Secure attribute" in ran.out else None

    with_a_prompt = eventually(recalled, "the prompt recalls the message")
    assert with_a_prompt.err == ""
    answer = ctl(shared_daemon, "recall", "why does the login cookie fail on Safari?", "--json", cwd=project).json
    assert answer["characters"] == len(answer["text"])


def test_recall_says_why_it_is_empty(shared_daemon: DaemonProcess) -> None:
    ran = ctl(shared_daemon, "recall", "yes")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("Nothing would be recalled: ")


@pytest.mark.parametrize("words", [["capture", "status"], ["recall", "why?"]], ids=" ".join)
def test_capture_and_recall_without_a_daemon_exit_3(home: Path, words: list[str]) -> None:
    assert ctl(DaemonProcess(home), *words).code == 3


def test_manual_examples_of_every_kind_are_stored(shared_daemon: DaemonProcess) -> None:
    events = [json.loads(example) for example in EXAMPLES]
    assert [next(iter(event)) for event in events] == ["session", "message", "tool", "sessionError", "compactionEvent"]
    for event in events:
        tell(shared_daemon, "generic", event)
    with shared_daemon.connect() as connection:
        counts = connection.call("session.get", id="s1")["counts"]
    assert [counts[kind] for kind in ("messages", "tools", "errors", "compactions")] == [1, 1, 1, 1]


@pytest.mark.parametrize("example", SETTINGS)
def test_manual_settings_name_a_known_harness(shared_daemon: DaemonProcess, example: str) -> None:
    for event, (group,) in json.loads(example)["hooks"].items():
        program, harness, *flags = group["hooks"][0]["command"].split()
        assert (program, set(flags) <= {"--recall"}) == ("clankers-hook", True)
        tell(shared_daemon, harness, {"hook_event_name": event, "session_id": "s", "cwd": "/src"})
