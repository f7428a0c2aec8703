"""`clankers-ctl view`: its command, its files, and the stream of changes."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.store import message
from helpers.view import RunningView, running_view

from clankers.view.encoding import clean_text, to_page_json
from clankers.view.live import MAX_KEPT_EVENTS, Changes
from clankers.view.server import PAGES


@pytest.fixture(scope="module")
def view(shared_daemon: DaemonProcess) -> Iterator[RunningView]:
    """A view of the daemon of this file, opened."""
    with running_view(shared_daemon, "--project", "/tmp") as running:
        yield running.open()


@contextmanager
def followed(view: RunningView, last_event_id: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    """The events of the stream, each with its id."""
    with socket.create_connection(("127.0.0.1", view.port), timeout=30) as connection:
        last = f"Last-Event-ID: {last_event_id}\r\n" if last_event_id else ""
        head = f"GET /api/events?page={view.page_token} HTTP/1.1\r\nHost: 127.0.0.1:{view.port}\r\n"
        connection.sendall(f"{head}Cookie: {view.cookie}\r\n{last}\r\n".encode())
        lines = connection.makefile("r", encoding="utf-8", newline="\n")

        def events() -> Iterator[dict[str, Any]]:
            event_id = ""
            for line in lines:
                if line.startswith("id: "):
                    event_id = line[4:].strip()
                if line.startswith("data: "):
                    yield json.loads(line[6:]) | {"eventId": event_id}

        yield events()
        lines.close()


def next_message(events: Iterator[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(event for event in events if event.get("id") == name)


def test_port_in_use_is_an_error_that_names_it(shared_daemon: DaemonProcess, view: RunningView) -> None:
    ran = ctl(shared_daemon, "view", "--no-browser", "--port", str(view.port))
    assert ran.code == 1
    assert str(view.port) in ran.err


def test_view_listens_on_the_loopback_interface_only(view: RunningView) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        with socket.socket() as probe:
            probe.settimeout(2)
            refused = probe.connect_ex((str(address), view.port))
        assert refused or str(address).startswith("127."), address


def test_every_page_is_the_same_html_and_its_files_exist(view: RunningView) -> None:
    html = view.send("GET", "/").body
    for name in PAGES:
        answer = view.send("GET", f"/{name}")
        assert (answer.status, answer.body) == (200, html)
    paths = re.findall(rb'(?:src|href)="(/static/[^"]+)"', html)
    assert len(paths) >= 6
    for path in paths:
        answer = view.send("GET", path.decode())
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
    folder = paths[0].decode().rpartition("/")[0]
    for name in PAGES:
        assert view.send("GET", f"{folder}/pages/{name}.js").status == 200
    assert view.send("GET", "/no-such-page").status == 404


def test_files_load_nothing_from_elsewhere_and_build_no_markup(view: RunningView) -> None:
    folder = re.search(rb'src="(/static/[^/]+)/', view.send("GET", "/").body)
    assert folder
    base = folder[1].decode()
    seen: set[str] = set()
    waiting = ["app.js", *(f"pages/{name}.js" for name in PAGES)]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        text = view.send("GET", f"{base}/{name}").body.decode()
        for found in re.findall(r'from "([^"]+)"', text):
            assert found.startswith(("./", "../")), f"{name} imports {found}"
            waiting.append(
                found.rpartition("./")[2] if "/" not in name or found.startswith("../") else f"pages/{found[2:]}"
            )
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), name
    assert len(seen) > len(PAGES) + 8


def test_start_tells_the_project_to_show_first(view: RunningView) -> None:
    assert view.send("GET", "/api/start").json["project"] == "/tmp"


def test_stream_continues_after_a_lost_connection(view: RunningView, rpc: RawConnection) -> None:
    with followed(view) as events:
        assert next(events)["type"] == "hello"
        rpc.call("upsertMessage", message=message("first"))
        first = next_message(events, "first")
        assert (first["type"], first["kind"], first["facts"]["sessionId"]) == ("change", "message", "session")
    rpc.call("upsertMessage", message=message("missed"))
    rpc.call("upsertMessage", message=message("latest"))
    with followed(view, first["eventId"]) as events:
        seen = [next(events)["type"]]
        missed = next_message(events, "missed")
        assert next_message(events, "latest")["at"] >= missed["at"]
    assert seen == ["hello"]
    with followed(view, "another-run:5") as events:
        assert next(events)["type"] == "reread"


def test_changes_that_are_gone_ask_to_read_again() -> None:
    changes = Changes("run")
    for number in range(MAX_KEPT_EVENTS + 10):
        changes.publish({"type": "change", "number": number})
    assert changes.since(3) == [(changes.last, {"type": "reread"})]
    assert [at for at, _ in changes.since(changes.last - 2)] == [changes.last - 1, changes.last]
    assert changes.since(changes.last) == []
    assert changes.since(changes.last + 1) == [(changes.last, {"type": "reread"})]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – text, naïve, 日本語, 👩‍👩‍👧", "plain – text, naïve, 日本語, 👩‍👩‍👧"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b", "a\N{SYMBOL FOR NULL}b"),
        ("\u202eevil", "\N{REPLACEMENT CHARACTER}evil"),
        ("line\r\nline\ttab", "line\nline\ttab"),
    ],
)
def test_text_is_cleaned_for_the_page(text: str, shown: str) -> None:
    assert clean_text(text) == shown


def test_page_json_escapes_what_html_gives_a_meaning() -> None:
    encoded = to_page_json({"<k>": ["</script>", {"n": 1, "t": "a&b"}]})
    assert not set(b"<>&") & set(encoded)
    assert json.loads(encoded) == {"<k>": ["</script>", {"n": 1, "t": "a&b"}]}
