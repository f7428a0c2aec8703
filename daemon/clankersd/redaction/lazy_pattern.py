"""A regular expression that is compiled when it is first used."""

import re


class LazyPattern:
    """A regular expression over bytes.

    There are hundreds in the rules, and most texts need a few: compiling all of them at the start took a third of it.
    """

    __slots__ = ("_compiled", "_flags", "_source")

    def __init__(self, source: bytes, flags: int = 0) -> None:
        self._source = source
        self._flags = flags
        self._compiled: re.Pattern[bytes] | None = None

    def get(self) -> re.Pattern[bytes]:
        """Return the compiled expression."""
        if self._compiled is None:
            self._compiled = re.compile(self._source, self._flags)
        return self._compiled
