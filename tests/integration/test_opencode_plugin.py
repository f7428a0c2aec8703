"""OpenCode plugin, driven as OpenCode does, with a daemon that replies, hangs, refuses or is not running."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess
from helpers.fake_daemon import Peer, Script, played
from helpers.recorded import OPENCODE, needs_fixtures, opencode_events
from helpers.waiting import eventually

from clankers.ctl.agent_texts import command_templates
from clankers.ctl.plugin_files import with_constants
from clankers_protocol.capture import LostEvents

SOURCE = Path(__file__).parents[2] / "client" / "plugins" / "opencode" / "clankers.js"
DRIVER = Path(__file__).parents[1] / "opencode" / "driver.mjs"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node to run the plugin with")

Step = dict[str, Any]


class OpenCode:
    """A process that drives the plugin as OpenCode does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = DaemonProcess(home).environ
        self.plugin = home / "clankers.mjs"  # node takes a .js file for CommonJS; Bun does not
        constants = {"HOOK": ["true"], "COMMANDS": command_templates()}
        self.plugin.write_bytes(with_constants(SOURCE.read_text("utf-8"), constants))
        self.socket = home / "clankers" / "dxta-clankers.sock"
        self.socket.parent.mkdir()

    def start(self, *project: Path) -> "subprocess.Popen[str]":
        assert NODE
        return subprocess.Popen(
            [NODE, str(DRIVER), str(self.plugin), *map(str, project)], env=self.environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def play(self, *steps: Step, project: Path | None = None) -> list[Any]:
        """Run the steps and return what their hooks print; there must be no error."""
        process = self.start(*[project] if project else [])
        out, err = process.communicate("".join(f"{json.dumps(step)}\n" for step in steps), timeout=60)
        assert (process.returncode, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    def spooled(self) -> list[dict[str, Any]]:
        """Return the events in the spool, in order."""
        paths = sorted((self.home / "clankers" / "spool").glob("*.json"))
        requests = [json.loads(path.read_bytes()) for path in paths]
        assert all(request["harness"] == "opencode" and request["at"] > 1e12 for request in requests)
        return [request["event"] for request in requests]

    def log(self) -> str:
        log = self.home / "clankers" / "logs" / "hook.log"
        return log.read_text() if log.exists() else ""

    @contextmanager
    def daemon(self, *scripts: Script) -> Iterator[None]:
        with played(self.socket, *scripts):
            yield


@pytest.fixture
def opencode(home: Path) -> OpenCode:
    return OpenCode(home)


def storing(seen: list[dict[str, Any]], recalled: str | None = None) -> Script:
    """Make a daemon that acknowledges every event and recalls `recalled`."""

    def script(peer: Peer) -> None:
        for request in peer.requests():
            if request["method"] == "recall.hook":
                seen.append(request)
                peer.answer(request, {"output": {"text": recalled} if recalled else None})
            else:
                seen.append(request["params"]["event"])
                peer.answer(request, {"ok": True})

    return script


DISPOSE: Step = {"hook": "dispose"}
IDLE: Step = {"event": {"id": "e9", "type": "session.idle", "properties": {"sessionID": "s"}}}


def info(number: str, role: str = "assistant", **more: Any) -> Step:
    message = {"id": number, "role": role, "sessionID": "s", "time": {"created": 1}} | more
    return {"event": {"id": "e", "type": "message.updated", "properties": {"sessionID": "s", "info": message}}}


def part(number: str, message: str, **more: Any) -> Step:
    body = {"id": number, "messageID": message, "sessionID": "s", "type": "text"} | more
    return {"event": {"id": "e", "type": "message.part.updated", "properties": {"sessionID": "s", "part": body}}}


def delta(number: str, message: str, text: str) -> Step:
    properties = {"sessionID": "s", "messageID": message, "partID": number, "field": "text", "delta": text}
    return {"event": {"id": "e", "type": "message.part.delta", "properties": properties}}


def tool(number: str, status: str, **state: Any) -> Step:
    body = {"type": "tool", "tool": "bash", "callID": f"call {number}", "state": {"status": status} | state}
    return part(number, "a", **body)


def prompt(number: str = "u", text: str = "do it", **more: Any) -> Step:
    message = {"id": number, "role": "user", "sessionID": "s", "time": {"created": 1}}
    spoken = {"id": f"p-{number}", "messageID": number, "sessionID": "s", "type": "text", "text": text}
    return {
        "hook": "chat.message",
        "input": {"sessionID": "s"},
        "output": {"message": message, "parts": [spoken, *more.get("parts", [])]},
    }


def texts(events: list[dict[str, Any]]) -> dict[str, str]:
    """Return the text of each message, as last sent."""
    return {
        event["properties"]["info"]["id"]: "|".join(part.get("text", "") for part in event["properties"]["parts"])
        for event in events
        if event.get("type") == "clankers.message"
    }


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events if "type" in event]


def test_plugin_assembles_messages_from_their_parts(opencode: OpenCode) -> None:
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(
            prompt("u", "create a file"),
            info("a"),
            part("p1", "a", text=""),
            delta("p1", "a", "I will "),
            delta("p1", "a", "look."),
            part("p1", "a", text="I will look."),
            part("p0", "a", type="step-start"),
            part("p2", "a", text="Done."),
            info("a", time={"created": 1, "completed": 2}, tokens={"input": 5}),
            IDLE,
            DISPOSE,
        )
    assert texts(seen) == {"u": "create a file", "a": "I will look.|Done."}
    last = [event for event in seen if event.get("type") == "clankers.message"][-1]["properties"]
    assert (last["sessionID"], last["info"]["tokens"]) == ("s", {"input": 5})
    assert opencode.spooled() == []


def test_plugin_sends_an_incomplete_message_on_dispose(opencode: OpenCode) -> None:
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(info("a"), part("p", "a", text=""), delta("p", "a", "half a sent"), DISPOSE)
    assert texts(seen) == {"a": "half a sent"}


def test_plugin_spools_unacknowledged_events_at_exit(opencode: OpenCode) -> None:
    opencode.play(prompt("u", "hello"), {"exit": True})
    assert texts(opencode.spooled()) == {"u": "hello"}


def test_plugin_spools_an_incomplete_message_at_exit(opencode: OpenCode) -> None:
    opencode.play(info("a"), part("p", "a", text=""), delta("p", "a", "half a sent"), {"exit": True})
    assert texts(opencode.spooled()) == {"a": "half a sent"}


def test_plugin_spools_no_private_text_and_nothing_of_a_project_that_opted_out(opencode: OpenCode) -> None:
    opencode.play(prompt("u", "a <private>b <private>c</private> d</private> e <Private>f"), {"exit": True})
    assert texts(opencode.spooled()) == {"u": "a [redacted:private] e [redacted:private]"}
    project = opencode.home / "project" / "deep"
    project.mkdir(parents=True)
    (project.parent / ".clankers-ignore").touch()
    opencode.play(prompt("v", "hello"), DISPOSE, project=project)
    opencode.play(prompt("w", "hello"), {"exit": True}, project=project)
    link, worktree = opencode.home / "link", opencode.home / "worktree"
    link.symlink_to(project)
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {project.parent}/.git/worktrees/worktree\n")
    for each in (link, worktree):
        opencode.play(prompt("x", "hello"), {"exit": True}, project=each)
    assert texts(opencode.spooled()).keys() == {"u"}


def test_plugin_sends_a_message_again_after_a_change(opencode: OpenCode) -> None:
    done = {"created": 1, "completed": 2}
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(
            info("a", time=done), part("p", "a", text="first"), IDLE, part("p", "a", text="second"), IDLE, DISPOSE
        )
    assert texts(seen) == {"a": "second"}


def test_plugin_does_not_send_unchanged_messages_again(opencode: OpenCode) -> None:
    done = info("a", time={"created": 1, "completed": 2})
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(part("p", "a", text="once"), done, done, IDLE, IDLE, DISPOSE)
    assert types(seen).count("clankers.message") == 1


def test_plugin_sends_completed_and_failed_tools(opencode: OpenCode) -> None:
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(
            tool("t1", "pending"),
            tool("t1", "running", input={"command": "ls"}),
            tool("t1", "completed", input={"command": "ls"}, output="notes.txt", attachments=[{"url": "data:,x"}]),
            tool("t2", "running"),
            tool("t2", "error", error="File not found"),
            tool("t3", "running", input={"command": "sleep 100"}),
            DISPOSE,
        )
    states = [event["properties"]["part"]["state"] for event in seen]
    assert [state["status"] for state in states] == ["completed", "error", "running"]
    assert "attachments" not in states[0]
    assert states[1]["error"] == "File not found"


def test_plugin_forwards_session_events_and_ignores_others(opencode: OpenCode) -> None:
    def event(kind: str, **properties: Any) -> Step:
        return {"event": {"id": kind, "type": kind, "properties": properties}}

    wanted = [
        event("session.created", sessionID="s", info={"id": "s", "title": "New", "path": ""}),
        event("session.error", sessionID="s", error={"name": "APIError", "data": {"message": "no"}}),
        event("session.compacted", sessionId="s"),
        event("session.idle", session_id="s"),
        event("session.deleted", info={"id": "s"}),
    ]
    noise = [
        event("plugin.added"),
        event("session.status", sessionID="s"),
        event("file.edited", file="x"),
        event("new"),
    ]
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(*[step for pair in zip(wanted, [*noise, noise[0]], strict=True) for step in pair], DISPOSE)
    assert seen == [step["event"] | {"directory": "/home/user/proj"} for step in wanted]


def test_plugin_spools_events_in_order_without_a_daemon(opencode: OpenCode) -> None:
    opencode.play(
        *[prompt(f"u{number}", f"prompt {number}") for number in range(20)], tool("t", "completed"), IDLE, DISPOSE
    )
    spooled = opencode.spooled()
    assert list(texts(spooled)) == [f"u{number}" for number in range(20)]
    assert types(spooled)[-2:] == ["message.part.updated", "session.idle"]
    names = [path.name for path in (opencode.home / "clankers" / "spool").iterdir()]
    assert all(name.endswith(".json") for name in names)


def test_plugin_reconnects_to_a_daemon_that_returns(opencode: OpenCode) -> None:
    process = opencode.start()
    assert process.stdin
    process.stdin.write(json.dumps(prompt("u1")) + "\n")
    process.stdin.flush()
    eventually(opencode.spooled, "an event is in the spool")
    assert list(texts(opencode.spooled())) == ["u1"]
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen), storing(seen)):
        number = 1
        while not texts(seen):  # for a moment after a failure it does not try again
            number += 1
            process.stdin.write(json.dumps(prompt(f"u{number}")) + "\n")
            process.stdin.flush()
            time.sleep(0.1)
        process.communicate(json.dumps(DISPOSE) + "\n", timeout=60)
    everything = texts(opencode.spooled()) | texts(seen)
    assert set(everything) == {f"u{each}" for each in range(1, number + 1)}


