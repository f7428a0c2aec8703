"""A PostgreSQL server for the tests of one file."""

from collections.abc import Iterator

import pytest
from helpers.postgres import FAST, PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(**FAST) as started:
        yield started
