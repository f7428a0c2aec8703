"""An address on the network that takes JSON: asked again while that may help, in bounded time, for a bounded reply."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, urlsplit

import anyio

from clankersd.embedders.base import EmbedderUnavailable
from clankersd.embedders.memory_headroom import import_numpy
from clankersd.http.api_keys import Key
from clankersd.http.responses import Passing, Refused, Reply
from clankersd.http.retry import Patience

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CONNECT_SECONDS = 10.0

_MISSING = "services on the network need httpx and numpy: pip install httpx numpy"


class Endpoint:
    """Posts to one service, whose name stands in what it says of it."""

    def __init__(self, url: str, title: str, timeout: float, patience: Patience, key_header: tuple[str, str]) -> None:
        self.url = url.rstrip("/")
        self.named = f"{title} at {urlsplit(url).hostname}"
        self._timeout = timeout
        self._patience = patience
        self._key_header = key_header  # the name, and what stands before the key
        self._opening = anyio.Lock()
        self._client: httpx.AsyncClient | None = None

    async def patiently(self, ask: Callable[[], Awaitable[T]], retries: int) -> T:
        """What `ask` brings, tried again while its trouble may pass; raises Refused or EmbedderUnavailable."""
        attempt = 0
        while True:
            try:
                return await ask()
            except Passing as trouble:
                asked_for = trouble.retry_after or 0
                if attempt >= retries or asked_for > self._patience.longest_retry_after:
                    raise trouble.lasting() from None
                await self._patience.sleep(self._patience.wait(attempt, trouble.retry_after))
                attempt += 1

    async def post(self, path: str, content: bytes, key: Key | None, largest: int) -> Reply:
        """The reply, of at most so many bytes; raises Passing or Refused when there is none."""
        client = await self._open()
        import httpx

        try:
            with anyio.fail_after(self._timeout):  # httpx's own starts anew at each byte
                async with client.stream("POST", self.url + path, content=content, auth=self._signed(key)) as response:
                    retry_after = self._patience.retry_after(response.headers.get("retry-after"))
                    return Reply(response.status_code, retry_after, await self._body(response, largest))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Passing(f"{self.named} cannot be reached: see that it runs and the network is up") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise Passing(f"{self.named} did not answer within {self._timeout:g} seconds", suspect=True) from error
        except httpx.RequestError as error:
            raise Passing(f"{self.named} broke off its answer", suspect=True) from error

    async def close(self) -> None:
        """Give back connections."""
        if self._client:
            await self._client.aclose()
            self._client = None

    async def _body(self, response: "httpx.Response", largest: int) -> bytes:
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > largest:
                raise Refused(f"{self.named} sent more than {largest} bytes")
        return bytes(body)

    async def _open(self) -> "httpx.AsyncClient":
        async with self._opening:
            if self._client is None:
                self._client = await anyio.to_thread.run_sync(self._make_client)
            return self._client

    def _make_client(self) -> "httpx.AsyncClient":
        """Runs in a worker thread: the import and the certificates take a tenth of a second."""
        try:
            import httpx

            import_numpy()  # vectors need it in a moment
        except ImportError as error:
            raise EmbedderUnavailable(_MISSING, permanent=True) from error
        except MemoryError as error:
            raise EmbedderUnavailable(f"too little memory for vectors: {error}") from error
        host = urlsplit(self.url).hostname
        return httpx.AsyncClient(
            timeout=httpx.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
            headers={"content-type": "application/json", "user-agent": "clankers"},
            verify=self.url.startswith("https:"),  # no certificates are loaded where there is no TLS
            follow_redirects=False,  # neither texts nor keys go where the owner did not send them
            trust_env=host not in ("127.0.0.1", "localhost", "::1"),  # no proxy can reach our loopback
        )

    def _signed(self, key: Key | None) -> "Callable[[httpx.Request], httpx.Request]":
        name, before = self._key_header

        def sign(request: "httpx.Request") -> "httpx.Request":
            if key:
                request.headers[name] = before + key.secret
            return request

        return sign


def checked_url(url: str, what: str) -> str:
    """The url, if it can be asked and holds no secret; `what` names it to people."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        parts, usable = SplitResult("", "", "", "", ""), False
    if not usable:
        raise EmbedderUnavailable(f"{what} must begin with http:// or https://", permanent=True)
    if parts.username or parts.password or parts.query:
        raise EmbedderUnavailable(f"{what} may hold no secret: put it into key_file", permanent=True)
    return url
