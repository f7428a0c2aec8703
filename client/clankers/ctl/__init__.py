"""`clankers-ctl`: inspect, query and administer the daemon."""

import sys
from io import TextIOWrapper

import click

from clankers.ctl.command import Ctl, Root, socket_option
from clankers.ctl.output import echo
from clankers_protocol import VERSION

COMMANDS = {
    "setup": ("clankers.ctl.setup:setup", "Connect the harnesses on this machine and start the daemon."),
    "daemon": ("clankers.ctl.daemon:daemon", "Start, stop and restart the daemon."),
    "status": ("clankers.ctl.status:status", "Show the state, versions, paths and data of the daemon."),
    "health": ("clankers.ctl.status:health", "Check that the daemon works."),
    "doctor": ("clankers.ctl.doctor:doctor", "Check the daemon and everything around it."),
    "search": ("clankers.ctl.search:search", "Search sessions, memories, documents, skills and files."),
    "view": ("clankers.ctl.view:view", "Show sessions, memories and recall in a web page on this machine."),
    "show": ("clankers.ctl.show:show", "Show whatever an id names."),
    "memory": ("clankers.ctl.memory:memory", "List, search, add, edit and forget memories."),
    "entity": ("clankers.ctl.entities:entity", "List and change the entities that memories mention."),
    "relation": ("clankers.ctl.relations:relation", "List, add and close relations between memories."),
    "docs": ("clankers.ctl.docs:docs", "Add documents to the search index, list, show and remove them."),
    "graph": ("clankers.ctl.graph:graph", "Show and add edges between chunks of documents."),
    "sessions": ("clankers.ctl.sessions:sessions", "List sessions, newest first."),
    "session": ("clankers.ctl.sessions:session", "Show or delete a session."),
    "project": ("clankers.ctl.projects:project", "List projects; show, rename, merge, move or forget one."),
    "thread": ("clankers.ctl.threads:thread", "Show and change the threads (conversations) of a chat."),
    "skill": ("clankers.ctl.skills:skill", "Manage skills: instructions that agents look up."),
    "schedule": ("clankers.ctl.schedules:schedule", "Schedule actions that the daemon or a client runs."),
    "forget": ("clankers.ctl.forget:forget", "Delete captured data for good."),
    "retention": ("clankers.ctl.retention:retention", "Show and apply the retention settings."),
    "stats": ("clankers.ctl.stats:stats", "Show usage by day, project, model, harness and tool."),
    "query": ("clankers.ctl.db:query", "Run one read-only SQL statement."),
    "recall": ("clankers.ctl.search:recall", "Preview the context that an agent is given for a PROMPT."),
    "capture": ("clankers.ctl.capture:capture", "Check, pause and resume the capture of events."),
    "import": ("clankers.ctl.capture:import_", "Import the history of a harness, or a file."),
    "export": ("clankers.ctl.transfer:export", "Export everything that is stored to a file."),
    "index": ("clankers.ctl.index:index", "Show the state of the index; add and remove watched files."),
    "reindex": ("clankers.ctl.index:reindex", "Rebuild the index."),
    "model": ("clankers.ctl.model:model", "List, switch and download embedding models."),
    "logs": ("clankers.ctl.logs:logs", "Show the log of the daemon."),
    "top": ("clankers.ctl.top:top", "Show requests with their latencies, queues, sizes and the last events, live."),
    "metrics": (
        "clankers.ctl.metrics:metrics",
        "Show requests with their latencies, queues and sizes since the daemon started.",
    ),
    "config": ("clankers.ctl.config:config", "Show and change the settings of the daemon."),
    "client-settings": (
        "clankers.ctl.client_settings:client_settings",
        "Show and change the settings that plugins and programs keep in the daemon.",
    ),
    "db": ("clankers.ctl.db:db", "Check, vacuum and migrate the database."),
    "engine": ("clankers.ctl.engine:engine", "Copy everything to another database engine."),
    "backup": ("clankers.ctl.backup:backup", "Make, check and restore backups of the database."),
    "jobs": ("clankers.ctl.jobs:jobs", "List, show and cancel long-running jobs of the daemon."),
    "plugin": ("clankers.ctl.plugin:plugin", "Connect a harness, such as Claude Code or Codex CLI, to the daemon."),
    "service": ("clankers.ctl.service:service", "Run the daemon as a user service of systemd or launchd."),
    "rpc": ("clankers.ctl.rpc:rpc", "Call any METHOD of the daemon with parameters in JSON."),
    "completion": ("clankers.ctl.completion:completion", "Print a script for shell completion."),
}


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        echo(f"clankers-ctl, version {VERSION}")
        context.exit()


@click.group(
    cls=Root, lazy=COMMANDS, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@socket_option
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Inspect, query and administer clankersd, the local memory of your coding agents.

    Without a command, shows a short overview. Every command accepts --json, which prints JSON and nothing else to
    standard output.

    \b
    Examples:
      clankers-ctl setup
      clankers-ctl status
      clankers-ctl doctor
      clankers-ctl sessions --since 2d --project .
      clankers-ctl show 4f1c02d7
      clankers-ctl search "why does the login fail" --project .
      clankers-ctl memory add "We deploy on Tuesdays" --project .
      clankers-ctl query "SELECT source, count(*) FROM sessions GROUP BY source"
      clankers-ctl logs -f --level warn

    \b
    Exit codes:
      0  success
      1  the command failed, or the daemon returned an error
      2  the command line was not understood
      3  the daemon is not running
      4  the daemon is running and reports a problem, or doctor found a problem
    """
    if context.invoked_subcommand is None:
        from clankers.ctl.overview import print_overview  # slow to load

        print_overview(context.ensure_object(Ctl))


def main() -> None:
    """Run the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character the terminal cannot show is replaced
    cli(prog_name="clankers-ctl")
