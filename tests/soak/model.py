"""A model of what the daemon must hold: for each thing, the values that it may have.

A thing has one value after an acknowledged operation. While an operation is not acknowledged, and for ever if its
acknowledgement was lost, the value before it and the value after it are both right.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from helpers.daemon import RawConnection

ABSENT = "(absent)"


@dataclass
class Model:
    """Allowed values by kind (`message`, `memory`, `document`) and id. Each id is changed by one thread only."""

    allowed: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    @contextmanager
    def changing(self, values: dict[tuple[str, str], str]) -> Iterator[None]:
        """Allow the new values beside the old ones; after the block, which ends when acknowledged, only the new ones.

        If the block fails, both stay allowed.
        """
        for key, value in values.items():
            self.allowed[key] = self.allowed.get(key, {ABSENT}) | {value}
        yield
        for key, value in values.items():
            self.allowed[key] = {value}

    def differences(self, actual: dict[tuple[str, str], str]) -> list[str]:
        """Describe where the database differs from what is allowed."""
        found = [
            f"{kind} {name}: {actual.get((kind, name), ABSENT)[:60]!r}, not {sorted(values)!r:.150}"
            for (kind, name), values in self.allowed.items()
            if actual.get((kind, name), ABSENT) not in values
        ]
        unknown = [key for key in actual if key not in self.allowed and key[0] == "message"]
        return found + [f"{kind} {name}: nobody has sent it" for kind, name in unknown]


def read_actual(database: Path, connection: RawConnection, model: Model) -> dict[tuple[str, str], str]:
    """Read everything that the model knows: rows from the file, and the texts of documents from the daemon."""
    actual: dict[tuple[str, str], str] = {}
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(5000)
        for name, text in db.execute("SELECT id, text_content FROM messages"):
            actual["message", str(name)] = str(text)
        for name, content, deleted in db.execute("SELECT id, content, is_deleted FROM memories"):
            actual["memory", str(name)] = ABSENT if deleted else str(content)
    finally:
        db.close()
    for kind, name in model.allowed:
        if kind == "document":
            reply = connection.request("document.get", {"source": name})
            actual[kind, name] = reply["result"]["text"] if "result" in reply else ABSENT
            assert "result" in reply or reply["error"]["code"] == 4004, json.dumps(reply)
    return actual
