"""Attacks on the web view below HTTP libraries: bytes on the socket, odd paths, foreign cookies, names of files."""

import json
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.store import message
from helpers.view import RunningView, running_view
from helpers.waiting import eventually


@pytest.fixture(scope="module")
def view(shared_daemon: DaemonProcess) -> Iterator[RunningView]:
    """A view of the daemon of this file, opened."""
    with running_view(shared_daemon) as running:
        yield running.open()


def exchange(view: RunningView, request: str, headers: str = "", body: str = "") -> bytes:
    """Send a request as it stands, with CRLF for each line, and return all that is answered."""
    default = "" if "Host" in headers else f"Host: 127.0.0.1:{view.port}\n"
    sent = f"{request}\n{default}{headers}Connection: close\n\n".replace("\n", "\r\n") + body
    with socket.create_connection(("127.0.0.1", view.port), timeout=30) as connection:
        answer = b""
        with suppress(OSError):  # it may close before it has read everything
            connection.sendall(sent.encode("latin-1"))
        with suppress(ConnectionResetError):
            while data := connection.recv(65536):
                answer += data
        return answer


def statuses(answer: bytes) -> list[int]:
    return [int(line.split()[1]) for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def own_headers(view: RunningView) -> str:
    """The headers that the owner's page sends with a POST."""
    tokens = f"Cookie: {view.cookie}\nX-Clankers-Page-Token: {view.page_token}\n"
    return f"Origin: {view.origin}\nContent-Type: application/json\n{tokens}"


SECOND = "GET /api/start HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("lengths", "body"),
    [
        ("Content-Length: 2\nTransfer-Encoding: chunked\n", f"0\r\n\r\n{SECOND}"),
        ("Transfer-Encoding: chunked\nContent-Length: 2\n", f"2\r\n{{}}\r\n0\r\n\r\n{SECOND}"),
        ("Content-Length: 2\nContent-Length: 44\n", f"{{}}{SECOND}"),
        ("Content-Length: 2, 44\n", f"{{}}{SECOND}"),
        ("Content-Length: -1\n", "{}"),
        ("Content-Length: +2\n", "{}"),
        ("Transfer-Encoding: chunked, identity\n", f"0\r\n\r\n{SECOND}"),
        ("Transfer-Encoding: chunked\n", "2\r\n{}\r\n0\r\n\r\n"),
    ],
)
def test_ambiguous_length_is_refused(view: RunningView, lengths: str, body: str) -> None:
    answer = exchange(view, "POST /api/rpc/health HTTP/1.1", own_headers(view) + lengths, body)
    assert set(statuses(answer)) <= {400, 413, 501}
    assert b"result" not in answer


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.:{port}",
        "127.0.0.1.:{port}",
        "x@127.0.0.1:{port}",
        "127.0.0.1:{port}@evil.example",
        "0.0.0.0:{port}",
        "2130706433:{port}",
        "127.1:{port}",
        "[::ffff:127.0.0.1]:{port}",
        "[::]:{port}",
        "127.0.0.1:0{port}",
        "127.0.0.1:{port}, evil.example",
    ],
)
def test_other_spelling_of_the_host_is_refused(view: RunningView, host: str) -> None:
    for target in ("/", f"http://127.0.0.1:{view.port}/"):
        answer = exchange(view, f"GET {target} HTTP/1.1", f"Host: {host.format(port=view.port)}\n")
        assert set(statuses(answer)) <= {400, 421}, answer


def test_host_may_be_written_in_capitals_or_as_ipv6(view: RunningView) -> None:
    for host in (f"LocalHost:{view.port}", f"[::1]:{view.port}"):
        assert statuses(exchange(view, "GET / HTTP/1.1", f"Host: {host}\n")) == [200]


def test_second_host_origin_or_site_is_refused(view: RunningView) -> None:
    good = f"Host: 127.0.0.1:{view.port}\n{own_headers(view)}"
    for more in (
        "Host: evil.example\n",
        "Origin: http://evil.example\n",
        "Sec-Fetch-Site: same-origin\nSec-Fetch-Site: cross-site\n",
        "Origin:\n http://evil.example\n",
    ):
        assert set(statuses(exchange(view, "GET /api/start HTTP/1.1", good + more))) <= {400, 403, 421}, more


