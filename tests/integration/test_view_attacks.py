"""Attacks on the web view: other sites, forged requests, guessed tokens and hostile stored text."""

import json
import socket
from collections.abc import Iterator

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.store import message
from helpers.view import RunningView, running_view

from clankers.view.guard import CONTENT_SECURITY_POLICY
from clankers.view.methods import READ, WRITE
from clankers_protocol.wire import methods


@pytest.fixture(scope="module")
def view_process(shared_daemon: DaemonProcess) -> Iterator[RunningView]:
    """A view of the daemon of this file."""
    with running_view(shared_daemon) as view:
        yield view


@pytest.fixture
def stranger(view_process: RunningView) -> RunningView:
    """The view for someone without the cookie."""
    return RunningView(view_process.port, view_process.token, view_process.process)


@pytest.fixture
def view(stranger: RunningView) -> RunningView:
    """The view for the owner's browser."""
    return stranger.open()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil:{port}"]
)
def test_wrong_host_is_refused(view: RunningView, host: str) -> None:
    answer = view.send("GET", "/", headers={"Host": host.format(port=view.port)})
    assert answer.status in (400, 421)
    assert b"<html" not in answer.body


def test_every_name_of_the_loopback_interface_is_served(view: RunningView) -> None:
    for host in (f"127.0.0.1:{view.port}", f"localhost:{view.port}", f"LOCALHOST:{view.port}"):
        assert view.send("GET", "/api/start", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://localhost:{port}"],
)
def test_wrong_origin_is_refused(view: RunningView, origin: str) -> None:
    headers = {"Origin": origin.format(port=view.port)}
    assert view.send("GET", "/api/start", headers=headers).status == 403
    assert view.send("POST", "/api/rpc/health", b"{}", headers).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_request_from_another_site_is_refused(view: RunningView, site: str) -> None:
    assert view.send("GET", "/", headers={"Sec-Fetch-Site": site}).status == 403
    assert view.send("POST", "/api/rpc/health", b"{}", {"Sec-Fetch-Site": site}).status == 403


def test_post_without_origin_is_refused(view: RunningView) -> None:
    assert view.send("POST", "/api/rpc/health", b"{}", {"Origin": None}).status == 403


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_form_that_needs_no_preflight_is_refused(view: RunningView, media_type: str | None) -> None:
    headers = {"Content-Type": media_type, "X-Clankers-Write-Token": view.write_token}
    assert view.send("POST", "/api/rpc/memory.delete", b'{"id": "m"}', headers).status == 415


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_other_http_methods_are_refused(view: RunningView, method: str) -> None:
    assert view.send(method, "/api/start").status == 405


@pytest.mark.parametrize("path", ["/api/start", "/api/events", "/api/export?id=x&format=json", "/api/rpc/health"])
def test_without_the_cookie_nothing_is_told(stranger: RunningView, path: str) -> None:
    body = b"{}" if "rpc" in path else None
    answer = stranger.send("POST" if body else "GET", path, body)
    assert answer.status == 401
    assert set(answer.json) == {"error"}


def test_guessed_tokens_are_refused(stranger: RunningView) -> None:
    for token in ("", "0" * len(stranger.token), stranger.token[:-1], stranger.token + "x", "é"):
        answer = stranger.send("POST", "/api/open", json.dumps({"token": token}).encode())
        assert answer.status == 401
        assert "set-cookie" not in answer.headers
    name = f"clankers_view_{stranger.port}"
    for cookie in (f"{name}=", f"{name}={stranger.token}", f"{name}=é", "x=y; ;;=", name):
        assert stranger.send("GET", "/api/start", headers={"Cookie": cookie.encode().decode("latin-1")}).status == 401
    assert stranger.send("POST", "/api/open", b'["no object"]').status == 400


@pytest.mark.parametrize("page_token", [None, "", "guessed"])
def test_cookie_alone_that_another_local_server_received_opens_nothing(
    view: RunningView, page_token: str | None
) -> None:
    headers = {"X-Clankers-Page-Token": page_token}
    assert view.send("GET", "/api/start", headers=headers).status == 401
    assert view.send("GET", "/api/export?id=session&format=json", headers=headers).status == 401
    assert view.send("POST", "/api/rpc/health", b"{}", headers).status == 401
    assert view.send("POST", "/api/rpc/health", b"{}", {"Cookie": None}).status == 401


