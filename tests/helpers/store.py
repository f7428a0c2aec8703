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


def clear(connection: RawConnection) -> None:
    """Delete every session and memory, so that the next test of a shared daemon sees none."""
    while page := connection.call("session.list", limit=1000)["sessions"]:
        for one in page:
            connection.call("session.delete", id=one["id"])
    connection.call("memory.bulkDelete", scopes=["*"], minSalience=0, purge=True)


def forget_all(daemon: DaemonProcess) -> None:
    """The same, where no connection is at hand."""
    with daemon.connect() as connection:
        clear(connection)
