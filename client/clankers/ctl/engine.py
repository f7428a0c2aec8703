"""`clankers-ctl engine`."""

from pathlib import Path

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import plural
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import echo, print_json
from clankers_protocol.admin import EngineCopy


@click.group()
def engine() -> None:
    """Copy everything to another database engine.

    \b
    Examples:
      clankers-ctl engine copy --to postgresql://clankers@db.example.com/clankers
    """


@engine.command()
@click.option("--to", "target", required=True, metavar="URL|FILE", help="A postgresql:// URL, or a SQLite file.")
@click.option("--schema", default="clankers", show_default=True, help="Schema of the PostgreSQL database.")
@common_options
def copy(ctl: Ctl, target: str, schema: str) -> None:
    """Copy everything but the index into another database, and verify the copy row by row.

    The daemon that opens the copy makes the index again. Started once more, an interrupted copy goes on.

    \b
    Examples:
      clankers-ctl engine copy --to postgresql://clankers@db.example.com/clankers
      clankers-ctl engine copy --to ~/clankers-copy.db
    """
    if not target.startswith(("postgresql://", "postgres://")):
        target = str(Path(target).expanduser().absolute())
    job = run_job_or_exit(ctl, EngineCopy(target, schema))
    if ctl.json:
        print_json(job)
    else:
        rows = (job.result or {}).get("rows", {})
        echo(f"Copied and verified {plural(sum(rows.values()), 'row')} of {plural(len(rows), 'table')}.")
