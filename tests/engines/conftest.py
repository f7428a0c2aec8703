"""A PostgreSQL server for the tests of one file."""

from collections.abc import Iterator

import psycopg
import pytest
from helpers.postgres import FAST, PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(**FAST) as started:
        yield started


@pytest.fixture(scope="module")
def team_server() -> Iterator[PostgresServer]:
    """A server with the roles of a team: the owner of the schema, boss, and two members."""
    with PostgresServer(**FAST) as started:
        with psycopg.connect(started.url("postgres"), autocommit=True) as admin:
            admin.execute("CREATE ROLE boss LOGIN")
            admin.execute("CREATE ROLE clankers_team")
            for member in ("alice", "bob"):
                admin.execute(f"CREATE ROLE {member} LOGIN IN ROLE clankers_team")
        yield started
