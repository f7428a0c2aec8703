"""OpenClaw plugin: installed into its configuration, driven as OpenClaw does, and removed without a trace."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess
from helpers.fake_daemon import Peer, Script, played
from helpers.recorded import (
    needs_fixtures,
    openclaw_calls,
    openclaw_events,
    put_openclaw_database,
)
from helpers.waiting import eventually

from clankersd.capture.events import MessageReported
from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.harnesses.openclaw.entries import read_entry

DRIVER = Path(__file__).parents[1] / "openclaw" / "driver.mjs"
HEARTBEAT = DRIVER.with_name("heartbeat.jsonl")
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node to run the plugin with")

WORKSPACE = "/home/user/project"
CONFIG = '{"gateway": {"mode": "local"},\n "plugins": {"allow": ["other"], "slots": {"memory": "other"}}}\n'


class OpenClaw:
    """A user of OpenClaw without a daemon: a configuration, and a plugin that is installed and driven by node."""

    def __init__(self, home: Path) -> None:
        self.user = home / "user"
        self.config = self.user / ".openclaw" / "openclaw.json"
        self.config.parent.mkdir(parents=True)
        self.config.write_text(CONFIG)
        self.process = DaemonProcess(home, HOME=str(self.user), CLANKERS_HOOK_AUTOSTART="false")
        self.data = home / "clankers"
        self.plugin = self.data / "plugins" / "openclaw" / "clankers"

    def ctl(self, *words: str, typed: str = "") -> Any:
        return ctl(self.process, "plugin", *words, typed=typed)

    def play(self, *steps: dict[str, Any]) -> list[Any]:
        """Run the steps and return what they print; there must be no error."""
        assert NODE
        done = subprocess.run(
            [NODE, str(DRIVER), str(self.plugin / "index.js")],
            env=self.process.environ,
            input="".join(f"{json.dumps(step)}\n" for step in steps),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def spooled(self) -> list[dict[str, Any]]:
        paths = sorted((self.data / "spool").glob("*.json"))
        requests = [json.loads(path.read_bytes()) for path in paths]
        assert {request["harness"] for request in requests} <= {"openclaw"}
        return [request["event"] for request in requests]


@pytest.fixture
def openclaw(home: Path) -> OpenClaw:
    return OpenClaw(home)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def has_sqlite() -> bool:
    """Tell whether node can read OpenClaw's database; OpenClaw itself needs a node that can."""
    assert NODE
    program = "process.exit(require('node:module').isBuiltin('node:sqlite') ? 0 : 1)"
    return subprocess.run([NODE, "-e", program], check=False).returncode == 0


@pytest.mark.parametrize("options", [[], ["--memory-slot"]])
def test_install_asks_for_consent_and_uninstall_leaves_no_trace(openclaw: OpenClaw, options: list[str]) -> None:
    before = files_below(openclaw.user)
    refused = openclaw.ctl("install", "openclaw", *options, typed="n\n")
    assert refused.code != 0
    assert "allowConversationAccess: it reads your prompts" in refused.out
    assert files_below(openclaw.user) == before
    assert openclaw.ctl("install", "openclaw", "--yes", *options).code == 0
    plugins = json.loads(openclaw.config.read_text())["plugins"]
    assert plugins["load"]["paths"] == [str(openclaw.plugin)]
    assert plugins["allow"] == ["other", "clankers"]
    assert plugins["slots"]["memory"] == ("clankers" if options else "other")
    assert plugins["entries"]["clankers"]["hooks"]["allowConversationAccess"] is True
    manifest = json.loads((openclaw.plugin / "openclaw.plugin.json").read_text())
    assert (openclaw.plugin / manifest["skills"][0] / "clankers-memory" / "SKILL.md").exists()
    assert "from clankers.mcp import main" in manifest["mcpServers"]["clankers"]["args"][-1]
    assert manifest.get("kind") == ("memory" if options else None)
    assert openclaw.ctl("status", "openclaw").out.startswith("openclaw: installed")
    assert {step["action"] for step in openclaw.ctl("install", "openclaw", "--yes", "--json").json["steps"]} == {
        "unchanged"
    }
    assert openclaw.ctl("uninstall", "openclaw").code == 0
    assert files_below(openclaw.user) == before
    assert not openclaw.plugin.exists()


def test_uninstall_after_another_change_restores_the_memory_slot(openclaw: OpenClaw) -> None:
    openclaw.ctl("install", "openclaw", "--yes", "--memory-slot")
    changed = json.loads(openclaw.config.read_text()) | {"meta": {"lastTouchedVersion": "2026.9.6"}}
    last_good = openclaw.config.with_name("openclaw.json.last-good")  # a copy that OpenClaw makes
    for path in (openclaw.config, last_good):
        path.write_text(json.dumps(changed))
    openclaw.ctl("uninstall", "openclaw")
    left = json.loads(openclaw.config.read_text())
    assert left == json.loads(CONFIG) | {"meta": {"lastTouchedVersion": "2026.9.6"}}
    assert json.loads(last_good.read_text()) == left


