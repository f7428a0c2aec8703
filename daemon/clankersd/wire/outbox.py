"""Messages that a client has not read yet: bounded for one connection and for all of them together."""

import asyncio
from collections import deque

from clankersd.wire.byte_budget import ByteBudget

MAX_UNSENT_BYTES = 32 * 1024 * 1024
"""Limit for the unread replies of one connection."""

MAX_UNSENT_TOTAL_BYTES = 128 * 1024 * 1024
"""Limit for the unread replies and notifications of all connections together."""

MAX_UNSENT_NOTIFICATIONS = 1000
MAX_UNSENT_NOTIFICATION_BYTES = 4 * 1024 * 1024

PIECE_BYTES = 256 * 1024
"""Bytes handed to the transport at a time; it buffers what the socket does not accept."""


class Outbox:
    """Writes messages to a transport in order, a piece at a time, and only as fast as the client reads."""

    def __init__(self, transport: asyncio.WriteTransport, total: ByteBudget) -> None:
        self._transport = transport
        self._total = total
        self._messages: deque[tuple[bytes, bool]] = deque()  # (bytes, is_notification)
        self._sent_of_first = 0
        self._paused = False
        self._notifications = 0
        self._notification_bytes = 0
        self._closed = False
        self.unsent_bytes = 0
        self.gathered_bytes = 0
        self.owes_reply = False

    @property
    def is_empty(self) -> bool:
        """True if the client has read everything but what fits into the socket's buffer."""
        return not (self._messages or self._paused)

    def has_room(self, size_bytes: int) -> bool:
        """Return True if this connection may leave another reply of this size unread."""
        waiting_bytes = self.unsent_bytes + self.gathered_bytes
        return not waiting_bytes or waiting_bytes + size_bytes <= MAX_UNSENT_BYTES

    def gather(self, size_bytes: int) -> None:
        """Count a reply that waits for the rest of its batch."""
        if not self._closed:
            self.gathered_bytes += size_bytes
            self._total.add(size_bytes)

    def ungather(self, size_bytes: int) -> None:
        """Stop counting replies of a batch that are sent now."""
        if not self._closed:
            self.gathered_bytes -= size_bytes
            self._total.release(size_bytes)

    def put(self, *pieces: bytes) -> None:
        """Send a reply, given in pieces."""
        if len(pieces) == 1 and self.is_empty and len(pieces[0]) <= PIECE_BYTES:  # as nearly all are
            self._transport.write(pieces[0])
            self.owes_reply = self._paused
            return
        self.owes_reply = True
        for piece in pieces:
            self._append(piece, is_notification=False)
        self._write()

    def put_notification(self, message: bytes) -> bool:
        """Send a notification; returns False if too many wait already."""
        if not self.is_empty and (
            self._notifications >= MAX_UNSENT_NOTIFICATIONS
            or self._notification_bytes + len(message) > MAX_UNSENT_NOTIFICATION_BYTES
            or not self._total.fits(len(message))
        ):
            return False
        self._append(message, is_notification=True)
        self._write()
        return True

    def discard_notifications(self) -> None:
        """Drop the notifications that have not begun to be sent."""
        started = self._messages.popleft() if self._sent_of_first else None
        replies = deque(message for message in self._messages if not message[1])
        dropped = sum(len(body) for body, is_notification in self._messages if is_notification)
        if started:
            replies.appendleft(started)
        self._messages = replies
        self._notifications = int(bool(started and started[1]))
        self._notification_bytes = len(started[0]) if started and started[1] else 0
        self._release(dropped)

    def pause(self) -> None:
        """Stop writing: the socket's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """Continue writing: the transport has sent everything."""
        self._paused = False
        self._write()

    def clear(self) -> None:
        """Drop everything: the client is gone."""
        self.ungather(self.gathered_bytes)
        self._release(self.unsent_bytes)
        self._messages.clear()
        self._sent_of_first = self._notifications = self._notification_bytes = 0
        self._closed, self._paused, self.owes_reply = True, False, False

    def _append(self, message: bytes, *, is_notification: bool) -> None:
        self._messages.append((message, is_notification))
        self.unsent_bytes += len(message)
        self._total.add(len(message))
        if is_notification:
            self._notifications += 1
            self._notification_bytes += len(message)

    def _write(self) -> None:
        while self._messages and not self._paused:
            message, is_notification = self._messages[0]
            start, end = self._sent_of_first, self._sent_of_first + PIECE_BYTES
            if end < len(message):
                self._sent_of_first = end
                self._transport.write(memoryview(message)[start:end])
                continue
            self._messages.popleft()
            self._sent_of_first = 0
            if is_notification:
                self._notifications -= 1
                self._notification_bytes -= len(message)
            self._release(len(message))
            self._transport.write(memoryview(message)[start:] if start else message)
        if self.is_empty:
            self.owes_reply = False

    def _release(self, size_bytes: int) -> None:
        self.unsent_bytes -= size_bytes
        self._total.release(size_bytes)
