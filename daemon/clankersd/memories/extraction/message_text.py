"""Message texts reduced to what their author wrote, without what harnesses add, pasted text, code and secrets."""

import re

from clankers_protocol.agent_text import strip_invisible
from clankersd.index.chunker import CJK
from clankersd.redaction.engine import redact

MAX_MEMORY_CHARS = 300
"""Length limit of an extracted memory."""

MAX_TYPED_CHARS = 3000
"""A longer message is mostly pasted text; its author's own words are at the beginning or the end."""

EXCERPT_CHARS = 1000
"""Length of the beginning and of the end taken from such a message."""

_PRIVATE = re.compile(
    r"<private(?:\s{1,20}(?:[a-z_-]{1,40}=[^<>]{0,200}(?<!/))?)?>.*?(?:</private\s{0,20}>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
# Tags in which harnesses and clankers inject text. Its author is no person, and extracting recalled memories would
# store them again.
_ENVELOPE = re.compile(
    r"<(?P<tag>[a-z][\w-]{0,40}?(?:reminder|context|memor|recall|instructions|caveat|notification|-std|hook)[\w-]{0,40}"
    r"|command-[a-z]{1,40}|bash-[a-z]{1,40}|local-command-[a-z]{1,40}|ide_\w{1,40}|analysis|summary|tool_result|tool_use"
    r"|memor\w{1,40}|context)\b[^>]{0,500}>.*?(?:</(?P=tag)>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_FENCE = re.compile(r"(?P<fence>```|~~~).*?(?:(?P=fence)|\Z)", re.DOTALL)
_NOT_PROSE = re.compile(r"\s*(?:>|#|\||\$ |//|/\*|@@|\+\+\+|---)")
_BULLET = re.compile(r"\s*(?:[-*•]|\d+[.)、])\s+")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[\"'”»)\]]*\s+(?=[^\sa-z])|(?<=[。！？])\s*(?=\S)")
_ENDS_WITH_PUNCTUATION = re.compile(r"[.!?…。！？:：]$")
_IDEOGRAPH = re.compile(f"[{CJK}]")

# In addition to the redaction of all captured text: a password given in a sentence.
_SPOKEN_SECRET = re.compile(
    r"(?i:pass(?:word|wd|phrase)|passwort|kennwort|secret|token|api[_ -]?key|密码|口令|密钥)"
    r"(?:[\"'`]?\s*[=:：]\s*[\"'`]?[^\s\"'`]{4,}|\s*(?:is|ist|lautet|是|为)\s*[\"'`]?(?=\S{0,60}\d)[^\s\"'`]{6,})"
)


def authored_text(text: str) -> str:
    """Remove injected text, private parts and code blocks."""
    text = _PRIVATE.sub(" ", strip_invisible(text))
    return _FENCE.sub("\n", _ENVELOPE.sub(" ", text)).strip()


def first_and_last_lines(text: str) -> str:
    """Return the beginning and the end of a long message, cut at line breaks if there are any."""
    if len(text) <= MAX_TYPED_CHARS:
        return text
    first, last = text[:EXCERPT_CHARS], text[-EXCERPT_CHARS:]
    return first.rpartition("\n")[0] + "\n\n" + last.partition("\n")[2]


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, without quotations, headings, tables and bullets."""
    sentences = []
    for line in text.split("\n"):
        if _NOT_PROSE.match(line):
            continue
        sentences += _END_OF_SENTENCE.split(_BULLET.sub("", line, count=1))
    return [" ".join(sentence.split()) for sentence in sentences if sentence.strip()]


def redact_secrets(text: str) -> str:
    """Replace everything that looks like a secret."""
    return _SPOKEN_SECRET.sub("[redacted:told]", redact(text)[0])


def has_secret(text: str) -> bool:
    """Check whether the text contains something like a secret, or the mark of one that was redacted."""
    return "[redacted:" in redact_secrets(text)


def count_ideographs(text: str) -> int:
    """Count the characters that are words by themselves."""
    return len(_IDEOGRAPH.findall(text))


def shorten(text: str, max_chars: int = MAX_MEMORY_CHARS) -> str:
    """Cut a text to a length, at the end of a word."""
    text = " ".join(text.split())
    if len(text) <= max_chars:
        return text
    shorter = text[: max_chars - 1]
    if " " in shorter[max_chars // 2 :]:
        shorter = shorter.rpartition(" ")[0]
    return shorter.rstrip(" ,;:") + "…"


def end_with_period(text: str) -> str:
    """Shorten a text and end it with a period of its own script."""
    text = shorten(text).rstrip(" ,;")
    if _ENDS_WITH_PUNCTUATION.search(text):
        return text
    return text + ("。" if count_ideographs(text[-2:]) else ".")
