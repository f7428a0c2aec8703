"""One client connection: from received bytes to requests, and from replies to sent bytes.

An error of one connection can only end that connection.
"""

import asyncio
import select
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread
import structlog

from clankers_protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ParseError,
    RequestCancelled,
    RpcError,
)
from clankers_protocol.framing import MAX_FRAME, Decoder, FramingError, frame
from clankersd.cancellation import current_cancellation
from clankersd.metrics import metrics
from clankersd.wire import rpc
from clankersd.wire.admission import peer_pid
from clankersd.wire.client_requests import SMALL_REPLY_BYTES, BatchReply, ClientRequest, ReceivedFrame, too_large
from clankersd.wire.large_json import Shape, measure
from clankersd.wire.outbox import MAX_UNSENT_BYTES, Outbox
from clankersd.wire.preparation import RequestOrder, current_order, current_request_bytes, thread_limiter

if TYPE_CHECKING:
    from clankersd.wire.server import Server

FRAME_TIMEOUT_SECONDS = 30.0
MAX_REQUESTS_IN_FLIGHT = 64
DECODE_IN_THREAD_BYTES = 128 * 1024

SMALL_FRAME_BYTES = 1024 * 1024
"""Unfinished frames that a connection may have received without reserving memory for them."""

READ_AHEAD_BYTES = 64 * 1024
"""Frames to read before they can be served: a cancellation among them, or the end of the connection, must be seen."""

DECODED_VALUE_BYTES = 64
"""Estimated size of a decoded JSON value."""

FIRST_REPLY_BYTES = 4 * 1024 * 1024 + SMALL_REPLY_BYTES
"""Size that the first replies of a connection are expected to have at most: a text of 4 MiB and what is around it."""

JOINED_REPLY_BYTES = 64 * 1024
"""Replies up to this size are copied behind their header and sent at once: sent apart, they wake the client twice."""

REFUSAL_SECONDS = 2.0
"""Time that a refused client has to read the reason."""

Answer = Callable[[Any], Awaitable[bytes | None]]
"""Serve one decoded request; returns the encoded reply, or None for a notification."""

log = structlog.get_logger(component="server")


