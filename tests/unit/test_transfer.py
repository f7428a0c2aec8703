"""The rules by which rows of two machines become one, and the page that describes the format."""

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from clankers_protocol.transfer import RECORDS, VERSION, kind_of
from clankersd.transfer.tables import TABLE_OF, TABLES, Table, combine, rank

PAGE = Path(__file__).parents[2] / "docs" / "export.md"

SESSIONS = next(table for table in TABLES if table.name == "sessions")
values = st.none() | st.integers(0, 3)


def rows(table: Table) -> st.SearchStrategy[dict[str, Any]]:
    """Return rows with the same key; the columns that order them have a value."""
    columns = {
        name: st.integers(0, 2) if name in table.newest else values
        for name in table.stored_columns
        if name not in table.key
    }
    return st.fixed_dictionaries({name: st.just("key") for name in table.key} | columns)


@given(one=rows(SESSIONS), other=rows(SESSIONS))
def test_combine_gives_the_same_row_in_any_order_and_again(one: dict[str, Any], other: dict[str, Any]) -> None:
    combined = combine(SESSIONS, one, other)
    assert combine(SESSIONS, other, one) == combined
    assert combine(SESSIONS, combined, one) == combine(SESSIONS, combined, other) == combined
    assert rank(SESSIONS, combined)[0] == max(one["updated_at"], other["updated_at"])


def test_every_record_has_a_table_and_the_order_of_the_file() -> None:
    assert tuple(TABLE_OF) == RECORDS
    assert len({kind_of(record) for record in RECORDS}) == len(RECORDS)


def test_page_describes_every_field_of_every_record() -> None:
    page = PAGE.read_text()
    assert f"version {VERSION}" in page
    for record in RECORDS:
        fields = [
            f"**{one.encode_name}**" if one.required else one.encode_name for one in msgspec.structs.fields(record)
        ]
        assert f"| `{kind_of(record)}` | {', '.join(fields)} |" in page, f"line for {kind_of(record)}"
