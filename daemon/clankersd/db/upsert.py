"""Partial upserts: one statement per table, made from one line per column.

In each rule `:{column}` is what the event brings (null when it brings nothing) and `{table}.{column}` what
is stored.
"""

KEEP = "{table}.{column}"
"""What was stored first stays."""

GIVEN = "COALESCE(:{column}, {table}.{column})"
"""What is given replaces, what is absent does not."""

FILL = "COALESCE({table}.{column}, :{column})"
"""What is given is taken where nothing is stored."""

HIGHEST = "MAX(COALESCE(:{column}, {table}.{column}), COALESCE({table}.{column}, :{column}))"
"""Counters never go backwards."""


def upsert(table: str, insert: dict[str, str] | None = None, returning: tuple[str, ...] = (), **rules: str) -> str:
    """Insert a row by its `id`, or bring the stored one up to date by each column's rule.

    `insert` names the values of a new row that are not simply what is given, `returning` the columns to be told of
    the row as it is stored then.
    """
    fresh = insert or {}
    columns = ["id", *rules]
    values = [fresh.get(column, f":{column}") for column in columns]
    updates = [f"{column} = {rule.format(table=table, column=column)}" for column, rule in rules.items()]
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(values)}) "
        f"ON CONFLICT (id) DO UPDATE SET {', '.join(updates)}"
        + (f" RETURNING {', '.join(returning)}" if returning else "")
    )
