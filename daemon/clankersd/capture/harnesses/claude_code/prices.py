"""Cost of messages in transcripts that do not state it: Anthropic's list prices, in dollars per million tokens."""

import re
from typing import NamedTuple

from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import number, record


class Price(NamedTuple):
    """Prices of a model: what is sent, what is written to the cache for an hour or less, what is read from it, what is
    answered."""

    prompt: float
    cache_write: float
    cache_write_hour: float
    cache_read: float
    answer: float


def _price(prompt: float, answer: float, cache_read: float | None = None) -> Price:
    """Return the prices of a model; those of the cache are multiples of the prompt's."""
    read = prompt / 10 if cache_read is None else cache_read
    return Price(prompt, prompt * 1.25, prompt * 2, read, answer)


_PRICES = {
    "claude-3-5-haiku": _price(0.8, 4),
    "claude-haiku-4-5": _price(1, 5),
    "claude-haiku-5-5": _price(0.1, 0.5),
    "claude-3-5-sonnet": _price(3, 15),
    "claude-3-7-sonnet": _price(3, 15),
    "claude-sonnet-4": _price(3, 15),
    "claude-sonnet-4-0": _price(3, 15),
    "claude-sonnet-4-5": _price(3, 15),
    "claude-sonnet-4-6": _price(3, 15),
    "claude-sonnet-5": _price(2, 10),
    "claude-sonnet-5-5": _price(2, 10, 0.1),
    "claude-opus-4": _price(15, 75),
    "claude-opus-4-0": _price(15, 75),
    "claude-opus-4-1": _price(15, 75),
    "claude-opus-4-5": _price(5, 25),
    "claude-opus-4-6": _price(5, 25),
    "claude-opus-4-7": _price(5, 25),
    "claude-opus-4-8": _price(5, 25),
    "claude-opus-5": _price(5, 25),
    "claude-opus-5-5": _price(4, 20, 0.2),
    "claude-fable-5": _price(10, 50),
    "claude-fable-5-1": _price(10, 50, 0.25),
    "claude-fable-5-2": _price(8, 40, 0.2),
}
_LONG_PROMPT = {"claude-haiku-5-5": (100_000, _price(0.5, 2.5))}
"""Prices of prompts above a number of tokens."""

_MODEL = re.compile(r"(claude-[a-z0-9-]+?)(?:-\d{8}|-latest)?(?:-v\d[:\d]*|@.*)?(?:\[\w+\])?\Z")
"""A model's name without its date, and without what cloud providers add to it."""

MAX_MODEL_CHARACTERS = 200


def message_cost(model: str | None, usage: Payload) -> float | None:
    """Return the list price of a message in dollars; None for a model whose price is not known."""
    found = _MODEL.search((model or "")[-MAX_MODEL_CHARACTERS:])
    price = _PRICES.get(found[1]) if found else None
    if price is None or found is None or not usage:
        return None
    sent, cached = number(usage, "input_tokens") or 0, number(usage, "cache_read_input_tokens") or 0
    written = number(usage, "cache_creation_input_tokens") or 0
    if found[1] in _LONG_PROMPT and sent + cached + written > _LONG_PROMPT[found[1]][0]:
        price = _LONG_PROMPT[found[1]][1]
    hour = min(number(record(usage, "cache_creation"), "ephemeral_1h_input_tokens") or 0, written)
    dollars = (
        sent * price.prompt
        + (written - hour) * price.cache_write
        + hour * price.cache_write_hour
        + cached * price.cache_read
        + (number(usage, "output_tokens") or 0) * price.answer
    )
    return round(dollars / 1_000_000, 8)