class ClientConnection(asyncio.Protocol):
    """One client connection.

    A transport with callbacks instead of a stream and a task that reads it: for requests as small as an
    event, waking that task costs as much as serving them.
    """

    def __init__(self, server: "Server", answer: Answer) -> None:
        self._server = server
        self._answer = answer
        self._decoder = Decoder()
        self._bodies: deque[tuple[bytes, ReceivedFrame]] = deque()  # received, not decoded
        self._waiting_bytes = 0  # size of those
        self._requests: deque[ClientRequest] = deque()  # decoded, not started
        self._order = RequestOrder()
        self._is_decoding = False
        self._in_flight = 0
        self._running: set[ClientRequest] = set()
        self._small_bytes = 0  # size of unfinished frames that reserved no memory
        self._large_bytes = 0  # size of those that did
        self._expected_reply_bytes = FIRST_REPLY_BYTES
        self._has_ended = False  # takes no more requests
        self._is_refused = False
        self._is_peer_closed = False  # sends no more, and may still read
        self._is_peer_gone = False
        self._frame_timer: asyncio.TimerHandle | None = None
        self._reserved_bytes = 0
        self._reservation: asyncio.Future[None] | None = None

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # requests wait until the client has read earlier replies
        self._outbox = Outbox(self._transport, self._server.unsent)
        self.socket: socket.socket = transport.get_extra_info("socket")
        self.pid = peer_pid(self.socket)
        if refusal := self._server.admit(self):
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        completed = False
        try:
            for body in self._decoder.feed(data):
                completed = True
                cancelled_id = rpc.cancelled_id(body)
                if cancelled_id is not None and self.cancel_request(cancelled_id):
                    continue  # at once: behind the requests that it is about it would come too late
                self._bodies.append((body, ReceivedFrame(len(body), self._reserved_bytes)))
                self._waiting_bytes += len(body)
                self._reserved_bytes = 0
        except FramingError as error:
            self._advance()
            self._refuse(ParseError(f"parse error: {error}"))
            return
        self._update_frame_timer(completed)
        self._advance()

    def eof_received(self) -> bool:
        self._has_ended = self._is_peer_closed = True
        self.check_peer()
        self._close_when_done()
        return True  # the other half may still take our replies

    def pause_writing(self) -> None:
        self._outbox.pause()
        self._server.mark_stalled(self)

    def resume_writing(self) -> None:
        self._server.unmark_stalled(self)
        self._outbox.resume()
        if self._outbox.is_empty:
            self._advance()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.debug("connection lost", error=repr(error))
        self._has_ended = self._is_peer_closed = True
        self._abandon_requests()
        self._outbox.clear()
        if self._frame_timer is not None:
            self._frame_timer.cancel()
        self._discard_partial_frame()
        self._server.remove(self)
        self._advance()  # events that were received are still stored

    # -- cancellation

    def cancel_request(self, request_id: str | int | float) -> bool:
        """Cancel the request with this id; returns False if there is none that waits or runs."""
        found = [one for one in (*self._running, *self._requests) if one.message_id == request_id]
        for request in found:
            request.cancel(RequestCancelled("the request was cancelled by its client"))
        return bool(found)

    def cancel_overdue(self, seconds: float) -> None:
        """Cancel the requests that were received more than `seconds` ago."""
        received_before = time.monotonic() - seconds
        for request in (*self._running, *self._requests):
            if request.received_at < received_before:
                request.cancel(
                    DeadlineExceeded(
                        f"the request took longer than {seconds:g} s and was cancelled: ask for less, or raise the "
                        "limit with clankers-ctl config set request_seconds"
                    )
                )

    def check_peer(self) -> None:
        """Cancel what nobody waits for if the client has closed the connection.

        The transport does not notice it while reading is paused, or when the client has closed its half before.
        """
        is_watched_by_transport = self._transport.is_reading() and not self._is_peer_closed
        if self._is_peer_gone or is_watched_by_transport:
            return
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLOUT)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            self._abandon_requests()

    def _abandon_requests(self) -> None:
        self._is_peer_gone = True
        for request in (*self._running, *self._requests):
            if not request.is_kept:
                request.cancel(RequestCancelled("the client closed the connection"))

    # -- called by the server and by subscriptions

    @property
    def is_serving(self) -> bool:
        """True if requests wait or run."""
        return bool(self._running or self._requests or self._bodies)

    @property
    def held_bytes(self) -> int:
        """Memory held for this connection in shared budgets."""
        unsent = self._outbox.unsent_bytes + self._outbox.gathered_bytes
        return unsent + self._reserved_bytes + sum(received.reserved_bytes for _, received in self._bodies)

    @property
    def owes_reply(self) -> bool:
        """True if a reply, and not only notifications, waits for the client to read."""
        return self._outbox.owes_reply

    def try_notify(self, method: str, params: Any) -> bool:
        """Send a notification without waiting for the client to read; False if it is gone or far behind."""
        if self._transport.is_closing():
            return False
        return self._outbox.put_notification(frame(rpc.notification(method, params)))

    def discard_notifications(self) -> None:
        """Drop the notifications that have not begun to be sent."""
        self._outbox.discard_notifications()

    def stop_reading(self) -> None:
        """Take no more requests; those in flight are still answered."""
        self._has_ended = True
        self._transport.pause_reading()
        self._discard_received()
        self._close_when_done()

    def abort(self) -> None:
        """Close the connection without sending what is left."""
        self._outbox.clear()
        self._discard_received()
        self._transport.abort()

    # -- from bytes to running requests

    def _advance(self) -> None:
        """Start the requests that may start, in order; read on unless too much is left over.

        Tasks run in the order they are made and a write is queued before its task first waits, so writes of
        one connection keep their order.
        """
        while (self._requests or self._bodies) and (not self._in_flight or self._in_flight < self._max_in_flight()):
            if self._requests and self._can_start(self._requests[0]):
                request = self._requests.popleft()
                if request.batch is not None:
                    request.batch.has_started = True
                request.task = self._spawn(self._serve(request), request.frame)
            elif not self._requests and self._bodies and not self._is_decoding and self._can_decode(self._bodies[0][1]):
                body, received = self._bodies.popleft()
                self._waiting_bytes -= len(body)
                self._decode(body, received)
            else:
                break
        is_behind = self._is_decoding or self._waiting_bytes > READ_AHEAD_BYTES or not self._has_room_for_frame()
        if not self._has_ended:
            if is_behind and self._transport.is_reading():
                self._transport.pause_reading()
            elif not is_behind and not self._transport.is_reading():
                self._transport.resume_reading()
        else:
            self._close_when_done()

    def _max_in_flight(self) -> int:
        """Limit concurrent requests after large replies: together they must not exceed what may stay unread."""
        return max(1, min(MAX_REQUESTS_IN_FLIGHT, MAX_UNSENT_BYTES // max(self._expected_reply_bytes, 1)))

    def _can_start(self, request: ClientRequest) -> bool:
        """Requests wait while the client does not read; a batch that has started is finished first."""
        return not self._outbox.owes_reply or (request.batch is not None and request.batch.has_started)

    def _can_decode(self, received: ReceivedFrame) -> bool:
        """Frames wait while the client does not read, or while too many bytes of earlier frames are unfinished."""
        if self._outbox.owes_reply:
            return False
        if received.reserved_bytes:
            return not self._large_bytes or self._large_bytes + received.size_bytes <= MAX_FRAME
        return not self._small_bytes or self._small_bytes + received.size_bytes <= SMALL_FRAME_BYTES

    def _decode(self, body: bytes, received: ReceivedFrame) -> None:
        self._count_unfinished(received, 1)
        received.open_requests = 1  # until its requests are counted
        if len(body) >= DECODE_IN_THREAD_BYTES:
            self._is_decoding = True
            self._spawn(self._decode_in_thread(body, received), received)
            return
        try:
            message = rpc.decode(body)
            self._queue_requests(message, rpc.request_sizes(message, body), received)
        except ParseError as error:
            self.send(rpc.error_reply(error))
        self._finish_request(received)

    async def _decode_in_thread(self, body: bytes, received: ReceivedFrame) -> None:
        limiter = thread_limiter(len(body))
        try:
            shape = await anyio.to_thread.run_sync(measure, body, limiter=limiter)
            size_bytes = len(body) + DECODED_VALUE_BYTES * (shape.values + shape.containers + shape.members)
            if granted := self._server.decoded.reserve(size_bytes):
                await granted
            received.decoded_bytes = size_bytes
            message, sizes = await anyio.to_thread.run_sync(_decode_and_measure, body, shape, limiter=limiter)
            self._queue_requests(message, sizes, received)
        except ParseError as error:
            self.send(rpc.error_reply(error))
        finally:
            self._is_decoding = False

    def _queue_requests(self, message: Any, sizes: list[int], received: ReceivedFrame) -> None:
        """Queue the one request of a frame, or those of a batch."""
        if not isinstance(message, list):
            received.open_requests += 1
            self._add_request(ClientRequest(message, received, None, sizes[0], time.monotonic()))
        elif not message:
            self.send(rpc.error_reply(InvalidRequest("invalid request: the batch is empty")))
        elif len(message) > rpc.MAX_BATCH:
            problem = f"invalid request: a batch may hold {rpc.MAX_BATCH} requests, this one {len(message)}"
            self.send(rpc.error_reply(InvalidRequest(problem)))
        else:
            received.open_requests += len(message)
            batch = BatchReply(len(message), self)
            for request, size_bytes in zip(message, sizes, strict=True):
                self._add_request(ClientRequest(request, received, batch, size_bytes, time.monotonic()))

    def _add_request(self, request: ClientRequest) -> None:
        self._requests.append(request)
        if self._is_peer_gone:
            self._abandon_requests()
        self._server.watch_requests()

    def _spawn(self, work: Coroutine[Any, Any, None], received: ReceivedFrame) -> asyncio.Task[None]:
        self._in_flight += 1
        return self._server.spawn(work, partial(self._task_done, received))

    async def _serve(self, request: ClientRequest) -> None:
        rpc.current_connection.set(self)
        current_order.set(self._order)
        current_request_bytes.set(request.size_bytes)
        current_cancellation.set(request.cancellation)
        method, cancellation = request.method, request.cancellation
        if cancellation.reason is not None and method is not None and method in rpc.served:
            metrics.observe_request(method, "cancelled", time.monotonic() - request.received_at)
        self._running.add(request)
        try:
            work = partial(self._answer, request.message)
            if method in rpc.EVENTS:
                assert request.task is not None
                body = await cancellation.run_event(work, request.task)
            else:
                body = await cancellation.run(work)
        except RpcError as error:  # cancelled
            body = rpc.error_reply(error, request.message_id) if request.wants_reply else None
        finally:
            self._running.discard(request)
        if body is not None:
            self._expected_reply_bytes = max(len(body), self._expected_reply_bytes // 2)
            if len(body) > MAX_FRAME:
                body = too_large(request.message, f"the reply takes {len(body)} bytes, a frame holds {MAX_FRAME}")
        if request.batch is not None:
            request.batch.add(request.message, body)
        elif body is not None:
            if not self.has_room(len(body)):
                body = too_large(request.message, "replies sent before are not read yet")
            self.send(body)

    def _task_done(self, received: ReceivedFrame) -> None:
        self._in_flight -= 1
        self._finish_request(received)
        self._advance()

    def _finish_request(self, received: ReceivedFrame) -> None:
        """Count a request of this frame as finished; after the last one the frame's memory is released."""
        received.open_requests -= 1
        if not received.open_requests:
            self._count_unfinished(received, -1)
            if received.reserved_bytes:
                self._server.received.release(received.reserved_bytes)
            if received.decoded_bytes:
                self._server.decoded.release(received.decoded_bytes)

    def _count_unfinished(self, received: ReceivedFrame, sign: int) -> None:
        if received.reserved_bytes:
            self._large_bytes += sign * received.size_bytes
        else:
            self._small_bytes += sign * received.size_bytes

    # -- memory for large frames

    def _has_room_for_frame(self) -> bool:
        """Reserve memory for a large frame before its body is read; False while there is none."""
        announced = self._decoder.announced
        if announced <= SMALL_FRAME_BYTES or self._reserved_bytes or self._has_ended:
            return True
        if self._reservation is None:
            self._reservation = self._server.received.reserve(announced)
            if self._reservation is None:
                self._reserved_bytes = announced
                return True
            self._reservation.add_done_callback(partial(self._reservation_granted, announced))
        return False

    def _reservation_granted(self, announced: int, granted: asyncio.Future[None]) -> None:
        if granted.cancelled():
            return
        if self._has_ended:
            self._server.received.release(announced)
            return
        self._reservation = None
        self._reserved_bytes = announced
        self._update_frame_timer(completed=True)  # its time begins now: until now it was not read
        self._advance()

    def _discard_received(self) -> None:
        """Drop what was received and not started, and release the memory reserved for it."""
        self._discard_partial_frame()
        self._server.received.release(sum(received.reserved_bytes for _, received in self._bodies))
        self._bodies.clear()
        self._waiting_bytes = 0
        while self._requests:
            self._finish_request(self._requests.popleft().frame)

    def _discard_partial_frame(self) -> None:
        if self._reservation is not None:
            self._reservation.cancel()
        self._server.received.release(self._reserved_bytes)
        self._reserved_bytes = 0
        self._decoder = Decoder()

    # -- sending

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a reply of this size may wait until the client reads it."""
        if size_bytes <= SMALL_REPLY_BYTES or self._transport.is_closing():
            return True
        return self._outbox.has_room(size_bytes) and self._server.make_room(size_bytes)

    def gather(self, size_bytes: int) -> None:
        """Count a reply that waits for the rest of its batch."""
        self._outbox.gather(size_bytes)

    def send_gathered(self, pieces: list[bytes], size_bytes: int) -> None:
        """Send the replies of a batch."""
        self._outbox.ungather(size_bytes)
        self.send(*pieces)

    def send(self, *pieces: bytes) -> None:
        """Send one message, given in pieces."""
        if self._transport.is_closing():
            log.debug("reply lost", error="the client is gone")
        elif len(pieces) == 1 and len(pieces[0]) <= JOINED_REPLY_BYTES:
            self._outbox.put(frame(pieces[0]))
        else:
            self._outbox.put(b"Content-Length: %d\r\n\r\n" % sum(map(len, pieces)), *pieces)

    # -- closing

    def _close_when_done(self) -> None:
        if not self._has_ended or self._in_flight or self._requests or self._bodies or not self._outbox.is_empty:
            return
        if self._is_peer_closed or not self._is_refused:
            self._transport.close()
        elif self._transport.can_write_eof() and self._frame_timer is None:
            # What the client still sends is read and dropped for a while: closing a socket with unread data in it
            # would show the client a reset connection instead of our reply.
            self._transport.write_eof()
            loop = asyncio.get_running_loop()
            self._frame_timer = loop.call_later(REFUSAL_SECONDS, self._transport.close)

    def _refuse(self, refusal: RpcError) -> None:
        """Take no more from this connection: send the reason, answer earlier requests, and close."""
        self.send(rpc.error_reply(refusal))
        self._is_refused = self._has_ended = True
        self._update_frame_timer(completed=True)
        self._discard_partial_frame()
        self._transport.resume_reading()
        self._close_when_done()

    def _update_frame_timer(self, completed: bool) -> None:
        """Limit the time between the first and the last byte of a frame."""
        if completed and self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None
        if self._decoder.partial and self._frame_timer is None and not self._has_ended:
            self._frame_timer = asyncio.get_running_loop().call_later(FRAME_TIMEOUT_SECONDS, self._frame_timed_out)

    def _frame_timed_out(self) -> None:
        self._frame_timer = None
        if self._transport.is_reading():
            self._refuse(ParseError(f"parse error: a frame must be complete within {FRAME_TIMEOUT_SECONDS:g} s"))
        else:  # the daemon has paused reading
            self._update_frame_timer(completed=False)


def _decode_and_measure(body: bytes, shape: Shape) -> tuple[Any, list[int]]:
    message = rpc.decode(body, shape)
    return message, rpc.request_sizes(message, body)