def test_plugin_spools_events_if_the_daemon_hangs(opencode: OpenCode) -> None:
    def silent(peer: Peer) -> None:
        peer.wait_for_the_end()

    with opencode.daemon(silent, silent):
        opencode.play(prompt("u"), tool("t", "completed"), DISPOSE)
    assert types(opencode.spooled()) == ["clankers.message", "message.part.updated"]


def refuse(peer: Peer) -> None:
    for request in peer.requests():
        peer.send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": 5001, "message": "disk full"}})


def babble(peer: Peer) -> None:
    peer.receive()
    peer.send_bytes(b"what?\r\n\r\n{]")


@pytest.mark.parametrize("script", [refuse, babble, Peer.hang_up])
def test_plugin_spools_events_that_are_not_acknowledged(opencode: OpenCode, script: Script) -> None:
    with opencode.daemon(script):
        opencode.play(IDLE, DISPOSE)
    assert types(opencode.spooled()) == ["session.idle"]


def test_plugin_adds_recalled_text_to_each_request(opencode: OpenCode) -> None:
    seen: list[dict[str, Any]] = []
    request = {
        "hook": "experimental.chat.messages.transform",
        "input": {},
        "output": {
            "messages": [
                {"info": {"id": "u"}, "parts": [{"id": "p-u", "type": "text", "text": "do it"}]},
                {"info": {"id": "other"}, "parts": []},
            ]
        },
        "print": True,
    }
    attached = {"id": "x", "messageID": "u", "type": "text", "text": "a file", "synthetic": True}
    with opencode.daemon(storing(seen, "last time it was the cache")):
        process = opencode.start()
        assert process.stdin
        assert process.stdout
        added: list[Any] = []
        process.stdin.write(json.dumps(prompt("u", "do it", parts=[attached])) + "\n")
        while len(added) < 2:  # the plugin does not wait for the answer, so it may be added to a later request
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            first, other = json.loads(process.stdout.readline())["messages"]
            added = first["parts"]
            assert other["parts"] == []
        process.communicate(json.dumps(DISPOSE) + "\n", timeout=60)
    assert (added[1]["text"], added[1]["synthetic"]) == ("last time it was the cache", True)
    (question,) = [each for each in seen if each.get("method") == "recall.hook"]
    assert question["params"]["event"] == {
        "hook_event_name": "chat.message", "sessionID": "s", "messageID": "u", "cwd": "/home/user/proj",
        "prompt": "do it", "compacted": True,
    }  # fmt: skip
    assert "last time" not in json.dumps([each for each in seen if "type" in each])


