"""Counts as people read them."""


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: 1 chunk, 2 chunks, 3 memories."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith(("ry", "ty", "py")) else f"{number:,} {noun}s"


def count_of(number: int, name: str) -> str:
    """Format a count with the name of a table: 1 session, 2 memory relationships."""
    singular = f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")
    return plural(number, singular.replace("_", " "))
