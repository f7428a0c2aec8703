"""Speakers whom a query names: what a person said answers "what did Ada say?" better than what others said of her.

The speaker of a message is its role, or the name that its text begins with, as in a chat log ("Ada: I have moved").
"""

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from clankersd.index.tokenize import MAX_QUERY_CHARS, STOP_WORDS, WORD, searched_part

SPEAKER_WEIGHT = 0.4
"""Weight of the match between the speaker of a message and a name in the query, beside a weight of 1 for the text."""

GENERIC_ROLES = {"user", "assistant", "system", "tool"}

MAX_NAMES = 4
"""Words with a capital letter that are looked up as names: a pasted log may have hundreds."""

MAX_NAME_WORDS = 3
"""Words of a name before a colon: first, middle and last name."""

MAX_NAME_CHARACTERS = 80
"""Beginning of a text in which the name of its speaker and the colon after it are looked for."""

_COLON = re.compile(r":(?=[\s*_]|$)")
"""The colon after a name, perhaps in Markdown emphasis; not that of an address or of `Type::method`."""


@dataclass(frozen=True)
class Speakers:
    """Names in a query of people who speak in the scope; `prefixed` are the chunks whose texts begin with one."""

    names: frozenset[str] = frozenset()
    prefixed: Any = ()

    def have_said(self, role: str | None, chunk: int) -> bool:
        """Return whether one of the speakers said what is in a chunk."""
        return self.are_named_in(role or "") or chunk in self._prefixed

    def are_named_in(self, role: str) -> bool:
        return not self.names.isdisjoint(WORD.findall(role.lower()))

    @cached_property
    def _prefixed(self) -> set[int]:
        return set(map(int, self.prefixed))


NO_SPEAKERS = Speakers()


def find_speakers(query: str, roles: AbstractSet[str]) -> dict[str, set[str]]:
    """Return the people who speak in sessions and are named in the query, each with the words that name them."""
    words = set(WORD.findall(searched_part(query).lower()))
    named = {role: words.intersection(WORD.findall(role.lower())) for role in roles - GENERIC_ROLES}
    return {role: names for role, names in named.items() if names}


def possible_names(query: str) -> list[str]:
    """Return the first words of a query that are written like names, in lower case."""
    words = dict.fromkeys(word.lower() for word in WORD.findall(searched_part(query)) if word[0].isupper())
    return list(islice((word for word in words if word not in STOP_WORDS), MAX_NAMES))


def begins_with_name(text: str) -> bool:
    """Return whether a text begins with a name and a colon, as in a chat log, and not with any other word."""
    beginning = text[:MAX_NAME_CHARACTERS]
    colon = _COLON.search(beginning)
    words = WORD.findall(beginning[: colon.start()]) if colon else []
    return 0 < len(words) <= MAX_NAME_WORDS and not any(word[0].islower() for word in words[1:])


def without_names(query: str, names: AbstractSet[str]) -> str:
    """Remove names from the query, since they say who and not what.

    A query of names alone stays as it is, and so does a long one, in which a name says little.
    """
    if not names or len(query) > MAX_QUERY_CHARS:
        return query
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b(['’]s)?", re.IGNORECASE)
    return " ".join(pattern.sub(" ", query).split()) or query
