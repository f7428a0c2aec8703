"""Make text safe to show on a terminal. Standard library only."""

import re

from clankers_protocol.agent_text import VISIBLE_SEQUENCE

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Control characters become pictures of themselves; newline and tab stay. Some terminals take U+009B for ESC [.
_CONTROLS: dict[int, str] = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_CONTROLS |= {0x7F: "\N{SYMBOL FOR DELETE}"} | dict.fromkeys(range(0x80, 0xA0), REPLACEMENT)

# Separators of lines and paragraphs, and characters that change the direction of the text around them.
_DIRECTION = "\u2028\u2029\u202a-\u202e\u2066-\u2069"

# Characters without a shape: soft hyphen, fillers, zero-width space, direction marks, invisible operators, joiners,
# variation selectors, deprecated format characters, byte order mark, interlinear annotations, musical and shorthand
# controls, the empty braille pattern.
_INVISIBLE = (
    "\xad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2065\u206a-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0080-\U000e0fff"
)
_TAGS = "\U000e0000-\U000e007f"
_IDEOGRAPH = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

_SEQUENCE = re.compile(
    f"(?P<keep>{VISIBLE_SEQUENCE}|(?<=[{_IDEOGRAPH}])[\ufe00-\ufe02\U000e0100-\U000e01ef])"
    f"|(?P<replace>[{_DIRECTION}]|[{_TAGS}]+)|(?P<remove>[{_INVISIBLE}]+)"
)
_UNSAFE_IN_JSON = re.compile(f"(?P<keep>{VISIBLE_SEQUENCE})|[\x7f-\x9f{_DIRECTION}{_INVISIBLE}{_TAGS}]")
_CLUSTER = re.compile(rf"(?:{VISIBLE_SEQUENCE}|.)[\u0300-\u036f\u20d0-\u20ff]*", re.DOTALL)


def sanitize(text: str) -> str:
    """Return the text without anything that commands a terminal, reorders what it shows, or hides in it.

    Newlines, tabs and emoji stay, joined emoji and flags too.
    """
    text = text.replace("\r\n", "\n").translate(_CONTROLS)
    return text if text.isascii() else _SEQUENCE.sub(_make_visible, text)


def escape_json(text: str) -> str:
    """Return JSON that means the same, with everything escaped that a terminal should not get."""
    return _UNSAFE_IN_JSON.sub(_escape, text)


def clusters(text: str) -> list[str]:
    """Split a text into what is seen as one character, so that it can be cut between two."""
    return _CLUSTER.findall(text)


def _make_visible(found: re.Match[str]) -> str:
    return found["keep"] or (REPLACEMENT if found["replace"] else "")


def _escape(found: re.Match[str]) -> str:
    if found["keep"]:
        return found["keep"]
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
