"""Vector search without what it needs: the daemon runs, searches by keyword, says why, and recovers."""

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import message
from helpers.waiting import eventually

import clankersd

PACKAGE = Path(clankersd.__file__).parent
MODEL = Path("embedders", "l2_supercat_256")
MEBIBYTE = 1024 * 1024
RECOVERS_WITHIN_SECONDS = 60

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with a copy of the daemon's package, which retries sooner and may be damaged."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, folder / "clankersd", ignore=shutil.ignore_patterns("__pycache__"))
    local = folder / "clankersd" / "embedders" / "local.py"
    assert "RETRY_SECONDS = 30.0" in local.read_text()
    local.write_text(local.read_text().replace("RETRY_SECONDS = 30.0", "RETRY_SECONDS = 0.5"))
    return folder


def check_degraded(daemon: DaemonProcess, reason: str, name: str = "first") -> None:
    """Store an event and find it by keyword; `reason` stands wherever an owner would look for it."""
    with daemon.connect() as connection:
        connection.call("upsertMessage", message=message(name, text=f"the {name} turtle crossed the road"))
        eventually(
            lambda: reason in connection.call("index.status")["vectors"],
            f"index.status says {reason!r}",
            RECOVERS_WITHIN_SECONDS,
        )
        found = connection.call("search", query="turtle")
        assert name in [hit["ref"].get("messageId") for hit in found["hits"]]
        assert found["mode"] == "keyword"
        assert reason in found["degraded"]
        health = connection.call("health")
        assert health["ok"]
        assert "keyword search only" in health["degraded"]
        assert reason in health["degraded"]
        added = connection.call("memory.add", content=f"the {name} turtle likes lettuce")["memory"]["id"]
        hits = connection.call("memory.search", query=f"{name} lettuce")["hits"]
        assert added in [hit["memory"]["id"] for hit in hits]


def check_recovered(connection: RawConnection, *names: str) -> None:
    """Everything stored meanwhile is found by vector."""
    eventually(
        lambda: connection.call("index.status")["vectors"] == "ready",
        "index.status says ready",
        RECOVERS_WITHIN_SECONDS,
    )
    eventually(
        lambda: not connection.call("index.status")["live"]["pending"],
        "nothing waits for its vector",
        RECOVERS_WITHIN_SECONDS,
    )
    found = connection.call("search", query="turtle on the street", mode="vector", sources=["sessions"])
    assert {hit["ref"]["messageId"] for hit in found["hits"]} >= set(names)
    assert connection.call("health")["degraded"] is None


@contextmanager
def replaced(path: Path, spoil: Callable[[Path], None]) -> Iterator[None]:
    """The file is spoilt inside the block and as it was after it."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        spoil(path)
        yield
    finally:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        pytest.param("weights.safetensors", lambda path: None, "is missing or not readable", id="missing"),
        pytest.param("tokenizer.json", lambda path: path.write_bytes(b"{}"), "is damaged", id="damaged"),
        pytest.param("tokenizer.json", lambda path: os.mkfifo(path), "is missing or not readable", id="fifo"),
    ],
)
def test_model_file_spoilt(home: Path, installed: Path, name: str, spoil: Callable[[Path], None], reason: str) -> None:
    path = installed / "clankersd" / MODEL / name
    with replaced(path, spoil):
        daemon = DaemonProcess(home, PYTHONPATH=str(installed)).start()
        check_degraded(daemon, reason)
    try:
        with daemon.connect() as connection:
            connection.call("daemon.reload")
            check_recovered(connection, "first")
        assert daemon.stop() == 0
    finally:
        daemon.close()


def shadow(folder: Path, package: str, source: str) -> None:
    """Put a package before the installed one of the same name."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(source)


PANIC = """
class PanicException(BaseException):
    pass

class Tokenizer:
    @staticmethod
    def from_str(text):
        raise PanicException("called `Result::unwrap()` on an `Err` value")
"""
OLD_PROCESSOR = 'raise RuntimeError("NumPy was built with baseline optimizations: (X86_V2) but your machine has not")\n'
BROKEN = 'raise ImportError("libopenblas.so.0: cannot open shared object file")\n'


