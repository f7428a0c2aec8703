"""Requests of one connection: the frames they came in, their cancellation, and the replies of a batch."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.errors import Overloaded, RpcError
from clankers_protocol.framing import MAX_FRAME
from clankersd.cancellation import Cancellation
from clankersd.wire import rpc

if TYPE_CHECKING:
    from clankersd.wire.connection import ClientConnection

SMALL_REPLY_BYTES = 1024
"""Replies up to this size are sent even when no memory is left for more: errors above all."""

MAX_BATCH_REPLY_BYTES = MAX_FRAME - 1000 * SMALL_REPLY_BYTES
"""Limit for the larger replies of one batch; the rest of the frame is for small ones."""


class ReceivedFrame(msgspec.Struct, eq=False):
    """A received frame whose requests are not all finished, and the memory that it reserved in shared budgets."""

    size_bytes: int
    reserved_bytes: int = 0
    decoded_bytes: int = 0
    open_requests: int = 0


class ClientRequest(msgspec.Struct, eq=False):
    """A decoded request that waits, or runs in its task."""

    message: Any
    frame: ReceivedFrame
    batch: "BatchReply | None"
    size_bytes: int
    received_at: float
    cancellation: Cancellation = msgspec.field(default_factory=Cancellation)
    task: asyncio.Task[None] | None = None

    @property
    def method(self) -> str | None:
        """Name of the method; None if this is no valid request."""
        method = self.message.get("method") if isinstance(self.message, dict) else None
        return method if isinstance(method, str) else None

    @property
    def message_id(self) -> object:
        return self.message.get("id") if isinstance(self.message, dict) else None

    @property
    def wants_reply(self) -> bool:
        """True unless it is a notification."""
        return not isinstance(self.message, dict) or "id" in self.message

    @property
    def is_kept(self) -> bool:
        """True if it is served even when its client is gone, as all that stores something is."""
        return self.method not in rpc.SLOW_READS or not self.wants_reply

    def cancel(self, reason: RpcError) -> None:
        """End it with this error, unless it has begun to store something or is of a kind that runs to its end."""
        if self.method not in rpc.UNCANCELLABLE:
            self.cancellation.cancel(reason)


class BatchReply:
    """Collects the replies of a batch, and sends them when the last one is complete.

    A reply that does not fit into a frame with those before it, or into memory, is replaced by an error.
    """

    def __init__(self, size: int, connection: "ClientConnection") -> None:
        self.has_started = False
        self._open_requests = size
        self._connection = connection
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def add(self, request: Any, reply: bytes | None) -> None:
        """Add the reply to one request; None if it was a notification."""
        self._open_requests -= 1
        if reply is not None:
            if len(reply) > SMALL_REPLY_BYTES and self._size_bytes + len(reply) > MAX_BATCH_REPLY_BYTES:
                reply = too_large(request, f"the replies of a batch may take {MAX_BATCH_REPLY_BYTES} bytes")
            elif not self._connection.has_room(len(reply)):
                reply = too_large(request, "replies sent before are not read yet")
            self._pieces += (b"," if self._pieces else b"[", reply)
            self._size_bytes += len(reply)
            self._connection.gather(len(reply))
        if self._open_requests == 0 and self._pieces:
            self._connection.send_gathered([*self._pieces, b"]"], self._size_bytes)


def too_large(request: Any, reason: str) -> bytes:
    """Encode an error in place of a reply that does not fit; an id that is itself large is left out."""
    request_id = request.get("id") if len(str(request.get("id"))) < SMALL_REPLY_BYTES // 2 else None
    return rpc.error_reply(Overloaded(f"overloaded: {reason}; ask for less at a time"), request_id)
