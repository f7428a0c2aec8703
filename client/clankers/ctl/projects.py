"""`clankers-ctl project`: the repositories and folders in which sessions ran."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from clankers.ctl.command import Ctl, common_options, deletion_options, normalize_project, yes_option
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.ids import display_ids
from clankers.ctl.output import Column, confirm, echo, one_line, print_facts, print_json, print_table
from clankers_protocol.projects import (
    Project,
    ProjectCounts,
    ProjectForget,
    ProjectForgotten,
    ProjectList,
    ProjectMerge,
    ProjectMove,
    ProjectRename,
    ProjectShow,
)

FORGET_TIMEOUT_SECONDS = 3600
COLUMNS = [
    Column("Id", style="cyan", optional=True),
    Column("Name", min_width=12),
    Column("Folder", min_width=16, truncate_start=True),
    Column("Repository", min_width=16, optional=True),
    Column("Sessions", align_right=True),
    Column("Memories", align_right=True, optional=True),
    Column("Documents", align_right=True, optional=True),
    Column("Last session", optional=True),
]


def complete_project(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[str]:
    """Complete the name of a project."""
    with suppress(Exception):  # completion must not print errors while someone types
        projects = ctx.ensure_object(Ctl).call(ProjectList(), timeout=1)
        return [project.name for project in projects if project.name.startswith(incomplete)]
    return []


def project_argument(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an argument that is a folder, or a project's name or id."""
    return click.argument(name, callback=normalize_project, shell_complete=complete_project)


@click.group()
def project() -> None:
    """List projects; show, rename, merge, move or forget one.

    A project is its git repository: all its folders, worktrees and clones, wherever they are moved. A folder without
    git is a project itself. PROJECT is a folder, or a project's name, repository or id.

    \b
    Examples:
      clankers-ctl project list
      clankers-ctl project show .
      clankers-ctl project rename . shop
      clankers-ctl project merge old-shop shop
      clankers-ctl project move shop ~/src/shop
      clankers-ctl project forget scratch --dry-run
    """


@project.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=1000, help="Show at most this many.")
@common_options
def list_(ctl: Ctl, limit: int) -> None:
    """List projects, the most recently used first.

    \b
    Examples:
      clankers-ctl project list
      clankers-ctl project list --json | jq '.[].repository'
    """
    projects = ctl.call(ProjectList(limit))
    if ctl.json:
        print_json(projects)
    elif not projects:
        echo("No projects.", err=True)
    else:
        ids = display_ids(ctl, "project", [found.id for found in projects])
        rows = [
            [
                one_line(shown),
                one_line(found.name),
                one_line(found.path),
                _repository(found.repository),
                f"{found.sessions:,}",
                f"{found.memories:,}",
                f"{found.documents:,}",
                format_time(found.last_session_at),
            ]
            for shown, found in zip(ids, projects, strict=True)
        ]
        print_table(COLUMNS, rows)


@project.command()
@project_argument("project")
@common_options
def show(ctl: Ctl, project: str) -> None:
    """Show a project: its folders, its repository and what is stored of it.

    \b
    Examples:
      clankers-ctl project show .
      clankers-ctl project show shop
    """
    found = ctl.call(ProjectShow(project))
    if ctl.json:
        print_json(found)
        return
    missing = {True: "", False: " (no longer there)", None: " (not checked: the disk does not answer)"}
    folders = [f"{one_line(folder.path)}{missing[folder.exists]}" for folder in found.folders]
    print_facts(
        [
            ("id", one_line(found.id)),
            ("name", one_line(found.name)),
            ("folder", one_line(found.path)),
            *(("" if index else "seen in", folder) for index, folder in enumerate(folders)),
            *(("" if index else "repository", _repository(each)) for index, each in enumerate(found.repositories)),
            ("sessions", f"{plural(found.sessions, 'session')}, {plural(found.messages, 'message')}"),
            ("tools", plural(found.tools, "tool call")),
            ("memories", f"{found.memories:,}"),
            ("documents", f"{found.documents:,}"),
            ("files", f"{found.files:,}"),
            ("known since", format_time(found.created_at)),
            ("last session", format_time(found.last_session_at) or None),
        ]
    )


