"""Diversity: order candidates so that a page shows different texts."""

from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.tokenize import WORD
from clankersd.search.ranking import Candidate
from clankersd.search.rows import R


def diversify(candidates: list[Candidate[R]], diversity: float, wanted: int) -> list[Candidate[R]]:
    """Order by maximal marginal relevance: each next candidate is good, and unlike those before it.

    Only the first `wanted` are chosen so; the others follow as they are. Which come first does not depend on `wanted`.
    """
    words = [set(WORD.findall(one.row.text.lower())) for one in candidates]
    scores = [one.score for one in candidates]
    choose = _choose_without_numpy if numpy_if_available() is None else _choose_diverse
    chosen = choose(words, scores, diversity, min(wanted, len(candidates)))
    for at, similarity in chosen.items():
        candidates[at].components["similarity"] = similarity
    return [candidates[at] for at in chosen] + [one for at, one in enumerate(candidates) if at not in chosen]


def _choose_diverse(words: list[set[str]], scores: list[float], diversity: float, wanted: int) -> dict[int, float]:
    """Return the positions of the chosen texts in order, each with its similarity to those before it.

    Of each word the texts that have it are listed, so that a text is compared with all others by adding up a few lists.
    """
    import numpy as np

    texts_by_word: dict[str, list[int]] = {}
    for number, one in enumerate(words):
        for word in one:
            texts_by_word.setdefault(word, []).append(number)
    arrays = {word: np.array(numbers) for word, numbers in texts_by_word.items()}
    relevance, sizes = np.array(scores), np.array([len(one) for one in words])
    similarities, is_left = np.zeros(len(words)), np.ones(len(words), np.bool_)
    chosen: dict[int, float] = {}
    while len(chosen) < wanted:
        value = np.where(is_left, (1 - diversity) * relevance - diversity * similarities, -np.inf)
        best = np.flatnonzero(value == value.max())
        at = int(best[np.argmax(relevance[best])])
        chosen[at], is_left[at] = float(similarities[at]), False
        if words[at]:
            shared = np.bincount(np.concatenate([arrays[word] for word in words[at]]), minlength=len(words))
            similarities = np.maximum(similarities, shared / (sizes + sizes[at] - shared))
    return chosen


def _choose_without_numpy(
    words: list[set[str]], scores: list[float], diversity: float, wanted: int
) -> dict[int, float]:  # fmt: skip
    """Choose the same in plain Python, several times slower."""
    similarities = [0.0] * len(words)
    chosen: dict[int, float] = {}
    while len(chosen) < wanted:
        left = [at for at in range(len(words)) if at not in chosen]
        best = max(left, key=lambda at: ((1 - diversity) * scores[at] - diversity * similarities[at], scores[at]))
        chosen[best] = similarities[best]
        for at in left:
            similarities[at] = max(similarities[at], _jaccard(words[at], words[best]))
    return chosen


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
