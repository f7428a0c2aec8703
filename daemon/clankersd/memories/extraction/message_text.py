"""What somebody said in a message, without what harnesses, pasting and code put around it."""

import re

from clankers_protocol.agent_text import strip_invisible
from clankersd.capture.redaction import redact
from clankersd.index.chunker import CJK

MAX_MEMORY_CHARS = 300
"""Characters of a memory that was taken from a message."""

PASTED = 3000
"""Characters. A longer message is mostly pasted: what its author says stands at its beginning or at its end."""

END = 1000

_PRIVATE = re.compile(r"<private>.*?(?:</private>|\Z)", re.IGNORECASE | re.DOTALL)
# What harnesses and we ourselves wrap around what they add: never said by anybody, and never to be learnt again.
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
_CLOSED = re.compile(r"[.!?…。！？:：]$")
_IDEOGRAPHS = re.compile(f"[{CJK}]")

# Beside what is taken out of everything: a password in a sentence.
_TOLD = re.compile(
    r"(?i:pass(?:word|wd|phrase)|passwort|kennwort|secret|token|api[_ -]?key|密码|口令|密钥)"
    r"(?:[\"'`]?\s*[=:：]\s*[\"'`]?[^\s\"'`]{4,}|\s*(?:is|ist|lautet|是|为)\s*[\"'`]?(?=\S{0,60}\d)[^\s\"'`]{6,})"
)


def authored_text(text: str) -> str:
    """What the author of a message wrote: no envelopes, no private parts, no code blocks."""
    text = _PRIVATE.sub(" ", strip_invisible(text))
    return _FENCE.sub("\n", _ENVELOPE.sub(" ", text)).strip()


def first_and_last_lines(text: str) -> str:
    """A long message's beginning and end, in whole lines where there are any."""
    if len(text) <= PASTED:
        return text
    first, last = text[:END], text[-END:]
    return first.rpartition("\n")[0] + "\n\n" + last.partition("\n")[2]


def split_sentences(text: str) -> list[str]:
    """The sentences of what was said, without quotations, headings, tables and bullets."""
    lines = [line for line in text.split("\n") if line.strip() and not _NOT_PROSE.match(line)]
    found = [sentence for line in lines for sentence in _END_OF_SENTENCE.split(_BULLET.sub("", line, count=1))]
    return [" ".join(sentence.split()) for sentence in found if sentence.strip()]


def redact_secrets(text: str) -> str:
    """The text with everything that looks like a secret blacked out."""
    return _TOLD.sub("[redacted:told]", redact(text)[0])


def has_secret(text: str) -> bool:
    """Whether something in it looks like a secret, or did before it was taken out."""
    return "[redacted:" in redact_secrets(text)


def count_ideographs(text: str) -> int:
    """How many characters of the text are words by themselves."""
    return len(_IDEOGRAPHS.findall(text))


def shorten(text: str, longest: int = MAX_MEMORY_CHARS) -> str:
    """The text within a length, ended at a word."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    shorter = text[: longest - 1]
    return (shorter.rpartition(" ")[0] if " " in shorter[longest // 2 :] else shorter).rstrip(" ,;:") + "…"


def end_with_period(text: str) -> str:
    """The text with a full stop, of its own script."""
    text = shorten(text).rstrip(" ,;")
    if _CLOSED.search(text):
        return text
    return text + ("。" if count_ideographs(text[-2:]) else ".")
