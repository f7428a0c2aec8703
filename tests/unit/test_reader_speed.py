"""Readers of harnesses take time in proportion to a text: one slow regular expression would stop all threads."""

import time
from collections.abc import Callable

import pytest

from clankersd.capture.continuation import strip_continuation_orders
from clankersd.capture.harnesses.claude_code.prices import message_cost
from clankersd.capture.harnesses.claude_code.transcripts import prompt_of
from clankersd.capture.harnesses.codex.tools import patched_file
from clankersd.capture.harnesses.gemini.texts import SHELL, read_result, strip_hook_context
from clankersd.recall.summaries.shell_files import patched_files

CASES: dict[str, tuple[Callable[[str], object], str, str]] = {
    "prompt of spaces": (strip_hook_context, "x", " "),
    "prompt of open tags": (strip_hook_context, "", "<hook_context>"),
    "shell output of line breaks": (lambda text: read_result(SHELL, f"{text}x", None, None), "Output: ", "\n "),
    "untrusted output": (lambda text: read_result(None, text, None, None), "<untrusted_context>", "\n</untrusted_"),
    "patch of spaces": (lambda text: patched_file(f"{text}x", None), "*** Begin Patch\n*** Add File: ", " "),
    "summary of spaces": (lambda text: strip_continuation_orders(f"{text}x"), "", " "),
    "command": (prompt_of, "<command-message>", "</command-message>  <command-"),
    "unified diff of one line": (patched_files, "--- a/", "x"),
    "unified diff of headers": (patched_files, "", "--- a/x\t2026\n"),
    "model": (lambda text: message_cost(text, {"input_tokens": 1}), "", "claude-"),
}


@pytest.mark.parametrize("name", CASES)
def test_time_grows_linearly_with_the_text(name: str) -> None:
    """Four times the text takes about four times as long; with a quadratic search it would be sixteen times."""
    read, beginning, piece = CASES[name]

    def seconds(characters: int) -> float:
        text = beginning + piece * (characters // len(piece))
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            read(text)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(40_000) < 9 * max(seconds(10_000), 0.0005)


def test_texts_of_gemini_are_read_as_they_are_written() -> None:
    assert strip_hook_context("  a <hook_context>x</hook_context>\n<hook_context>y</hook_context> b ") == "a\n\nb"
    assert strip_hook_context(" nothing <hook_context> to strip ") == " nothing <hook_context> to strip "
    shell = "Command: ls\nDirectory: (root)\nOutput: one\ntwo\nError: (none)\nExit Code: 2\n"
    assert read_result(SHELL, shell, None, None) == (False, "one\ntwo", "exit code 2")
    assert read_result(SHELL, "Output: (empty)\nExit Code: 0", None, None) == (True, None, None)
    assert read_result(None, " <untrusted_context>\n a\n</untrusted_context>\n", None, None) == (True, " a", None)
