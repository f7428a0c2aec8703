"""Whatever arrives on the socket, the daemon answers it or hangs up; it neither dies nor blames itself."""

import json
from typing import Any

import msgspec
import pytest
from helpers.daemon import DaemonProcess, RawConnection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clankers_protocol.framing import Decoder, frame
from clankers_protocol.wire import methods

INTERNAL_ERROR = -32603

# It would undo the schema, and all that follows would be refused for that and not be tested.
SPARED = {"db.rollback"}

searching = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def exchange(daemon: DaemonProcess, data: bytes) -> list[Any]:
    """Send the bytes and the end of the stream; the replies until the daemon hangs up."""
    with daemon.connect() as connection:
        try:
            connection.socket.sendall(data)
            connection.socket.shutdown(1)
            received = read_all(connection)
        except (BrokenPipeError, ConnectionResetError):
            return []  # it hung up on us in the middle, as it may
    return [json.loads(body) for body in Decoder().feed(received)]


def read_all(connection: RawConnection) -> bytes:
    pieces = []
    while piece := connection.socket.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def assert_well(daemon: DaemonProcess, replies: list[Any]) -> None:
    """The replies are JSON-RPC, none of them an internal error, and the daemon serves the next one."""
    for reply in replies:
        for one in reply if isinstance(reply, list) else [reply]:
            assert one["jsonrpc"] == "2.0"
            assert ("result" in one) + ("error" in one) + ("method" in one) == 1  # or a job's $/progress
            assert one.get("error", {}).get("code") != INTERNAL_ERROR, one
    assert daemon.process
    assert daemon.process.poll() is None, daemon.errors()
    with daemon.connect() as connection:
        assert connection.call("health")["ok"]


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=40),  # with lone surrogates, which JSON can spell and UTF-8 cannot
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=12,
)


def fields_of(method: str) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(methods()[method])]


def nearly_right(method: str) -> st.SearchStrategy[Any]:
    """Parameters of the right names, with anything in them, also one level down."""
    names = fields_of(method)
    inner = st.dictionaries(
        st.sampled_from(["id", "sessionId", "createdAt", "toolName", "textContent", "success", "cost"]),
        anything,
        max_size=4,
    )
    held = anything | inner | st.lists(st.fixed_dictionaries({"message": inner}), max_size=3)
    if not names:
        return anything
    return st.dictionaries(st.sampled_from(names), held, max_size=len(names)) | anything


real_calls = st.sampled_from(sorted(methods().keys() - SPARED)).flatmap(
    lambda name: st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "id": st.integers(0, 9), "method": st.just(name)},
        optional={"params": nearly_right(name)},
    )
)
unreal_calls = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | anything,
        "id": anything,
        "method": st.text(max_size=20) | st.sampled_from(["health", "HEALTH", "__init__", "rpc."]) | anything,
        "params": anything,
    },
)
messages = real_calls | unreal_calls | anything | st.lists(real_calls | unreal_calls, max_size=4)


@searching
@given(data=st.binary(max_size=300))
def test_random_bytes(shared_daemon: DaemonProcess, data: bytes) -> None:
    assert_well(shared_daemon, exchange(shared_daemon, data))


@searching
@given(body=st.binary(max_size=300), length=st.integers(-5, 400) | st.integers(10**6, 10**30))
def test_random_bodies_in_frames_that_announce_any_length(
    shared_daemon: DaemonProcess, body: bytes, length: int
) -> None:
    assert_well(shared_daemon, exchange(shared_daemon, b"Content-Length: %d\r\n\r\n%b" % (length, body)))


@searching
@given(bodies=st.lists(st.binary(max_size=100), max_size=6))
def test_random_bodies_in_good_frames_are_answered_every_one(shared_daemon: DaemonProcess, bodies: list[bytes]) -> None:
    framed = [frame(body) for body in bodies]
    replies = exchange(shared_daemon, b"".join(framed))
    assert_well(shared_daemon, replies)


@settings(searching, max_examples=500)
@given(sent=st.lists(messages, min_size=1, max_size=5))
def test_random_messages(shared_daemon: DaemonProcess, sent: list[Any]) -> None:
    data = b"".join(frame(json.dumps(message).encode()) for message in sent)
    assert_well(shared_daemon, exchange(shared_daemon, data))


@settings(searching, max_examples=500)
@given(call=real_calls)
def test_every_call_of_a_real_method_is_answered_whatever_its_parameters(
    shared_daemon: DaemonProcess, call: dict[str, Any]
) -> None:
    replies = exchange(shared_daemon, frame(json.dumps(call).encode()))
    assert_well(shared_daemon, replies)
    assert call["id"] in [reply.get("id") for reply in replies]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 5_000 + b"]" * 5_000,
        b'{"jsonrpc":"2.0","id":1,"method":"upsertMessage","params":{"message":'
        + b'{"id":"m","sessionId":"s","metadata":'
        + b'{"a":' * 900
        + b"1"
        + b"}" * 903,
        b'{"jsonrpc":"2.0","id":1,"method":"health","id":2}',
        b'{"jsonrpc":"2.0","id":1e999,"method":"health"}',
        b'{"jsonrpc":"2.0","id":NaN,"method":"health"}',
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"health"}',
        b'{"jsonrpc":"2.0","id":1,"method":"upsertSession","params":{"session":{"id":"s","cost":1e400}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"upsertSession","params":{"session":{"id":"\\ud800"}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"upsertSession","params":{"session":{"id":"a\\u0000b"}}}',
        b"\xef\xbb\xbf{}",
        '{"jsonrpc":"2.0","id":1,"method":"health"}'.encode("utf-16"),
        b"[]",
        b"",
        b"null",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_known_ugly_bodies(shared_daemon: DaemonProcess, body: bytes) -> None:
    assert_well(shared_daemon, exchange(shared_daemon, frame(body)))


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"Content-Length: +1\r\n\r\n1",
        b"Content-Length: 0x1\r\n\r\n1",
        b"Content-Length: \xd9\xa1\r\n\r\n1",
        b"X: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\r\n\r\n",
        b"X: " + b"a" * 9000,
    ],
    ids=lambda header: repr(header[:30]),
)
def test_bad_header_ends_its_connection_only(shared_daemon: DaemonProcess, header: bytes) -> None:
    with shared_daemon.connect() as other:
        assert_well(shared_daemon, exchange(shared_daemon, header))
        assert other.call("health")["ok"]