@pytest.mark.parametrize(
    ("package", "source", "reason"),
    [
        ("numpy", BROKEN, "libopenblas"),
        ("numpy", OLD_PROCESSOR, "X86_V2"),
        ("tokenizers", BROKEN, "libopenblas"),
        ("tokenizers", PANIC, "PanicException: called `Result::unwrap()`"),
        ("sqlite_vec", "", "sqlite-vec is missing"),
    ],
)
def test_package_broken(home: Path, tmp_path: Path, package: str, source: str, reason: str) -> None:
    shadow(tmp_path, package, source)
    with running_daemon(home, PYTHONPATH=str(tmp_path)) as daemon:
        check_degraded(daemon, reason)
        check_degraded(daemon, reason, "second")
        assert daemon.stop() == 0
    with running_daemon(home) as daemon, daemon.connect() as connection:
        if package == "sqlite_vec":  # its index was made without vectors
            assert "being rebuilt" in connection.call("health")["degraded"]
        check_recovered(connection, "first", "second")


@pytest.mark.parametrize("source", [BROKEN, OLD_PROCESSOR], ids=["broken", "old processor"])
def test_packages_that_only_make_it_faster_are_broken(home: Path, tmp_path: Path, source: str) -> None:
    for package in ("ahocorasick_rs", "simsimd", "uvloop", "watchfiles"):
        shadow(tmp_path, package, source)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "MEMORY.md").write_text("The tortoise lives in the garden.\n")
    settings = {"PYTHONPATH": str(tmp_path), "CLANKERS_WATCH_ROOTS": str(tmp_path / "workspace")}
    with running_daemon(home, **settings) as daemon, daemon.connect() as connection:
        connection.call("upsertMessage", message=message("first", text="the first turtle crossed the road"))
        check_recovered(connection, "first")
        eventually(lambda: connection.call("search", query="tortoise")["hits"] != [], "watched files are found")
        assert "polling" in connection.call("index.status")["files"]["problem"]
        assert daemon.stop() == 0


@pytest.mark.parametrize("kind", ["missing", "name too long", "links in a circle", "FIFO", "no such user"])
def test_onnx_folder_unreadable(home: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    if kind == "name too long":
        folder = tmp_path / ("x" * 300)
    elif kind == "links in a circle":
        folder.symlink_to(folder)
    elif kind == "FIFO":
        folder.mkdir()
        os.mkfifo(folder / "model.onnx")
        os.mkfifo(folder / "tokenizer.json")
    elif kind == "no such user":
        folder = Path("~nobody-of-this-name/model")
    with running_daemon(home, CLANKERS_EMBEDDER="onnx", CLANKERS_EMBEDDER_MODEL=str(folder)) as daemon:
        check_degraded(daemon, str(folder)[:100])
        with daemon.connect() as connection:
            listed = connection.call("model.list")
            assert [model["available"] for model in listed if model["inUse"]] == [False]
        assert daemon.stop() == 0


def address_space(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def limit_memory(daemon: DaemonProcess, more_bytes: int) -> None:
    """Let the daemon take so much more memory than it has."""
    assert daemon.process
    limit = address_space(daemon.process.pid) + more_bytes
    resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def lift_limit(daemon: DaemonProcess) -> None:
    assert daemon.process
    resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@linux_only
@pytest.mark.parametrize("mebibytes", [16, 48, 80, 160])
def test_little_memory_before_the_model_is_loaded(home: Path, mebibytes: int) -> None:
    """OpenBLAS exits and Rust aborts where these do not suffice."""
    with running_daemon(home) as daemon:
        limit_memory(daemon, mebibytes * MEBIBYTE)
        check_degraded(daemon, "memory")
        check_degraded(daemon, "memory", "second")
        lift_limit(daemon)
        with daemon.connect() as connection:
            connection.call("daemon.reload")
            check_recovered(connection, "first", "second")
        assert daemon.stop() == 0


@linux_only
def test_little_memory_after_the_model_is_loaded(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        connection.call("upsertMessage", message=message("zeroth", text="a turtle on the street"))
        check_recovered(connection, "zeroth")
        limit_memory(daemon, 24 * MEBIBYTE)
        check_degraded(daemon, "memory")
        # Long texts make the tokenizer take more than a hundred times their size.
        connection.call("upsertMessage", message=message("long", text="🐢🚀 " * 30_000))
        found = connection.call("search", query="🐢 turtle " * 100)
        assert found["mode"] == "keyword"
        lift_limit(daemon)
        connection.call("daemon.reload")
        check_recovered(connection, "zeroth", "first")
        assert daemon.stop() == 0


@linux_only
def test_little_memory_is_over_without_a_reload(home: Path, installed: Path) -> None:
    with running_daemon(home, PYTHONPATH=str(installed)) as daemon:
        limit_memory(daemon, 48 * MEBIBYTE)
        check_degraded(daemon, "memory")
        lift_limit(daemon)
        with daemon.connect() as connection:
            check_recovered(connection, "first")
