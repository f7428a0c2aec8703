"""The socket: connections, frames, limits. What a connection does can only end that connection."""

import asyncio
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

import anyio
import structlog

from clankers_protocol.errors import InvalidRequest, Overloaded, ParseError, RpcError
from clankers_protocol.framing import Decoder, FramingError, frame
from clankersd import rpc
from clankersd.preparation import LARGE_REQUEST_BYTES, Order, current_order, heavy_work, is_large

if TYPE_CHECKING:
    from clankersd.app import Daemon

FRAME_SECONDS = 30.0
SEND_SECONDS = 30.0
IN_FLIGHT = 64
DECODE_IN_THREAD = 128 * 1024
MOST_UNSENT = 1000
MOST_UNSENT_BYTES = 4 * 1024 * 1024

Reply = Callable[[bytes | None], Awaitable[None]]

log = structlog.get_logger(component="server")


class Server:
    """Accepts connections until it is drained."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._peers: set[Peer] = set()
        self._requests: set[asyncio.Task[None]] = set()
        self._listening: list[asyncio.Server] = []
        self._draining = False
        self._quiet = asyncio.Event()

    @property
    def connections(self) -> int:
        return len(self._peers)

    async def listen(self, listener: socket.socket) -> None:
        """Accept on this socket from now on."""
        loop = asyncio.get_running_loop()
        self._listening.append(await loop.create_server(lambda: Peer(self._daemon, self), sock=listener))

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, read nothing more, and let what is in flight finish within `seconds`."""
        self._draining = True
        for listening in self._listening:
            listening.close()
        for peer in list(self._peers):
            peer.hear_no_more()
        self._see_whether_quiet()
        with anyio.move_on_after(seconds):
            await self._quiet.wait()
        for request in self._requests:
            request.cancel()
        for peer in list(self._peers):
            peer.hang_up()

    def come(self, peer: "Peer") -> RpcError | None:
        """There is a new connection; tells why it may not stay."""
        self._peers.add(peer)
        if self._draining:
            return Overloaded("overloaded: the daemon is stopping")
        uid = peer_uid(peer.socket)
        if uid is not None and uid != os.getuid():
            log.warning("refused a peer of another user", uid=uid)
            peer.hang_up()  # without a word
            return None
        most = self._daemon.config.max_connections
        if len(self._peers) > most:
            log.warning("refused a connection", limit=most)
            return Overloaded(f"overloaded: {most} connections are open already")
        return None

    def gone(self, peer: "Peer") -> None:
        """That connection is no more."""
        self._peers.discard(peer)
        self._daemon.hub.forget(peer)
        self._see_whether_quiet()

    def run(self, work: Coroutine[Any, Any, None], when_done: Callable[[], None]) -> None:
        """Serve a request beside all others."""

        def done(task: asyncio.Task[None]) -> None:
            self._requests.discard(task)
            if not task.cancelled() and (error := task.exception()):
                log.error("request failed", exc_info=error)
            when_done()
            self._see_whether_quiet()

        task = asyncio.get_running_loop().create_task(work)
        self._requests.add(task)
        task.add_done_callback(done)

    def _see_whether_quiet(self) -> None:
        if self._draining and not (self._peers or self._requests):
            self._quiet.set()


