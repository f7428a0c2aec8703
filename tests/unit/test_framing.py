"""Content-Length framing: any bodies survive any cutting, and nothing else is taken for a frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers_protocol.framing import MAX_HEADER, Decoder, FramingError, frame


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(st.binary(max_size=200)), st.lists(st.integers(0, 50), max_size=60))
def test_any_bodies_survive_any_cutting(bodies: list[bytes], sizes: list[int]) -> None:
    decoder = Decoder()
    received: list[bytes] = []
    for piece in cut(b"".join(map(frame, bodies)), sizes):
        received.extend(decoder.feed(piece))
    assert received == bodies
    assert not decoder.partial


@given(st.binary(max_size=300), st.lists(st.integers(0, 40), max_size=20))
def test_any_bytes_give_bodies_or_a_framing_error(data: bytes, sizes: list[int]) -> None:
    decoder = Decoder()
    try:
        for piece in cut(data, sizes):
            list(decoder.feed(piece))
    except FramingError:
        pass


def test_frames_before_a_broken_one_are_still_given() -> None:
    bodies = Decoder().feed(frame(b"one") + frame(b"two") + b"nonsense\r\n\r\n")
    assert next(bodies) == b"one"
    assert next(bodies) == b"two"
    with pytest.raises(FramingError):
        next(bodies)


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: -1",
        b"Content-Length: 1e3",
        b"Content-Length: ",
        b"Content-Length: 99999999999999999999999",
        b"Content-Length: 1\r\nContent-Length: 2",
        b"Content-Type: text/plain",
        b"GET / HTTP/1.1",
    ],
)
def test_header_without_one_whole_number_is_refused(header: bytes) -> None:
    with pytest.raises(FramingError):
        list(Decoder().feed(header + b"\r\n\r\n"))


def test_other_headers_and_any_case_are_accepted() -> None:
    data = b"Content-Type: application/json\r\ncontent-LENGTH:  2 \r\n\r\n{}"
    assert list(Decoder().feed(data)) == [b"{}"]


def test_header_that_never_ends_is_refused() -> None:
    with pytest.raises(FramingError, match="header"):
        list(Decoder().feed(b"X: " + b"a" * MAX_HEADER))


def test_frame_beyond_the_limit_is_refused_before_its_body_is_taken() -> None:
    decoder = Decoder(max_frame=10)
    assert list(decoder.feed(frame(b"x" * 10))) == [b"x" * 10]
    with pytest.raises(FramingError, match="10 bytes"):
        list(decoder.feed(b"Content-Length: 11\r\n\r\n"))


@pytest.mark.parametrize(
    "data",
    [
        b"Content-Length: 2\r\n\r\nab",
        b"Content-Length:  2\r\n\r\nab",
        b"content-length:2\r\n\r\nab",
        b"Content-Length: 2\r\nX: y\r\n\r\nab",
        b"Content-Length: 002\r\n\r\nab",
    ],
)
def test_frame_in_one_piece_is_the_frame_in_single_bytes(data: bytes) -> None:
    slow = Decoder()
    assert list(Decoder().feed(data)) == [body for byte in data for body in slow.feed(bytes([byte]))] == [b"ab"]


def test_frame_in_one_piece_beyond_the_limit_is_refused() -> None:
    with pytest.raises(FramingError):
        list(Decoder(max_frame=1).feed(frame(b"ab")))
