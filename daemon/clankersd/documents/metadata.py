"""Titles, metadata and projects of documents, as clients give them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from clankers_protocol.documents import Ingested
from clankers_protocol.errors import InvalidParams
from clankersd import clock
from clankersd.db import Db, Notification, Store
from clankersd.documents.store import index_title
from clankersd.projects import find_folder, resolve_project

if TYPE_CHECKING:
    pass

MAX_METADATA_BYTES = 16 * 1024


@dataclass(frozen=True)
class MetadataChanges:
    """New values for a stored document; None leaves a value unchanged."""

    title: str | None
    metadata: dict[str, Any] | None
    project_id: str | None


def apply_changes(db: Db, document_id: str, changes: MetadataChanges) -> bool:
    """Store the values that differ; return whether any did."""
    metadata = None if changes.metadata is None else msgspec.json.encode(changes.metadata).decode()
    new = {"title": changes.title, "metadata": metadata, "project_id": changes.project_id}
    stored = db.fetch_one("SELECT title, metadata, project_id FROM documents WHERE id = :id", {"id": document_id})
    assert stored
    different = {name: value for name, value in new.items() if value is not None and value != stored[name]}
    if not different:
        return False
    columns = ", ".join(f"{name} = :{name}" for name in different)
    params = different | {"id": document_id, "now": clock.now()}
    db.execute(f"UPDATE documents SET {columns}, updated_at = :now WHERE id = :id", params)
    if "title" in different:
        index_title(db, document_id, different["title"])
    return True


def check_metadata(metadata: dict[str, Any] | None, where: str = "$.metadata") -> None:
    """Reject large metadata, which every read of the document would carry; raises InvalidParams."""
    if metadata is not None and len(msgspec.json.encode(metadata)) > MAX_METADATA_BYTES:
        raise InvalidParams(f"invalid params: metadata may have at most {MAX_METADATA_BYTES} bytes - at `{where}`")


def announce(db: Db, ingested: Ingested) -> Ingested:
    """Announce a document unless nothing changed."""
    if ingested.outcome != "unchanged":
        db.after_commit(Notification("document", ingested.outcome, ingested.document.id))
    return ingested


async def find_or_create_project(store: Store, project: str | None) -> str | None:
    """Return the id of a project given by its name, id or folder; a new folder creates a project."""
    if project is None:
        return None
    if project.startswith("/"):
        await anyio.to_thread.run_sync(find_folder, project)  # the disk may be slow; the folder is remembered
    return await store.write(lambda db: resolve_project(db, project))
