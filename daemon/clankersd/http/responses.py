"""What a provider's reply means: embeddings, a refusal, trouble that may pass, or trouble that will not."""

import json
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from clankersd.embedders.base import EmbedderUnavailable

T = TypeVar("T")

_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"([\d.]+)s"')
_TOO_LONG = re.compile(r"too long|too large|too many tokens|context length|token limit|maximum.*length|exceed")
_GOOGLES_WRONG_KEY = re.compile(rb'"reason"\s*:\s*"API_KEY_INVALID"')  # with status 400
_DAY_LIMIT_WAIT = 3600.0


class Refused(Exception):
    """The provider does not take these texts, together or at all; `permanent` if it takes no others either."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent
        self.too_long = bool(_TOO_LONG.search(reason.lower()))


class Passing(Exception):
    """Trouble that may be over at the next attempt; `suspect` when the texts themselves may cause it."""

    def __init__(self, reason: str, *, retry_after: float | None = None, suspect: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.suspect = suspect

    def lasting(self) -> Refused | EmbedderUnavailable:
        """What it is when it has not passed."""
        if self.suspect:
            return Refused(self.reason)
        return EmbedderUnavailable(self.reason, retry_after=self.retry_after)


@dataclass(frozen=True)
class Reply:
    """A status, a Retry-After in seconds, and a body."""

    status: int
    retry_after: float | None
    body: bytes


@dataclass(frozen=True)
class Names:
    """What to call things when telling people about them."""

    service: str
    wrong_key: str
    missing_model: str
    url: str = "the embedder's url"


def check(reply: Reply, names: Names) -> None:
    """Raises what a reply other than 200 means."""
    status = reply.status
    if status == 200:
        return
    _check_quota(reply, names)
    said = f"{names.service} answered {status}{_said(reply.body)}"
    if status in (401, 403) or _GOOGLES_WRONG_KEY.search(reply.body):
        # The provider's own words are left out: some of them repeat the key.
        raise EmbedderUnavailable(names.wrong_key, permanent=True)
    if status == 404:
        raise EmbedderUnavailable(names.missing_model, permanent=True)
    if status in (400, 413, 422):
        too_long = " (too large)" if status == 413 else ""
        raise Refused(said + too_long, permanent=True)
    if status in (408, 425, 429, 502, 503, 504, 529):
        raise Passing(said, retry_after=reply.retry_after)
    if 300 <= status < 400:
        raise EmbedderUnavailable(f"{names.service} sends us elsewhere: set {names.url}", permanent=True)
    if status >= 500 or status < 300:
        raise Passing(said, retry_after=reply.retry_after, suspect=True)
    raise EmbedderUnavailable(said, permanent=True)


def decode(body: bytes, kind: type[T]) -> T:
    """The body as `kind`; raises Passing when it is something else or cut short."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        pass
    try:
        if b"NaN" in body or b"Infinity" in body:  # not JSON, yet Python servers write it
            return msgspec.convert(json.loads(body), kind)
    except (ValueError, RecursionError, msgspec.DecodeError):
        pass
    raise Passing(f"the provider's reply holds no embeddings{_said(body)}", suspect=True)


def _check_quota(reply: Reply, names: Names) -> None:
    text = reply.body.decode("utf-8", "replace")
    exhausted = reply.status == 402 or (
        reply.status in (403, 429) and any(f'"{code}"' in text for code in _QUOTA_CODES)
    )
    if reply.status == 429 and "RESOURCE_EXHAUSTED" in text and "quota" in text.lower():
        # Google says "quota" of every limit: those per minute come with a delay, those per day pass by themselves.
        if "PerDay" in text:
            raise EmbedderUnavailable(f"today's quota at {names.service} is used up", retry_after=_DAY_LIMIT_WAIT)
        delay = float(found[1]) if (found := _RETRY_DELAY.search(text)) else reply.retry_after
        if delay is not None or "PerMinute" in text:
            raise Passing(f"{names.service} limits the rate", retry_after=delay)
        exhausted = True
    if exhausted:
        raise EmbedderUnavailable(
            f"the quota at {names.service} is used up: check its plan and billing", permanent=True
        )


def _said(body: bytes) -> str:
    """The provider's own words in brief, if it has any."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail") if key in found), None)
    return f": {found[:200]}" if isinstance(found, str) and found else ""