def test_cookie_is_kept_from_scripts_and_other_sites(stranger: RunningView) -> None:
    opened = stranger.send("POST", "/api/open", json.dumps({"token": stranger.token}).encode())
    attributes = {part.strip() for part in opened.headers["set-cookie"].split(";")[1:]}
    assert attributes == {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert stranger.token not in opened.headers["set-cookie"]


@pytest.mark.parametrize("path", ["/", "/static/none/app.js", "/static/none.js", "/api/start", "/none"])
def test_every_answer_has_the_security_headers(view: RunningView, path: str) -> None:
    headers = view.send("GET", path).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    assert "unsafe" not in headers["content-security-policy"]


@pytest.mark.parametrize(
    "method",
    [
        "query",
        "backup.restore",
        "daemon.configure",
        "forget.start",
        "memory.purge",
        "rpc.discover",
        "none",
        "../start",
        "health%2f..%2fquery",
    ],
)
def test_method_outside_the_list_is_refused(view: RunningView, method: str) -> None:
    body = b'{"sql": "SELECT 1"}'
    headers = {"X-Clankers-Write-Token": view.write_token}
    answer = view.send("POST", f"/api/rpc/{method}", body, headers)
    assert answer.status in (404, 405)
    assert b"result" not in answer.body


def test_lists_of_methods_are_declared_and_disjoint() -> None:
    assert set(methods()) >= READ | WRITE
    assert not READ & WRITE
    assert {
        name for name in READ if name.rpartition(".")[2] in ("add", "delete", "update", "set", "hook", "touch")
    } == set()


def test_write_needs_the_second_token(view: RunningView, rpc: RawConnection) -> None:
    added = rpc.call("memory.add", content="Deploy on Tuesdays only.")["memory"]
    for token in (None, "", "guessed", view.token, view.cookie):
        answer = view.send(
            "POST",
            "/api/rpc/memory.delete",
            json.dumps({"id": added["id"]}).encode(),
            {"X-Clankers-Write-Token": token},
        )
        assert answer.status == 403
    assert rpc.call("memory.get", id=added["id"])["state"] == "current"

    assert view.rpc("memory.delete", write=True, id=added["id"]).status == 200
    assert rpc.call("memory.get", id=added["id"])["state"] == "deleted"


@pytest.mark.parametrize(
    "path",
    [
        "/static/x/../server.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/",
        "/static/index.html%00.js",
    ],
)
def test_paths_outside_the_folder_do_not_exist(view: RunningView, path: str) -> None:
    answer = view.send("GET", path)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/json"


def test_stored_markup_is_inert_json(view: RunningView, rpc: RawConnection) -> None:
    hostile = "<script>alert(1)</script></script><!-- [x](javascript:alert(1)) <img src=x onerror=alert(1)> &lt;"
    rpc.call("upsertMessage", message=message("m", text=hostile))
    answer = view.rpc("session.timeline", sessionId="session")
    assert answer.headers["content-type"] == "application/json"
    assert not set(b"<>&") & set(answer.body)
    [entry] = answer.json["result"]["entries"]
    assert entry["message"]["textContent"] == hostile


def test_terminal_escapes_and_reordered_text_do_not_reach_the_page(view: RunningView, rpc: RawConnection) -> None:
    text = "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example\x07link\x1b]8;;\x07 bell\x07 \u202efdp.exe"
    rpc.call("upsertMessage", message=message("m", text=text))
    shown = view.rpc("session.timeline", sessionId="session").json["result"]["entries"][0]["message"]["textContent"]
    assert shown == "red link bell\N{SYMBOL FOR BELL} \N{REPLACEMENT CHARACTER}fdp.exe"


def test_message_of_a_megabyte_and_a_body_beyond_the_limit(view: RunningView, rpc: RawConnection) -> None:
    rpc.call("upsertMessage", message=message("m", text="<b>" * 350_000))
    answer = view.rpc("session.timeline", sessionId="session")
    assert len(answer.json["result"]["entries"][0]["message"]["textContent"]) == 1_050_000

    assert view.send("POST", "/api/rpc/search", b'{"query": "%s"}' % (b"x" * 3_000_000), {}).status == 413
    assert view.send("POST", "/api/rpc/health", b"{}", {"Content-Length": None}).status == 413


def test_bad_params_and_errors_of_the_daemon_are_errors(view: RunningView) -> None:
    bad = view.rpc("session.list", limit="many")
    assert bad.status == 400
    assert "limit" in bad.json["error"]["message"]
    missing = view.rpc("session.get", id="none-such")
    assert (missing.status, missing.json["error"]["code"]) == (404, 4004)
    assert view.send("POST", "/api/rpc/health", b"{").status == 400


def test_export_is_an_attachment(view: RunningView, rpc: RawConnection) -> None:
    rpc.call("upsertMessage", message=message("m", text="<script>alert(1)</script>"))
    for name in ("markdown", "html", "json"):
        answer = view.send("GET", f"/api/export?id=session&format={name}")
        assert answer.status == 200
        assert answer.headers["content-disposition"].startswith("attachment;")
    assert b"<script>" not in view.send("GET", "/api/export?id=session&format=html").body
    assert view.send("GET", "/api/export?id=session&format=exe").status == 400
    assert view.send("GET", "/api/export?id=none&format=json").status == 404


def test_looking_never_counts_as_a_recall(view: RunningView, rpc: RawConnection) -> None:
    added = rpc.call("memory.add", content="The parser test is flaky because of the clock.")["memory"]
    for method, params in (
        ("search", {"query": "flaky parser", "scopes": ["*"], "explain": True}),
        ("memory.search", {"query": "flaky parser"}),
        ("memory.get", {"id": added["id"]}),
        ("recall.preview", {"kind": "prompt", "query": "why is the parser test flaky?"}),
    ):
        assert view.rpc(method, **params).status == 200
    after = rpc.call("memory.get", id=added["id"])
    assert (after["accessCount"], after["lastAccessed"]) == (added["accessCount"], added["lastAccessed"])


def test_view_ends_with_open_streams(shared_daemon: DaemonProcess) -> None:
    with running_view(shared_daemon) as view:
        view.open()
        with socket.create_connection(("127.0.0.1", view.port)) as stream:
            stream.sendall(
                f"GET /api/events?page={view.page_token} HTTP/1.1\r\nHost: 127.0.0.1:{view.port}\r\n"
                f"Cookie: {view.cookie}\r\n\r\n".encode()
            )
            assert b"200 OK" in stream.recv(65536)
            view.process.terminate()
            view.process.wait(30)
