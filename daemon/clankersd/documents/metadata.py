"""What is known of a document beside its text, as it comes from outside."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from clankers_protocol.documents import Ingested
from clankers_protocol.errors import InvalidParams
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.documents.store import title_changed
from clankersd.projects import project_id, project_row, store_project

if TYPE_CHECKING:
    from clankersd.app import Daemon

LARGEST_METADATA = 16 * 1024


@dataclass(frozen=True)
class Changes:
    """What may be said anew; None stays as it is."""

    title: str | None
    metadata: dict[str, Any] | None
    project_id: str | None


def change(db: Db, document_id: str, changes: Changes) -> bool:
    """Apply what differs; tells whether anything did."""
    metadata = None if changes.metadata is None else msgspec.json.encode(changes.metadata).decode()
    given = {"title": changes.title, "metadata": metadata, "project_id": changes.project_id}
    stored = db.fetch_one("SELECT title, metadata, project_id FROM documents WHERE id = :id", {"id": document_id})
    assert stored
    different = {name: value for name, value in given.items() if value is not None and value != stored[name]}
    if not different:
        return False
    columns = ", ".join(f"{name} = :{name}" for name in different)
    params = different | {"id": document_id, "now": clock.now()}
    db.execute(f"UPDATE documents SET {columns}, updated_at = :now WHERE id = :id", params)
    if "title" in different:
        title_changed(db, document_id, different["title"])
    return True


def checked_metadata(metadata: dict[str, Any] | None, where: str = "$.metadata") -> None:
    """Refuse what would make every row of the document a burden."""
    if metadata is not None and len(msgspec.json.encode(metadata)) > LARGEST_METADATA:
        raise InvalidParams(f"invalid params: metadata may have {LARGEST_METADATA} bytes - at `{where}`")


def announce(db: Db, ingested: Ingested) -> Ingested:
    """Announce a document unless nothing changed."""
    if ingested.outcome != "unchanged":
        db.after_commit(Notification("document", ingested.outcome, ingested.document.id))
    return ingested


async def project_of(daemon: "Daemon", given: str | None) -> str | None:
    """The id of the project that is meant, by its id or by a path; one seen for the first time is made."""
    if given is None:
        return None
    project = await anyio.to_thread.run_sync(project_row, given) if given.startswith("/") else None

    def find(db: Db) -> str:
        if project is not None:
            store_project(db, project)
        found = project_id(db, given)
        if found is None:
            raise InvalidParams(f"invalid params: there is no project {given!r} - at `$.project`")
        return found

    return await daemon.store.write(find)