@project.command()
@project_argument("project")
@click.argument("name")
@common_options
def rename(ctl: Ctl, project: str, name: str) -> None:
    """Give a project another name. The name stays, whatever its folder is called.

    \b
    Examples:
      clankers-ctl project rename . shop
    """
    _report(ctl, ctl.call(ProjectRename(project, name)))


@project.command()
@project_argument("project")
@project_argument("into")
@click.option("--dry-run", is_flag=True, help="Show what would be moved; change nothing.")
@yes_option
@common_options
def merge(ctl: Ctl, project: str, into: str, dry_run: bool, yes: bool) -> None:
    """Move everything of PROJECT into the project INTO. This cannot be undone. Asks for confirmation first.

    \b
    Examples:
      clankers-ctl project merge old-shop shop --dry-run
      clankers-ctl project merge ~/src/shop-copy shop
    """
    source = ctl.call(ProjectShow(project))
    planned = ctl.call(ProjectMerge(source.id, into, dry_run=True))
    target = planned.project
    what = f"{_describe(source)} with {_describe_counts(planned.moved)} into {_describe(target)}"
    if not dry_run:
        if not yes:
            confirm(f"Merge {what}? This cannot be undone.", abort=True)
        planned = ctl.call(ProjectMerge(source.id, target.id), timeout=FORGET_TIMEOUT_SECONDS)
    ctl.report(planned, f"{'Would merge' if dry_run else 'Merged'} {what}.")


@project.command()
@project_argument("project")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@common_options
def move(ctl: Ctl, project: str, folder: Path) -> None:
    """Say that a project lies in FOLDER now. Nothing on the disk is changed.

    A repository that was moved, and usually a folder too, is recognised without this command.

    \b
    Examples:
      clankers-ctl project move shop ~/src/shop
    """
    _report(ctl, ctl.call(ProjectMove(project, str(folder.absolute()))))


@project.command()
@project_argument("project")
@deletion_options
@common_options
def forget(ctl: Ctl, project: str, dry_run: bool, yes: bool) -> None:
    """Delete everything that is stored of a project, for good. Asks for confirmation first.

    Deletes its sessions, memories in every state, documents and indexed files from the database. Files on the disk and
    backups are not touched. A harness that still has the history can bring it back: see docs/projects.md.

    \b
    Examples:
      clankers-ctl project forget scratch --dry-run
      clankers-ctl project forget ~/src/scratch --yes
    """
    found = ctl.call(ProjectShow(project))
    planned = ctl.call(ProjectForget(found.id, dry_run=True))
    what = f"{_describe(found)} with {_describe_counts(planned.deleted)}"
    if not dry_run and not yes:
        confirm(f"Forget {what}? This cannot be undone.", abort=True)
    done: ProjectForgotten = planned
    if not dry_run:
        done = ctl.call(ProjectForget(found.id), timeout=FORGET_TIMEOUT_SECONDS)
    ctl.report(done, f"{'Would forget' if dry_run else 'Forgot'} {what}.")


def _report(ctl: Ctl, changed: Project) -> None:
    ctl.report(
        changed, f"{one_line(changed.id)} is called {one_line(changed.name)} and lies in {one_line(changed.path)}."
    )


def _describe(found: Project) -> str:
    if found.name == found.path:
        return f"project {one_line(found.path)}"
    return f"project {one_line(found.name)} ({one_line(found.path)})"


def _describe_counts(counts: ProjectCounts) -> str:
    memories = f"{counts.memories:,} memor{'y' if counts.memories == 1 else 'ies'}"
    return (
        f"{plural(counts.sessions, 'session')} ({plural(counts.messages, 'message')}, "
        f"{plural(counts.tools, 'tool call')}), {memories}, {plural(counts.documents, 'document')} "
        f"and {plural(counts.files, 'indexed file')}"
    )


def _repository(repository: str | None) -> str:
    """Shorten a root commit as git does."""
    if repository is None:
        return ""
    kind, _, commit = repository.partition(":")
    return f"root commit {commit[:12]}" if kind == "commit" else one_line(repository)