def test_memory_slot_is_refused_for_other_harnesses(openclaw: OpenClaw) -> None:
    assert "has no memory slot" in openclaw.ctl("install", "gemini", "--memory-slot").err


@needs_node
def test_heartbeat_is_not_sent_as_a_prompt(openclaw: OpenClaw) -> None:
    openclaw.ctl("install", "openclaw", "--yes")
    context = {"sessionKey": "agent:main:main", "sessionId": "s", "workspaceDir": WORKSPACE}

    def turn(trigger: str, prompt: str) -> list[dict[str, Any]]:
        written = {"message": {"role": "user", "content": prompt, "timestamp": 1}}
        return [
            {"hook": "before_message_write", "event": written, "ctx": {"sessionKey": context["sessionKey"]}},
            {"hook": "before_prompt_build", "event": {"prompt": prompt}, "ctx": {**context, "trigger": trigger}},
        ]

    openclaw.play(*turn("user", "mine"), *turn("heartbeat", "anything new?"), *turn("user", "mine too"))
    prompts = [event["event"]["message"]["content"] for event in openclaw.spooled() if is_message(event)]
    assert prompts == ["mine", "mine too"]


@needs_node
def test_recorded_heartbeat_is_stored_neither_by_hooks_nor_by_an_import(openclaw: OpenClaw) -> None:
    """OpenClaw 2026.9.6 with a prompt, a heartbeat that an event of the system woke, and another prompt."""
    recorded = [json.loads(line) for line in HEARTBEAT.read_text("utf-8").splitlines()]
    openclaw.ctl("install", "openclaw", "--yes")
    openclaw.play(*(each for each in recorded if each.pop("recorded") == "hook"))
    entries = [each for each in recorded if "seq" in each]
    hooked = [event for sent in openclaw.spooled() for event in HARNESSES["openclaw"].read_hook(sent, 1).events]
    imported = [event for row in entries for event in read_entry(row["event"], row["session_id"])]
    said = [("user", "[[build]] write a greeting"), ("assistant", "Done.")]
    said += [("assistant", "Noted."), ("user", "[[again]] go on"), ("assistant", "Again.")]
    for events in (hooked, imported):
        messages = [event.message for event in events if isinstance(event, MessageReported)]
        assert [(message.role, message.text_content) for message in messages] == said


@needs_node
@needs_fixtures
def test_plugin_spools_the_recorded_calls_as_events(openclaw: OpenClaw) -> None:
    put_openclaw_database(openclaw.user)
    openclaw.ctl("install", "openclaw", "--yes")
    openclaw.play(*(call for _, call in openclaw_calls()))
    expected = [event for _, event in openclaw_events(openclaw.user)]
    spooled = openclaw.spooled()
    if not has_sqlite():
        expected = [event for event in expected if event["hook"] != "transcript"]
        spooled = [event for event in spooled if event["hook"] not in ("transcript", "after_compaction")]
    assert sorted(map(essence, spooled)) == sorted(map(essence, expected))
    for session_id in {event["ctx"]["sessionId"] for event in expected}:
        messages = [
            essence(event) for event in expected if event["ctx"]["sessionId"] == session_id and is_message(event)
        ]
        sent = [essence(event) for event in spooled if event["ctx"]["sessionId"] == session_id and is_message(event)]
        assert sent == messages, "messages of a session keep their order"


def essence(event: dict[str, Any]) -> str:
    """What the daemon reads of an event."""
    context = {key: event["ctx"].get(key) for key in ("sessionId", "parentSessionId", "workspaceDir", "modelId")}
    return json.dumps([event["hook"], event["event"], context], sort_keys=True)


def is_message(event: dict[str, Any]) -> bool:
    return bool(event["hook"] == "before_message_write")


@needs_node
@needs_fixtures
def test_plugin_sends_nothing_without_consent(openclaw: OpenClaw) -> None:
    openclaw.ctl("install", "openclaw", "--yes")
    openclaw.play(*(call for _, call in openclaw_calls() if call["hook"] != "before_prompt_build"))
    assert openclaw.spooled() == []


@needs_node
def test_plugin_recalls_before_the_prompt_is_built(openclaw: OpenClaw) -> None:
    openclaw.ctl("install", "openclaw", "--yes")
    seen: list[dict[str, Any]] = []

    def script(peer: Peer) -> None:
        for request in peer.requests():
            seen.append(request)
            recalled = {"output": {"text": "Deploys happen on Tuesdays."}}
            peer.answer(request, recalled if request["method"] == "recall.hook" else {"ok": True})

    with answering(openclaw, script):
        [first, second] = openclaw.play(turn("When do we deploy?"), turn("And why?"))
    assert first == second == {"prependContext": "Deploys happen on Tuesdays."}
    asked = [request["params"]["event"]["event"] for request in seen if request["method"] == "recall.hook"]
    assert asked == [{"prompt": "When do we deploy?", "compacted": True}, {"prompt": "And why?", "compacted": False}]


