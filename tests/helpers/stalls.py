"""Measure how long other clients wait while one sends something large.

A process of its own pings `health` on its own connection without a pause; the daemon's slowest answer in a window of
time is the stall. `CASES` holds the large inputs: each is a list of requests, or a function that brings files.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clankers_protocol.framing import MAX_FRAME, frame
from helpers.daemon import DaemonProcess, RawConnection

PING_PAUSE_SECONDS = 0.002
REPLY_SECONDS = 120.0
SECONDS_PER_MEGABYTE = 20.0
"""Time for files to be read, stored and indexed; the work takes a second of CPU per megabyte."""

PINGER = Path(__file__).with_name("pinger.py")

MEGABYTE = 1_000_000


class Pinger:
    """A process that pings `health` until the block ends and then tells when each answer came and how late."""

    def __init__(self, daemon: DaemonProcess) -> None:
        assert daemon.process
        command = [
            sys.executable,
            str(PINGER),
            str(daemon.socket_path),
            str(daemon.process.pid),
            str(PING_PAUSE_SECONDS),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answers: list[tuple[float, float, float]] = []
        self._output = self._process.stdout
        assert self._output
        assert self._output.readline() == b"ready\n"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Pinger":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._output
        self._output.close()

    def _read(self) -> None:
        assert self._output
        for line in self._output:
            sent, waited, ran = map(float, line.split())
            self._answers.append((sent, waited, ran))

    def worst(self, window: tuple[float, float]) -> tuple[float, float]:
        """The longest wait of a ping that was under way in the window, in seconds: in all, and while the daemon ran."""
        begin, end = window
        while not self._answers or sum(self._answers[-1][:2]) < end:  # the last ping is still on its way
            time.sleep(0.01)
        within = [(waited, ran) for sent, waited, ran in self._answers if sent <= end and sent + waited >= begin]
        return max(waited for waited, _ in within), max(ran for _, ran in within)


@contextmanager
def window() -> Iterator[list[float]]:
    """Two moments: when the block began and when it ended."""
    moments = [time.monotonic()]
    yield moments
    moments.append(time.monotonic())


def send(connection: RawConnection, body: bytes, answers: int = 1) -> list[Any]:
    """Send one body, and read so many messages."""
    connection.socket.settimeout(REPLY_SECONDS)
    connection.socket.sendall(frame(body))
    return [connection.receive() for _ in range(answers)]


def settle(connection: RawConnection, seconds: float) -> None:
    """Wait until the index has worked off what was stored, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = connection.call("index.status")
        if not status["backlog"] and not status["live"]["pending"]:
            return
        time.sleep(0.1)


# -- texts


def prose(characters: int) -> str:
    """Lines of words that repeat late."""
    lines = (
        f"line {number}: the parser of module{number % 997} met a token it did not expect\n" for number in range(10_000)
    )
    return _filled("".join(lines), characters)


def assignments(characters: int) -> str:
    """Lines that look like secrets to every rule that knows assignments."""
    lines = (
        f"API_KEY_{number}=Zx9{number:06d}qLw8Rt5PvB2nM token: aB3dE5fG7hJ9kL{number:05d}\n" for number in range(5000)
    )
    return _filled("".join(lines), characters)


def one_line(characters: int) -> str:
    """Words without a single line break."""
    return prose(characters).replace("\n", " ")


def solid(characters: int) -> str:
    """Letters and digits without a single space."""
    return _filled("".join(f"{number:x}" for number in range(20_000)), characters)


def escapes(characters: int) -> str:
    """Text that JSON has to escape throughout."""
    return _filled('"\\\n\t\u0001é漢', characters)


