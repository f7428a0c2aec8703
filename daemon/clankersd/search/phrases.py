"""Phrases: texts that have the query, a quotation or a name in it word for word come first."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clankersd.db import Store
from clankersd.db.engine import CHUNK_TEXT
from clankersd.index.tokenize import compose, searched_part
from clankersd.search.keyword_matches import KeywordMatches
from clankersd.search.ranking import TOOL_FACTOR, Candidate
from clankersd.search.rows import AnyRow
from clankersd.search.turn_scoring import TurnScores

MAX_PHRASE_CANDIDATES = 50
"""Best candidates whose texts are searched for a phrase of the query."""

MIN_PHRASE_WORDS, MAX_PHRASE_CHARACTERS = 3, 1_000
"""Queries that are looked for as they are written, such as an error message."""

MIN_QUOTED_WORDS = 2
"""Words of a quotation in the query that is looked for as it is written."""

MAX_WORDS_WITH_NAME = 16
"""Words of a query in which a name without quotation marks is looked for as it is written. A stack trace has many."""

PHRASE_WEIGHT = 1.0
"""Weight of having the query or its quotation word for word, beside a weight of 1 for the rest of the score: such a
text comes before all others."""

NAME_IN_QUESTION, MAX_WITH_RARE_NAME = 0.5, 10
"""Share of that weight for a name that is not in quotation marks, if more texts have it: then the rest of the question
matters as well."""

_PHRASE_ENDS = " \t\r\n.,:;!?\"'`"
_NAME_ENDS = _PHRASE_ENDS + "[]{}"
_QUOTED = re.compile(
    r"""`([^`\n]{2,300})`|"([^"\n]{2,300})"|“([^”\n]{2,300})”|«([^»\n]{2,300})»|(?<!\w)'([^'\n]{2,300})'(?!\w)"""
)
# A word with a digit, a sign or a capital after its beginning: E1102, parse_config, config.py, getUser, ECONNREFUSED.
_IDENTIFIER = re.compile(r"(?=.{4})\S*(?:\w[\d_./:\\()-]|[\w.][A-Z])\S*")
# What prose has not: parse_config, std::move, close(), app.py, 2.14.3, getUser, --no-verify, E1102.
_UNQUOTED_NAME = re.compile(
    r"(?=.{4})(?:\S*(?:\w_\w|::\w|\w\(\)|\w\.[a-zA-Z]\w|\d\.\d+\.\d)\S*"
    r"|[a-z]+[A-Z]\w*|--[a-zA-Z]\S*|[A-Z]+-?\d{3,}\w*)"
)

_TEXTS = f"SELECT chunks.id, {CHUNK_TEXT} FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value"


@dataclass(frozen=True)
class PhraseMatches:
    """The weight of each chunk with a phrase, and the chunks to be shown instead, which have it in their place."""

    weights: dict[int, float] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)


async def find_phrases(
    store: Store, query: str, keywords: KeywordMatches, turn_scores: TurnScores | None, ranked: Any
) -> PhraseMatches:
    """Find those of the best chunks whose texts have a phrase of the query word for word.

    `ranked` are the chunks with a term of the query, best first. A chunk represents its message, of which another chunk
    may have the phrase.
    """
    phrases = phrases_of(query)
    if not phrases or turn_scores is None:
        return PhraseMatches()
    owners = turn_scores.other_parts(list(map(int, ranked[:MAX_PHRASE_CANDIDATES])))
    likely = {
        phrase: list(map(int, keywords.chunks_with_phrase(phrase, ranked)[:MAX_PHRASE_CANDIDATES]))
        + keywords.chunks_with_words(phrase, list(owners))[:MAX_PHRASE_CANDIDATES]
        for phrase in phrases
    }
    if not any(likely.values()):
        return PhraseMatches()
    params = {"ids": json.dumps(sorted({chunk for chunks in likely.values() for chunk in chunks}))}
    texts = dict(await store.read_for_search(lambda db: db.tuples(_TEXTS, params)))
    matches = PhraseMatches()
    for phrase, chunks in likely.items():
        found = find_phrase(phrase, {chunk: texts[chunk] for chunk in chunks if chunk in texts})
        raised = {owners.get(chunk, chunk) for chunk in found}
        weight = 1.0 if len(raised) <= MAX_WITH_RARE_NAME else phrases[phrase]
        for chunk in raised:
            matches.weights[chunk] = max(weight, matches.weights.get(chunk, 0.0))
        for chunk in sorted(found):
            if chunk in owners and owners[chunk] not in found:
                matches.shown[owners[chunk]] = chunk
    return matches


def phrases_of(query: str) -> dict[str, float]:
    """Return what is to be looked for word for word, in lower case and with single spaces, with its weight up to 1.

    It is the query, if it has several words, and the longest part of it in quotation marks or backticks, if that has
    two words or looks like an identifier. In a short query without such a part, it is the longest name of a program.
    """
    phrases = {}
    query = compose(query)
    words = query.split() if len(query) <= 2 * MAX_PHRASE_CHARACTERS else []  # it may have many spaces
    whole = " ".join(words).lower().strip(_PHRASE_ENDS)
    if whole.count(" ") + 1 >= MIN_PHRASE_WORDS and len(whole) <= MAX_PHRASE_CHARACTERS:
        phrases[whole] = 1.0
    quoted = [match[match.lastindex or 0].strip(_PHRASE_ENDS) for match in _QUOTED.finditer(searched_part(query))]
    quoted = [part for part in quoted if len(part.split()) >= MIN_QUOTED_WORDS or _IDENTIFIER.fullmatch(part)]
    weight = 1.0
    if not quoted and len(words) <= MAX_WORDS_WITH_NAME:
        is_name = (_IDENTIFIER if len(words) == 1 else _UNQUOTED_NAME).fullmatch
        quoted = [name for name in (word.strip(_NAME_ENDS) for word in words) if is_name(name)]
        weight = 1.0 if len(words) == 1 else NAME_IN_QUESTION
    if quoted:
        phrases.setdefault(" ".join(max(quoted, key=len).lower().split()), weight)
    return phrases


def find_phrase(phrase: str, texts: Mapping[int, str]) -> set[int]:
    """Return the chunks whose texts contain the phrase. Case and spacing may differ."""
    return {chunk for chunk, text in texts.items() if phrase in " ".join(compose(text).lower().split())}


def raise_phrases(weights: Mapping[int, float], candidates: list[Candidate[AnyRow]]) -> None:
    """Raise the scores of the chunks with a phrase by its weight, and scale those of all, so that none is above 1.

    The length of an assistant's text does not count against it, since the phrase is not in it by chance.
    """
    for candidate in candidates:
        if candidate.row.id in weights:
            if role := candidate.components.get("role"):
                candidate.components["role"] = TOOL_FACTOR if candidate.row.role == "tool" else 1.0
                candidate.score = min(1.0, candidate.score * candidate.components["role"] / role)
            candidate.components["phrase"] = weights[candidate.row.id]
            candidate.score += PHRASE_WEIGHT * candidate.components["phrase"]
        candidate.score /= 1 + PHRASE_WEIGHT