def turn(prompt: str) -> dict[str, Any]:
    context = {"sessionId": "s", "sessionKey": "agent:main:main", "agentId": "main", "workspaceDir": WORKSPACE}
    return {"hook": "before_prompt_build", "event": {"prompt": prompt, "messages": []}, "ctx": context, "print": True}


def answering(openclaw: OpenClaw, script: Script) -> Any:
    openclaw.data.mkdir(exist_ok=True)
    return played(openclaw.data / "dxta-clankers.sock", script)


@needs_node
def test_memory_tools_serve_files_and_sessions_from_the_index(fresh_daemon: DaemonProcess) -> None:
    user = fresh_daemon.home / "user"
    workspace = user / "workspace"
    (workspace / "memory").mkdir(parents=True)
    notes = [
        "# Notes",
        "",
        *(f"Line {number} of the notes." for number in range(3, 90)),
        "",
        "The parrot is called Otto.",
    ]
    (workspace / "memory" / "2026-11-16.md").write_text("\n".join(notes) + "\n")
    assert ctl(fresh_daemon, "plugin", "install", "openclaw", "--yes", "--memory-slot").code == 0
    with fresh_daemon.connect() as connection:
        context = {"sessionId": "s", "sessionKey": "agent:main:main", "workspaceDir": str(workspace)}
        connection.call(
            "hook.event", harness="openclaw", event={"hook": "before_prompt_build", "event": {}, "ctx": context}
        )
        message = {"role": "user", "content": "Feed the parrot at noon, please.", "timestamp": 1_794_839_419_807}
        written = {"hook": "before_message_write", "event": {"message": message}, "ctx": context}
        connection.call("hook.event", harness="openclaw", event=written)
        files = "SELECT count(*) FROM files"
        eventually(lambda: connection.call("query", sql=files)["rows"] == [[1]], "the notes are indexed")
    plugin = fresh_daemon.home / "clankers" / "plugins" / "openclaw" / "clankers" / "index.js"
    calls = [
        {"tool": "memory_search", "params": {"query": "what is the parrot called?", "maxResults": 5}},
        {"tool": "memory_get", "params": {"path": "memory/2026-11-16.md", "from": len(notes) - 2, "lines": 3}},
        {"tool": "memory_get", "params": {"path": "memory/2026-11-16.md"}},
        {"tool": "memory_get", "params": {"path": "memory/2026-11-16.md", "from": 500}},
        {"tool": "memory_get", "params": {"path": "clankers:s-1794839419807-user"}},
        {"tool": "memory_get", "params": {"path": "../../etc/passwd"}},
    ]
    steps = "".join(f"{json.dumps(call | {'ctx': context})}\n" for call in calls)
    assert NODE
    done = subprocess.run(
        [NODE, str(DRIVER), str(plugin)],
        env=fresh_daemon.environ,
        input=steps,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, lines, whole, after, text, missing = [json.loads(line)["details"] for line in done.stdout.splitlines()]
    paths = [hit["path"] for hit in found["results"] if hit["startLine"] <= len(notes) <= hit["endLine"]]
    assert paths == ["memory/2026-11-16.md"], found
    assert "clankers:s-1794839419807-user" in [hit["path"] for hit in found["results"]]
    assert (lines["text"], lines["to"], lines["totalLines"]) == ("\n".join(notes[-3:]), len(notes), len(notes))
    assert (whole["text"], whole["nextFrom"]) == ("\n".join(notes), None)
    assert (after["text"], after["status"]) == ("", "ok")
    assert text["text"] == "Feed the parrot at noon, please."
    assert missing["status"] == "not_found"


@needs_fixtures
def test_import_reads_the_transcripts_and_indexes_the_memory_files(fresh_daemon: DaemonProcess) -> None:
    user = fresh_daemon.home / "user"
    workspace = user / "workspace"
    (workspace / "memory").mkdir(parents=True)
    (workspace / "MEMORY.md").write_text("The parrot is called Otto.\n")
    (workspace / "memory" / "2026-11-16.md").write_text("The parrot was ill.\n")
    put_openclaw_database(user, str(workspace))
    imported = ctl(fresh_daemon, "import", "openclaw", "--json").json["result"]
    assert (imported["sessions"], imported["messages"], imported["unreadable"]) == (4, 18, 0)
    with fresh_daemon.connect() as connection:
        paths = "SELECT path FROM files ORDER BY path"
        expected = [[str(workspace / "MEMORY.md")], [str(workspace / "memory" / "2026-11-16.md")]]
        eventually(lambda: connection.call("query", sql=paths)["rows"] == expected, "the memory files are indexed")
