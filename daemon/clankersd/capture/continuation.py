"""Orders that a harness appends to the summary of a compaction; they address the agent that goes on."""

import re

_ORDERS = re.compile(
    r"(?:If you need specific details from before compaction\b"
    r"|(?:Please )?continue the conversation from where (?:it|we|you) left (?:it )?off\b"
    r"|Continue with the last task that you were asked to work on\b"
    r"|Resume directly\b[^.\n]{0,40}do not acknowledge the summary"
    r"|The messages after this summary are the most recent messages from before compaction).*",
    re.IGNORECASE | re.DOTALL,
)


MAX_TAIL_CHARACTERS = 20_000
"""The end of a summary in which orders are looked for: searching megabytes would stop other clients."""


def strip_continuation_orders(summary: str) -> str:
    """Return a summary without the harness's orders at its end: they are no part of what happened."""
    orders = _ORDERS.search(summary, max(0, len(summary) - MAX_TAIL_CHARACTERS))
    return summary[: orders.start()].rstrip() if orders else summary
