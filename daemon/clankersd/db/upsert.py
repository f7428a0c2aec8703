"""Partial upserts: one statement per table, built from one rule per column.

In each rule `:{column}` is the new value (null if the event has none) and `{table}.{column}` the stored one.
"""

KEEP = "{table}.{column}"
"""Keep the stored value."""

GIVEN = "COALESCE(:{column}, {table}.{column})"
"""Replace the stored value if there is a new one."""

FILL = "COALESCE({table}.{column}, :{column})"
"""Use the new value only if none is stored."""

HIGHEST = "MAX(COALESCE(:{column}, {table}.{column}), COALESCE({table}.{column}, :{column}))"
"""Keep the higher value: counters never go backwards."""


def upsert(table: str, insert: dict[str, str] | None = None, returning: tuple[str, ...] = (), **rules: str) -> str:
    """Build the statement that inserts a row by its `id`, or updates the stored one by each column's rule.

    `insert` holds SQL for the columns of a new row that are not simply the new value; `returning` is SQL for
    the columns of the stored row to return.
    """
    expressions = insert or {}
    columns = ["id", *rules]
    values = [expressions.get(column, f":{column}") for column in columns]
    updates = [f"{column} = {rule.format(table=table, column=column)}" for column, rule in rules.items()]
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(values)}) "
        f"ON CONFLICT (id) DO UPDATE SET {', '.join(updates)}"
        + (f" RETURNING {', '.join(returning)}" if returning else "")
    )
