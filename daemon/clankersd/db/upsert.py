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

    `insert` holds SQL for the columns of a new row that are not simply the new value; `returning` holds SQL for
    what to return of the stored row.
    """
    updates = [f"{column} = {rule.format(table=table, column=column)}" for column, rule in rules.items()]
    statement = f"{_insert(table, insert or {}, tuple(rules))} ON CONFLICT (id) DO UPDATE SET {', '.join(updates)}"
    return f"{statement} RETURNING {', '.join(returning)}" if returning else statement


def insert_new(table: str, insert: dict[str, str], columns: tuple[str, ...]) -> str:
    """Build the statement that inserts the row of an upsert with these columns, and leaves a stored one as it is."""
    return f"{_insert(table, insert, columns)} ON CONFLICT (id) DO NOTHING"


def _insert(table: str, expressions: dict[str, str], columns: tuple[str, ...]) -> str:
    values = [expressions.get(column, f":{column}") for column in ("id", *columns)]
    return f"INSERT INTO {table} ({', '.join(('id', *columns))}) VALUES ({', '.join(values)})"
