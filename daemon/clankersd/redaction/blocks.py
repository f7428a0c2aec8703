"""Find blocks that are secret as a whole: private text, private keys, values of Kubernetes Secrets."""

import re
from collections.abc import Iterator

from clankersd.redaction.checks import is_placeholder
from clankersd.redaction.secret import Secret

_PRIVATE_TAG = re.compile(rb"<(/?)private(?:\s{1,20}(?:[a-z_-]{1,40}=[^<>]{0,200}(?<!/))?)?>")
_SPACE = rb"(?: |%20|\+)"
_PEM_BEGIN = re.compile(
    rb"-----BEGIN%s(?:[A-Za-z0-9 +]|%%20){0,40}(?:PRIVATE%sKEY(?:%sBLOCK)?|Static%skey%sV1)-----" % ((_SPACE,) * 5)
)
_PEM_END = re.compile(rb"-----END%s(?:[A-Za-z0-9 +]|%%20){1,60}-----" % _SPACE)
_PEM_BODY = re.compile(
    rb"(?:(?:\s|\\[nrt])*+(?:[A-Za-z0-9+/=]{16,}+|(?:Proc-Type|DEK-Info|Version|Comment): ?[A-Za-z0-9,. -]{1,100}+))*+"
)
_BASE64_RUN = re.compile(rb"[A-Za-z0-9+/]{20}")
MAX_PEM_BYTES = 64 * 1024


def find_private_text(lowered: bytes) -> Iterator[Secret]:
    """Find text between <private> and </private>, also nested; to the end of the text if it is not closed."""
    depth, start = 0, 0
    for tag in _PRIVATE_TAG.finditer(lowered):
        if not tag[1]:
            start = start if depth else tag.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield Secret(start, tag.end(), "private")
    if depth:
        yield Secret(start, len(lowered), "private")


def find_private_keys(data: bytes) -> Iterator[Secret]:
    """Find PEM blocks. A truncated one ends with its last line of base64; a header alone does not count."""
    at = 0
    end = _PEM_END.search(data)
    while begin := _PEM_BEGIN.search(data, at):
        while end and end.start() < begin.end():
            end = _PEM_END.search(data, end.end())
        body_end = end.start() if end else len(data)
        next_begin = data.find(b"-----BEGIN", begin.end(), body_end)
        body_end = next_begin if next_begin >= 0 else body_end
        at = begin.end()
        if body_end - at > MAX_PEM_BYTES or next_begin >= 0 or not end:
            body = _PEM_BODY.match(data, at, body_end)
            body_end = body.end() if body else at
            if _BASE64_RUN.search(data, at, body_end):
                yield Secret(begin.start(), body_end, "private-key")
        elif _BASE64_RUN.search(data, at, body_end):
            yield Secret(begin.start(), end.end(), "private-key")
        at = max(at, body_end)


_KIND_SECRET = re.compile(rb"kind\\?[\"']?:[ \t]{0,3}\\?[\"']?secret(?![a-z])")
_DATA_BLOCK = re.compile(rb"(?<![a-z])(?:string)?data:[ \t]*+\n((?:[ \t]++[^\n]*+(?:\n|\Z))++)")
_DATA_LINE = re.compile(rb"[ \t]++[\w.-]{1,200}+:[ \t]{1,3}[\"']?([^\s\"'#|>{}]{4,65536})")
_DATA_OBJECT = re.compile(rb"\"(?:string)?data\"[ \t\n]{0,10}:[ \t\n]{0,10}\{([^{}]{1,65536})\}")
_DATA_PAIR = re.compile(rb"\"[^\"\n]{1,200}+\"[ \t]{0,3}:[ \t]{0,3}\"([^\"\n]{4,65536}+)\"")


def find_kubernetes_secrets(data: bytes, lowered: bytes) -> Iterator[Secret]:
    """Find the values of Kubernetes Secret objects."""
    if not _KIND_SECRET.search(lowered):
        return
    start = 0
    while start < len(lowered):
        stop = lowered.find(b"\n---", start)
        stop = stop if stop >= 0 else len(lowered)
        if _KIND_SECRET.search(lowered, start, stop):
            for block, line in ((_DATA_BLOCK, _DATA_LINE), (_DATA_OBJECT, _DATA_PAIR)):
                for held in block.finditer(lowered, start, stop):
                    for pair in line.finditer(lowered, *held.span(1)):
                        if not is_placeholder(data[slice(*pair.span(1))]):
                            yield Secret(*pair.span(1), "secret")
        start = stop + 4
