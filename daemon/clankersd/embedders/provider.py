"""One provider's embeddings: a request made, its reply checked."""

from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import anyio
import msgspec

from clankersd.embedders.base import EmbedderSettings, EmbedderUnavailable
from clankersd.http.api_keys import ANY_PROVIDER, Key, find_key
from clankersd.http.client import Endpoint, checked_url
from clankersd.http.responses import Names, Passing, check
from clankersd.http.retry import Patience

Purpose = Literal["document", "query"]

LARGEST_REPLY = 32 * 1024 * 1024


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
        self.url = checked_url(settings.url or api.default_url, "the embedder's url").rstrip("/")
        self._api = api
        self._settings = settings
        self._endpoint = Endpoint(self.url, api.title, settings.timeout, patience, api.key_header)
        self._is_default = urlsplit(self.url)[:2] == urlsplit(api.default_url)[:2]

    async def ask(self, texts: list[str], purpose: Purpose, retries: int) -> list[Any]:
        """What the provider sends for each text; raises Refused or EmbedderUnavailable."""
        return await self._endpoint.patiently(lambda: self._ask_once(texts, purpose), retries)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask_once(self, texts: list[str], purpose: Purpose) -> list[Any]:
        key = self._key()
        payload = self._api.payload(self.model, texts, purpose, self._settings.dims)
        path = self._api.path(self.model)
        reply = await self._endpoint.post(path, msgspec.json.encode(payload), key, LARGEST_REPLY)
        check(reply, self._names(key))
        found = await anyio.to_thread.run_sync(self._api.embeddings, reply.body)
        if len(found) != len(texts):
            raise Passing(f"{self._endpoint.named} sent {len(found)} embeddings for {len(texts)} texts", suspect=True)
        return found

    def _key(self) -> Key | None:
        """Read each time, so that a corrected key needs no restart; a provider's own only goes to itself."""
        variables = self._api.key_variables if self._is_default else ()
        key = find_key(self._settings.key_file, variables)
        if key is None and self._api.key_needed and self._is_default:
            raise EmbedderUnavailable(
                f"{self._api.title} needs a key: set {' or '.join(variables)}, or key_file", permanent=True
            )
        return key

    def _names(self, key: Key | None) -> Names:
        service = self._endpoint.named
        wrong_key = f"{service} wants a key: set {ANY_PROVIDER} or key_file"
        if key:
            wrong_key = f"{service} refuses the key in {key.source}: put one there that is valid and may embed"
        return Names(service, wrong_key, self._api.missing_model(self.model, service))