def test_plugin_tells_recall_when_the_context_was_compacted(opencode: OpenCode) -> None:
    """At the first prompt of a process, which may have resumed the session, and after a compaction."""
    compacted = {"event": {"id": "e", "type": "session.compacted", "properties": {"sessionID": "s"}}}
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(prompt("u1"), prompt("u2"), compacted, prompt("u3"), prompt("u4"), IDLE, DISPOSE)
    asked = [each["params"]["event"] for each in seen if each.get("method") == "recall.hook"]
    assert [(event["messageID"], event["compacted"]) for event in asked] == [
        ("u1", True), ("u2", False), ("u3", True), ("u4", False),
    ]  # fmt: skip


def test_plugin_does_not_throw_for_malformed_events(opencode: OpenCode) -> None:
    strange: list[Any] = [
        None, {}, {"type": "message.updated"}, {"type": "message.updated", "properties": {"info": None}},
        {"type": "message.part.updated", "properties": {"part": {"id": 1, "messageID": {}, "type": "text"}}},
        {"type": "message.part.updated", "properties": {"part": {"type": "tool"}}},
        {"type": "message.part.delta", "properties": {}}, {"type": "session.idle"}, {"type": 5, "properties": 5},
    ]  # fmt: skip
    opencode.play(
        *[{"event": event} for event in strange],
        {"hook": "chat.message"},
        {"hook": "chat.message", "input": {}, "output": {"message": {}, "parts": [{}]}},
        {"hook": "experimental.chat.messages.transform", "input": {}, "output": {"messages": [{}]}},
        {"hook": "config", "input": None},
        DISPOSE,
    )


