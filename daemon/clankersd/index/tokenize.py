"""Words: the other forms under which a text is found, and what a query asks for."""

import re
import unicodedata

from clankersd.index.chunker import CJK

MAX_QUERY_WORDS = 64
MAX_QUERY_CHARS = 10_000

WORD = re.compile(r"\w+")
CJK_CHARACTER = re.compile(f"[{CJK}]")
_APART = re.compile("\\w[\u0300-\u036f]+")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
# A capital after a small letter, or several before one; put so that it is quick to see that there is none.
_HUMP = re.compile(r"[A-Z](?:(?<=[a-z][A-Z])|[A-Z]+[a-z])")
_CJK_RUN = re.compile(f"[{CJK}]+")

# "may" is a month as well. The pieces of "don't" and "it's" stand alone, as the tokenizer leaves them.
STOP_WORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being below between
    both but by can could did do does doing done down during each else ever few for from further get gets getting got
    had has have having he her here hers herself him himself his how i if in into is it its itself just kind let like
    likely lot many me might more most much must my myself no nor not now of off on once one only or other our ours
    ourselves out over own same shall she should so some such than that the their theirs them themselves then there
    these they thing things this those through to too under until up us very was we were what when where which while
    who whom whose why will with would yes you your yours yourself yourselves
    d ll m re s t ve don didn doesn isn wasn""".split()  # noqa: SIM905  # as a text it can be read
)


def count_words(text: str) -> int:
    """About how many words a text has; a CJK character counts as one."""
    words = len(text.split())
    return max(1, words if text.isascii() else words + sum(map(len, _CJK_RUN.findall(text))))


def other_forms(text: str) -> str:
    """What else a text is found by: the parts of its camelCase names, its CJK text in ones and twos."""
    forms: dict[str, None] = {}
    if _HUMP.search(text) or not text.isascii():
        for word in WORD.findall(text):
            if _HUMP.search(word) or not word.isascii():
                forms.update(dict.fromkeys(_parts(word)))
    return " ".join(forms)


def _parts(word: str) -> list[str]:
    runs = _CJK_RUN.findall(word)
    parts = [part for run in runs for part in (*run, *(run[at : at + 2] for at in range(len(run) - 1)))]
    rest = _CJK_RUN.sub(" ", word).replace("_", " ")
    if runs:
        parts += rest.lower().split()
    if _HUMP.search(rest):
        parts += [part.lower() for part in _CAMEL.findall(rest)]
    return parts


def query_words(query: str) -> list[str]:
    """What the query asks for, word by word in its order, without stop words unless there is nothing else.

    Names in a path, parts of a snake_case name and humps of a camelCase name are words; CJK text is cut in twos.
    """
    words: dict[str, None] = {}
    for word in WORD.findall(_together(query[:MAX_QUERY_CHARS].replace("\x00", " "))):
        words.update(dict.fromkeys(_forms(word)))
    chosen = [word for word in words if word not in STOP_WORDS] or list(words)
    return chosen[:MAX_QUERY_WORDS]


def _together(text: str) -> str:
    """Letters and accents that are written apart, as some file systems do, put together."""
    return _APART.sub(lambda match: unicodedata.normalize("NFC", match[0]), text)


def _forms(word: str) -> list[str]:
    runs = _CJK_RUN.findall(word)
    forms = [run[at : at + 2] for run in runs for at in range(max(len(run) - 1, 1))]
    rest = _CJK_RUN.sub(" ", word) if runs else word
    forms += rest.replace("_", " ").lower().split()
    if _HUMP.search(rest):
        forms += [part.lower() for part in _CAMEL.findall(rest)]
    return forms
