"""Sanitizing of stored text before an agent reads it.

Everything that clankers puts into an agent's context passes through here: recall blocks, `memory.context` and the
answers of the MCP server. Stored text may come from a hostile file, web page or repository. Three things are removed:
characters that an agent reads and a person does not see; tags that end or imitate the block around the text, or speak
for the harness; and, where a text has to stay on one line, its line breaks.
"""

import re
import unicodedata
from functools import lru_cache

REPLACEMENT = "\ufffd"

_EMOJI = "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_ONE_EMOJI = f"[{_EMOJI}](?:[\ufe0e\ufe0f]|[\U0001f3fb-\U0001f3ff])?"
_JOINING = "\u0620-\u06dc\u06de-\u070e\u0710-\u0dff\u1780-\u17b3\u17b6-\u17ff\ufb50-\ufdcf\ufdf0-\ufdff\ufe70-\ufefc"
"""Scripts whose spelling needs the zero-width joiner and non-joiner: Arabic, Persian, Indic, Khmer."""

_TAGS = {
    name: "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f"
    for name in ("gbeng", "gbsct", "gbwls")
}
"""The flags of England, Scotland and Wales: the only emoji that are spelled with tag characters."""

_INVISIBLE = (
    "\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""Format characters, variation selectors, tag characters, fillers and whatever else Unicode lets renderers ignore.

The few format characters that are visible (U+0600 and its like) are not among them.
"""
_NONCHARACTERS = "".join(f"{chr(plane + 0xFFFE)}-{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
_UNPRINTABLE = rf"\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\U000f0000-\U000ffffd\U00100000-\U0010fffd{_NONCHARACTERS}"
VISIBLE_SEQUENCE = (
    f"{'|'.join(_TAGS.values())}|[0-9#*]\ufe0f\u20e3|{_ONE_EMOJI}(?:\u200d{_ONE_EMOJI})*"
    f"|(?<=[{_JOINING}])[\u200c\u200d](?=[{_JOINING}])"
)
"""Pattern of sequences in which an invisible character is part of what is seen: emoji, flags, joined letters."""

_CHARACTER = re.compile(
    f"(?P<keep>{VISIBLE_SEQUENCE})"
    "|(?P<newline>\r\n?|[\x0b\x0c\x85\u2028\u2029])"
    "|(?P<blank>[\x00-\x08\x0e-\x1f\x7f-\x9f\u2800])"
    f"|(?P<invisible>[{_INVISIBLE}]+)"
    f"|(?P<unprintable>[{_UNPRINTABLE}])"
)

_SUSPECT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u2800{_INVISIBLE}{_UNPRINTABLE}]")
"""Characters that make the slower checks of a text necessary."""

_BRACKETS = "‹〈\u2329⟨❬❮❰⧼≺ᐸ˂⦑𐒼ᚲ"
_LOOKALIKES = {
    **dict.fromkeys(_BRACKETS, "<"),
    **dict.fromkeys("⁄∕⧸╱⟋", "/"),
    **dict.fromkeys("‐‑‒–—―−⁃˗", "-"),
    **dict(zip("авсԁеһіјкӏмнопрѕтухѵԝ", "abcdehijklmhonpstyxvw", strict=True)),
    **dict(zip("αβεικνορτυχγω", "abeiknoptuxyw", strict=True)),
    **dict(zip("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢıɩℓⅼ", "abcdefghijklmnoprstuvwyzilll", strict=True)),
}
"""Characters that can stand for one of a tag's, beyond what Unicode's compatibility decomposition knows of."""

RESERVED_PREFIXES = (
    "clankers-recall",
    "recalled-memories",
    "system-reminder",
    "system-message",
    "system-prompt",
    "function_calls",
    "function_result",
    "antml:",
    "tool_use",
    "tool_result",
    "tool_call",
    "command-name",
    "command-message",
    "command-args",
    "local-command-",
    "bash-input",
    "bash-stdout",
    "bash-stderr",
    "task-notification",
    "user-prompt-submit-hook",
    "user-memory-input",
    "|im_start",
    "|im_end",
    "|endoftext",
    "|start_header_id",
    "|eot_id",
)
RESERVED_NAMES = ("system", "invoke")
"""Tags by which clankers or a harness marks what an agent reads; a prefix reserves whatever begins with it.

A name is reserved where a tag may stand: `<system>`, but not `List<System>`.
"""

_CANDIDATE = re.compile(rf"[<＜﹤≮≰≴≸{_BRACKETS}&%\\]")
"""Every character that an opening bracket can begin with, before it is folded."""

_OPENING = re.compile(
    r"<|&(?:amp;)*(?:lt|#0*60|#x0*3c);?|%(?:25)*3c"
    r"|\\(?:u003c|x3c|u0000003c|[ux]\{0*3c\}|0?74|0{0,4}3c|n\{less-than sign\})"
)
_BEFORE_NAME = re.compile(r"[\s/\\!?<]*")
_NAME_END = re.compile(r">|&(?:amp;)*(?:gt|#)")
_WINDOW_CHARACTERS = 96
"""Characters from an opening bracket on that are looked at for a reserved name."""


def _skeleton(name: str) -> str:
    """Reduce a folded name to its letters, so that `reca11`, `recaII` and `re-call` are all the same."""
    return "".join(
        "l" if letter in "1i|" else "o" if letter == "0" else letter
        for letter in name
        if letter.isalnum() or letter == "|"
    )


_PREFIX_SKELETONS = tuple(map(_skeleton, RESERVED_PREFIXES))
_NAME_SKELETONS = frozenset(map(_skeleton, RESERVED_NAMES))
_INITIALS = frozenset(name[0] for name in (*_PREFIX_SKELETONS, *_NAME_SKELETONS)) | frozenset("1i|")


def clean_line(text: str, max_characters: int | None = None) -> str:
    """Return text on one line that cannot end the block it is put into nor pass for a tag, cut to a length."""
    if max_characters is not None:
        text = text[: max_characters * _LONGEST_CLUSTER]  # the rest cannot be shown: do not spend time on it
    cleaned = " ".join(_without_tags(strip_invisible(text), every=True).split())
    if max_characters is None or len(cleaned) <= max_characters:
        return cleaned
    return cleaned[: max_characters - 1] + "…"


_LONGEST_CLUSTER = 16
"""Characters of the source for one that is shown; a text that hides more than that is cut short."""


def clean_text(text: str) -> str:
    """Return text with its lines and its markup, but without reserved tags and invisible characters."""
    return _without_tags(strip_invisible(text), every=False)


def strip_invisible(text: str) -> str:
    """Remove characters that nobody sees; keep emoji sequences whole, and the spelling of scripts that need joiners.

    Control characters become spaces, line separators become newlines, and what has no glyph becomes U+FFFD.
    """
    if not _SUSPECT.search(text):
        return text
    return _CHARACTER.sub(_replace_character, text)


def _replace_character(found: re.Match[str]) -> str:
    kind = str(found.lastgroup)
    return found[0] if kind == "keep" else {"newline": "\n", "blank": " ", "unprintable": REPLACEMENT}.get(kind, "")


def _without_tags(text: str, *, every: bool) -> str:
    """Replace the bracket that opens a reserved tag, however the tag is spelled, or that opens any tag."""
    pieces: list[str] = []
    copied = 0
    for candidate in _CANDIDATE.finditer(text):
        start = candidate.start()
        if start < copied:
            continue
        folded, positions = _fold(text[start : start + _WINDOW_CHARACTERS])
        bracket = _OPENING.match(folded)
        if bracket is None:
            continue
        if _opens_reserved(folded[bracket.end() :], after_word=text[start - 1 : start].isalnum()):
            replacement = "("
        elif every and text[start] in "<＜﹤" and _TAG_FOLLOWS.match(folded, bracket.end()):
            replacement = "‹"
        else:
            continue
        pieces += (text[copied:start], replacement)
        copied = start + positions[bracket.end() - 1] + 1
    return "".join([*pieces, text[copied:]])


_TAG_FOLLOWS = re.compile("[/!?a-z]")


def _opens_reserved(following: str, *, after_word: bool) -> bool:
    name = following[_BEFORE_NAME.match(following).end() :]  # type: ignore[union-attr]  # it matches nothing, too
    if name[:1] not in _INITIALS:
        return False
    name = _NAME_END.split(name, maxsplit=1)[0]
    if _skeleton(name).startswith(_PREFIX_SKELETONS):
        return True
    return not after_word and _skeleton(name.split(maxsplit=1)[0]) in _NAME_SKELETONS


def _fold(text: str) -> tuple[str, range | list[int]]:
    """Spell a text in lower-case ASCII where it can be read as such, with the position that each character is from."""
    if text.isascii():
        return text.lower(), range(len(text))
    folded: list[str] = []
    positions: list[int] = []
    for position, character in enumerate(text):
        for part in _fold_character(character):
            folded.append(part)
            positions.append(position)
    return "".join(folded), positions


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", _LOOKALIKES.get(character, character)).casefold()
    return "".join(_LOOKALIKES.get(part, part) for part in decomposed if not unicodedata.combining(part))
