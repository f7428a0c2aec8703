"""Pages that hold still while rows are added: the cursor is the sort key of the last row shown."""

import base64
from typing import Any

import msgspec

from clankers_protocol.errors import InvalidParams


def encode_cursor(*key: Any) -> str:
    """A sort key as an opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def decode_cursor(cursor: str, *types: type) -> tuple[Any, ...]:
    """The sort key in a cursor; raises InvalidParams for one we did not make."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[types])  # type: ignore[valid-type]
    except ValueError as error:
        raise InvalidParams("invalid params: cursor is not one that this method gave - at `$.cursor`") from error
