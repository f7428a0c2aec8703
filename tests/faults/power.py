"""Power cuts: a layer below SQLite that records writes, so that those that were not synced can be dropped.

The daemon runs with a VFS that appends every write, truncation, deletion and sync of the database and its WAL to a log.
After SIGKILL the files are built again from the log. What was synced is there; of what was not, a random part is, and
the last of it may be torn at a sector.
"""

import os
import struct
from collections import defaultdict
from pathlib import Path

import apsw
from helpers.daemon import DaemonProcess
from tests.faults.harness import NOTHING, Run, chance, fault

SECTOR_BYTES = 512
WRITE, TRUNCATE, DELETE, SYNC = range(4)
_HEADER = struct.Struct("<BHQI")
"""Kind, length of the file name, offset or size, length of the data."""

_PROGRAM = """
import sys
sys.path[:0] = [sys.argv.pop(1), sys.argv.pop(1)]
from tests.faults.power import RecordingVfs
vfs = RecordingVfs(sys.argv.pop(1))
from clankersd.__main__ import main
main()
"""


class RecordingVfs(apsw.VFS):
    """The system's VFS, and a log of what is written to the database and its WAL."""

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        super().__init__("recording", "unix", makedefault=True)

    def record(self, kind: int, name: str, offset: int = 0, data: bytes = b"") -> None:
        encoded = name.encode()
        os.write(self._log, _HEADER.pack(kind, len(encoded), offset, len(data)) + encoded + data)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or Path(path).name not in ("clankers.db", "clankers.db-wal"):
            return apsw.VFSFile("unix", name, flags)
        return RecordedFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.record(DELETE, Path(filename).name)


class RecordedFile(apsw.VFSFile):
    """A file whose changes are recorded."""

    def __init__(self, vfs: RecordingVfs, path: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._vfs, self._name = vfs, Path(path).name
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._vfs.record(WRITE, self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._vfs.record(TRUNCATE, self._name, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._vfs.record(SYNC, self._name)


class RecordedDaemon(DaemonProcess):
    """A daemon whose database files can be built again as a power cut leaves them."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, CLANKERS_EMBEDDER="none", CLANKERS_BACKUP_HOURS="0")
        self.log = home / "writes.log"
        root = Path(__file__).parents[2]
        self.program = ("-c", _PROGRAM, str(root / "tests"), str(root), str(self.log))


@fault(
    "power cut",
    "SIGKILL, then the files rebuilt from what was synced and a random part of what was not, torn at sectors",
    make_daemon=RecordedDaemon,
)
def cut_power(run: Run) -> frozenset[str]:
    assert isinstance(run.daemon, RecordedDaemon)
    for _ in range(3):
        run.crash()
        files = surviving_files(run.daemon.log.read_bytes())
        for name in ("clankers.db", "clankers.db-wal", "clankers.db-shm"):
            run.daemon.data.joinpath(name).unlink(missing_ok=True)
        run.daemon.log.write_bytes(b"")
        with run.daemon.log.open("ab") as log:  # what has survived is the beginning of the next log
            for name, content in files.items():
                run.daemon.data.joinpath(name).write_bytes(content)
                for kind, data in ((WRITE, bytes(content)), (SYNC, b"")):
                    log.write(_HEADER.pack(kind, len(name), 0, len(data)) + name.encode() + data)
        run.daemon.start()
        run.begin_writing()
    return NOTHING


def surviving_files(log: bytes) -> dict[str, bytearray]:
    """Return the files as they are after a power cut."""
    durable: dict[str, bytearray] = {}
    unsynced: dict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
    position = 0
    while position + _HEADER.size <= len(log):
        kind, name_length, offset, length = _HEADER.unpack_from(log, position)
        position += _HEADER.size
        name = log[position : position + name_length].decode()
        data = log[position + name_length : position + name_length + length]
        position += name_length + length
        if kind == DELETE:
            durable.pop(name, None)
            unsynced.pop(name, None)
        elif kind == SYNC:
            for change in unsynced.pop(name, ()):
                apply(durable.setdefault(name, bytearray()), *change)
        else:
            unsynced[name].append((kind, offset, data))
    for name, changes in unsynced.items():
        for change_kind, offset, data in changes:
            if chance.random() < 0.5:
                torn = data[: chance.randrange(0, len(data) + 1, SECTOR_BYTES)] if chance.random() < 0.3 else data
                apply(durable.setdefault(name, bytearray()), change_kind, offset, torn)
    return durable


def apply(content: bytearray, kind: int, offset: int, data: bytes) -> None:
    if kind == TRUNCATE:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(b"\0" * (offset - len(content)))
    content[offset : offset + len(data)] = data
