"""Answers of the daemon as JSON for the page: terminal escapes removed, and nothing that HTML gives a meaning."""

import re
from typing import Any

import msgspec

from clankers_protocol.terminal import sanitize

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -~])")
"""Escape sequences: CSI such as colours, OSC such as titles and links, strings, and two-character ones."""

_MAY_NEED_CLEANING = re.compile(r"[^\t\n -~\u00a0-\u02ff\u0370-\u0590\u2010-\u2027\u2030-\u205e\u2190-\u27ff]")


def clean_text(text: str) -> str:
    """Return the text without terminal escapes; what else is invisible or reorders text becomes visible."""
    if not _MAY_NEED_CLEANING.search(text):
        return text
    return sanitize(_SEQUENCE.sub("", text))


def to_page_json(value: Any) -> bytes:
    """Encode an answer for the page. `<`, `>` and `&` are escaped, so that the JSON is inert inside HTML too."""
    cleaned = _clean(msgspec.to_builtins(value))
    encoded = msgspec.json.encode(cleaned)
    for character in (b"<", b">", b"&"):
        encoded = encoded.replace(character, b"\\u%04x" % ord(character))
    return encoded


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_clean(member) for member in value]
    return value
