"""Client for one service on the network that takes JSON, with retries, a time limit and a bounded reply."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, urlsplit

import anyio

from clankersd.http.api_keys import Key
from clankersd.http.responses import Reply, RequestRejected, ServiceUnavailable, TransientError
from clankersd.http.retry import RetryPolicy

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 10.0
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


class Endpoint:
    """Sends POST requests to one service; `name` identifies it in error messages."""

    def __init__(
        self, url: str, title: str, timeout_seconds: float, retry_policy: RetryPolicy, key_header: tuple[str, str]
    ) -> None:
        self.url = url.rstrip("/")
        self.name = f"{title} at {urlsplit(url).hostname}"
        self._timeout_seconds = timeout_seconds
        self._retry_policy = retry_policy
        self._key_header = key_header  # the header's name, and the text before the key
        self._opening = anyio.Lock()
        self._client: httpx.AsyncClient | None = None

    async def with_retries(self, request: Callable[[], Awaitable[T]], retries: int) -> T:
        """Return what `request` returns, retrying transient errors; raises RequestRejected or ServiceUnavailable."""
        attempt = 0
        while True:
            try:
                return await request()
            except TransientError as error:
                retry_after = error.retry_after or 0
                if attempt >= retries or retry_after > self._retry_policy.max_retry_after_seconds:
                    raise error.as_final_error() from None
                await self._retry_policy.sleep(self._retry_policy.wait(attempt, error.retry_after))
                attempt += 1

    async def post(self, path: str, content: bytes, key: Key | None, max_reply_bytes: int) -> Reply:
        """Send a request and return the reply; raises TransientError or RequestRejected when there is none."""
        client = await self._open()
        import httpx

        def add_key(request: httpx.Request) -> httpx.Request:
            if key:
                name, prefix = self._key_header
                request.headers[name] = prefix + key.secret
            return request

        try:
            with anyio.fail_after(self._timeout_seconds):  # httpx restarts its own timeout at each byte
                async with client.stream("POST", self.url + path, content=content, auth=add_key) as response:
                    retry_after = self._retry_policy.retry_after(response.headers.get("retry-after"))
                    body = bytearray()
                    async for piece in response.aiter_bytes():
                        body += piece
                        if len(body) > max_reply_bytes:
                            raise RequestRejected(f"{self.name} sent more than {max_reply_bytes} bytes")
                    return Reply(response.status_code, retry_after, bytes(body))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise TransientError(f"{self.name} cannot be reached: see that it runs and the network is up") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            reason = f"{self.name} did not answer within {self._timeout_seconds:g} seconds"
            raise TransientError(reason, suspect=True) from error
        except httpx.RequestError as error:
            raise TransientError(f"{self.name} broke off its answer", suspect=True) from error

    async def close(self) -> None:
        """Close all connections."""
        if self._client:
            await self._client.aclose()
            self._client = None

    async def _open(self) -> "httpx.AsyncClient":
        async with self._opening:
            if self._client is None:
                self._client = await anyio.to_thread.run_sync(self._make_client)
            return self._client

    def _make_client(self) -> "httpx.AsyncClient":
        """Create the client, in a worker thread: the import and the certificates take a tenth of a second."""
        try:
            import httpx
        except ImportError as error:
            reason = "services on the network need httpx: pip install httpx"
            raise ServiceUnavailable(reason, permanent=True) from error
        except MemoryError as error:
            raise ServiceUnavailable(f"too little memory for an HTTP client: {error}") from error
        timeout = self._timeout_seconds
        return httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT_SECONDS, timeout)),
            headers={"content-type": "application/json", "user-agent": "clankers"},
            verify=self.url.startswith("https:"),  # no certificates are loaded where there is no TLS
            follow_redirects=False,  # texts and keys are sent only to the configured address
            trust_env=urlsplit(self.url).hostname not in LOOPBACK_HOSTS,  # no proxy can reach our loopback
        )


def validate_url(url: str, name: str) -> str:
    """Return the URL if requests can be sent to it and it holds no secret; `name` identifies it in error messages."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number
        parts, usable = SplitResult("", "", "", "", ""), False
    if not usable:
        raise ServiceUnavailable(f"{name} must begin with http:// or https://", permanent=True)
    if parts.username or parts.password or parts.query:
        raise ServiceUnavailable(f"{name} may hold no secret: put it into key_file", permanent=True)
    return url
