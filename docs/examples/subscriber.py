"""Print the messages of a project as they are stored: python subscriber.py [PROJECT] (stop with Ctrl-C)."""

import sys
from typing import Any

import anyio

from clankers import AsyncClient
from clankers_protocol.recall import RecallGet
from clankers_protocol.subscriptions import CHANGED, Subscribe


async def main(project: str | None) -> None:
    send, receive = anyio.create_memory_object_stream[dict[str, Any]](1000)

    def on_notification(method: str, params: dict[str, Any]) -> None:
        if method == CHANGED:
            send.send_nowait(params)

    async with AsyncClient(on_notification=on_notification) as client:
        await client.call(Subscribe(kinds=["message"], project=project))
        print("waiting for messages", flush=True)
        async for change in receive:
            message = await client.call(RecallGet(id=change["id"]))
            print(f"{message.about}: {message.text}", flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
