"""A chat model behind an OpenAI-compatible address: asked for JSON, within limits that a restart does not lift."""

import re
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import msgspec

from clankersd import clock
from clankersd.config import Config
from clankersd.http.api_keys import Key, find_key
from clankersd.http.client import Endpoint, validate_url
from clankersd.http.responses import ErrorTexts, RequestRejected, ServiceUnavailable, TransientError, check_status
from clankersd.http.retry import RetryPolicy
from clankersd.wire.jobs import Jobs

T = TypeVar("T")

API_KEY_VARIABLE = "CLANKERS_CHAT_KEY"
KIND = "chat"
"""The kind of job under which every question is counted."""

LARGEST_REPLY = 1024 * 1024
RETRIES = 2
REPLY_TOKENS = 1500
HOUR_MS = 3_600_000
CHARACTERS_PER_TOKEN = 4

_FENCED = re.compile(r"^\s*```(?:json)?\s*(.*?)\s*```\s*$", re.DOTALL)
_THOUGHT = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)


class ChatUnavailable(Exception):
    """No answer now; `permanent` when waiting will not help until somebody changes something."""

    def __init__(self, reason: str, *, retry_after: float | None = None, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.permanent = permanent


class ChatRefused(Exception):
    """This question has no usable answer: the service refuses it, or what it says is garbage."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SessionBudgetSpent(ChatRefused):
    """No more may be asked about this session."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    total_tokens: int = 0


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


@dataclass(frozen=True)
class ChatSettings:
    """Where the model is, and what it may cost."""

    url: str
    model: str
    key_file: str
    seconds: float
    calls_per_hour: int
    calls_per_session: int


@dataclass(frozen=True)
class Answer:
    """What the model wrote, and about how many tokens question and answer took."""

    text: str
    tokens: int


def chat_settings(config: Config) -> ChatSettings:
    """What the configuration says of the model."""
    return ChatSettings(
        config.chat_url, config.chat_model, config.chat_key_file, config.chat_seconds,
        config.chat_calls_per_hour, config.chat_calls_per_session,
    )  # fmt: skip


class Chat:
    """ScopedRequest the model, and counts each question as a job before it is sent."""

    def __init__(
        self,
        settings: ChatSettings,
        jobs: Jobs,
        patience: RetryPolicy = RetryPolicy(retries=RETRIES),  # noqa: B008 - frozen
    ) -> None:
        if not settings.url or not settings.model:
            raise ChatUnavailable("no chat service is configured: set chat_url and chat_model", permanent=True)
        try:
            url = validate_url(settings.url, "chat_url")
        except ServiceUnavailable as error:
            raise ChatUnavailable(error.reason, permanent=True) from error
        self.settings = settings
        self._jobs = jobs
        self._patience = patience
        self._turn = anyio.Lock()  # one question at a time: the budget is exact, and a local model not overrun
        self._endpoint = Endpoint(url, "the chat service", settings.seconds, patience, ("Authorization", "Bearer "))
        # What a service may not know; one that says so is asked without it.
        self._wishes: dict[str, Any] = {
            "response_format": {"type": "json_object"},
            "temperature": 0,
            "max_tokens": REPLY_TOKENS,
        }

    async def ask(self, about: str, purpose: str, orders: str, data: Any, kind: type[T]) -> tuple[T, int]:
        """The model's answer about a session as `kind`, and the tokens it took; raises ChatRefused or ChatUnavailable.

        `data` goes as JSON, apart from the orders, so that nothing in it can end where they begin.
        """
        async with self._turn:
            await self._check_budget(about)
            async with self._jobs.track(KIND, _note(about)) as job:
                answer = await self._answer(orders, msgspec.json.encode(data).decode())
                job.done = job.total = 1
                job.result = {"purpose": purpose, "tokens": answer.tokens}
                return decode_answer(answer.text, kind), answer.tokens
        raise ChatUnavailable("the question was cancelled")

    async def failures(self, about: str, since: int) -> int:
        """How many questions about a session came to nothing since then."""
        return await self._jobs.count(KIND, since, _note(about), "failed")

    async def close(self) -> None:
        """Give back connections, once nobody waits for an answer."""
        async with self._turn:
            await self._endpoint.close()

    async def _check_budget(self, about: str) -> None:
        if await self._jobs.count(KIND, 0, _note(about)) >= self.settings.calls_per_session:
            raise SessionBudgetSpent(
                f"the chat service was asked {self.settings.calls_per_session} times about this session"
            )
        if await self._jobs.count(KIND, clock.now() - HOUR_MS) >= self.settings.calls_per_hour:
            spent = f"the chat service was asked {self.settings.calls_per_hour} times in the last hour"
            raise ChatUnavailable(spent, retry_after=60)

    async def _answer(self, orders: str, data: str) -> Answer:
        messages = [{"role": "system", "content": orders}, {"role": "user", "content": data}]
        try:
            reply = await self._endpoint.with_retries(lambda: self._ask_once(messages), self._patience.retries)
        except RequestRejected as refusal:
            raise ChatRefused(refusal.reason) from refusal
        except ServiceUnavailable as error:
            raise ChatUnavailable(error.reason, retry_after=error.retry_after, permanent=error.permanent) from error
        text = _said(reply)
        counted = reply.usage.total_tokens if reply.usage else 0
        return Answer(text, counted or (len(orders) + len(data) + len(text)) // CHARACTERS_PER_TOKEN)

    async def _ask_once(self, messages: list[dict[str, str]]) -> _Reply:
        key = find_key(self.settings.key_file, (), first_variable=API_KEY_VARIABLE)
        payload = {"model": self.settings.model, "messages": messages, **self._wishes}
        reply = await self._endpoint.post("/chat/completions", msgspec.json.encode(payload), key, LARGEST_REPLY)
        try:
            check_status(reply, self._names(key))
        except RequestRejected as refusal:
            if self._give_way(refusal.reason):
                raise TransientError(refusal.reason, suspect=True) from refusal
            raise
        return _checked(reply.body)

    def _give_way(self, reason: str) -> bool:
        """Whether the service refuses one of our wishes, which is then no longer made."""
        unknown = next((wish for wish in self._wishes if wish in reason), None)
        if unknown is None:
            return False
        wanted = self._wishes.pop(unknown)
        if unknown == "max_tokens" and "max_completion_tokens" in reason:
            self._wishes["max_completion_tokens"] = wanted
        return True

    def _names(self, key: Key | None) -> ErrorTexts:
        service = self._endpoint.name
        wrong_key = f"{service} wants a key: set {API_KEY_VARIABLE} or chat_key_file"
        if key:
            wrong_key = f"{service} refuses the key in {key.source}: put a valid one there"
        missing = f"{service} has no model {self.settings.model}, or the url is wrong: set chat_model or chat_url"
        return ErrorTexts(service, wrong_key, missing, "chat_url")


def _note(about: str) -> str:
    return f"session {about}"


def _checked(body: bytes) -> _Reply:
    try:
        return msgspec.json.decode(body, type=_Reply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRejected("the chat service's reply is not what a chat service says") from error


def _said(reply: _Reply) -> str:
    if not reply.choices or not reply.choices[0].message.content:
        raise ChatRefused("the chat service said nothing")
    if reply.choices[0].finish_reason == "length":
        raise ChatRefused("the chat service's answer is cut off")
    return reply.choices[0].message.content


def decode_answer(text: str, kind: type[T]) -> T:
    """The answer as JSON, which some models wrap into a code block or precede with their thoughts."""
    text = _THOUGHT.sub("", text)
    fenced = _FENCED.match(text)
    try:
        return msgspec.json.decode((fenced[1] if fenced else text).encode("utf-8", "replace"), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ChatRefused(f"the model's answer is unusable: {str(error)[:200]}") from error
