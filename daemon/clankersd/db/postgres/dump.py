"""Dumps of a schema by pg_dump, and the schema that pg_restore makes of one.

A dump is made from the snapshot in which its rows were counted, read back once, and only then gets its name. Its
manifest holds what was found.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import apsw
import psycopg

from clankers_protocol.backups import DumpManifest
from clankers_protocol.database_files import hash_file, read_manifest, sync
from clankersd.db.backup import SPARE_BYTES
from clankersd.db.connection import Db
from clankersd.db.migrations import refuse_unknown_schema, version
from clankersd.db.postgres.connection import PostgresDb, owns_schema
from clankersd.db.postgres.pipeline import ServerConnection

INSTALL_HINT = "install the PostgreSQL client of the server's version (Debian: apt install postgresql-client)"

_COPY = re.compile(rb"COPY \S+?\.(\S+) \(.*\) FROM stdin;\n")
_META_COMMANDS = (b"\\restrict", b"\\unrestrict")
"""Commands for psql in the output of pg_restore, which is not run by psql here."""

_TABLE_BYTES = """
    SELECT coalesce(sum(pg_table_size(pg_class.oid)), 0) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
"""


def find_problem(db: Db) -> str | None:
    """Return the reason why the schema cannot be dumped by pg_dump; None if it can."""
    assert isinstance(db, PostgresDb)
    if not owns_schema(db):
        return (
            "the role is a member of the schema and does not see all rows: the daemon of the owner makes full backups"
        )
    program = shutil.which("pg_dump")
    if program is None or shutil.which("pg_restore") is None:
        return f"pg_dump and pg_restore are not installed on this machine: {INSTALL_HINT}"
    command = [program, "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  # of the owner
    found = re.search(r"(\d+)\.", printed)
    server = db.server.info.server_version // 10000
    if found is None or int(found[1]) < server:
        return f"pg_dump is of version {found[1] if found else 'unknown'}, the server of {server}: {INSTALL_HINT}"
    return None


def make_dump(db: Db, schema: str, target: Path, is_stopped: Callable[[], bool]) -> DumpManifest:
    """Dump the schema as the open transaction sees it into a file, verify the file, and return its manifest."""
    assert isinstance(db, PostgresDb)
    needed_bytes, free_bytes = int(db.value(_TABLE_BYTES)), shutil.disk_usage(target.parent).free
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise apsw.FullError(f"a backup needs up to {needed_bytes:,} bytes, but only {free_bytes:,} are free")
    db.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # pg_dump may take long
    rows = {name: int(db.value(f"SELECT count(*) FROM {name}")) for name in db.engine.table_names(db)}
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    command = ["pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--no-password", f"--schema={schema}"]
    command += [f"--snapshot={db.value('SELECT pg_export_snapshot()')}", f"--file={target}"]
    with subprocess.Popen(  # noqa: S603  # our own arguments
        command, env=environment(db.server), stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            if is_stopped():
                process.terminate()
                raise apsw.InterruptError("the backup was cancelled")
            time.sleep(0.05)
        if process.returncode:
            assert process.stderr is not None
            raise apsw.IOError(f"pg_dump failed: {_last_line(process.stderr.read())}")
    found = dict.fromkeys(rows, 0)
    for statement, lines in _read_script(target, "--data-only"):
        if lines is not None and (copy := _COPY.fullmatch(statement)):
            found[copy[1].decode()] = sum(1 for _ in lines)
        if is_stopped():
            raise apsw.InterruptError("the backup was cancelled")
    if different := sorted(name for name in {*rows, *found} if rows.get(name) != found.get(name)):
        raise apsw.CorruptError(f"the dump lacks rows of {', '.join(different)}")
    sync(target)
    server_version = str(db.server.info.parameter_status("server_version"))
    return DumpManifest(schema, server_version, version(db), target.stat().st_size, hash_file(target), rows)


def restore_dump(dump: Path, server: ServerConnection, target: str) -> dict[str, int]:
    """Make the schema `target` from a dump, in one transaction; return the number of rows of each table.

    A dump creates a schema with the name of the original. So the one that has this name is renamed, and gets it back
    before the commit: other connections see nothing of that. Raises ValueError if the dump cannot be restored.
    """
    manifest = read_manifest(dump)
    if hash_file(dump) != manifest.sha256:
        raise ValueError("its checksum differs")
    if shutil.which("pg_restore") is None:
        raise ValueError(f"pg_restore is not installed on this machine: {INSTALL_HINT}")
    original = manifest.schema
    db = PostgresDb(server)
    try:
        with server.transaction():
            exists = server.execute("SELECT 1 FROM pg_namespace WHERE nspname = $1", [original]).fetchone()
            if exists:
                server.execute(f'ALTER SCHEMA "{original}" RENAME TO "{target}_aside"')
            for statement, lines in _read_script(dump, "--no-owner", "--no-privileges"):
                if lines is None:
                    server.execute(statement)
                    continue
                with server.cursor().copy(statement) as copy:
                    for line in lines:
                        copy.write(line)
            server.execute(f'ALTER SCHEMA "{original}" RENAME TO "{target}"')
            if exists:
                server.execute(f'ALTER SCHEMA "{target}_aside" RENAME TO "{original}"')
            server.execute("SELECT set_config('search_path', $1, false)", [f'"{target}", pg_catalog'])
            refuse_unknown_schema(db)
            rows = {name: int(db.value(f"SELECT count(*) FROM {name}")) for name in manifest.rows}
            if rows != manifest.rows:
                raise ValueError("not all of its rows were restored")
    except psycopg.Error as error:
        raise ValueError(f"the server refuses it: {str(error).splitlines()[0]}") from error
    return rows


def environment(server: "psycopg.Connection[Any]") -> dict[str, str]:
    """Return the environment in which libpq's programs connect as this connection did.

    Parameters in arguments would show the password to all users of this machine.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in ("PGSERVICE", "PGSERVICEFILE")}
    options = {option.envvar: option.val for option in server.pgconn.info if option.envvar and option.val}
    return inherited | {name.decode(): value.decode() for name, value in options.items() if name != b"PGSERVICE"}


def _read_script(dump: Path, *options: str) -> Iterator[tuple[bytes, Iterator[bytes] | None]]:
    """Yield the SQL of a dump: statements, and each COPY with its rows, which the caller has to read to their end."""
    command = ["pg_restore", "--file=-", *options, str(dump)]
    with subprocess.Popen(  # noqa: S603  # our own arguments
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        statements: list[bytes] = []
        for line in process.stdout:
            if _COPY.fullmatch(line):
                yield b"".join(statements), None
                statements.clear()
                yield line, takewhile(lambda row: row != b"\\.\n", process.stdout)
            elif not line.startswith(_META_COMMANDS):
                statements.append(line)
        yield b"".join(statements), None
        problem = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise ValueError(f"pg_restore cannot read it: {_last_line(problem)}")


def _last_line(text: str) -> str:
    return (text.strip() or "unknown error").splitlines()[-1]
