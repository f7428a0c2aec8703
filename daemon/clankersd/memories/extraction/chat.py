"""Client of an OpenAI-compatible chat API: asks for JSON, within budgets that survive a restart."""

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
JOB_KIND = "chat"
"""The kind of job under which every request is counted."""

MAX_REPLY_BYTES = 1024 * 1024
MAX_RETRIES = 2
MAX_REPLY_TOKENS = 1500
HOUR_MS = 3_600_000
CHARACTERS_PER_TOKEN = 4

_CODE_BLOCK = re.compile(r"^\s*```(?:json)?\s*(.*?)\s*```\s*$", re.DOTALL)
_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)


class ChatUnavailable(Exception):
    """The service does not answer now; `permanent` if it will not before the configuration changes."""

    def __init__(self, reason: str, *, retry_after: float | None = None, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.permanent = permanent


class ChatRefused(Exception):
    """This request has no usable answer: the service refuses it, or the answer is malformed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SessionBudgetSpent(ChatRefused):
    """The budget of requests about this session is spent."""


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
    """Address of the model, and limits on its use."""

    url: str
    model: str
    key_file: str
    seconds: float
    calls_per_hour: int
    calls_per_session: int


@dataclass(frozen=True)
class Answer:
    """The model's text, and the tokens of request and answer, estimated if the service does not count them."""

    text: str
    tokens: int


def chat_settings(config: Config) -> ChatSettings:
    """Return the chat settings in the configuration."""
    return ChatSettings(
        config.chat_url, config.chat_model, config.chat_key_file, config.chat_seconds,
        config.chat_calls_per_hour, config.chat_calls_per_session,
    )  # fmt: skip


class Chat:
    """Sends requests to the model, and counts each as a job before it is sent."""

    def __init__(
        self,
        settings: ChatSettings,
        jobs: Jobs,
        patience: RetryPolicy = RetryPolicy(retries=MAX_RETRIES),  # noqa: B008  # frozen
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
        self._lock = anyio.Lock()  # one request at a time: the budget is exact, and a local model not overloaded
        self._endpoint = Endpoint(url, "the chat service", settings.seconds, patience, ("Authorization", "Bearer "))
        # Optional parameters. One that the service rejects is left out from then on.
        self._options: dict[str, Any] = {
            "response_format": {"type": "json_object"},
            "temperature": 0,
            "max_tokens": MAX_REPLY_TOKENS,
        }

    async def ask(
        self, session_id: str, purpose: str, instructions: str, data: Any, answer_type: type[T]
    ) -> tuple[T, int]:
        """Return the model's answer about a session and its tokens; raises ChatRefused or ChatUnavailable.

        `data` is sent as JSON in a message of its own, so that no text in it can pass for instructions.
        """
        async with self._lock:
            await self._check_budget(session_id)
            async with self._jobs.track(JOB_KIND, f"session {session_id}") as job:
                answer = await self._send(instructions, msgspec.json.encode(data).decode())
                job.done = job.total = 1
                job.result = {"purpose": purpose, "tokens": answer.tokens}
                return decode_answer(answer.text, answer_type), answer.tokens
        raise ChatUnavailable("the request was cancelled")

    async def count_failures(self, session_id: str, since: int) -> int:
        """Count the failed requests about a session since a time."""
        return await self._jobs.count(JOB_KIND, since, f"session {session_id}", "failed")

    async def close(self) -> None:
        """Close connections after the request in progress."""
        async with self._lock:
            await self._endpoint.close()

    async def _check_budget(self, session_id: str) -> None:
        if await self._jobs.count(JOB_KIND, 0, f"session {session_id}") >= self.settings.calls_per_session:
            raise SessionBudgetSpent(
                f"the chat service was asked {self.settings.calls_per_session} times about this session"
            )
        if await self._jobs.count(JOB_KIND, clock.now() - HOUR_MS) >= self.settings.calls_per_hour:
            spent = f"the chat service was asked {self.settings.calls_per_hour} times in the last hour"
            raise ChatUnavailable(spent, retry_after=60)

    async def _send(self, instructions: str, data: str) -> Answer:
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": data}]
        try:
            reply = await self._endpoint.with_retries(lambda: self._send_once(messages), self._patience.retries)
        except RequestRejected as refusal:
            raise ChatRefused(refusal.reason) from refusal
        except ServiceUnavailable as error:
            raise ChatUnavailable(error.reason, retry_after=error.retry_after, permanent=error.permanent) from error
        if not reply.choices or not reply.choices[0].message.content:
            raise ChatRefused("the chat service's answer is empty")
        if reply.choices[0].finish_reason == "length":
            raise ChatRefused("the chat service's answer is cut off")
        text = reply.choices[0].message.content
        counted = reply.usage.total_tokens if reply.usage else 0
        return Answer(text, counted or (len(instructions) + len(data) + len(text)) // CHARACTERS_PER_TOKEN)

    async def _send_once(self, messages: list[dict[str, str]]) -> _Reply:
        key = find_key(self.settings.key_file, (), first_variable=API_KEY_VARIABLE)
        payload = {"model": self.settings.model, "messages": messages, **self._options}
        reply = await self._endpoint.post("/chat/completions", msgspec.json.encode(payload), key, MAX_REPLY_BYTES)
        try:
            check_status(reply, self._names(key))
        except RequestRejected as refusal:
            if self._drop_rejected_option(refusal.reason):
                raise TransientError(refusal.reason, suspect=True) from refusal
            raise
        try:
            return msgspec.json.decode(reply.body, type=_Reply)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestRejected("the chat service's reply is not a chat completion") from error

    def _drop_rejected_option(self, reason: str) -> bool:
        """Drop the optional parameter that a refusal names; False if it names none."""
        rejected = next((name for name in self._options if name in reason), None)
        if rejected is None:
            return False
        value = self._options.pop(rejected)
        if rejected == "max_tokens" and "max_completion_tokens" in reason:
            self._options["max_completion_tokens"] = value
        return True

    def _names(self, key: Key | None) -> ErrorTexts:
        service = self._endpoint.name
        wrong_key = f"{service} wants a key: set {API_KEY_VARIABLE} or chat_key_file"
        if key:
            wrong_key = f"{service} refuses the key in {key.source}: put a valid one there"
        missing = f"{service} has no model {self.settings.model}, or the url is wrong: set chat_model or chat_url"
        return ErrorTexts(service, wrong_key, missing, "chat_url")


def decode_answer(text: str, answer_type: type[T]) -> T:
    """Decode an answer as JSON, which some models wrap into a code block or precede with their reasoning."""
    text = _THINKING.sub("", text)
    if block := _CODE_BLOCK.match(text):
        text = block[1]
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=answer_type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ChatRefused(f"the model's answer is unusable: {str(error)[:200]}") from error