def test_plugin_does_not_throw_if_nothing_can_be_written(opencode: OpenCode) -> None:
    (opencode.home / "clankers" / "spool").write_text("in the way")
    opencode.play(prompt("u"), IDLE, DISPOSE)
    assert "EEXIST" in opencode.log() or "ENOTDIR" in opencode.log()


def test_plugin_counts_events_that_cannot_be_spooled(opencode: OpenCode) -> None:
    (opencode.home / "clankers" / "spool").write_text("a file where the folder should be")
    opencode.play(prompt(), DISPOSE)
    opencode.play(prompt(), DISPOSE)
    record = (opencode.home / "clankers" / "lost-events").read_bytes()
    assert (len(record), record[:2], record[-1:]) == (512, b"2 ", b"\n")
    lost = LostEvents.parse(record)
    assert lost
    assert (lost.count, "EEXIST" in lost.last_reason or "ENOTDIR" in lost.last_reason) == (2, True)
    assert opencode.log().count("event lost") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_plugin_sends_nothing_to_a_socket_of_another_user(opencode: OpenCode) -> None:
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        os.chown(opencode.socket, 12345, 12345)
        opencode.play(prompt(), DISPOSE)
    assert (seen, len(opencode.spooled())) == ([], 1)
    assert "belongs to another user (uid 12345)" in opencode.log()


def test_plugin_config_adds_server_and_commands_without_replacing_the_users_own(opencode: OpenCode) -> None:
    mine = {"description": "mine", "template": "mine"}
    (config,) = opencode.play(
        {"hook": "config", "input": {"command": {"recall": mine}}, "print": True}, DISPOSE
    )  # fmt: skip
    assert config["mcp"]["clankers"]["command"] == ["clankers-mcp"]
    assert config["command"]["recall"] == mine
    assert set(config["command"]) == {"recall", "remember", "forget", "memory-status", "distill"}
    assert "`remember`" in config["command"]["distill"]["template"]


def steps(stream: Path) -> list[Step]:
    """Return the steps of a recorded stream."""
    entries = [json.loads(line) for line in stream.read_text().splitlines()]
    recorded = [
        {"event": entry["event"]}
        if entry["kind"] == "event"
        else {"hook": entry["name"], "input": entry.get("input"), "output": entry.get("output")}
        for entry in entries
        if entry["kind"] in ("event", "hook") and entry.get("name") not in ("config", "dispose")
    ]
    return [*recorded, DISPOSE]


def tools_of(events: list[dict[str, Any]]) -> dict[str, str]:
    """Return the final status of each tool."""
    found = [event["properties"]["part"] for event in events if event.get("type") == "message.part.updated"]
    return {part["id"]: part["state"]["status"] for part in found}


@needs_fixtures
@pytest.mark.parametrize("name", sorted(path.stem for path in OPENCODE.glob("streams/*.jsonl")))
def test_plugin_sends_every_message_and_tool_of_a_recorded_stream(opencode: OpenCode, name: str) -> None:
    stream = OPENCODE / "streams" / f"{name}.jsonl"
    expected = [event for _, event in opencode_events(stream)]
    seen: list[dict[str, Any]] = []
    with opencode.daemon(storing(seen)):
        opencode.play(*steps(stream))
    sent = [event for event in seen if "type" in event]
    assert texts(sent) == texts(expected)
    assert tools_of(sent) == tools_of(expected)
    kinds = {"session.created", "session.error", "session.compacted", "session.deleted", "session.idle"}
    assert [kind for kind in types(sent) if kind in kinds] == [kind for kind in types(expected) if kind in kinds]
    assert "Error" not in opencode.log()
