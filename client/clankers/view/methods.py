"""The methods of the daemon that the page may call. Everything else is refused, whatever the page sends."""

from typing import Any

from clankers_protocol.wire import Method, methods

READ = frozenset(
    {
        "capture.status",
        "chunk.list",
        "daemon.status",
        "document.get",
        "document.list",
        "entity.get",
        "entity.list",
        "file.history",
        "file.list",
        "graph.neighbors",
        "health",
        "id.find",
        "index.status",
        "job.list",
        "job.status",
        "memory.compare",
        "memory.get",
        "memory.history",
        "memory.list",
        "memory.related",
        "memory.search",
        "memory.stats",
        "memory.strength",
        "project.list",
        "recall.get",
        "recall.ledger",
        "recall.preview",
        "recall.recent",
        "recall.totals",
        "relation.list",
        "schedule.history",
        "schedule.list",
        "search",
        "search.facets",
        "session.entry",
        "session.get",
        "session.injections",
        "session.list",
        "session.timeline",
        "session.turns",
        "skill.get",
        "skill.list",
        "skill.versions",
        "stats",
        "tool.search",
    }
)
"""Methods that change nothing. None of them counts as a use of what it returns."""

WRITE = frozenset(
    {
        "backup.create",
        "doctor.check",
        "doctor.repair",
        "document.delete",
        "index.sync",
        "memory.delete",
        "memory.pin",
        "memory.restore",
        "memory.update",
        "relation.add",
        "schedule.enable",
        "session.delete",
        "skill.delete",
    }
)
"""Methods that change or start something. They need the write token, and the page asks before it calls one."""


def method_type(name: str) -> type[Method[Any]] | None:
    """Return the declaration of a method that the page may call; None for every other name."""
    return methods()[name] if name in READ or name in WRITE else None
