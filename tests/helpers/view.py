"""The web view as a process, and requests to it as a browser or an attacker would send them."""

import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from helpers.ctl import command
from helpers.daemon import DaemonProcess


@dataclass(frozen=True)
class Answer:
    """Status, headers and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RunningView:
    """One `clankers-ctl view`; the cookie and the other tokens are set by `open`."""

    port: int
    token: str
    process: subprocess.Popen[str]
    cookie: str = ""
    page_token: str = ""
    write_token: str = ""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.origin}/#token={self.token}"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str | None] | None = None
    ) -> Answer:
        """Send a request as our page does; `headers` replaces what differs, and None leaves a header out."""
        sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Sec-Fetch-Site": "same-origin"}
        if self.cookie:
            sent |= {"Cookie": self.cookie, "X-Clankers-Page-Token": self.page_token}
        if body is not None:
            sent |= {"Content-Type": "application/json", "Origin": self.origin, "Content-Length": str(len(body))}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in (sent | dict(headers or {})).items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def open(self) -> "RunningView":
        """Exchange the token for the cookie and the page's token, and fetch the write token."""
        opened = self.send("POST", "/api/open", json.dumps({"token": self.token}).encode())
        assert opened.status == 200, opened.body
        self.page_token = opened.json["pageToken"]
        self.cookie = opened.headers["set-cookie"].partition(";")[0]
        self.write_token = self.send("GET", "/api/start").json["writeToken"]
        return self

    def rpc(self, method: str, *, write: bool = False, **params: Any) -> Answer:
        """Call a method of the daemon through the view."""
        headers = {"X-Clankers-Write-Token": self.write_token} if write else {}
        return self.send("POST", f"/api/rpc/{method}", json.dumps(params).encode(), headers)


@contextmanager
def running_view(daemon: DaemonProcess, *flags: str, browser: str | None = None) -> Iterator[RunningView]:
    """A view of this daemon on a free port, ended after the block; it starts this browser, if one is given."""
    words = command("view", "--json", "--port", "0", *flags) + ([] if browser else ["--no-browser"])
    environ = daemon.environ | ({"BROWSER": browser} if browser else {})
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, f"clankers-ctl view ended with {process.wait()}"
                text += line
            told = json.loads(text)
            yield RunningView(told["port"], told["address"].partition("#token=")[2], process)
        finally:
            process.terminate()
            process.wait(30)
