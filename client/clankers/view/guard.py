"""Checks before any route: who asks, from which page, and with which token.

A web page that the owner visits can send requests to the loopback interface. It cannot forge the headers `Host` (of a
rebound DNS name), `Origin` and `Sec-Fetch-Site`, it cannot read our cookie, and it cannot read our answers. Another
server on this machine can receive our cookie, because cookies do not tell ports apart. So every request also carries a
token that the page keeps in its own storage, which is separate for each port.
"""

import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_HEADER = "x-clankers-page-token"
PAGE_PARAMETER = "page"
WRITE_HEADER = "x-clankers-write-token"
TOKEN_BYTES = 32
LOOPBACK_ADDRESSES = frozenset({"127.0.0.1", "::1"})
MAX_BODY_BYTES = 2 * 1024 * 1024

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """Make a token that cannot be guessed."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True)
class Access:
    """Secrets of one run of the view, and the port that it serves.

    `opening` is in the printed address, and `launching` in the one that is given to the browser's command line, where
    other users of the machine can read it: it is valid once. The page exchanges one of them for the cookie, which holds
    `session`, and for `page`, which it sends with every request. `writing` is told to a page that has both; changes
    need all three.
    """

    port: int
    opening: str = field(default_factory=new_token, repr=False)
    launching: list[str] = field(default_factory=lambda: [new_token()], repr=False)
    session: str = field(default_factory=new_token, repr=False)
    page: str = field(default_factory=new_token, repr=False)
    writing: str = field(default_factory=new_token, repr=False)

    @property
    def cookie_name(self) -> str:
        """Name of the cookie; two views on different ports have different ones."""
        return f"clankers_view_{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        """Values of the Host header that name this server."""
        return frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    @property
    def address(self) -> str:
        """The address to print. A browser does not send the part after `#`, and the page removes it."""
        return self._address(self.opening)

    @property
    def address_once(self) -> str:
        """The address to start a browser with."""
        return self._address(self.launching[0])

    def _address(self, token: str) -> str:
        return f"http://127.0.0.1:{self.port}/#token={token}"

    def accept_opening_token(self, given: str) -> bool:
        """Return whether this is the token of an address. That of the browser's command line is then used up."""
        if any(secrets.compare_digest(given.encode(), token.encode()) for token in self.launching):
            self.launching.clear()
            return True
        return secrets.compare_digest(given.encode(), self.opening.encode())

    def has_cookie(self, headers: Headers) -> bool:
        """Return whether the request carries the cookie of this run."""
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        given = cookies[self.cookie_name].value if self.cookie_name in cookies else ""
        return secrets.compare_digest(given.encode(), self.session.encode())

    def has_page_token(self, headers: Headers, query: QueryParams) -> bool:
        """Return whether the request carries the page's token; streams and downloads have it in the query."""
        given = headers.get(PAGE_HEADER) or query.get(PAGE_PARAMETER, "")
        return secrets.compare_digest(given.encode(), self.page.encode())

    def may_write(self, headers: Headers) -> bool:
        return secrets.compare_digest(headers.get(WRITE_HEADER, "").encode(), self.writing.encode())

    def cookie(self) -> str:
        """The value of the Set-Cookie header. The cookie ends with the browser's session."""
        return f"{self.cookie_name}={self.session}; HttpOnly; SameSite=Strict; Path=/"


def refusal(scope: Scope, access: Access) -> tuple[int, str] | None:
    """Return the status and the reason why a request is refused; None if it may go on to the routes."""
    headers = Headers(scope=scope)
    client = scope.get("client")
    if client is not None and client[0] not in LOOPBACK_ADDRESSES:
        return 403, "only the loopback interface is served"
    hosts = headers.getlist("host")
    if len(hosts) != 1 or hosts[0].lower() not in access.hosts:
        return 421, "the Host header does not name this server"
    origins = headers.getlist("origin")
    if origins and origins != [f"http://{hosts[0].lower()}"]:
        return 403, "the request comes from another origin"
    if not {"same-origin", "none"}.issuperset(headers.getlist("sec-fetch-site")):
        return 403, "the request comes from another site; paste the address into the address bar instead"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "only GET and POST are served"
    if "transfer-encoding" in headers:
        return 400, "a body needs a Content-Length, not a Transfer-Encoding"
    if scope["method"] == "POST":
        if not origins:
            return 403, "a POST needs an Origin header"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "a POST needs the content type application/json"
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return 413, f"a POST needs a Content-Length of at most {MAX_BODY_BYTES} bytes"
    is_public = not scope["path"].startswith("/api/") or scope["path"] == "/api/open"
    if is_public:
        return None
    if not access.has_cookie(headers) or not access.has_page_token(headers, QueryParams(scope["query_string"])):
        return 401, "open the address that `clankers-ctl view` printed"
    return None


class Guard:
    """ASGI middleware that refuses before routing and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"only HTTP is served, not {scope['type']}")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = refusal(scope, self._access)
        if refused:
            status, reason = refused
            answer = JSONResponse({"error": {"message": reason}}, status)
            await answer(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)
