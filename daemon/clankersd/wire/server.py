"""The socket: connections, frames, limits. What a connection does can only end that connection."""

import asyncio
import os
import resource
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import structlog

from clankers_protocol.errors import InvalidRequest, Overloaded, ParseError, RpcError
from clankers_protocol.framing import MAX_FRAME, Decoder, FramingError, frame
from clankersd.wire import rpc
from clankersd.wire.admission import Admission, process_of
from clankersd.wire.byte_budget import ByteBudget
from clankersd.wire.large_json import measure
from clankersd.wire.outbox import MAX_UNSENT_BYTES, MAX_UNSENT_TOTAL_BYTES, Outbox
from clankersd.wire.preparation import RequestOrder, current_order, current_request_bytes, thread_limiter
from clankersd.wire.sockets import BACKLOG

if TYPE_CHECKING:
    from clankersd.app import Daemon

FRAME_SECONDS = 30.0
SEND_SECONDS = 30.0
IN_FLIGHT = 64
DECODE_IN_THREAD = 128 * 1024

SMALL_FRAME_BYTES = 1024 * 1024
"""Frames that a connection may have received and not finished without reserving room for them."""

MAX_RECEIVED_BYTES = 128 * 1024 * 1024
"""Larger frames that all connections together may have received and not finished."""

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""Estimated size of the larger frames of all connections once decoded."""

OBJECT_BYTES = 64
"""Estimated size of a decoded JSON value."""

SMALL_REPLY_BYTES = 1024
"""Replies that are sent even when there is no room for more: errors above all."""

MAX_BATCH_REPLY_BYTES = MAX_FRAME - 1000 * SMALL_REPLY_BYTES
"""Larger replies of one batch; the rest of the frame is for small ones."""

FIRST_REPLY_BYTES = 4 * 1024 * 1024
"""Size that the first replies of a connection are expected to have at most."""

STALL_SECONDS = 1.0
"""A connection that has read nothing for so long may be closed when others need the memory it holds."""

REFUSAL_SECONDS = 2.0
"""Time that a refused connection has to read why."""

MAX_REFUSED = 64
"""Refused connections that are kept open until they have read why."""

REFUSAL_LOG_SECONDS = 10.0
DESCRIPTORS_BESIDE_CONNECTIONS = 512

Reply = Callable[[Any, bytes | None], None]

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
        self._admission = Admission()
        self._refused: dict[Peer, None] = {}
        self._refusals_logged_at = 0.0
        self._refusals_unlogged = 0
        self._stalled: dict[Peer, float] = {}
        self._stall_timer: asyncio.TimerHandle | None = None
        self.unsent = ByteBudget(MAX_UNSENT_TOTAL_BYTES)
        self.received = ByteBudget(MAX_RECEIVED_BYTES)
        self.decoded = ByteBudget(MAX_DECODED_BYTES)

    @property
    def connections(self) -> int:
        return len(self._peers)

    async def listen(self, listener: socket.socket) -> None:
        """Accept on this socket from now on."""
        _allow_descriptors(self._daemon.config.max_connections + DESCRIPTORS_BESIDE_CONNECTIONS)
        loop = asyncio.get_running_loop()
        self._listening.append(
            await loop.create_server(lambda: Peer(self._daemon, self), sock=listener, backlog=BACKLOG)
        )

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
        for peer in [*self._peers, *self._refused]:
            peer.hang_up()

    def come(self, peer: "Peer") -> RpcError | None:
        """Admit a new connection, or return why it is refused."""
        uid = peer_uid(peer.socket)
        if uid is not None and uid != os.getuid():
            log.warning("refused a peer of another user", uid=uid)
            peer.hang_up()  # without a word
            return None
        refusal: RpcError | None = Overloaded("overloaded: the daemon is stopping")
        if not self._draining:
            refusal = self._admission.admit(peer.process, self._daemon.config.max_connections)
        if refusal is None:
            self._peers.add(peer)
            return None
        self._log_refusal(refusal)
        self._refused[peer] = None
        if len(self._refused) > MAX_REFUSED:
            next(iter(self._refused)).hang_up()
        return refusal

    def gone(self, peer: "Peer") -> None:
        """That connection is no more."""
        self._refused.pop(peer, None)
        self._stalled.pop(peer, None)
        if peer in self._peers:
            self._peers.discard(peer)
            self._admission.leave(peer.process)
            self._daemon.hub.forget(peer)
        self._see_whether_quiet()

    def stalled(self, peer: "Peer") -> None:
        """Watch a connection that does not read."""
        loop = asyncio.get_running_loop()
        self._stalled[peer] = loop.time()
        if self._stall_timer is None:
            self._stall_timer = loop.call_later(STALL_SECONDS, self._check_stalled)

    def reads_again(self, peer: "Peer") -> None:
        """Watch that connection no longer."""
        self._stalled.pop(peer, None)

    def make_room(self, size_bytes: int) -> bool:
        """Make room for a reply, by closing connections that hold much and do not read; False if there is none."""
        while not self.unsent.fits(size_bytes):
            if not self._close_stalled():
                return False
        return True

    def _close_stalled(self) -> bool:
        """Close the connection that holds most of those that have read nothing for a while."""
        overdue = asyncio.get_running_loop().time() - STALL_SECONDS
        stalled = [peer for peer, since in self._stalled.items() if since <= overdue and peer.held_bytes]
        if not stalled:
            return False
        peer = max(stalled, key=lambda one: one.held_bytes)
        log.warning("closed a connection that does not read", process=peer.process, held_bytes=peer.held_bytes)
        peer.hang_up()
        return True

    def _check_stalled(self) -> None:
        loop = asyncio.get_running_loop()
        for peer, since in list(self._stalled.items()):
            if loop.time() - since >= SEND_SECONDS and peer.owes_reply:
                log.debug("reply lost", error="the peer does not read")
                peer.hang_up()
        if self.received.is_contended or self.decoded.is_contended:
            self._close_stalled()
        self._stall_timer = loop.call_later(STALL_SECONDS, self._check_stalled) if self._stalled else None

    def _log_refusal(self, refusal: RpcError) -> None:
        """Log one refusal in a while: a client that tries again and again would fill the log."""
        now = asyncio.get_running_loop().time()
        self._refusals_unlogged += 1
        if not self._refusals_logged_at or now - self._refusals_logged_at >= REFUSAL_LOG_SECONDS:
            log.warning("refused connections", reason=refusal.message, count=self._refusals_unlogged)
            self._refusals_logged_at, self._refusals_unlogged = now, 0

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


@dataclass(slots=True, eq=False)
class _Frame:
    """A received frame whose requests are not all finished, and the room that it takes in shared budgets."""

    size_bytes: int
    reserved_bytes: int = 0
    decoded_bytes: int = 0
    open_requests: int = 0


class Peer(asyncio.Protocol):
    """One connection.

    A transport and callbacks instead of a stream and a task that reads it: for requests as small as an
    event, waking that task costs as much as serving them.
    """

    def __init__(self, daemon: "Daemon", server: Server) -> None:
        self._daemon = daemon
        self._server = server
        self._decoder = Decoder()
        self._bodies: deque[tuple[bytes, _Frame]] = deque()
        self._waiting: deque[tuple[Any, Reply, _Frame, _Batch | None, int]] = deque()
        self._order = RequestOrder()
        self._decoding = False
        self._in_flight = 0
        self._small_bytes = 0  # of unfinished frames, those that have reserved no room
        self._large_bytes = 0  # of those that have
        self._expected_reply_bytes = FIRST_REPLY_BYTES
        self._ended = False
        self._is_refused = False
        self._has_hung_up = False
        self._frame_timer: asyncio.TimerHandle | None = None
        self._reserved_bytes = 0
        self._reservation: asyncio.Future[None] | None = None

    # -- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # what the peer does not read, its requests wait for
        self._outbox = Outbox(self._transport, self._server.unsent)
        self.socket: socket.socket = transport.get_extra_info("socket")
        self.process = process_of(self.socket)
        if refusal := self._server.come(self):
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        completed = False
        try:
            for body in self._decoder.feed(data):
                completed = True
                self._bodies.append((body, _Frame(len(body), self._reserved_bytes)))
                self._reserved_bytes = 0
        except FramingError as error:
            self._go_on()
            self._refuse(ParseError(f"parse error: {error}"))
            return
        self._time_frame(completed)
        self._go_on()

    def eof_received(self) -> bool:
        self._ended = self._has_hung_up = True
        self._leave_when_done()
        return True  # the other half may still take our replies

    def pause_writing(self) -> None:
        self._outbox.pause()
        self._server.stalled(self)

    def resume_writing(self) -> None:
        self._server.reads_again(self)
        self._outbox.resume()
        if self._outbox.is_empty:
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.debug("connection lost", error=repr(error))
        self._ended = self._has_hung_up = True
        self._outbox.clear()
        if self._frame_timer is not None:
            self._frame_timer.cancel()
        self._forget_partial_frame()
        self._server.gone(self)
        self._go_on()  # what arrived whole is still done

    # -- what others ask for

    @property
    def held_bytes(self) -> int:
        """Memory held for this connection in shared budgets."""
        unsent = self._outbox.unsent_bytes + self._outbox.gathered_bytes
        return unsent + self._reserved_bytes + sum(received.reserved_bytes for _, received in self._bodies)

    @property
    def owes_reply(self) -> bool:
        """Whether a reply, and not only notifications, waits for the peer to read."""
        return self._outbox.owes_reply

    def offer(self, method: str, params: Any) -> bool:
        """Tell the peer something without waiting for it to read; False when it is gone or far behind."""
        if self._transport.is_closing():
            return False
        return self._outbox.put_notification(frame(rpc.notification(method, params)))

    def take_back(self) -> None:
        """Forget what was offered and not yet sent."""
        self._outbox.discard_notifications()

    def hear_no_more(self) -> None:
        """Take no more requests; what is in flight is still answered."""
        self._ended = True
        self._transport.pause_reading()
        self._forget_received()
        self._leave_when_done()

    def hang_up(self) -> None:
        """Leave at once."""
        self._outbox.clear()
        self._forget_received()
        self._transport.abort()

    # -- from bytes to tasks

    def _go_on(self) -> None:
        """Start what may be started, in order; read on when nothing is left over.

        Tasks run in the order they are made and a write is queued before its task first waits, so writes of
        one connection keep their order.
        """
        while self._in_flight < self._max_in_flight():
            if self._waiting and self._may_start(self._waiting[0][3]):
                request, reply, received, batch, size = self._waiting.popleft()
                if batch is not None:
                    batch.has_begun = True
                self._start(request, reply, received, size)
            elif not self._waiting and self._bodies and not self._decoding and self._may_open(self._bodies[0][1]):
                self._open(*self._bodies.popleft())
            else:
                break
        behind = bool(self._waiting or self._bodies or self._decoding or not self._has_room_for_frame())
        if behind == self._transport.is_reading() and not self._ended:
            (self._transport.pause_reading if behind else self._transport.resume_reading)()
        self._leave_when_done()

    def _max_in_flight(self) -> int:
        """Fewer requests at once after large replies: together they must not exceed what may stay unread."""
        return max(1, min(IN_FLIGHT, MAX_UNSENT_BYTES // max(self._expected_reply_bytes, 1)))

    def _may_start(self, batch: "_Batch | None") -> bool:
        """Requests wait while the peer does not read; a batch that has begun is finished first."""
        return not self._outbox.owes_reply or (batch is not None and batch.has_begun)

    def _may_open(self, received: _Frame) -> bool:
        """Frames wait while the peer does not read, or while too much of what it sent before is unfinished."""
        if self._outbox.owes_reply:
            return False
        if received.reserved_bytes:
            return not self._large_bytes or self._large_bytes + received.size_bytes <= MAX_FRAME
        return not self._small_bytes or self._small_bytes + received.size_bytes <= SMALL_FRAME_BYTES

    def _count_unfinished(self, received: _Frame, sign: int) -> None:
        if received.reserved_bytes:
            self._large_bytes += sign * received.size_bytes
        else:
            self._small_bytes += sign * received.size_bytes

    def _has_room_for_frame(self) -> bool:
        """Reserve room for a large frame before its body is read; False while there is none."""
        announced = self._decoder.announced
        if announced <= SMALL_FRAME_BYTES or self._reserved_bytes or self._ended:
            return True
        if self._reservation is None:
            self._reservation = self._server.received.reserve(announced)
            if self._reservation is None:
                self._reserved_bytes = announced
                return True
            self._reservation.add_done_callback(partial(self._room_is_reserved, announced))
        return False

    def _room_is_reserved(self, announced: int, granted: asyncio.Future[None]) -> None:
        if granted.cancelled():
            return
        if self._ended:
            self._server.received.release(announced)
            return
        self._reservation = None
        self._reserved_bytes = announced
        self._time_frame(True)  # it begins now: until now it was not read
        self._go_on()

    def _forget_received(self) -> None:
        """Drop what was received and not begun, and give back the room reserved for it."""
        self._forget_partial_frame()
        self._server.received.release(sum(received.reserved_bytes for _, received in self._bodies))
        self._bodies.clear()
        while self._waiting:
            self._finish(self._waiting.popleft()[2])

    def _forget_partial_frame(self) -> None:
        if self._reservation is not None:
            self._reservation.cancel()
        self._server.received.release(self._reserved_bytes)
        self._reserved_bytes = 0
        self._decoder = Decoder()

    def _open(self, body: bytes, received: _Frame) -> None:
        self._count_unfinished(received, 1)
        received.open_requests = 1  # until its requests are counted
        if len(body) >= DECODE_IN_THREAD:
            self._decoding = True
            self._spawn(self._decode_apart(body, received), received)
            return
        try:
            message = rpc.decode(body)
            self._take(message, rpc.request_sizes(message, body), received)
        except ParseError as error:
            self._say(rpc.error_reply(error))
        self._finish(received)

    async def _decode_apart(self, body: bytes, received: _Frame) -> None:
        try:
            shape = await anyio.to_thread.run_sync(measure, body, limiter=thread_limiter(len(body)))
            size_bytes = len(body) + OBJECT_BYTES * (shape.values + shape.containers + shape.members)
            if granted := self._server.decoded.reserve(size_bytes):
                await granted
            received.decoded_bytes = size_bytes
            message, sizes = await anyio.to_thread.run_sync(
                _decode_and_measure, body, limiter=thread_limiter(len(body))
            )
            self._take(message, sizes, received)
        except ParseError as error:
            self._say(rpc.error_reply(error))
        finally:
            self._decoding = False

    def _take(self, message: Any, sizes: list[int], received: _Frame) -> None:
        """Queue what a frame holds."""
        if not isinstance(message, list):
            received.open_requests += 1
            self._waiting.append((message, self._reply, received, None, sizes[0]))
        elif refusal := _refuse_batch(message):
            self._say(rpc.error_reply(refusal))
        else:
            received.open_requests += len(message)
            batch = _Batch(len(message), self)
            for request, size in zip(message, sizes, strict=True):
                self._waiting.append((request, batch.add, received, batch, size))

    def _start(self, request: Any, reply: Reply, received: _Frame, size: int) -> None:
        self._spawn(self._serve(request, reply, size), received)

    async def _serve(self, request: Any, reply: Reply, size: int) -> None:
        rpc.current_connection.set(self)
        current_order.set(self._order)
        current_request_bytes.set(size)
        body = await rpc.answer(self._daemon, request)
        if body is not None:
            self._expected_reply_bytes = max(len(body), self._expected_reply_bytes // 2)
        if body is not None and len(body) > MAX_FRAME:
            body = _too_large(request, f"the reply takes {len(body)} bytes, a frame holds {MAX_FRAME}")
        reply(request, body)

    def _reply(self, request: Any, body: bytes | None) -> None:
        if body is not None:
            self.send(body if self.has_room(len(body)) else _too_large(request, "replies sent before are not read yet"))

    def has_room(self, size_bytes: int) -> bool:
        """Whether a reply of this size may wait until the peer reads it."""
        if size_bytes <= SMALL_REPLY_BYTES or self._transport.is_closing():
            return True
        return self._outbox.has_room(size_bytes) and self._server.make_room(size_bytes)

    def gather(self, size_bytes: int) -> None:
        """Count a reply that is kept until the rest of its batch is there."""
        self._outbox.gather(size_bytes)

    def send_gathered(self, pieces: list[bytes], size_bytes: int) -> None:
        """Send the replies of a batch."""
        self._outbox.ungather(size_bytes)
        self.send(*pieces)

    def send(self, *pieces: bytes) -> None:
        """Send one message, given in pieces."""
        if self._transport.is_closing():
            log.debug("reply lost", error="the peer is gone")
        elif len(pieces) == 1 and len(pieces[0]) <= SMALL_REPLY_BYTES:
            self._outbox.put(frame(pieces[0]))
        else:
            self._outbox.put(b"Content-Length: %d\r\n\r\n" % sum(map(len, pieces)), *pieces)

    def _spawn(self, work: Coroutine[Any, Any, None], received: _Frame) -> None:
        self._in_flight += 1
        self._server.run(work, partial(self._done, received))

    def _done(self, received: _Frame) -> None:
        self._in_flight -= 1
        self._finish(received)
        self._go_on()

    def _finish(self, received: _Frame) -> None:
        """Count a request of this frame as finished; after the last one the frame's room is given back."""
        received.open_requests -= 1
        if not received.open_requests:
            self._count_unfinished(received, -1)
            if received.reserved_bytes:
                self._server.received.release(received.reserved_bytes)
            if received.decoded_bytes:
                self._server.decoded.release(received.decoded_bytes)

    # -- ends

    def _say(self, body: bytes) -> None:
        self.send(body)

    def _leave_when_done(self) -> None:
        if not self._ended or self._in_flight or self._waiting or self._bodies or not self._outbox.is_empty:
            return
        if self._has_hung_up or not self._is_refused:
            self._transport.close()
        elif self._transport.can_write_eof() and self._frame_timer is None:
            # What the peer still sends is read and dropped for a while: closing a socket with unread data in it
            # would tell the peer of a reset connection, and not of our reply.
            self._transport.write_eof()
            loop = asyncio.get_running_loop()
            self._frame_timer = loop.call_later(REFUSAL_SECONDS, self._transport.close)

    def _refuse(self, refusal: RpcError) -> None:
        """Take no more of this connection: say why, answer what came before, and leave."""
        self._say(rpc.error_reply(refusal))
        self._is_refused = self._ended = True
        self._time_frame(True)
        self._forget_partial_frame()
        self._transport.resume_reading()
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
            self._refuse(ParseError(f"parse error: a frame must be complete within {FRAME_SECONDS:g} s"))
        else:  # it is us who do not read
            self._time_frame(completed=False)


