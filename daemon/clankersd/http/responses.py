"""Interpretation of a provider's reply: success, a rejected request, or a transient or permanent failure."""

import json
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"([\d.]+)s"')
_TOO_LONG = re.compile(r"too long|too large|too many tokens|context length|token limit|maximum.*length|exceed")
_GOOGLE_INVALID_KEY = re.compile(rb'"reason"\s*:\s*"API_KEY_INVALID"')  # sent with status 400
_DAILY_QUOTA_RETRY_SECONDS = 3600.0
_MAX_QUOTED_CHARS = 200


class ServiceUnavailable(Exception):
    """The service cannot be used now; `permanent` when waiting will not help until someone changes something."""

    def __init__(self, reason: str, *, retry_after: float | None = None, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.permanent = permanent


class RequestRejected(Exception):
    """The provider rejects these texts; `permanent` if it would reject any other text as well."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent
        self.too_long = bool(_TOO_LONG.search(reason.lower()))


class TransientError(Exception):
    """A failure that the next attempt may not have; `suspect` when the texts themselves may cause it."""

    def __init__(self, reason: str, *, retry_after: float | None = None, suspect: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.suspect = suspect

    def as_final_error(self) -> RequestRejected | ServiceUnavailable:
        """Return the error to raise once all retries have failed."""
        if self.suspect:
            return RequestRejected(self.reason)
        return ServiceUnavailable(self.reason, retry_after=self.retry_after)


@dataclass(frozen=True)
class Reply:
    """An HTTP reply; `retry_after` is in seconds."""

    status: int
    retry_after: float | None
    body: bytes


@dataclass(frozen=True)
class ErrorTexts:
    """The service's name, and the messages for errors that only its owner can fix."""

    service: str
    wrong_key: str
    missing_model: str
    url: str = "the embedder's url"


def check_status(reply: Reply, texts: ErrorTexts) -> None:
    """Raise the error that a status other than 200 means."""
    status = reply.status
    if status == 200:
        return
    _check_quota(reply, texts)
    message = f"{texts.service} answered {status}{_provider_message(reply.body)}"
    if status in (401, 403) or _GOOGLE_INVALID_KEY.search(reply.body):
        # The provider's own message is left out: some of them repeat the key.
        raise ServiceUnavailable(texts.wrong_key, permanent=True)
    if status == 404:
        raise ServiceUnavailable(texts.missing_model, permanent=True)
    if status in (400, 413, 422):
        too_long = " (too large)" if status == 413 else ""
        raise RequestRejected(message + too_long, permanent=True)
    if status in (408, 425, 429, 502, 503, 504, 529):
        raise TransientError(message, retry_after=reply.retry_after)
    if 300 <= status < 400:
        raise ServiceUnavailable(f"{texts.service} redirects to another address: set {texts.url}", permanent=True)
    if status >= 500 or status < 300:
        raise TransientError(message, retry_after=reply.retry_after, suspect=True)
    raise ServiceUnavailable(message, permanent=True)


def decode_reply(body: bytes, kind: type[T]) -> T:
    """Decode an embeddings reply as `kind`; raises TransientError when it is anything else or truncated."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        pass
    try:
        if b"NaN" in body or b"Infinity" in body:  # not JSON, yet Python servers write it
            return msgspec.convert(json.loads(body), kind)
    except (ValueError, RecursionError, msgspec.DecodeError):
        pass
    raise TransientError(f"the provider's reply holds no embeddings{_provider_message(body)}", suspect=True)


def _check_quota(reply: Reply, texts: ErrorTexts) -> None:
    text = reply.body.decode("utf-8", "replace")
    exhausted = reply.status == 402
    if reply.status in (403, 429) and any(f'"{code}"' in text for code in _QUOTA_CODES):
        exhausted = True
    if reply.status == 429 and "RESOURCE_EXHAUSTED" in text and "quota" in text.lower():
        # Google says "quota" for every limit: limits per minute come with a delay, limits per day reset by themselves.
        if "PerDay" in text:
            raise ServiceUnavailable(
                f"today's quota at {texts.service} is used up", retry_after=_DAILY_QUOTA_RETRY_SECONDS
            )
        match = _RETRY_DELAY.search(text)
        delay = float(match[1]) if match else reply.retry_after
        if delay is not None or "PerMinute" in text:
            raise TransientError(f"{texts.service} limits the rate", retry_after=delay)
        exhausted = True
    if exhausted:
        raise ServiceUnavailable(f"the quota at {texts.service} is used up: check its plan and billing", permanent=True)


def _provider_message(body: bytes) -> str:
    """Extract the start of the provider's own error message, as ": message", or nothing when there is none."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail") if key in value), None)
    return f": {value[:_MAX_QUOTED_CHARS]}" if isinstance(value, str) and value else ""
