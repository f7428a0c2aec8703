"""Words: the other forms under which a text is found, and what a query asks for."""

import re
from dataclasses import dataclass

from clankersd.index.chunker import CJK

MOST_TERMS = 64
MOST_QUERY = 10_000

_WORD = re.compile(r"\w+")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_HUMP = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2,}[a-z]|[A-Za-z]\d|\d[A-Za-z]")
_CJK_RUN = re.compile(f"[{CJK}]+")

STOP_WORDS = frozenset(
    """a about above after again all also am an and any are aren't as at be because been before being below
    between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down during each
    few for from further get got had hadn't has hasn't have haven't having he her here hers herself him himself
    his how i if in into is isn't it its itself just let's me more most my myself no nor not of off on once only
    or other our ours ourselves out over own same she should shouldn't so some such than that the their theirs
    them themselves then there these they this those through to too under until up very was wasn't we were
    weren't what when where which while who whom whose why will with won't would wouldn't you your yours
    yourself yourselves""".split()
)


def other_forms(text: str) -> str:
    """What else a text should be found by: the parts of its camelCase names, its CJK text in ones and twos."""
    forms: dict[str, None] = {}
    for word in _WORD.findall(text) if _HUMP.search(text) else ():
        if _HUMP.search(word):
            forms.update(dict.fromkeys(part.lower() for part in _CAMEL.findall(word)))
    for run in _CJK_RUN.findall(text):
        forms.update(dict.fromkeys(run))
        forms.update(dict.fromkeys(run[at : at + 2] for at in range(len(run) - 1)))
    return " ".join(forms)


@dataclass(frozen=True)
class Term:
    """One thing a query asks for, as FTS5 reads it. A stop word only counts when there is nothing else."""

    match: str
    stop: bool = False


def query_terms(query: str) -> list[Term]:
    """What the query asks for, in its order. No text is read as FTS5 syntax: every term is quoted."""
    terms: dict[str, Term] = {}
    for word in query[:MOST_QUERY].replace("\x00", " ").split():
        for form in _forms(word):
            terms.setdefault(form, Term(quoted(form), form in STOP_WORDS))
    chosen = [term for term in terms.values() if not term.stop] or list(terms.values())
    return chosen[:MOST_TERMS]


def quoted(text: str) -> str:
    """`text` as an FTS5 string: its words next to each other, nothing more."""
    return '"' + text.replace('"', '""') + '"'


def _forms(word: str) -> list[str]:
    """A word of a query as its parts: the names in a path, the humps of a camelCase name, CJK in twos."""
    bare = word.strip(".,;:!?()[]{}<>\"'`*").lower().replace("’", "'")
    if bare in STOP_WORDS:
        return [bare]
    forms: list[str] = []
    for name in _WORD.findall(word):
        runs = _CJK_RUN.findall(name)
        for run in runs:
            forms += [run[at : at + 2] for at in range(max(len(run) - 1, 1))]
        rest = _CJK_RUN.sub(" ", name) if runs else name
        forms += [part for part in rest.replace("_", " ").lower().split()]
        if _HUMP.search(rest):
            forms += [part.lower() for part in _CAMEL.findall(rest)]
    return forms
