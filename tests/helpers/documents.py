"""Documents over the socket: waited for, looked at, searched, linked."""

from typing import Any

from helpers.daemon import RawConnection
from helpers.waiting import eventually


def finished(connection: RawConnection, job_id: str) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        job = connection.call("job.status", id=job_id)
        return job if job["state"] != "running" else None

    job = dict(eventually(ended, "the job has ended"))
    assert job["state"] == "done", job
    return dict(job["result"])


def chunks_of(connection: RawConnection, document_id: str) -> list[dict[str, Any]]:
    page = connection.call("chunk.list", documentId=document_id, limit=7)
    found = page["chunks"]
    while page["cursor"]:
        page = connection.call("chunk.list", documentId=document_id, limit=1000, cursor=page["cursor"])
        found += page["chunks"]
    assert [one["index"] for one in found] == list(range(len(found)))
    assert connection.call("chunk.get", ids=[one["id"] for one in found[:1000]]) == found[:1000]
    return list(found)


def search(connection: RawConnection, query: str, **params: Any) -> list[dict[str, Any]]:
    return list(connection.call("search", query=query, sources=["documents"], **params)["hits"])


def edge(source: str, target: str, relation: str = "references", weight: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"sourceId": source, "targetId": target, "relation": relation, "weight": weight, **more}


def link(connection: RawConnection, *edges: dict[str, Any]) -> dict[str, int]:
    return dict(connection.call("graph.storeEdges", edges=list(edges)))
