"""One provider's endpoint: a request sent, tried again while that may help, and its reply bounded."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import SplitResult, urlsplit

import anyio
import msgspec

from clankersd.index.embedders.base import EmbedderSettings, EmbedderUnavailable
from clankersd.index.embedders.keys import ANY_PROVIDER, Key, find_key
from clankersd.index.embedders.patience import Patience
from clankersd.index.embedders.replies import Names, Passing, Refused, Reply, check

if TYPE_CHECKING:
    import httpx

Purpose = Literal["document", "query"]

LARGEST_REPLY = 32 * 1024 * 1024
CONNECT_SECONDS = 10.0

_MISSING = "embedders on the network need httpx and numpy: pip install httpx numpy"


class Api(Protocol):
    """How one provider wants to be asked, and how it answers."""

    provider: str
    title: str
    default_url: str
    default_model: str
    key_variables: tuple[str, ...]
    key_header: tuple[str, str]  # the name, and what stands before the key
    key_needed: bool  # at the default url
    at_once: int

    def path(self, model: str) -> str: ...

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> Any: ...

    def embeddings(self, body: bytes) -> list[Any]:
        """What was sent for each text, in the order of the texts; raises Passing if that cannot be told."""
        ...

    def missing_model(self, model: str, service: str) -> str: ...


class Service:
    """Asks one API at one address for one model."""

    def __init__(self, api: Api, settings: EmbedderSettings, patience: Patience) -> None:
        self.model = settings.model or api.default_model
        self.url = _checked_url(settings.url or api.default_url).rstrip("/")
        self._api = api
        self._settings = settings
        self._patience = patience
        self._host = urlsplit(self.url).hostname or ""
        self._is_default = urlsplit(self.url)[:2] == urlsplit(api.default_url)[:2]
        self._opening = anyio.Lock()
        self._client: httpx.AsyncClient | None = None

    async def ask(self, texts: list[str], purpose: Purpose, retries: int) -> list[Any]:
        """What the provider sends for each text; raises Refused or EmbedderUnavailable."""
        attempt = 0
        while True:
            try:
                return await self._ask_once(texts, purpose)
            except Passing as trouble:
                asked_for = trouble.retry_after or 0
                if attempt >= retries or asked_for > self._patience.longest_retry_after:
                    raise trouble.lasting() from None
                await self._patience.sleep(self._patience.wait(attempt, trouble.retry_after))
                attempt += 1

    async def close(self) -> None:
        if self._client:
            await self._client.aclose()
            self._client = None

    async def _ask_once(self, texts: list[str], purpose: Purpose) -> list[Any]:
        key = self._key()
        payload = self._api.payload(self.model, texts, purpose, self._settings.dims)
        reply = await self._post(msgspec.json.encode(payload), key)
        check(reply, self._names(key))
        found = await anyio.to_thread.run_sync(self._api.embeddings, reply.body)
        if len(found) != len(texts):
            raise Passing(f"{self._named()} sent {len(found)} embeddings for {len(texts)} texts", suspect=True)
        return found

    async def _post(self, content: bytes, key: Key | None) -> Reply:
        client = await self._open()
        import httpx

        url = self.url + self._api.path(self.model)
        try:
            with anyio.fail_after(self._settings.timeout):  # httpx's own starts anew at each byte
                async with client.stream("POST", url, content=content, auth=self._signed(key)) as response:
                    retry_after = self._patience.retry_after(response.headers.get("retry-after"))
                    return Reply(response.status_code, retry_after, await self._body(response))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Passing(f"{self._named()} cannot be reached: see that it runs and the network is up") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            seconds = f"{self._settings.timeout:g} seconds"
            raise Passing(f"{self._named()} did not answer within {seconds}", suspect=True) from error
        except httpx.RequestError as error:
            raise Passing(f"{self._named()} broke off its answer", suspect=True) from error

    async def _body(self, response: "httpx.Response") -> bytes:
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > LARGEST_REPLY:
                raise Refused(f"{self._named()} sent more than {LARGEST_REPLY} bytes")
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
            import numpy  # noqa: F401 - the vectors need it in a moment
        except ImportError as error:
            raise EmbedderUnavailable(_MISSING, permanent=True) from error
        seconds = self._settings.timeout
        return httpx.AsyncClient(
            timeout=httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)),
            headers={"content-type": "application/json", "user-agent": "clankers"},
            verify=self.url.startswith("https:"),  # no certificates are loaded where there is no TLS
            follow_redirects=False,  # neither texts nor keys go where the owner did not send them
            trust_env=self._host not in ("127.0.0.1", "localhost", "::1"),  # no proxy can reach our loopback
        )

    def _key(self) -> Key | None:
        """Read each time, so that a corrected key needs no restart; a provider's own only goes to itself."""
        variables = self._api.key_variables if self._is_default else ()
        key = find_key(self._settings.key_file, variables)
        if key is None and self._api.key_needed and self._is_default:
            raise EmbedderUnavailable(
                f"{self._api.title} needs a key: set {' or '.join(variables)}, or key_file", permanent=True
            )
        return key

    def _signed(self, key: Key | None) -> "Callable[[httpx.Request], httpx.Request]":
        name, before = self._api.key_header

        def sign(request: "httpx.Request") -> "httpx.Request":
            if key:
                request.headers[name] = before + key.secret
            return request

        return sign

    def _named(self) -> str:
        return f"{self._api.title} at {self._host}"

    def _names(self, key: Key | None) -> Names:
        service = self._named()
        wrong_key = f"{service} wants a key: set {ANY_PROVIDER} or key_file"
        if key:
            wrong_key = f"{service} refuses the key in {key.source}: put one there that is valid and may embed"
        return Names(service, wrong_key, self._api.missing_model(self.model, service))


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        parts, usable = SplitResult("", "", "", "", ""), False
    if not usable:
        raise EmbedderUnavailable("the embedder's url must begin with http:// or https://", permanent=True)
    if parts.username or parts.password or parts.query:
        raise EmbedderUnavailable("the embedder's url may hold no secret: put it into key_file", permanent=True)
    return url
