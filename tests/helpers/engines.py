"""The engine that tests run on: SQLite, or PostgreSQL if CLANKERS_TEST_ENGINE says so (make test-postgres)."""

import atexit
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.postgres import PostgresServer

ON_POSTGRES = os.environ.get("CLANKERS_TEST_ENGINE") == "postgres"


@cache
def server() -> "PostgresServer":
    """Return the server of this process's tests, which ends with the process."""
    from helpers.postgres import FAST, PostgresServer  # its driver takes a while to load

    started = PostgresServer(**FAST)
    atexit.register(started.__exit__, None, None, None)
    return started.start()


@cache
def database_environment(home: Path) -> dict[str, str]:
    """Return the environment of daemons in this folder: that of an empty database, for PostgreSQL."""
    return {"CLANKERS_DATABASE_URL": server().new_database()} if ON_POSTGRES else {}
