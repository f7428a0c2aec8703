"""Limits of the processes that the daemon starts for work that must not harm it: extraction and queries."""

import resource
from contextlib import suppress


def limit_resources(limits: dict[int, int]) -> None:
    """Set resource limits of this process for good, and forbid core dumps, which would hold what it reads."""
    for kind, limit in (limits | {resource.RLIMIT_CORE: 0}).items():
        with suppress(ValueError, OSError):  # not supported on every system, or lower already
            resource.setrlimit(kind, (limit, limit))
