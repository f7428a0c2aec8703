"""A secret that was found in a text."""

from typing import NamedTuple


class Secret(NamedTuple):
    """The place of a secret in the bytes of a text, and what it is called in the mark that replaces it."""

    start: int
    end: int
    kind: str
