"""Gemini CLI's texts: what the program wraps around the user's words and around a tool's output, removed."""

import re
from typing import Any

from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import readable, text

SHELL = "run_shell_command"
SNAPSHOT = "<state_snapshot>"
_HOOK_CONTEXT_TAGS = ("hook_context", "qwen:user-prompt-submit-context")
_PROGRAM_CONTEXT = ("<session_context>", "<loaded_context>", SNAPSHOT)
_UNTRUSTED, _UNTRUSTED_END = "<untrusted_context>", "</untrusted_context>"
_SHELL_TRAILER = ("Error: ", "Exit Code: ", "Signal: ", "Background PIDs: ", "Process Group PGID: ")
_EXIT_CODE = re.compile(r"^Exit Code: (-?\d+)$", re.MULTILINE)
EMPTY_OUTPUT = "(empty)"


def strip_hook_context(prompt: str) -> str:
    """Return a prompt without the context that hooks gave, which is before and after the user's words."""
    for tag in _HOOK_CONTEXT_TAGS:
        own, at = [], 0
        while (start := prompt.find(f"<{tag}>", at)) >= 0 and (end := prompt.find(f"</{tag}>", start)) >= 0:
            own.append(prompt[at:start].strip())
            at = end + len(tag) + 3
        if at:
            prompt = "\n".join([*own, prompt[at:].strip()]).strip()
    return prompt


def prompt_of(content: Any) -> str | None:
    """Return what the user said: none of the parts that are results of tools, or context of the program or of hooks."""
    parts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        parts = [part["text"] for part in content if isinstance(part, dict) and text(part, "text")]
    own = (strip_hook_context(part) for part in parts if not part.lstrip().startswith(_PROGRAM_CONTEXT))
    return "\n".join(part for part in own if part.strip()) or None


def snapshot_of(content: str) -> str | None:
    """Return the summary that a compression puts in the place of what was said."""
    _, _, rest = content.partition(SNAPSHOT)
    return rest.partition("</state_snapshot>")[0].strip() or None


def answer_of(content: Any) -> str | None:
    """Return what the model said: a text, or the text parts that are not thoughts."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and not part.get("thought")]
        content = "".join(part["text"] for part in parts if text(part, "text"))
    return content if isinstance(content, str) and content.strip() else None


def read_result(
    tool: str | None, for_model: str | None, display: Any, error: str | None
) -> tuple[bool, str | None, str | None]:
    """Return whether a tool succeeded, its output as the user sees it, and its error.

    A shell command that fails is a success to Gemini CLI; its exit code is in the result for the model.
    """
    content = strip_hook_context(for_model or error or "")
    wrapped = content.strip()
    if wrapped.startswith(_UNTRUSTED) and wrapped.endswith(_UNTRUSTED_END):
        content = wrapped[len(_UNTRUSTED) : -len(_UNTRUSTED_END)].removeprefix("\n").removesuffix("\n")
    if tool == SHELL and (result := _split_shell_result(content)):
        output, trailer = result
        code = _EXIT_CODE.search(trailer)
        if code and code[1] != "0":
            return False, output or None, f"exit code {code[1]}"
        return error is None, output or None, error
    if error is not None:
        return False, None, error
    return True, (display if isinstance(display, str) else content) or None, None


def _split_shell_result(content: str) -> tuple[str, str] | None:
    """Split the result of a shell command into its output and the lines that Gemini CLI adds; None for other texts."""
    output = content
    if content.startswith("Command: "):
        _, _, directory = content.partition("\nDirectory: ")
        _, _, output = directory.partition("\n")
    if not output.startswith("Output: "):
        return None
    output, trailer = output.removeprefix("Output: ").rstrip(), ""
    while (at := output.rfind("\n")) >= 0 and output.startswith(_SHELL_TRAILER, at + 1):
        output, trailer = output[:at], output[at + 1 :] + "\n" + trailer
    return "" if output == EMPTY_OUTPUT else output, trailer


def text_for_model(content: Any) -> str | None:
    """Return the text for the model of a tool's result, which is a text or a list of parts."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and text(part, "text")) or None
    return content if isinstance(content, str) else readable(content)


def response_of(call: Payload) -> tuple[str | None, str | None]:
    """Return the output and the error in the result of a recorded tool call."""
    output: list[str] = []
    error: str | None = None
    results = call.get("result")
    for part in results if isinstance(results, list) else []:
        answered = part.get("functionResponse") if isinstance(part, dict) else None
        response = answered.get("response") if isinstance(answered, dict) else None
        if isinstance(response, dict):
            error = error or readable(response.get("error"))
            if content := readable(response.get("output")):
                output.append(content)
    return "\n".join(output) or None, error
