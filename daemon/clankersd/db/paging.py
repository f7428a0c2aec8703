"""Pages that hold still while rows are added: the cursor is the sort key of the last row shown."""

import base64
from typing import Any

import msgspec

from clankers_protocol.errors import InvalidParams

PAGE_CHARACTERS = 4 * 1024 * 1024


def that_fit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many of the rows as one reply holds comfortably, and at least one."""
    size = 0
    for count, row in enumerate(rows):
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if size > PAGE_CHARACTERS and count:
            return rows[:count]
    return rows


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
