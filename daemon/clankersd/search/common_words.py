"""Common words of English and of programs: the tokens that the tokenizer of the static model learnt first.

In a small store every word is in few texts. These words are not rare all the same.
"""

from bisect import bisect_left
from functools import cache

import msgspec
import structlog

from clankersd.embedders.base import EmbedderUnavailable
from clankersd.embedders.local import read_model_file
from clankersd.embedders.memory_headroom import require_headroom
from clankersd.embedders.static import FOLDER, TOKENIZER

COMMON_TOKENS = 16_000
"""First tokens of the vocabulary, in which words are common: `merge` is one of them, `migration` is not."""

MAX_ENDING_CHARACTERS = 3
"""Longest ending of a common word after a stem, such as that of `testing`."""

LOADING_BYTES = 16 * 1024 * 1024
"""Free memory required to load them: the whole vocabulary is read once."""

_WORD_BEGINNING = "▁"

log = structlog.get_logger(component="search")


class _Model(msgspec.Struct):
    vocab: dict[str, int]


class _Tokenizer(msgspec.Struct):
    model: _Model


def is_uncommon(word: str, stem: str) -> bool:
    """Return whether a word is neither common nor a form of a common word; False if these are not known."""
    common = common_words()
    if not common:
        return False
    longest = len(stem) + MAX_ENDING_CHARACTERS
    for at in range(bisect_left(common, stem), len(common)):
        if not common[at].startswith(stem):
            break
        if len(common[at]) <= longest:
            return False
    at = bisect_left(common, word)
    return at == len(common) or common[at] != word


def common_words() -> list[str]:
    """Return the words in small letters, sorted; none if they cannot be loaded."""
    try:
        return _load()
    except MemoryError:  # the next search tries again
        return []


@cache
def _load() -> list[str]:
    require_headroom(LOADING_BYTES)
    try:
        vocabulary = msgspec.json.decode(read_model_file(FOLDER / TOKENIZER), type=_Tokenizer).model.vocab
    except (EmbedderUnavailable, msgspec.DecodeError) as error:
        log.warning("common words not loaded", problem=str(error))
        return []
    first_tokens = [token for token, number in vocabulary.items() if number < COMMON_TOKENS]
    return sorted({token[1:].lower() for token in first_tokens if token.startswith(_WORD_BEGINNING)})
