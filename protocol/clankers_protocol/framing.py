"""Message framing as in LSP: `Content-Length: N\\r\\n\\r\\n` followed by N bytes. Standard library only."""

from collections.abc import Iterator

MAX_HEADER = 8 * 1024
MAX_FRAME = 32 * 1024 * 1024

_END_OF_HEADER = b"\r\n\r\n"
_LENGTH = b"Content-Length: "
_MAX_LENGTH_DIGITS = 19


class FramingError(Exception):
    """The bytes are not a frame, or the frame exceeds a limit. The connection must be closed."""


def frame(body: bytes) -> bytes:
    """Frame one message body."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Decoder:
    """Incremental frame decoder for input of any chunk size."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._length: int | None = None

    @property
    def partial(self) -> bool:
        """True while a frame is incomplete."""
        return bool(self._buffer) or self._length is not None

    @property
    def announced(self) -> int:
        """Length of the body that has begun and not ended; 0 while there is none."""
        return self._length or 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that `data` completes; raise FramingError where the bytes are not a frame."""
        if not self._buffer and self._length is None:
            body = _only_body(data)
            if body is not None and len(body) <= self._max_frame:
                return iter((body,))
        self._buffer += data
        return iter(self._next, None)

    def _next(self) -> bytes | None:
        if self._length is None:
            self._length = self._header()
        if self._length is None or len(self._buffer) < self._length:
            return None
        body = bytes(memoryview(self._buffer)[: self._length])
        del self._buffer[: self._length]
        self._length = None
        return body

    def _header(self) -> int | None:
        end = self._buffer.find(_END_OF_HEADER, 0, MAX_HEADER)
        if end < 0:
            if len(self._buffer) >= MAX_HEADER:
                raise FramingError(f"a header may take {MAX_HEADER} bytes, this one has not ended by then")
            return None
        length = _content_length(bytes(self._buffer[:end]))
        if length > self._max_frame:
            raise FramingError(f"a frame may hold {self._max_frame} bytes, this one announces {length}")
        del self._buffer[: end + len(_END_OF_HEADER)]
        return length


def _only_body(data: bytes) -> bytes | None:
    """Return the body if `data` is one frame, with the header that `frame` makes: nearly all small ones arrive so."""
    end = data.find(_END_OF_HEADER, len(_LENGTH), len(_LENGTH) + _MAX_LENGTH_DIGITS + len(_END_OF_HEADER))
    if end < 0 or not data.startswith(_LENGTH):
        return None
    digits, body = data[len(_LENGTH) : end], data[end + len(_END_OF_HEADER) :]
    return body if digits.isdigit() and int(digits) == len(body) else None


def _content_length(header: bytes) -> int:
    found = None
    for line in header.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon:
            raise FramingError("a header line needs a colon")
        if name.strip().lower() == b"content-length":
            digits = value.strip()
            if not digits.isdigit() or len(digits) > _MAX_LENGTH_DIGITS or found is not None:
                raise FramingError("Content-Length must be given once, as a whole number")
            found = int(digits)
    if found is None:
        raise FramingError("the header names no Content-Length")
    return found
