"""A model on loopback that says what a test wrote down, in the APIs of Anthropic, OpenAI (both of them) and Google.

A prompt that begins with `[[name]]` is answered from the script of that name, one reply for each request of that turn.
A request to sum up is answered with a summary, every other (titles, warm-ups) with a sentence. What was said is noted,
with the tokens that were counted for it, so that a test can compare.
"""

import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SUMMARY = "The greeting was written and checked."
ASIDE = "Noted."

_NAME = re.compile(r'\s*"?\[\[([\w-]+)\]\]')
# What OpenClaw puts before a prompt: the time, and what a plugin adds.
_STAMP = re.compile(r"\A\s*\[\w{3} \d{4}-\d\d-\d\d [^\]]+\]\s*")
_RECALLED = re.compile(r"\A\s*<clankers-recall>.*?</clankers-recall>\s*", re.DOTALL)
_HOOK_CONTEXT = re.compile(r"\s*<hook_context>.*?</hook_context>\s*", re.DOTALL)
_PROGRAM_CONTEXT = re.compile(r"\s*<(current_datetime|system_reminder)>.*?</\1>\s*", re.DOTALL)
_SUMMARISE = re.compile(r"(detailed|anchored|structured) summary|summar(y|ize) (of )?(the|our) conversation", re.I)


@dataclass(frozen=True)
class Use:
    """A tool the model wants to use."""

    tool: str
    input: Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """What the model says, the tools it uses, and for how many tokens of prompt: many make a harness compact.

    With an HTTP status, the request fails and the text is the error's.
    """

    text: str = ""
    uses: Sequence[Use] = ()
    prompt_tokens: int | None = None
    status: int = 200


@dataclass(frozen=True)
class Said:
    """A reply that was given: to which script and step, as which message, for how many tokens."""

    script: str | None
    step: int
    reply: Reply
    message_id: str
    tool_ids: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    request: Mapping[str, Any]


@dataclass
class MockModel:
    """The scripts by name, and what was said so far."""

    scripts: Mapping[str, Sequence[Reply]]
    said: list[Said] = field(default_factory=list)
    url: str = ""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, *names: str) -> list[Said]:
        """What was said in the scripts of these names."""
        return [one for one in self.said if one.script in names]

    def answer(self, request: Mapping[str, Any]) -> Said:
        """The reply to a request of either API, noted."""
        messages = request["messages"]
        script, step = _where(messages) if request.get("tools") else (None, 0)
        if _SUMMARISE.search(_text(messages[-1])):
            script, reply = "summary", Reply(f"<analysis>\nAll of it.\n</analysis>\n<summary>\n{SUMMARY}\n</summary>")
        else:
            reply = self._reply(script, step)
        with self._lock:
            number = next(self._numbers)
            uses = tuple(f"toolu_{number:04}_{place}" for place, _ in enumerate(reply.uses))
            # Different for each reply, so that one counted twice or not at all cannot go unnoticed.
            tokens = reply.prompt_tokens or 1_000 + 7 * number * number, 50 + 3 * number
            said = Said(script, step, reply, f"msg_mock{number:04}", uses, *tokens, request)
            self.said.append(said)
        return said

    def _reply(self, script: str | None, step: int) -> Reply:
        steps = self.scripts.get(script or "", ())
        return steps[step] if step < len(steps) else Reply(ASIDE)


def _where(messages: Sequence[Mapping[str, Any]]) -> tuple[str | None, int]:
    """Which script the last prompt asks for, and how many replies it has had. A prompt without a name has none."""
    replies = 0
    for message in reversed(messages):
        if message["role"] == "assistant":
            replies += 1
        elif message["role"] == "user" and _is_prompt(message):
            texts = [_PROGRAM_CONTEXT.sub("", _typed(text)) for text in _texts(message)]
            names = [found[1] for text in texts if (found := _NAME.match(text))]
            if names:
                return names[-1], replies
            if not all(text.lstrip().startswith("<") for text in _texts(message)):
                return None, replies
    return None, replies


def _typed(text: str) -> str:
    """A prompt as the user typed it."""
    return _RECALLED.sub("", _STAMP.sub("", text))


