"""Requests that store, and emptying a store that several tests share."""

from typing import Any

from helpers.daemon import DaemonProcess, RawConnection


def message(name: str, session: str = "session", text: str = "word " * 40) -> dict[str, Any]:
    return {"id": name, "sessionId": session, "role": "user", "textContent": text}


def request(number: str | int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def upsert(connection: RawConnection, name: str, text: str = "text") -> dict[str, Any]:
    """The reply to storing one message."""
    return connection.request("upsertMessage", {"message": message(name, text=text)})


def delete_everything(daemon: DaemonProcess) -> None:
    """Delete sessions, threads, memories, documents, skills and scheduled actions, for the next test."""
    with daemon.connect() as connection:
        for kind in ("session", "document", "skill"):
            while page := connection.call(f"{kind}.list", limit=1000)[f"{kind}s"]:
                for one in page:
                    connection.call(f"{kind}.delete", id=one["id"])
        connection.call("memory.bulkDelete", scopes=["*"], minSalience=0, purge=True)
        connection.call("schedule.deleteAll")