def _filled(pattern: str, characters: int) -> str:
    return (pattern * (characters // len(pattern) + 1))[:characters]


# -- structures


def many_keys(count: int) -> dict[str, Any]:
    return {f"key{number}": f"value {number}" for number in range(count)}


def nested(width: int, depth: int) -> Any:
    """Objects in objects: `width` branches, each `depth` deep."""
    value: Any = "leaf"
    for level in range(depth):
        value = {f"level{level}": value}
    return {f"branch{number}": value for number in range(width)}


def request(method: str, **params: Any) -> bytes:
    """A request's body, refused where it would not fit into a frame."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, ensure_ascii=False).encode()
    assert len(body) <= MAX_FRAME, f"{method}: {len(body)} bytes"
    return body


Build = Callable[[int], list[bytes]]


@dataclass(frozen=True)
class Case:
    """Something large: the bodies to send, made for a size in bytes."""

    name: str
    build: Build
    answers: int = 1
    settles: bool = field(default=False)
    """Whether work goes on after the reply, which counts as well."""


CASES: dict[str, Case] = {}


def case(name: str, *, answers: int = 1, settles: bool = False) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES[name] = Case(name, build, answers, settles)
        return build

    return register


def _message(number: int, text: str, **more: Any) -> dict[str, Any]:
    return {"id": f"m{number}-{len(text)}", "sessionId": "s", "role": "user", "textContent": text, **more}


for _name, _text in {"prose": prose, "assignments": assignments, "one line": one_line, "solid": solid}.items():
    case(f"upsertMessage, {_name}", settles=True)(
        lambda size, text=_text, name=_name: [
            request("upsertMessage", message=_message(1, text(size), id=name.replace(" ", "-")))
        ]  # type: ignore[misc]
    )
case("upsertMessage, escapes", settles=True)(
    lambda size: [request("upsertMessage", message=_message(1, escapes(size // 3), id="escapes"))]
)
case("upsertMessage, metadata of many keys")(
    lambda size: [
        request("upsertMessage", message={**_message(2, "short"), "metadata": many_keys(min(size // 40, 390_000))})
    ]
)
case("upsertMessage, deep metadata")(
    lambda size: [
        request("upsertMessage", message={**_message(3, "short"), "metadata": nested(min(size // 600, 4_700), 40)})
    ]
)
case("upsertMessage, metadata of numbers")(
    lambda size: [
        request(
            "upsertMessage",
            message={**_message(4, "short"), "metadata": {"n": list(range(min(size // 10, 1_400_000)))}},
        )
    ]
)
case("upsertSession, all fields")(
    lambda size: [
        request(
            "upsertSession",
            session={
                "id": "s",
                "title": prose(size // 5),
                "summary": prose(size // 5),
                "userPrompt": prose(size // 5),
                "projectName": prose(size // 5),
                "context": {"text": prose(size // 10)},
                "metadata": many_keys(size // 400),
            },
        )
    ]
)
case("upsertTool, all fields")(
    lambda size: [
        request(
            "upsertTool",
            tool={
                "id": "t",
                "sessionId": "s",
                "toolName": "Bash",
                "toolInput": prose(size // 2),
                "toolOutput": assignments(size // 2),
            },
        )
    ]
)
case("upsertSessionError")(
    lambda size: [
        request("upsertSessionError", sessionError={"id": "e", "sessionId": "s", "errorMessage": assignments(size)})
    ]
)
case("upsertCompactionEvent")(
    lambda size: [
        request("upsertCompactionEvent", compactionEvent={"id": "c", "sessionId": "s", "summary": prose(size)})
    ]
)


def _batch(count: int, size: int) -> list[bytes]:
    text = assignments(max(20, size // count - 120))
    return [request("events.batch", events=[{"message": _message(number, text)} for number in range(count)])]


case("events.batch of 5,000", settles=True)(lambda size: _batch(5000, size))
case("events.batch of 10,000 small", settles=True)(lambda size: _batch(10_000, 10_000 * 200))
case("events.batch of 4 huge", settles=True)(lambda size: _batch(4, size))


def _hooks(harness: str, **event: Any) -> list[bytes]:
    return [request("hook.event", harness=harness, event={"session_id": "h", "cwd": "/nowhere", **event})]


case("hook.event, claude-code prompt", settles=True)(
    lambda size: _hooks("claude-code", hook_event_name="UserPromptSubmit", prompt_id="p", prompt=prose(size))
)
case("hook.event, claude-code tool")(
    lambda size: _hooks(
        "claude-code",
        hook_event_name="PostToolUse",
        tool_use_id="t",
        tool_name="Read",
        tool_input={"file_path": "/x", "content": assignments(size // 2)},
        tool_response={"stdout": prose(size // 2)},
    )
)
case("hook.event, claude-code tool of many keys")(
    lambda size: _hooks(
        "claude-code",
        hook_event_name="PostToolUse",
        tool_use_id="t2",
        tool_name="Read",
        tool_input=many_keys(min(size // 80, 190_000)),
        tool_response=many_keys(min(size // 80, 190_000)),
    )
)
case("hook.event, codex")(
    lambda size: _hooks("codex", hook_event_name="UserPromptSubmit", prompt_id="p", prompt=prose(size))
)
case("hook.event, gemini")(lambda size: _hooks("gemini", hook_event_name="BeforeAgent", prompt=prose(size)))
case("hook.event, opencode")(
    lambda size: _hooks(
        "opencode",
        type="message.part.updated",
        properties={"part": {"id": "pt", "messageID": "om", "sessionID": "os", "type": "text", "text": prose(size)}},
    )
)
case("hook.event, generic", settles=True)(
    lambda size: [
        request("hook.event", harness="generic", event={"message": _message(9, assignments(size), id="generic")})
    ]
)

case("memory.add, long")(lambda size: [request("memory.add", content=prose(size))])
case("memory.add, longest accepted", settles=True)(lambda size: [request("memory.add", content=assignments(60_000))])
case("memory.add, metadata")(
    lambda size: [request("memory.add", content="of metadata", metadata=many_keys(size // 40))]
)
case("memory.add, tags")(
    lambda size: [request("memory.add", content="of tags", tags=[f"t{n}" for n in range(size // 12)])]
)


def _record(number: int, characters: int) -> dict[str, Any]:
    text = f"{number} {prose(min(20_000, characters))}"
    return {"id": f"imported-{number}", "content": text, "createdAt": 1_700_000_000_000 + number}


case("memory.import", settles=True)(
    lambda size: [request("memory.import", memories=[_record(n, size // 1200) for n in range(1000)])]
)
case("memory.search, huge query")(lambda size: [request("memory.search", query=prose(size))])
case("memory.list, many scopes")(lambda size: [request("memory.list", scopes=[f"scope{n}" for n in range(100_000)])])
case("memory.context, huge query")(lambda size: [request("memory.context", query=prose(size))])
case("memory.extract, large session")(
    lambda size: [
        request("upsertMessage", message=_message(5, prose(size), id="extracted", sessionId="extracted")),
        request("memory.extract", sessionId="extracted", by="rules", dryRun=True),
    ]
)
case("entity.upsert")(lambda size: [request("entity.upsert", name="n", type="concept", summary=prose(size))])

case("document.ingest, text", settles=True)(lambda size: [request("document.ingest", text=prose(size), source="d1")])
case("document.ingest, one line", settles=True)(
    lambda size: [request("document.ingest", text=one_line(size // 4), source="d2")]
)
case("document.ingest, metadata")(
    lambda size: [request("document.ingest", text="short", source="d3", metadata=many_keys(size // 40))]
)
case("document.ingestMany", settles=True)(
    lambda size: [
        request(
            "document.ingestMany", documents=[{"text": prose(size // 1000), "source": f"many{n}"} for n in range(1000)]
        )
    ]
)
case("document.store", settles=True)(
    lambda size: [
        request(
            "document.store",
            source="stored",
            chunks=[{"content": f"{n} {prose(1000)}"} for n in range(min(5000, size // 1100))],
        )
    ]
)
case("skill.create, instructions")(
    lambda size: [request("skill.create", name="skill", description="d", instructions=prose(size))]
)
case("skill.import")(
    lambda size: [request("skill.import", text=f"---\nname: imported\ndescription: d\n---\n{prose(size)}")]
)
case("skill.import, hostile front matter")(
    lambda size: [
        request(
            "skill.import",
            text="---\nname: i2\n" + "".join(f"k{n}: [a, {{b: c}}]\n" for n in range(size // 24)) + "---\nx",
        )
    ]
)
case("message.store", settles=True)(
    lambda size: [request("message.store", threadId="th", role="user", content=prose(size), id="thread-message")]
)
case("thread.create, metadata")(
    lambda size: [request("thread.create", chatId="c", id="th2", metadata=many_keys(size // 40))]
)
case("search, longest query accepted")(lambda size: [request("search", query=prose(min(size, 1_000_000)))])
case("search, huge query")(lambda size: [request("search", query=prose(size))])
case("search, huge solid query")(lambda size: [request("search", query=solid(size))])
case("search, filter of 100,000 values")(
    lambda size: [
        request(
            "search",
            query="parser",
            filters=[{"field": "session", "op": "in", "value": [f"s{n}" for n in range(100_000)]}],
        )
    ]
)
case("message.search, huge query")(lambda size: [request("message.search", query=prose(size))])
case("skill.search, huge query")(lambda size: [request("skill.search", query=prose(size))])
case("chunk.search, huge embedding")(lambda size: [request("chunk.search", embedding=[0.5] * (size // 6))])
case("chunk.searchKeyword, huge query")(lambda size: [request("chunk.searchKeyword", query=prose(size))])
case("recall.preview, huge prompt")(lambda size: [request("recall.preview", kind="prompt", query=prose(size))])
case("recall.hook, huge prompt")(
    lambda size: [
        request(
            "recall.hook",
            harness="claude-code",
            event={"session_id": "h", "cwd": "/nowhere", "hook_event_name": "UserPromptSubmit", "prompt": prose(size)},
        )
    ]
)
case("log.write, message")(lambda size: [request("log.write", entry={"level": "error", "message": prose(size)})])
case("log.write, context")(
    lambda size: [request("log.write", entry={"level": "error", "message": "m", "context": many_keys(size // 40)})]
)
case("config.set, text")(lambda size: [request("config.set", namespace="n", key="k", value=assignments(size))])
case("config.set, many keys")(
    lambda size: [request("config.set", namespace="n", key="k", value=many_keys(min(size // 40, 390_000)))]
)
case("schedule.create")(
    lambda size: [
        request(
            "schedule.create",
            description="large",
            schedule="10:00 daily",
            toolCalls=[{"name": "t", "args": {"text": assignments(size // 2)}}],
        )
    ]
)
case("graph.storeEdges")(
    lambda size: [
        request("graph.storeEdges", edges=[{"from": f"a{n}", "to": f"b{n}", "type": "t"} for n in range(size // 60)])
    ]
)
case("query, huge statement")(lambda size: [request("query", sql=f"SELECT '{solid(size)}'")])
case("query, large reply")(
    lambda size: [
        request(
            "query",
            sql="WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000) "
            f"SELECT hex(randomblob({max(1, min(size // 4000, 2000))})) AS v FROM n",
            limit=1000,
        )
    ]
)
case("message.list, large reply")(lambda size: [request("message.list", sessionId="s", limit=100)])
case("session.get, large reply")(lambda size: [request("session.get", id="s")])

# -- frames that are hard to decode


def _raw(params: bytes) -> list[bytes]:
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"config.set","params":{"namespace":"n","key":"k","value":' + params + b"}}"
    )
    assert len(body) <= MAX_FRAME
    return [body]


case("frame of empty arrays")(lambda size: _raw(b"[" + b"[]," * (size // 3) + b"[]]"))
case("frame of digits")(lambda size: _raw(b"[" + b"1," * (size // 2) + b"1]"))
case("frame of floats")(lambda size: _raw(b"[" + b"1.234567890123456e-9," * (size // 21) + b"1]"))
case("frame of tiny objects")(lambda size: _raw(b"[" + b'{"a":1},' * (size // 8) + b"1]"))
case("frame of keys")(lambda size: _raw(b"{" + b",".join(b'"%x":1' % n for n in range(size // 10)) + b"}"))
case("frame nested deep")(lambda size: _raw(b"[" * (size // 2) + b"]" * (size // 2)))
case("frame nested 60 deep, often")(lambda size: _raw(b"[" + (b"[" * 60 + b"]" * 60 + b",") * (size // 121) + b"1]"))
case("frame of a huge number")(lambda size: _raw(b"1" * size))
case("frame of escapes")(lambda size: _raw(b'"' + b"\\u0041\\n" * (size // 8) + b'"'))
case("frame of lone surrogates")(lambda size: _raw(b'"' + b"\\ud800 text " * (size // 12) + b'"'))
case("frame of lone surrogates in objects")(lambda size: _raw(b"[" + b'{"a":"\\ud800"},' * (size // 15) + b"1]"))
case("frame that is no JSON")(lambda size: _raw(b"[" + b"1," * (size // 2)))
case("batch of 10,000 calls")(
    lambda size: [json.dumps([{"jsonrpc": "2.0", "id": n, "method": "health"} for n in range(10_000)]).encode()]
)
case("batch of 1,000 calls")(
    lambda size: [
        json.dumps(
            [
                {
                    "jsonrpc": "2.0",
                    "id": n,
                    "method": "upsertMessage",
                    "params": {"message": _message(n, prose(size // 1200), id=f"call{n}")},
                }
                for n in range(1000)
            ]
        ).encode()
    ]
)


# -- files that the daemon reads by itself


def spool_events(daemon: DaemonProcess, size: int) -> Callable[[], bool]:
    """Spool events as hooks do when they cannot reach the daemon."""
    folder = daemon.data / "spool"
    folder.mkdir(exist_ok=True)
    text = assignments(max(20, size // 500))
    for number in range(500):
        event = {"session_id": "spooled", "hook_event_name": "UserPromptSubmit", "prompt_id": f"s{number}"}
        body = json.dumps({"harness": "claude-code", "event": {**event, "prompt": f"{number} {text}"}})
        unfinished = folder / f"{time.time_ns()}-{number:04}.partial"
        unfinished.write_text(body)
        unfinished.rename(unfinished.with_suffix(".json"))
    return lambda: not any(folder.glob("*.json"))


def write_transcript(path: Path, session: str, size: int) -> None:
    """Write a session of Claude Code with messages of 20 KB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = assignments(20_000)
    with path.open("w") as file:
        for number in range(max(2, size // 20_000)):
            common = {"uuid": f"{session}-{number}", "timestamp": "2026-01-01T00:00:00Z", "sessionId": session}
            message = {"content": f"{number} {text}"}
            file.write(json.dumps({"type": "user", "message": message, "cwd": "/nowhere", **common}) + "\n")


def report_transcript(daemon: DaemonProcess, size: int) -> Callable[[], bool]:
    """Report a session whose transcript is large."""
    path = Path(daemon.environ["HOME"]) / ".claude" / "projects" / "-nowhere" / "read.jsonl"
    write_transcript(path, "read", size)
    event = {"session_id": "read", "hook_event_name": "SessionStart", "source": "startup", "cwd": "/nowhere"}
    with daemon.connect() as connection:
        connection.call("hook.event", harness="claude-code", event={**event, "transcript_path": str(path)})
    sql = f"SELECT count(*) AS n FROM transcripts WHERE path = '{path}' AND size = {path.stat().st_size}"
    return lambda: _count(daemon, sql) > 0


def import_history(daemon: DaemonProcess, size: int) -> Callable[[], bool]:
    """Import past sessions of Claude Code."""
    folder = Path(daemon.environ["HOME"]) / ".claude" / "projects" / "-past"
    for number in range(10):
        write_transcript(folder / f"past-{number}.jsonl", f"past-{number}", size // 10)
    with daemon.connect() as connection:
        job = connection.call("import.start", harness="claude-code")["jobId"]

    def is_done() -> bool:
        with daemon.connect() as connection:
            return bool(connection.call("job.status", id=job)["state"] != "running")

    return is_done


def watch_files(daemon: DaemonProcess, size: int) -> Callable[[], bool]:
    """Watch a folder of large markdown files."""
    folder = daemon.home / "notes"
    folder.mkdir(exist_ok=True)
    for number in range(max(1, size // 400_000)):
        (folder / f"note{number}.md").write_text(f"# note {number}\n{assignments(400_000)}")
    with daemon.connect(timeout=REPLY_SECONDS + SECONDS_PER_MEGABYTE * size / MEGABYTE) as connection:
        connection.call("index.add", path=str(folder))
    return lambda: True


def _count(daemon: DaemonProcess, sql: str) -> int:
    with daemon.connect() as connection:
        return int(connection.call("query", sql=sql)["rows"][0][0])


BRINGERS: dict[str, Callable[[DaemonProcess, int], Callable[[], bool]]] = {
    "spool replay": spool_events,
    "transcript": report_transcript,
    "import of a history": import_history,
    "watched files": watch_files,
}
"""Bring files for the daemon to read; each returns a function that tells when the daemon has read them."""


def run_bringer(daemon: DaemonProcess, name: str, size: int) -> "Stall":
    """Bring files; the window ends when they are stored and indexed."""
    with daemon.connect() as control, window() as moments:
        is_done = BRINGERS[name](daemon, size)
        deadline = time.monotonic() + REPLY_SECONDS + SECONDS_PER_MEGABYTE * size / MEGABYTE
        while not (done := is_done()) and time.monotonic() < deadline:
            time.sleep(0.2)
        settle(control, 30.0)
    return Stall(name, (moments[0], moments[1]), size, "read" if done else "not read in time")


@dataclass(frozen=True)
class Stall:
    """What one case did to the pinger."""

    name: str
    window: tuple[float, float]
    bytes: int
    outcome: str

    @property
    def seconds(self) -> float:
        return self.window[1] - self.window[0]


def run_case(daemon: DaemonProcess, one: Case, size: int, settle_seconds: float = 30.0) -> Stall:
    """Send a case's bodies one after the other; their window ends when everything that follows from them is done."""
    bodies = one.build(size)
    outcomes: list[str] = []
    with daemon.connect(timeout=REPLY_SECONDS) as connection, daemon.connect() as control:
        time.sleep(0.2)  # what was built is not measured
        with window() as moments:
            try:
                for body in bodies:
                    outcomes += [_outcome(reply) for reply in send(connection, body, one.answers)]
                if one.settles:
                    settle(control, settle_seconds)
            except OSError as error:
                outcomes.append(repr(error))
    return Stall(one.name, (moments[0], moments[1]), sum(map(len, bodies)), outcomes[0] if outcomes else "")


def _outcome(reply: Any) -> str:
    if reply is None:
        return "hung up"
    if isinstance(reply, dict) and (
        refused := isinstance(reply.get("result"), dict) and reply["result"].get("refused")
    ):
        return f"{len(refused)} refused: {next(iter(refused.values()))}"[:60]
    if isinstance(reply, dict) and "error" in reply:
        return str(reply["error"]["message"])[:60]
    return "ok"