class _Batch:
    """Gathers the replies of a batch, and sends them when the last one is there.

    A reply that does not fit into a frame with those before it, or into memory, is replaced by an error.
    """

    def __init__(self, size: int, peer: Peer) -> None:
        self.has_begun = False
        self._open = size
        self._peer = peer
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def add(self, request: Any, reply: bytes | None) -> None:
        self._open -= 1
        if reply is not None:
            if len(reply) > SMALL_REPLY_BYTES and self._size_bytes + len(reply) > MAX_BATCH_REPLY_BYTES:
                reply = _too_large(request, f"the replies of a batch may take {MAX_BATCH_REPLY_BYTES} bytes")
            elif not self._peer.has_room(len(reply)):
                reply = _too_large(request, "replies sent before are not read yet")
            self._pieces += (b"," if self._pieces else b"[", reply)
            self._size_bytes += len(reply)
            self._peer.gather(len(reply))
        if self._open == 0 and self._pieces:
            self._peer.send_gathered([*self._pieces, b"]"], self._size_bytes)


def _decode_and_measure(body: bytes) -> tuple[Any, list[int]]:
    message = rpc.decode(body)
    return message, rpc.request_sizes(message, body)


def _refuse_batch(batch: list[Any]) -> RpcError | None:
    if not batch:
        return InvalidRequest("invalid request: the batch is empty")
    if len(batch) > rpc.MAX_BATCH:
        return InvalidRequest(f"invalid request: a batch may hold {rpc.MAX_BATCH} requests, this one {len(batch)}")
    return None


def _too_large(request: Any, reason: str) -> bytes:
    """An error instead of a reply for which there is no room; an id that is itself large is left out."""
    request_id = request.get("id") if len(str(request.get("id"))) < SMALL_REPLY_BYTES // 2 else None
    return rpc.error_reply(Overloaded(f"overloaded: {reason}; ask for less at a time"), request_id)


def _allow_descriptors(count: int) -> None:
    """Raise this process's limit on open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
