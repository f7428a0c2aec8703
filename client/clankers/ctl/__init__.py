"""`clankers-ctl`: inspect, query and administer the daemon."""

import sys
from io import TextIOWrapper

import click
from click.shell_completion import get_completion_class

from clankers.ctl.backup import backup
from clankers.ctl.capture import capture, import_
from clankers.ctl.client_settings import client_settings
from clankers.ctl.command import Ctl, Root, common_options, socket_option
from clankers.ctl.config import config
from clankers.ctl.db import db, query
from clankers.ctl.docs import docs
from clankers.ctl.doctor import doctor
from clankers.ctl.entities import entity
from clankers.ctl.graph import graph
from clankers.ctl.index import index, reindex
from clankers.ctl.jobs import jobs
from clankers.ctl.logs import logs
from clankers.ctl.memory import memory
from clankers.ctl.model import model
from clankers.ctl.output import echo, print_json
from clankers.ctl.plugin import plugin
from clankers.ctl.relations import relation
from clankers.ctl.rpc import rpc
from clankers.ctl.schedules import schedule
from clankers.ctl.search import recall, search
from clankers.ctl.service import service
from clankers.ctl.sessions import session, sessions
from clankers.ctl.show import show
from clankers.ctl.skills import skill
from clankers.ctl.stats import stats
from clankers.ctl.status import health, status
from clankers.ctl.threads import thread


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@socket_option
@click.version_option(package_name="clankers", prog_name="clankers-ctl")
def cli() -> None:
    """Inspect, query and administer clankersd, the local memory of your coding agents.

    Every command accepts --json, which prints JSON and nothing else to standard output.

    \b
    Examples:
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


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion(ctl: Ctl, shell: str) -> None:
    """Print a script for shell completion.

    For zsh, add `fpath+=~/.zfunc` before `compinit` in ~/.zshrc. The folder of the script has to exist:

    \b
      mkdir -p ~/.local/share/bash-completion/completions ~/.zfunc ~/.config/fish/completions

    \b
    Examples:
      clankers-ctl completion bash > ~/.local/share/bash-completion/completions/clankers-ctl
      clankers-ctl completion zsh > ~/.zfunc/_clankers-ctl
      clankers-ctl completion fish > ~/.config/fish/completions/clankers-ctl.fish
    """
    completer = get_completion_class(shell)
    assert completer  # for the type checker: click supports all three shells
    root = click.get_current_context().find_root().command
    script = completer(root, {}, "clankers-ctl", "_CLANKERS_CTL_COMPLETE").source()
    if ctl.json:
        print_json({"shell": shell, "script": script})
    else:
        echo(script)


COMMANDS = (
    status,
    health,
    doctor,
    search,
    show,
    memory,
    entity,
    relation,
    docs,
    graph,
    sessions,
    session,
    thread,
    skill,
    schedule,
    stats,
    query,
    recall,
    capture,
    import_,
    index,
    reindex,
    model,
    logs,
    config,
    client_settings,
    db,
    backup,
    jobs,
    plugin,
    service,
    rpc,
    completion,
)

for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character the terminal cannot show is replaced
    cli(prog_name="clankers-ctl")
