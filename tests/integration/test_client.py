"""The clients against a real daemon, and against servers that misbehave as a daemon would not."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import DaemonProcess, RawConnection, running_daemon

from clankers import (
    AsyncClient,
    BadReply,
    Client,
    DaemonUnavailable,
    InvalidPayload,
    NotFound,
    Overloaded,
    QueryRefused,
    RpcError,
)
from clankers_protocol.admin import DaemonStatus, DbCheck, Health, HealthReport, JobStatus, Query
from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankers_protocol.sessions import MessageList, SessionDelete, SessionGet, SessionTimeline

HEALTHY = {
    "ok": True,
    "version": "0",
    "protocol": 1,
    "sqliteVersion": "3",
    "sqliteVecVersion": None,
    "schemaVersion": 1,
}


class Peer(RawConnection):
    """The other end of a connection, for a test that plays the daemon."""

    def __init__(self, accepted: socket.socket) -> None:
        super().__init__.__func__  # noqa: B018
