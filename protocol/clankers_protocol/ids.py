"""Ids that peers choose: which are accepted, and how others are spelled so that they can be.

An id stands in recall blocks, in lists and on command lines. So it has printable ASCII characters only, none of which
ends or quotes anything: no spaces, brackets, quotes, backslashes or ampersands.
"""

import hashlib
import re
from typing import Annotated

from msgspec import Meta

MAX_ID_CHARACTERS = 256
ID_CHARACTERS = r"A-Za-z0-9._~:@/#?!$*+,;=%|^-"
NewId = Annotated[str, Meta(max_length=MAX_ID_CHARACTERS, pattern=rf"^[{ID_CHARACTERS}]*\Z")]
"""An id that a peer gives to something new. Ids to look for are not restricted: older versions stored any text."""

NewMemoryId = Annotated[str, Meta(min_length=1, max_length=128, pattern=rf"^[{ID_CHARACTERS}]+\Z")]

_VALID = re.compile(f"[{ID_CHARACTERS}]{{1,{MAX_ID_CHARACTERS}}}")
_OTHER = re.compile(rf"[^{ID_CHARACTERS}]|%")
_DIGEST_CHARACTERS = 32


def is_valid_id(text: str) -> bool:
    """Tell whether a text can be an id as it is."""
    return _VALID.fullmatch(text) is not None


def encode_id(text: str) -> str:
    """Return the id as it is stored: itself if it is valid, else percent-encoded, with a digest for what is too long.

    The same text always gives the same id, and an encoded id is left as it is.
    """
    if not text or _VALID.fullmatch(text):
        return text
    encoded = _OTHER.sub(lambda found: _percent(found[0]), text[:MAX_ID_CHARACTERS])
    if len(encoded) <= MAX_ID_CHARACTERS and len(text) <= MAX_ID_CHARACTERS:
        return encoded
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{encoded[: MAX_ID_CHARACTERS - _DIGEST_CHARACTERS - 1]}-{digest}"


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
