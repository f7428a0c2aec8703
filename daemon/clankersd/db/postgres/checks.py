"""Checks of the server for `doctor`, each with the one command that helps."""

from clankers_protocol.admin import Finding
from clankersd.db.connection import Db, Extension
from clankersd.db.postgres.dump import find_problem

MIN_DEAD_ROWS, MAX_DEAD_SHARE = 10_000, 0.5
"""Deleted rows that a table may have, and their share of its rows, before a vacuum is advised."""

_NOT_OWNED = """
    SELECT relname, pg_get_userbyid(relowner) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'v', 'S')
      AND NOT pg_has_role(current_user, relowner, 'USAGE') ORDER BY relname
"""
_BLOATED = """
    SELECT relname, n_dead_tup FROM pg_stat_user_tables
    WHERE schemaname = current_schema() AND n_dead_tup > :rows AND n_dead_tup > :share * (n_live_tup + n_dead_tup)
    ORDER BY n_dead_tup DESC
"""
_LEFTOVERS = r"""
    SELECT nspname FROM pg_namespace WHERE nspname ~ ('^' || current_schema() || '_(replaced_\d{8}t\d{6}|restoring)$')
    ORDER BY nspname
"""


def check_server(db: Db, vec: Extension) -> list[Finding]:
    """Check versions, rights, tools for backups, space that deleted rows take, and schemas that restores left."""
    version = f"PostgreSQL {str(db.value('SHOW server_version')).partition(' ')[0]}"
    role, schema = db.tuples("SELECT current_user, current_schema()")[0]
    findings = [Finding("postgresql", "ok", f"{version} with pgvector {vec.version}.")]
    if vec.version is None:
        text = f"{version} has no vectors, so search is by keyword only: {vec.problem}."
        findings = [Finding("postgresql", "warning", text, "then restart the daemon")]

    if not db.value("SELECT has_schema_privilege(current_schema(), 'CREATE')"):
        text = f"The role {role} is a member of the schema {schema}: the daemon of its owner migrates and reindexes it."
        findings.append(Finding("rights", "ok", text))
    elif others := db.tuples(_NOT_OWNED):
        table, owner = others[0]
        text = f"The role {role} does not own {table} and {len(others) - 1:,} other tables: migrations will fail."
        findings.append(Finding("rights", "problem", text, f'as superuser, run GRANT "{owner}" TO "{role}"'))
    else:
        findings.append(Finding("rights", "ok", f"The role {role} has all rights on the schema {schema}."))

    if problem := find_problem(db):
        text, advice = f"Backups have no index, because {problem}.", "clankers-ctl backup create"
        findings.append(Finding("dumps", "warning", text, advice))
    else:
        findings.append(Finding("dumps", "ok", "pg_dump can make full backups."))

    if bloated := db.tuples(_BLOATED, {"rows": MIN_DEAD_ROWS, "share": MAX_DEAD_SHARE}):
        named = ", ".join(f"{name} ({count:,})" for name, count in bloated)
        text = f"Most rows of some tables are deleted ones whose space is not free yet: {named}."
        advice = "clankers-ctl db vacuum; check that autovacuum runs on the server"
        findings.append(Finding("bloat", "warning", text, advice))
    else:
        findings.append(Finding("bloat", "ok", "Deleted rows take little space."))

    if names := [name for (name,) in db.tuples(_LEFTOVERS)]:
        text = f"Restores left the schemas {', '.join(names)}, which take space."
        findings.append(Finding("replaced schemas", "warning", text, f'in psql: DROP SCHEMA "{names[0]}" CASCADE'))
    else:
        findings.append(Finding("replaced schemas", "ok", "No restore left a schema."))
    return findings
