"""Fixtures shared by all tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import delete_everything
from hypothesis import HealthCheck, settings

# The same cases on every run, however busy the machine: a failure means something, and means it again.
settings.register_profile("clankers", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("clankers")


MARKERS = {
    "unit": ["unit"],
    "integration": ["daemon"],
    "system": ["daemon", "slow"],
    "e2e": ["daemon", "e2e"],
    "engines": ["daemon", "e2e"],
}
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


def user_home(folder: Path) -> dict[str, str]:
    """Environment of a user with an empty home folder: daemons of tests read nothing of yours."""
    user = folder / "user"
    user.mkdir(exist_ok=True)
    return {"HOME": str(user), "XDG_DATA_HOME": str(user / "share")}


@pytest.fixture
def fresh_daemon(home: Path) -> Iterator[DaemonProcess]:
    """A real daemon process with an empty database, for this test alone; `home / "user"` is its user's home."""
    with running_daemon(home, **user_home(home)) as process:
        yield process


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[DaemonProcess]:
    """A real daemon process for all tests of a file; use `rpc` too in tests that store something."""
    with tempfile.TemporaryDirectory(prefix="clk-") as path:
        home = Path(path)
        with running_daemon(home, **user_home(home)) as process:
            yield process


@pytest.fixture
def rpc(shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """A connection to the shared daemon; everything stored in it is deleted after the test."""
    with shared_daemon.connect() as connection:
        yield connection
    delete_everything(shared_daemon)