@pytest.mark.parametrize("request_line", ["GET / HTTP/1.1", "GET /api/start HTTP/1.1"])
def test_huge_headers_are_refused_and_the_view_goes_on(view: RunningView, request_line: str) -> None:
    many = "".join(f"X-{number}: a\n" for number in range(20_000))
    for headers in (f"X: {'a' * 200_000}\n", many, f"Cookie: {'a=b; ' * 40_000}\n"):
        assert set(statuses(exchange(view, request_line, headers))) <= {400, 431}
    assert set(statuses(exchange(view, f"GET /{'a' * 200_000} HTTP/1.1"))) <= {400, 414}
    assert view.send("GET", "/api/start").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/API/start", "//api/start", "/api//start", "/%61pi/start", "/api%2fstart", "/./api/start", "/x/../api/start",
        "/api/open/../start", "/api/start/", "/api/start%00", "/api;x/start", "/\\api\\start", "/api/open/start",
        "http://evil.example/api/start", "/api/start?x=/api/open", "/api/start#/api/open", "/api/events%0d%0aX: 1",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_avoids_the_tokens(view: RunningView, path: str) -> None:
    for method in ("GET", "HEAD"):
        answer = exchange(view, f"{method} {path} HTTP/1.1")
        assert set(statuses(answer)) <= {400, 401, 404}, answer
        assert b"writeToken" not in answer


@pytest.mark.parametrize(
    "path",
    [
        "../../methods.py", "%2e%2e/%2e%2e/methods.py", "..%2f..%2fmethods.py", "..\\..\\methods.py", "%c0%ae%c0%ae/x",
        "/etc/passwd", "pages/../../methods.py", "app.js%00", "app.js/", "APP.JS", "index.html?x", ".", "%", "%zz",
    ],
)  # fmt: skip
def test_only_files_of_the_page_are_served(view: RunningView, path: str) -> None:
    folder = view.send("GET", "/").body.split(b'src="')[1].rpartition(b"/")[0].decode().split('"')[0]
    for base in ("/static", folder):
        answer = exchange(view, f"GET {base}/{path} HTTP/1.1")
        expected = {200, 404} if path == "index.html?x" else {400, 404}
        assert set(statuses(answer)) <= expected, answer
        assert b"READ = frozenset" not in answer
        assert b"root:" not in answer


def test_connection_is_not_upgraded(view: RunningView) -> None:
    key = "Sec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n"
    for upgrade in (f"Upgrade: websocket\n{key}", "Upgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n"):
        for headers, expected in ((own_headers(view), 200), ("", 401)):
            answer = exchange(view, "GET /api/start HTTP/1.1", headers + upgrade)
            assert statuses(answer) == [expected]
    assert set(statuses(exchange(view, "CONNECT 127.0.0.1:22 HTTP/1.1"))) <= {400, 405}
    assert set(statuses(exchange(view, "PRI * HTTP/2.0"))) <= {400, 404, 405, 421, 505}


def test_tokens_of_one_view_open_no_other(shared_daemon: DaemonProcess, view: RunningView) -> None:
    with running_view(shared_daemon) as other:
        other.open()
        assert other.port != view.port
        for cookie in (view.cookie, f"{other.cookie.partition('=')[0]}={view.cookie.partition('=')[2]}"):
            for token in (view.page_token, other.page_token):
                answer = other.send("GET", "/api/start", headers={"Cookie": cookie, "X-Clankers-Page-Token": token})
                assert answer.status == 401
        assert other.send("GET", "/api/start", headers={"X-Clankers-Page-Token": view.page_token}).status == 401
        both = f"{view.cookie}; {other.cookie}"  # browsers send the cookies of all ports
        assert other.send("GET", "/api/start", headers={"Cookie": both}).status == 200
        assert other.send("POST", "/api/open", json.dumps({"token": view.token}).encode()).status == 401


def test_address_on_the_command_line_of_the_browser_is_valid_once(shared_daemon: DaemonProcess, home: Path) -> None:
    seen, script = home / "seen", home / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.new && mv {seen}.new {seen}\n')
    script.chmod(stat.S_IRWXU)
    with running_view(shared_daemon, browser=str(script)) as view:
        eventually(seen.exists, "the browser is started")
        token = seen.read_text().partition("#token=")[2]
        assert token
        assert token != view.token
        opened = [view.send("POST", "/api/open", json.dumps({"token": token}).encode()).status for _ in range(3)]
        assert opened == [200, 401, 401]
        view.open()  # the printed one, in another browser
        view.open()


@pytest.mark.parametrize(
    "session",
    [
        "日本語-セッション",
        'a"; filename="evil.exe',
        "a\r\nSet-Cookie: x=y",
        "../../etc/passwd",
        "é" * 60,
        "\u202efdp.exe",
    ],
)
def test_name_of_an_export_is_plain_ascii(view: RunningView, rpc: RawConnection, session: str) -> None:
    stored = rpc.request("upsertMessage", {"message": message("m", session)})
    if "error" in stored:
        return  # such an id is not stored at all
    answer = view.send("GET", f"/api/export?{urlencode({'id': session, 'format': 'html'})}")
    disposition = answer.headers["content-disposition"]
    assert answer.status == 200
    assert disposition.isascii()
    assert disposition.startswith('attachment; filename="session-')
    assert disposition.count('"') == 2
    assert not set(disposition) & set("\r\n/\\")
    assert "set-cookie" not in answer.headers