def _is_prompt(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, str) or not any(part.get("type") == "tool_result" for part in content)


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [part["text"] for part in content if part.get("type") == "text"]


def _text(message: Mapping[str, Any]) -> str:
    return "\n".join(_texts(message))


def anthropic_events(said: Said, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The reply as the Messages API streams it."""
    usage = {"input_tokens": said.prompt_tokens, "output_tokens": 1}
    head = {"id": said.message_id, "type": "message", "role": "assistant", "model": model, "content": []}
    yield "message_start", {"message": head | {"stop_reason": None, "stop_sequence": None, "usage": usage}}
    for index, (block, delta) in enumerate(_blocks(said)):
        yield "content_block_start", {"index": index, "content_block": block}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    stop = {"stop_reason": "tool_use" if said.reply.uses else "end_turn", "stop_sequence": None}
    yield "message_delta", {"delta": stop, "usage": {"output_tokens": said.completion_tokens}}
    yield "message_stop", {}


def _blocks(said: Said) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    if said.reply.text:
        yield {"type": "text", "text": ""}, {"type": "text_delta", "text": said.reply.text}
    for use, use_id in zip(said.reply.uses, said.tool_ids, strict=True):
        block = {"type": "tool_use", "id": use_id, "name": use.tool, "input": {}}
        yield block, {"type": "input_json_delta", "partial_json": json.dumps(use.input)}


def anthropic_message(said: Said, model: str) -> dict[str, Any]:
    """The reply as the Messages API gives it at once."""
    text = [{"type": "text", "text": said.reply.text}] if said.reply.text else []
    uses = [
        {"type": "tool_use", "id": use_id, "name": use.tool, "input": use.input}
        for use, use_id in zip(said.reply.uses, said.tool_ids, strict=True)
    ]
    usage = {"input_tokens": said.prompt_tokens, "output_tokens": said.completion_tokens}
    stop = {"stop_reason": "tool_use" if uses else "end_turn", "stop_sequence": None}
    head = {"id": said.message_id, "type": "message", "role": "assistant", "model": model}
    return head | stop | {"content": text + uses, "usage": usage}


def openai_chunks(said: Said, model: str) -> Iterator[dict[str, Any]]:
    """The reply as chat completions stream it."""
    head = {"id": said.message_id, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}
    calls = [
        {"index": index, "id": use_id, "type": "function", "function": _function(use)}
        for index, (use, use_id) in enumerate(zip(said.reply.uses, said.tool_ids, strict=True))
    ]
    delta = {"role": "assistant", "content": said.reply.text} | ({"tool_calls": calls} if calls else {})
    yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]}
    total = said.prompt_tokens + said.completion_tokens
    usage = {"prompt_tokens": said.prompt_tokens, "completion_tokens": said.completion_tokens, "total_tokens": total}
    yield head | {"choices": [], "usage": usage}


def _function(use: Use) -> dict[str, str]:
    return {"name": use.tool, "arguments": json.dumps(use.input)}


def messages_of_responses(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The input of the Responses API as messages: what the model said at once is one of them."""
    messages: list[dict[str, Any]] = []
    for item in request["input"]:
        kind, role = item.get("type", "message"), item.get("role")
        if kind.endswith("_output"):
            messages.append({"role": "tool", "content": str(item.get("output"))})
        elif kind == "message" and role == "user":
            texts = [{"type": "text", "text": part.get("text", "")} for part in item["content"]]
            messages.append({"role": "user", "content": texts})
        elif role not in ("developer", "system") and (not messages or messages[-1]["role"] != "assistant"):
            messages.append({"role": "assistant", "content": ""})
    return messages


def responses_events(said: Said) -> Iterator[dict[str, Any]]:
    """The reply as the Responses API streams it."""
    yield {"type": "response.created", "response": {"id": said.message_id}}
    if said.reply.text:
        content = [{"type": "output_text", "text": said.reply.text, "annotations": []}]
        message = {"type": "message", "id": f"{said.message_id}-text", "role": "assistant", "content": content}
        yield {"type": "response.output_item.done", "item": message}
    for use, use_id in zip(said.reply.uses, said.tool_ids, strict=True):
        namespace, _, name = use.tool.rpartition("__")
        call = {"id": f"fc-{use_id}", "call_id": use_id, "name": name}
        if use.tool == "apply_patch":
            call |= {"type": "custom_tool_call", "input": use.input["input"]}
        else:
            call |= {"type": "function_call", "arguments": json.dumps(use.input)}
        yield {"type": "response.output_item.done", "item": call | ({"namespace": namespace} if namespace else {})}
    usage = {
        "input_tokens": said.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": said.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": said.prompt_tokens + said.completion_tokens,
    }
    yield {"type": "response.completed", "response": {"id": said.message_id, "usage": usage}}


def messages_of_contents(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The contents of Google's API as messages, without the context that hooks put before the prompt."""
    messages: list[dict[str, Any]] = []
    for content in request["contents"]:
        parts = content.get("parts", [])
        if content.get("role") == "model":
            messages.append({"role": "assistant", "content": ""})
        elif any("functionResponse" in part for part in parts):
            messages.append({"role": "tool", "content": json.dumps(parts)})
        else:
            texts = [_HOOK_CONTEXT.sub("", part.get("text", "")) for part in parts]
            messages.append({"role": "user", "content": [{"type": "text", "text": text} for text in texts if text]})
    return messages


def google_reply(said: Said) -> dict[str, Any]:
    """The reply as Google's API gives it."""
    parts: list[dict[str, Any]] = [{"text": said.reply.text}] if said.reply.text else []
    parts += [{"functionCall": {"name": use.tool, "args": use.input}} for use in said.reply.uses]
    usage = {
        "promptTokenCount": said.prompt_tokens,
        "candidatesTokenCount": said.completion_tokens,
        "totalTokenCount": said.prompt_tokens + said.completion_tokens,
    }
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: MockModel

    def do_HEAD(self) -> None:
        self._send(b"", "text/plain")

    def do_GET(self) -> None:
        self._json({"data": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            self._json({"input_tokens": len(body) // 4})
        elif path.endswith("/messages"):
            self._messages(json.loads(body))
        elif path.endswith("/chat/completions"):
            self._chat(json.loads(body))
        elif path.endswith("/responses"):
            self._responses(json.loads(body))
        elif path.endswith(("GenerateContent", ":generateContent")):
            self._contents(json.loads(body), streams=path.endswith("streamGenerateContent"))
        elif path.endswith(":countTokens"):
            self._json({"totalTokens": len(body) // 4})
        else:
            self._json({})

    def _messages(self, request: dict[str, Any]) -> None:
        said, model = self.model.answer(request), request["model"]
        if not request.get("stream"):
            self._json(anthropic_message(said, model))
            return
        events = (
            f"event: {name}\ndata: {json.dumps({'type': name} | data)}\n\n"
            for name, data in anthropic_events(said, model)
        )
        self._send("".join(events).encode(), "text/event-stream")

    def _chat(self, request: dict[str, Any]) -> None:
        said = self.model.answer(request)
        if said.reply.status != 200:
            problem = {"message": said.reply.text, "type": "invalid_request_error", "code": None}
            self._send(json.dumps({"error": problem}).encode(), "application/json", said.reply.status)
            return
        chunks = [f"data: {json.dumps(chunk)}\n\n" for chunk in openai_chunks(said, request["model"])]
        self._send(("".join(chunks) + "data: [DONE]\n\n").encode(), "text/event-stream")

    def _responses(self, request: dict[str, Any]) -> None:
        said = self.model.answer(request | {"messages": messages_of_responses(request)})
        events = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in responses_events(said))
        self._send("".join(events).encode(), "text/event-stream")

    def _contents(self, request: dict[str, Any], *, streams: bool) -> None:
        reply = google_reply(self.model.answer(request | {"messages": messages_of_contents(request)}))
        if streams:
            self._send(f"data: {json.dumps(reply)}\n\n".encode(), "text/event-stream")
        else:
            self._json(reply)

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def mock_model(scripts: Mapping[str, Sequence[Reply]]) -> Iterator[MockModel]:
    """A model that listens on loopback inside the block."""
    model = MockModel(scripts)
    handler = type("Handler", (_Handler,), {"model": model})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        model.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()
