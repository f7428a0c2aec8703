"""The socket: connections, frames, limits. What a connection does can only end that connection."""

import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from anyio.abc import SocketAttribute, SocketStream

from clankers_protocol.errors import InvalidRequest, Overloaded, ParseError, RpcError
from clankers_protocol.framing import Decoder, FramingError, frame
from clankersd import rpc

if TYPE_CHECKING:
    from clankersd.app import Daemon

FRAME_SECONDS = 30.0
SEND_SECONDS = 30.0
IN_FLIGHT = 64
READ_BYTES = 64 * 1024
DECODE_IN_THREAD = 1024 * 1024

log = structlog.get_logger(component="server")

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


class Server:
    """Accepts connections until it is drained."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._peers: set[Peer] = set()
        self._accepting = anyio.CancelScope()
        self._empty = anyio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        return len(self._peers)

    async def serve(self, listener: anyio.abc.SocketListener) -> None:
        """Accept and converse until `drain`."""
        async with anyio.create_task_group() as conversations:
            with self._accepting:
                while True:
                    stream = await self._accept(listener)
                    if stream is not None:
                        conversations.start_soon(self._converse, stream)
            await listener.aclose()

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, read nothing more, and let what is in flight finish within `seconds`."""
        self._accepting.cancel()
        with anyio.move_on_after(seconds):
            while self._peers:
                for peer in self._peers:
                    peer.reading.cancel()
                await self._empty.wait()

    async def _accept(self, listener: anyio.abc.SocketListener) -> SocketStream | None:
        try:
            stream = await listener.accept()
        except OSError as error:  # out of file descriptors: those in use will be given back
            log.error("cannot accept", error=str(error))
            await anyio.sleep(0.2)
            return None
        return stream

    async def _converse(self, stream: SocketStream) -> None:
        peer = Peer(self._daemon, stream)
        self._peers.add(peer)
        if self._empty.is_set():
            self._empty = anyio.Event()
        try:
            async with stream:
                if await self._admit(peer):
                    await peer.converse()
        except GONE as error:
            log.debug("connection lost", error=repr(error))
        except Exception:
            log.exception("connection failed")
        finally:
            self._peers.discard(peer)
            if not self._peers:
                self._empty.set()

    async def _admit(self, peer: "Peer") -> bool:
        if self._accepting.cancel_called:
            return False
        uid = peer_uid(peer.socket)
        if uid is not None and uid != os.getuid():
            log.warning("refused a peer of another user", uid=uid)
            return False
        most = self._daemon.config.max_connections
        if len(self._peers) > most:
            log.warning("refused a connection", limit=most)
            await peer.send(rpc.error_reply(Overloaded(f"overloaded: {most} connections are open already")))
            return False
        return True


class Peer:
    """One connection."""

    def __init__(self, daemon: "Daemon", stream: SocketStream) -> None:
        self.reading = anyio.CancelScope()
        self._daemon = daemon
        self._stream = stream
        self.socket = stream.extra(SocketAttribute.raw_socket)  # noqa: S610  # nothing of Django's
        self._sending = anyio.Lock(fast_acquire=True)
        self._free = anyio.Semaphore(IN_FLIGHT, fast_acquire=True)
        self._decoder = Decoder()
        self._frame_deadline: float | None = None

    async def converse(self) -> None:
        """Serve requests as they come, side by side; leave when the peer has no more and all are answered."""
        rpc.current_peer.set(self)
        async with anyio.create_task_group() as requests:
            with self.reading:
                try:
                    await self._read(requests)
                except (FramingError, TimeoutError) as error:
                    message = str(error) or f"a frame must be complete within {FRAME_SECONDS:g} s"
                    await self.send(rpc.error_reply(ParseError(f"parse error: {message}")))
                except GONE:
                    pass  # no more requests; those in flight are still answered

    async def send(self, body: bytes) -> None:
        """Send one message; a peer that is gone or does not read only ends itself."""
        data = frame(body)
        try:
            async with self._sending:
                sent = self._send_now(data)
                if sent == len(data):
                    return
                with anyio.fail_after(SEND_SECONDS):
                    await self._stream.send(data[sent:])
        except (*GONE, TimeoutError) as error:
            log.debug("reply lost", error=repr(error))
            self.reading.cancel()

    def _send_now(self, data: bytes) -> int:
        """How much the socket takes without waiting: nearly always all of it, without a turn of the loop."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    async def notify(self, method: str, params: Any) -> None:
        """Tell the peer something it did not ask for."""
        await self.send(rpc.notification(method, params))

    async def _read(self, requests: anyio.abc.TaskGroup) -> None:
        while True:
            for body in self._decoder.feed(await self._receive()):
                self._frame_deadline = None
                await self._take(body, requests)

    async def _receive(self) -> bytes:
        if not self._decoder.partial:
            return await self._stream.receive(READ_BYTES)
        if self._frame_deadline is None:
            self._frame_deadline = anyio.current_time() + FRAME_SECONDS
        with anyio.fail_after(self._frame_deadline - anyio.current_time()):
            return await self._stream.receive(READ_BYTES)

    async def _take(self, body: bytes, requests: anyio.abc.TaskGroup) -> None:
        """Start serving what a frame holds. Tasks start in the order they are made and a write is queued
        before its task first waits, so writes of one connection keep their order."""
        try:
            message = await _decode(body)
        except ParseError as error:
            await self.send(rpc.error_reply(error))
            return
        if not isinstance(message, list):
            await self._start(requests, message, self._reply)
        elif refusal := _refuse_batch(message):
            await self.send(rpc.error_reply(refusal))
        else:
            batch = _Batch(len(message), self.send)
            for request in message:
                await self._start(requests, request, batch.add)

    async def _start(
        self, requests: anyio.abc.TaskGroup, request: Any, reply: Callable[[bytes | None], Awaitable[None]]
    ) -> None:
        await self._free.acquire()
        requests.start_soon(self._serve, request, reply)

    async def _serve(self, request: Any, reply: Callable[[bytes | None], Awaitable[None]]) -> None:
        try:
            await reply(await rpc.answer(self._daemon, request))
        finally:
            self._free.release()

    async def _reply(self, body: bytes | None) -> None:
        if body is not None:
            await self.send(body)


class _Batch:
    """Gathers the replies of a batch, and sends them when the last one is there."""

    def __init__(self, size: int, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._open = size
        self._send = send
        self._replies: list[bytes] = []

    async def add(self, reply: bytes | None) -> None:
        self._open -= 1
        if reply is not None:
            self._replies.append(reply)
        if self._open == 0 and self._replies:
            await self._send(b"[" + b",".join(self._replies) + b"]")


def _refuse_batch(batch: list[Any]) -> RpcError | None:
    if not batch:
        return InvalidRequest("invalid request: the batch is empty")
    if len(batch) > rpc.MAX_BATCH:
        return InvalidRequest(f"invalid request: a batch may hold {rpc.MAX_BATCH} requests, this one {len(batch)}")
    return None


async def _decode(body: bytes) -> Any:
    if len(body) < DECODE_IN_THREAD:
        return rpc.decode(body)
    return await anyio.to_thread.run_sync(rpc.decode, body)


def peer_uid(raw: socket.socket) -> int | None:
    """The user at the other end; None where the platform does not tell."""
    if sys.platform == "linux":
        credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])
    if sys.platform == "darwin":
        sol_local, local_peercred = 0, 1
        credentials = raw.getsockopt(sol_local, local_peercred, 76)
        return int(struct.unpack_from("II", credentials)[1])
    return None
