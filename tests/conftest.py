"""Fixtures shared by all tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import clear
from hypothesis import HealthCheck, settings

# The same cases on every run, however busy the machine: a failure means something, and means it again.
settings.register_profile("clankers", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("clankers")


MARKERS = {"unit": ["unit"], "integration": ["daemon"], "system": ["daemon", "slow"], "e2e": ["daemon", "e2e"]}
"""Markers of the tests in each folder."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder."""
    root = Path(__file__).parent
    for item in items:
        for marker in MARKERS.get(item.path.relative_to(root).parts[0], ()):
            item.add_marker(marker)


@pytest.fixture
def anyio_backend() -> str:
    """aiosqlite lives on asyncio."""
    return "asyncio"


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty folder with a short path: a Unix socket's path must fit into 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder:
        yield Path(folder)


@pytest.fixture
def fresh_daemon(home: Path) -> Iterator[DaemonProcess]:
    """A real daemon process with an empty database, for this test alone."""
    with running_daemon(home) as process:
        yield process


@pytest.fixture
def daemon(fresh_daemon: DaemonProcess) -> DaemonProcess:
    return fresh_daemon


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[DaemonProcess]:
    """A real daemon process for all tests of a file; tests leave nothing behind that another would see."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder)) as process:
        yield process


@pytest.fixture
def connection(daemon: DaemonProcess) -> Iterator[RawConnection]:
    """A connection to a real daemon."""
    with daemon.connect() as raw:
        yield raw


@pytest.fixture
def rpc(shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """A connection to the shared daemon; sessions and memories are deleted after the test."""
    with shared_daemon.connect() as connection:
        yield connection
        clear(connection)
