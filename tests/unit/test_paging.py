"""Pages of rows: cut where a reply is full, before the rows that do not fit are read."""

from functools import partial
from typing import Any

import apsw
from msgspec import structs

from clankers_protocol.memories import MemorySearch
from clankersd.db.connection import Db
from clankersd.db.paging import PAGE_CHARACTERS, encode_cursor, fetch_page, fit_reply
from clankersd.search.plan import MAX_NEIGHBOURS, Page

ROWS = "SELECT value, made(:size) AS text FROM series"


def made(sizes: list[int], *args: Any) -> str:
    sizes.append(args[0])
    return "x" * int(args[0])


def database(sizes: list[int]) -> Db:
    """A database with a function `made` that notes each text it is asked for."""
    raw = apsw.Connection(":memory:")
    raw.create_scalar_function("made", partial(made, sizes), 1)
    raw.execute("CREATE TABLE series(value)")
    raw.execute("INSERT INTO series SELECT value FROM json_each(?)", (str(list(range(1000))),))
    return Db(raw)


def test_page_reads_one_row_more_than_fit() -> None:
    sizes: list[int] = []
    size = PAGE_CHARACTERS // 4
    rows = fetch_page(database(sizes), ROWS, {"size": size})
    assert len(sizes) == len(rows) == 5
    assert len(fit_reply(rows)) == 4


def test_page_holds_at_least_one_row() -> None:
    sizes: list[int] = []
    rows = fetch_page(database(sizes), ROWS, {"size": 2 * PAGE_CHARACTERS})
    assert len(sizes) == 2
    assert len(fit_reply(rows)) == 1


def test_page_of_short_rows_holds_them_all() -> None:
    rows = fetch_page(database([]), ROWS, {"size": 10})
    assert [row["value"] for row in rows] == list(range(1000))


def test_cursor_of_a_search_reaches_the_last_neighbour() -> None:
    """A search by vector pages through more hits than a search by words has candidates."""
    request = MemorySearch(embedding=[1.0], limit=100)
    cursor = encode_cursor(MAX_NEIGHBOURS, Page.of(request).fingerprint)
    assert Page.of(structs.replace(request, cursor=cursor)).offset == MAX_NEIGHBOURS
