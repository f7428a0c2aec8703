"""Selection of the chunks that are scored, of all that have a term of the query."""

from collections import Counter
from typing import Any

from clankersd.db.commit_priority import yield_core
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.sorted_arrays import find_sorted
from clankersd.search.term_index import TermMatches

MAX_SCORED_CHUNKS = 2_000
"""Chunks whose place in a conversation is looked up: those with the most and rarest terms."""

RARITY_STEPS = 64
"""Precision of the sum of inverse document frequencies that chooses them."""

MIN_SKIPPED_FREQUENCY = 20_000
"""A term in fewer chunks is added up for all of them, without asking whether only some of them matter."""


def rarest_matches(terms: list[TermMatches], last: int) -> tuple[Any, int]:
    """Return in order the MAX_SCORED_CHUNKS chunks whose terms are the most and the rarest.

    Return also how many chunks have any term; if there are many, at least how many.
    """
    numpy = numpy_if_available()
    if numpy is None:
        totals: Counter[int] = Counter()
        for one in terms:
            totals.update(dict.fromkeys(one.chunks, one.term.idf))
        return sorted(chunk for chunk, _ in totals.most_common(MAX_SCORED_CHUNKS)), len(totals)
    rarity = numpy.zeros(last + 1, numpy.int32)
    contenders = None
    steps = [max(1, round(one.term.idf * RARITY_STEPS)) for one in terms]
    remaining = sum(steps)
    for one, step in sorted(zip(terms, steps, strict=True), key=lambda pair: len(pair[0].chunks)):
        yield_core()
        if len(one.chunks) > MIN_SKIPPED_FREQUENCY:
            contenders = _find_contenders(rarity, contenders, remaining)
        if contenders is None:
            # An index of 32 bits would be converted in small pieces, which takes twice as long.
            rarity[one.chunks.astype(numpy.intp)] += step
        else:
            _, has_term = find_sorted(one.chunks, contenders.astype(numpy.int32))
            rarity[contenders[has_term]] += step
        remaining -= step
    chunks = numpy.flatnonzero(rarity > 0) if contenders is None else contenders
    count = max([len(chunks), *(len(one.chunks) for one in terms)])
    if len(chunks) > MAX_SCORED_CHUNKS:
        rarity = rarity[chunks]
        as_rare = numpy.cumsum(numpy.bincount(rarity)[::-1])[::-1]  # number of chunks that are at least so rare
        least = int(numpy.searchsorted(-as_rare, -MAX_SCORED_CHUNKS, side="right")) - 1
        is_chosen = rarity > least
        # Of equally good chunks, the newest.
        newest = numpy.flatnonzero(rarity == least)[numpy.count_nonzero(is_chosen) - MAX_SCORED_CHUNKS :]
        is_chosen[newest] = True
        chunks = chunks[is_chosen]
    return chunks, count


def _find_contenders(rarity: Any, contenders: Any, remaining: int) -> Any:
    """Return the chunks that can be among the best, of former contenders if there are; None if any chunk can be.

    `rarity` is what each chunk has by the terms so far, `remaining` the most that it can gain by those to come, which
    are the frequent ones. To look these up in a few thousand chunks is much faster than to add up all of theirs.
    """
    import numpy as np

    found = rarity if contenders is None else rarity[contenders]
    high = found[found > remaining] if contenders is None else found
    if len(high) < MAX_SCORED_CHUNKS:
        return contenders
    least = max(1, np.partition(high, -MAX_SCORED_CHUNKS)[-MAX_SCORED_CHUNKS] - remaining)
    return np.flatnonzero(found >= least) if contenders is None else contenders[found >= least]
