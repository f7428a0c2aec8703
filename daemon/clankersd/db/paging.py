"""Pagination that is stable while rows are added: the cursor is the sort key of the last row shown."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from clankers_protocol.errors import InvalidParams
from clankersd.db.connection import Db

PAGE_CHARACTERS = 4 * 1024 * 1024


def fetch_page(db: Db, sql: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fetch rows until a page is full; the last row is the first that does not fit.

    Otherwise a thousand rows of several megabytes each would be in memory before most of them are dropped.
    """
    return take_page(dict(zip(names, row, strict=True)) for names, row in db.stream(sql, params))


def take_page(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take rows until a page is full; the last row is the first that does not fit."""
    taken: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if size > PAGE_CHARACTERS and len(taken) > 1:
            break
    return taken


def fit_reply(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows that fit into one reply, at least one."""
    size = 0
    for count, row in enumerate(rows):
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if size > PAGE_CHARACTERS and count:
            return rows[:count]
    return rows


def encode_cursor(*key: Any) -> str:
    """Encode a sort key as an opaque string."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def decode_cursor(cursor: str, *types: type) -> tuple[Any, ...]:
    """Decode the sort key in a cursor; raises InvalidParams for a string that `encode_cursor` did not make."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[types])  # type: ignore[valid-type]
    except (ValueError, msgspec.MsgspecError) as error:  # the one is the other in recent releases of msgspec only
        raise InvalidParams("invalid params: cursor is not one that this method gave - at `$.cursor`") from error
