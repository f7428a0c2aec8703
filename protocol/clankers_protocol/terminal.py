"""Make text safe to show on a terminal. Standard library only."""

import re

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Control characters become pictures of themselves; newline and tab stay. Some terminals take U+009B for ESC [.
_CONTROLS: dict[int, str] = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_CONTROLS |= {0x7F: "\N{SYMBOL FOR DELETE}"} | dict.fromkeys(range(0x80, 0xA0), REPLACEMENT)

# Separators of lines and paragraphs, and characters that change the direction of the text around them.
_DIRECTION = "\u2028\u2029\u202a-\u202e\u2066-\u2069"

# Characters without a shape: soft hyphen, fillers, zero-width space, direction marks, invisible operators,
# deprecated format characters, byte order mark, interlinear annotations.
_SHAPELESS = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2060-\u2065\u206a-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb"
)
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_JOINERS = "\u200c\u200d"
_TAGS = "\U000e0000-\U000e007f"

_NATIONS = ("gbeng", "gbsct", "gbwls")
_FLAGS = "|".join("".join(chr(0xE0000 + ord(letter)) for letter in nation) + "\U000e007f" for nation in _NATIONS)

_REORDERING = re.compile(f"[{_DIRECTION}]")
_INVISIBLE = re.compile(f"[{_SHAPELESS}]")
_TAGGED = re.compile(f"(\U0001f3f4(?:{_FLAGS}))|[{_TAGS}]+")
_JOINED = re.compile(f"([^\\s{_SELECTORS}{_JOINERS}]?)([{_SELECTORS}{_JOINERS}]+)")
_ONE_JOINER = re.compile(f"[{_SELECTORS}]?[{_JOINERS}]?")
_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f{_DIRECTION}{_SHAPELESS}{_SELECTORS}{_JOINERS}{_TAGS}]")


def sanitize(text: str) -> str:
    """Return the text without anything that commands a terminal, reorders what it shows, or hides in it.

    Newlines, tabs and emoji stay, joined emoji and flags too.
    """
    text = text.replace("\r\n", "\n").translate(_CONTROLS)
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", _REORDERING.sub(REPLACEMENT, text))
    text = _TAGGED.sub(lambda found: found[1] or REPLACEMENT, text)
    return _JOINED.sub(_keep_one_joiner, text)


def escape_json(text: str) -> str:
    """Return JSON that means the same, with everything escaped that a terminal should not get."""
    return _UNSAFE_IN_JSON.sub(_escape, text)


def _keep_one_joiner(found: re.Match[str]) -> str:
    """Keep one variation selector and one joiner after a visible character: more of them hide data."""
    character, run = found.groups()
    allowed = _ONE_JOINER.match(run)
    return character + allowed[0] if character and allowed else character


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
