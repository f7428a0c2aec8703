"""`clankers-ctl setup`: connect the harnesses on this machine, start the daemon, import history, try a search."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import click
import msgspec

from clankers.autostart import is_managed_service
from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options, yes_option
from clankers.ctl.daemon import find_daemon, start_and_wait
from clankers.ctl.doctor import diagnose
from clankers.ctl.formatting import plural
from clankers.ctl.gemini_plugin import Gemini
from clankers.ctl.jobs import run_job
from clankers.ctl.openclaw_plugin import OpenClaw
from clankers.ctl.output import confirm, echo, one_line, print_json, secho
from clankers.ctl.plugin import HARNESSES as PLUGINS
from clankers.ctl.plugin import Target, install_plugin, plugin_status
from clankers.ctl.service import install_service
from clankers.ctl.service_managers import platform_manager
from clankers.messages import BadReply, DaemonUnavailable
from clankers_protocol.capture import ImportStart, ImportSummary
from clankers_protocol.errors import RpcError
from clankers_protocol.harnesses import HARNESSES, HarnessInfo
from clankers_protocol.search import Search
from clankers_protocol.sessions import SessionList
from clankers_protocol.wire import Wire

PROGRAMS = {"claude-code": "claude"}
"""Programs whose name is not that of their harness."""

MARKS = {"done": ("✓", "green"), "skipped": ("–", "yellow"), "would": ("·", "cyan"), "failed": ("✗", "red")}
MAX_QUERY_WORDS = 8


class Step(Wire):
    """One step of the setup. With --dry-run, steps that change something are in the state "would"."""

    name: str
    state: Literal["done", "skipped", "would", "failed"]
    detail: str


@dataclass
class Setup:
    """A run of the setup: what it may do, and the steps so far."""

    ctl: Ctl
    yes: bool
    dry_run: bool
    steps: list[Step] = field(default_factory=list)

    def report(self, name: str, state: Literal["done", "skipped", "would", "failed"], detail: str) -> None:
        """Record a step and print it."""
        self.steps.append(Step(name, state, detail))
        if not self.ctl.json:
            mark, colour = MARKS[state]
            secho(f"{mark} {name}: {one_line(detail)}", fg=colour)

    def asks(self, question: str) -> bool:
        """Ask before a step, unless everything was agreed to or nothing is done."""
        return self.yes or self.dry_run or confirm(question, default=True)

    def attempt(self, name: str, work: Callable[[], str]) -> bool:
        """Run a step; report its result, or why it failed. The next steps run all the same."""
        try:
            detail = work()
        except (click.ClickException, RpcError, DaemonUnavailable, TimeoutError, BadReply, OSError) as error:
            message = error.format_message() if isinstance(error, click.ClickException) else str(error)
            self.report(name, "failed", message)
            return False
        self.report(name, "done", detail)
        return True


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@yes_option
@common_options
def setup(ctl: Ctl, dry_run: bool, yes: bool) -> None:
    """Connect the harnesses on this machine and start the daemon.

    Finds the harnesses, installs their plugins, starts the daemon (as a service where systemd or launchd runs services,
    otherwise in the background), imports the history you already have, checks everything, and shows a first search.
    Asks before each change. Running it again does only what is left. Exits with 4 if a step failed.

    \b
    Examples:
      clankers-ctl setup
      clankers-ctl setup --dry-run
      clankers-ctl setup --yes
    """
    if ctl.json and not (yes or dry_run):
        raise click.UsageError("With --json, setup cannot ask questions. Add --yes or --dry-run.")
    run = Setup(ctl, yes, dry_run)
    found = [harness for harness in HARNESSES if _is_installed(harness)]
    _report_found(run, found)
    connected = _connect(run, found)
    if _start_daemon(run):
        _import_history(run, [harness for harness in connected if harness.is_importable])
        _check(run)
        _search(run)
    failed = [step for step in run.steps if step.state == "failed"]
    if ctl.json:
        print_json({"ok": not failed, "steps": run.steps})
    elif failed:
        secho(f"{plural(len(failed), 'step')} failed. Run `clankers-ctl setup` again when that is solved.", fg="red")
    elif not dry_run:
        secho("Ready. Restart running sessions of your agents to load the plugin.", fg="green", bold=True)
    sys.exit(EXIT_PROBLEM if failed else 0)


def _is_installed(harness: HarnessInfo) -> bool:
    """Return True if the harness has a folder of its own, or its program is in PATH."""
    return PLUGINS[harness.name]().home.exists() or shutil.which(PROGRAMS.get(harness.name, harness.name)) is not None


def _report_found(run: Setup, found: list[HarnessInfo]) -> None:
    if not found:
        titles = ", ".join(harness.title for harness in HARNESSES)
        detail = (
            f"none of {titles} is installed. Run this again when one is; docs/plugins.md says how to connect others"
        )
        run.report("harnesses", "skipped", detail)
        return
    run.report("harnesses", "done", f"found {', '.join(harness.title for harness in found)}")


def _connect(run: Setup, found: list[HarnessInfo]) -> list[HarnessInfo]:
    """Install the plugins that the user wants; return the harnesses that are connected."""
    connected = []
    for harness in found:
        name = f"plugin of {harness.title}"
        target = PLUGINS[harness.name]()
        if plugin_status(target, report=None).state == "installed":
            run.report(name, "done", "is installed and up to date")
        elif not run.asks(_connection_question(harness, target)):
            run.report(name, "skipped", "you chose not to install it")
            continue
        elif run.dry_run:
            steps = install_plugin(PLUGINS[harness.name](), dry_run=True).steps
            changed = plural(sum(step.action != "unchanged" for step in steps), "file")
            detail = f"write or edit {changed} in {target.folder} and {target.home}"
            run.report(name, "would", f"{detail}; `clankers-ctl plugin install {harness.name} --dry-run` lists them")
        elif not run.attempt(name, lambda harness=harness: _install(harness)):  # type: ignore[misc]
            continue
        connected.append(harness)
    return connected


def _connection_question(harness: HarnessInfo, target: Target) -> str:
    """Return the question before a plugin is installed; with what will run where the harness would ask that itself."""
    question = f"Connect {harness.title} ({target.home})?"
    return f"{target.consent()}\n{question}" if isinstance(target, (Gemini, OpenClaw)) else question


def _install(harness: HarnessInfo) -> str:
    install_plugin(PLUGINS[harness.name](), dry_run=False)
    note = PLUGINS[harness.name]().note() if harness.name in ("codex", "openclaw") else None
    undo = f"installed; `clankers-ctl plugin uninstall {harness.name}` undoes it"
    return f"{undo}. {note}" if note else undo


def _start_daemon(run: Setup) -> bool:
    """Start the daemon; return whether the following steps can use it."""
    if (pid := find_daemon(run.ctl)) is not None:
        run.report("daemon", "done", f"is running (process {pid})")
        return True
    manager = platform_manager()
    wants_service = manager.is_reachable() and run.ctl.socket is None
    if run.dry_run:
        how = f"install and start a {manager.name} service" if wants_service else "start it in the background"
        run.report("daemon", "would", how)
        run.report("history", "would", "import what the connected harnesses have stored")
        return False
    question = f"Have {manager.name} start the daemon at login?"
    if wants_service and not is_managed_service() and run.asks(question):
        return run.attempt("daemon", _install_service)
    return run.attempt("daemon", lambda: _start_in_background(run.ctl))


def _install_service() -> str:
    report = install_service(dry_run=False, start=True)
    if report.problem:
        raise click.ClickException(report.problem)
    return f"is run by {report.manager}; `clankers-ctl service uninstall` undoes it"


def _start_in_background(ctl: Ctl) -> str:
    start_and_wait(ctl)
    manager = platform_manager()
    reason = "" if manager.is_usable() else f" ({manager.name} does not run services here)"
    return f"started in the background{reason}; hooks and clankers-ctl start it again when they need it"


def _import_history(run: Setup, connected: list[HarnessInfo]) -> None:
    for harness in connected:
        name = f"history of {harness.title}"
        if run.dry_run:
            run.report(name, "would", "import what is not stored yet")
        elif not run.asks(f"Import the history of {harness.title}?"):
            run.report(name, "skipped", f"`clankers-ctl import {harness.name}` imports it later")
        else:
            run.attempt(name, lambda harness=harness: _import(run.ctl, harness))  # type: ignore[misc]


def _import(ctl: Ctl, harness: HarnessInfo) -> str:
    job = run_job(ctl, ImportStart(harness.name))
    if job.state != "done":
        raise click.ClickException(job.error or f"the import was {job.state}")
    summary = msgspec.convert(job.result, ImportSummary)
    if not summary.files:
        return "there is none yet"
    new = f"{plural(summary.sessions, 'session')} and {plural(summary.messages, 'message')}"
    return f"read {plural(summary.files, harness.history_unit)}, imported {new} that were not stored yet"


def _check(run: Setup) -> None:
    if run.dry_run:
        run.report("doctor", "would", "check everything")
        return

    def check() -> str:
        _, diagnosis = diagnose(run.ctl)
        worst = [check for check in diagnosis.checks if check.state != "ok"]
        for each in () if run.ctl.json else worst:
            advice = f" → {one_line(each.advice)}" if each.advice else ""
            secho(f"  {each.state}: {each.name}: {one_line(each.finding)}{advice}", fg="yellow")
        if problems := [each for each in worst if each.state == "problem"]:
            raise click.ClickException(f"{plural(len(problems), 'problem')}: {problems[0].finding}")
        ok = len(diagnosis.checks) - len(worst)
        return f"{plural(ok, 'check')} ok" + (f", {plural(len(worst), 'warning')}" if worst else "")

    run.attempt("doctor", check)


def _search(run: Setup) -> None:
    """Search for words of the newest session, as a first example."""
    if run.dry_run:
        return
    sessions = run.ctl.call(SessionList(limit=20)).sessions
    query = next((words for session in sessions if (words := _words(session.title or session.user_prompt))), None)
    if query is None:
        run.report(
            "first search", "skipped", "nothing is stored yet: start a session, then run `clankers-ctl search …`"
        )
        return
    hits = run.ctl.call(Search(query=query, limit=3)).hits
    outcome = "" if hits else " finds nothing yet: the index is being built"
    run.report("first search", "done", f"`clankers-ctl search {query!r}`{outcome}")  # no number: it still grows
    if hits and not run.ctl.json:
        from clankers.ctl.search import search  # slow to load

        echo()
        search.main(["--limit", "3", "--", query], "clankers-ctl search", standalone_mode=False, obj=run.ctl)


def _words(text: str | None) -> str:
    """Return the first words of a title that are letters and digits."""
    words = [word.strip(".,:;!?\"'`()[]{}<>") for word in (text or "").split()]
    return " ".join([word for word in words if word.isalnum()][:MAX_QUERY_WORDS])