class Peer(asyncio.Protocol):
    """One connection.

    A transport and callbacks instead of a stream and a task that reads it: for requests as small as an
    event, waking that task costs as much as serving them.
    """

    def __init__(self, daemon: "Daemon", server: Server) -> None:
        self._daemon = daemon
        self._server = server
        self._decoder = Decoder()
        self._bodies: deque[bytes] = deque()
        self._waiting: deque[tuple[Any, Reply, int]] = deque()
        self._order = Order()
        self._decoding = False
        self._in_flight = 0
        self._ended = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent: deque[bytes] = deque()
        self._frame_timer: asyncio.TimerHandle | None = None

    # -- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # what the peer does not read, its requests wait for
        self.socket: socket.socket = transport.get_extra_info("socket")
        if refusal := self._server.come(self):
            self._say(rpc.error_reply(refusal))
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            before = len(self._bodies)
            self._bodies.extend(self._decoder.feed(data))
        except FramingError as error:
            self._go_on()
            self._refuse(str(error))
            return
        self._time_frame(len(self._bodies) > before)
        self._go_on()

    def eof_received(self) -> bool:
        self._ended = True
        self._leave_when_done()
        return True  # the other half may still take our replies

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        while self._unsent and self._writable.is_set():
            self._say(self._unsent.popleft())

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.debug("connection lost", error=repr(error))
        self._ended = True
        self._writable.set()
        self._time_frame(True)
        self._server.gone(self)

    # -- what others ask for

    async def send(self, body: bytes) -> None:
        """Send one message; a peer that is gone or does not read only ends itself."""
        self._say(body)
        if self._writable.is_set():
            return
        with anyio.move_on_after(SEND_SECONDS) as scope:
            await self._writable.wait()
        if scope.cancelled_caught:
            log.debug("reply lost", error="the peer does not read")
            self.hang_up()

    async def notify(self, method: str, params: Any) -> None:
        """Tell the peer something it did not ask for."""
        await self.send(rpc.notification(method, params))

    def offer(self, method: str, params: Any) -> bool:
        """Tell the peer something without waiting for it to read; False when it is gone or far behind."""
        if self._transport.is_closing():
            return False
        body = rpc.notification(method, params)
        if self._writable.is_set():
            self._say(body)
            return True
        if len(self._unsent) >= MOST_UNSENT or sum(map(len, self._unsent)) + len(body) > MOST_UNSENT_BYTES:
            return False
        self._unsent.append(body)
        return True

    def take_back(self) -> None:
        """Forget what was offered and not yet sent."""
        self._unsent.clear()

    def hear_no_more(self) -> None:
        """Take no more requests; what is in flight is still answered."""
        self._ended = True
        self._transport.pause_reading()
        self._waiting.clear()
        self._bodies.clear()
        self._leave_when_done()

    def hang_up(self) -> None:
        """Leave at once."""
        self._transport.abort()

    # -- from bytes to tasks

    def _go_on(self) -> None:
        """Start what may be started, in order; read on when nothing is left over.

        Tasks run in the order they are made and a write is queued before its task first waits, so writes of
        one connection keep their order.
        """
        while self._in_flight < IN_FLIGHT:
            if self._waiting:
                self._start(*self._waiting.popleft())
            elif self._bodies and not self._decoding:
                self._open(self._bodies.popleft())
            else:
                break
        behind = bool(self._waiting or self._bodies or self._decoding)
        if behind == self._transport.is_reading() and not self._ended:
            (self._transport.pause_reading if behind else self._transport.resume_reading)()
        self._leave_when_done()

    def _open(self, body: bytes) -> None:
        if len(body) >= DECODE_IN_THREAD:
            self._decoding = True
            self._spawn(self._decode_apart(body))
            return
        try:
            message = rpc.decode(body)
            self._take(message, rpc.request_sizes(message, body))
        except ParseError as error:
            self._say(rpc.error_reply(error))

    async def _decode_apart(self, body: bytes) -> None:
        try:
            self._take(*await anyio.to_thread.run_sync(_decode_and_measure, body, limiter=heavy_work()))
        except ParseError as error:
            await self.send(rpc.error_reply(error))
        finally:
            self._decoding = False

    def _take(self, message: Any, sizes: list[int]) -> None:
        """Queue what a frame holds."""
        if not isinstance(message, list):
            self._waiting.append((message, self._reply, sizes[0]))
        elif refusal := _refuse_batch(message):
            self._say(rpc.error_reply(refusal))
        else:
            batch = _Batch(len(message), self.send)
            self._waiting.extend((request, batch.add, size) for request, size in zip(message, sizes, strict=True))

    def _start(self, request: Any, reply: Reply, size: int) -> None:
        self._spawn(self._serve(request, reply, size))

    async def _serve(self, request: Any, reply: Reply, size: int) -> None:
        rpc.current_peer.set(self)
        current_order.set(self._order)
        is_large.set(size >= LARGE_REQUEST_BYTES)
        await reply(await rpc.answer(self._daemon, request))

    async def _reply(self, body: bytes | None) -> None:
        if body is not None:
            await self.send(body)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._in_flight += 1
        self._server.run(work, self._done)

    def _done(self) -> None:
        self._in_flight -= 1
        self._go_on()

    # -- ends

    def _say(self, body: bytes) -> None:
        if self._transport.is_closing():
            log.debug("reply lost", error="the peer is gone")
        else:
            self._transport.write(frame(body))

    def _leave_when_done(self) -> None:
        if self._ended and not (self._in_flight or self._waiting or self._bodies):
            self._transport.close()  # once everything written is sent

    def _refuse(self, problem: str) -> None:
        """The bytes make no sense any more: say so, answer what came before, and leave."""
        self._say(rpc.error_reply(ParseError(f"parse error: {problem}")))
        self._ended = True
        self._transport.pause_reading()
        self._leave_when_done()

    def _time_frame(self, completed: bool) -> None:
        """A frame that has begun must end in time."""
        if completed and self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None
        if self._decoder.partial and self._frame_timer is None and not self._ended:
            self._frame_timer = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._frame_is_late)

    def _frame_is_late(self) -> None:
        self._frame_timer = None
        if self._transport.is_reading():
            self._refuse(f"a frame must be complete within {FRAME_SECONDS:g} s")
        else:  # it is us who do not read
            self._time_frame(completed=False)


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


def _decode_and_measure(body: bytes) -> tuple[Any, list[int]]:
    message = rpc.decode(body)
    return message, rpc.request_sizes(message, body)


def _refuse_batch(batch: list[Any]) -> RpcError | None:
    if not batch:
        return InvalidRequest("invalid request: the batch is empty")
    if len(batch) > rpc.MAX_BATCH:
        return InvalidRequest(f"invalid request: a batch may hold {rpc.MAX_BATCH} requests, this one {len(batch)}")
    return None


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
