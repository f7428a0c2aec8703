"""`clankers-ctl skill`: skills in the database, and their import and export as folders with a SKILL.md."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

import click

from clankers.ctl.command import Ctl, common_options, confirm_and_delete, deletion_options, without_place
from clankers.ctl.edits import explain_os_errors
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.output import Column, console, echo, one_line, plain, print_facts, print_json, print_table, secho
from clankers.ctl.search import NOTHING_CLOSE
from clankers_protocol.errors import RpcError
from clankers_protocol.safe_writes import writable_path, write_file
from clankers_protocol.skills import (
    Skill,
    SkillCreate,
    SkillDelete,
    SkillExport,
    SkillFile,
    SkillFolder,
    SkillGet,
    SkillImport,
    SkillImported,
    SkillList,
    SkillSearch,
    SkillSummary,
    SkillUpdate,
    SkillVersions,
)

SKILL_FILE = "SKILL.md"
MAX_FILE_BYTES = 1024 * 1024
"""Larger files in the folder of a skill are not imported."""

IGNORED_FOLDERS = {"__pycache__", "node_modules"}


def _complete_names(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[str]:
    """Complete the name of a skill."""
    with suppress(Exception):  # completion must not print errors while someone types
        page = ctx.ensure_object(Ctl).call(SkillList(limit=1000), timeout=1)
        return [found.name for found in page.skills if found.name.startswith(incomplete)]
    return []


COLUMNS = [
    Column("Name", style="cyan"),
    Column("Description", min_width=24),
    Column("Tags", min_width=8, optional=True),
    Column("Version", align_right=True, optional=True),
    Column("Changed", optional=True),
]
HIT_COLUMNS = [Column("Score", align_right=True, style="cyan"), Column("Name"), Column("Description", min_width=24)]
VERSION_COLUMNS = [
    Column("Version", align_right=True, style="cyan"),
    Column("Made"),
    Column("Description", min_width=24),
    Column("By", optional=True),
]


@click.group()
def skill() -> None:
    """Manage skills: instructions that agents look up.

    You can specify a skill by its name or its id.

    \b
    Examples:
      clankers-ctl skill import ~/.claude/skills
      clankers-ctl skill search "which commit broke the build"
      clankers-ctl skill export git-bisect --to .claude/skills
    """


@skill.command("list")
@click.option("--tag", "tags", multiple=True, help="Only include skills with this tag. Can be repeated.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Show at most this many.")
@common_options
def list_skills(ctl: Ctl, tags: tuple[str, ...], limit: int) -> None:
    """List skills by name.

    \b
    Examples:
      clankers-ctl skill list
      clankers-ctl skill list --tag git --json
    """
    page = ctl.call(SkillList(tags=list(tags) or None, limit=limit))
    ctl.report_page(page, "skills", COLUMNS, lambda: [_row(found) for found in page.skills])


def _row(found: SkillSummary) -> list[str]:
    return [
        one_line(found.name),
        one_line(found.description),
        one_line(", ".join(found.tags)),
        str(found.version),
        format_time(found.updated_at),
    ]


@skill.command()
@click.argument("name", shell_complete=_complete_names)
@click.option("--version", type=click.IntRange(1), metavar="N", help="Show version N instead of the current one.")
@common_options
def show(ctl: Ctl, name: str, version: int | None) -> None:
    """Show the description and instructions of a skill.

    \b
    Examples:
      clankers-ctl skill show git-bisect
      clankers-ctl skill show git-bisect --version 1
    """
    found = ctl.call(SkillGet(name, version))
    ctl.report(found, _print_skill)


def _print_skill(found: Skill) -> None:
    print_facts(
        [
            ("name", one_line(found.name)),
            ("description", one_line(found.description)),
            ("tools", one_line(", ".join(found.tools)) or None),
            ("model", found.model and one_line(found.model)),
            ("tags", one_line(", ".join(found.tags)) or None),
            ("references", one_line(", ".join(found.references)) or None),
            ("files", one_line(", ".join(file.path for file in found.files)) or None),
            ("version", f"{found.version}, {format_time(found.updated_at)}"),
            ("id", found.id),
        ]
    )
    if found.instructions:
        console().print(f"\n{plain(found.instructions)}", end="" if found.instructions.endswith("\n") else "\n")


@skill.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--tag", "tags", multiple=True, help="Only include skills with this tag. Can be repeated.")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Show at most this many.")
@common_options
def search(ctl: Ctl, words: tuple[str, ...], tags: tuple[str, ...], limit: int) -> None:
    """Search skills with keyword and vector search, best first.

    \b
    Examples:
      clankers-ctl skill search which commit broke the build
      clankers-ctl skill search release --tag git
    """
    found = ctl.call(SkillSearch(query=" ".join(words), tags=list(tags) or None, limit=limit))
    if ctl.json:
        print_json(found)
        return
    if not found.skills:
        echo("Nothing found.", err=True)
    elif found.weak:
        echo(NOTHING_CLOSE)
    rows = [[f"{hit.score:.3f}", one_line(hit.skill.name), one_line(hit.skill.description)] for hit in found.skills]
    if rows:
        print_table(HIT_COLUMNS, rows)
    if found.degraded:
        secho(one_line(found.degraded), err=True, fg="yellow")


@skill.command("import")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.pass_context
@common_options
def import_skills(ctl: Ctl, context: click.Context, folders: tuple[Path, ...]) -> None:
    """Import skills from folders with a SKILL.md.

    A folder without a SKILL.md may contain such folders. If a skill already exists and has changed, it gets a new
    version. If a skill cannot be imported, an error is printed and the others are imported.

    \b
    Examples:
      clankers-ctl skill import ~/.claude/skills
      clankers-ctl skill import ./skills/git-bisect
    """
    imported: list[SkillImported] = []
    failed: list[dict[str, str]] = []
    for folder in _skill_folders(folders):
        try:
            files = [file for path in sorted(_other_files(folder)) if (file := _read_file(folder, path))]
            text = (folder / SKILL_FILE).read_text("utf-8")
            imported.append(ctl.call(SkillImport(text, folder=folder.resolve().name, files=files)))
        except (RpcError, OSError, UnicodeDecodeError) as error:
            problem = without_place(error.message) if isinstance(error, RpcError) else str(error)
            failed.append({"folder": str(folder), "error": problem})
            secho(f"{folder}: {one_line(problem)}", err=True, fg="red")
    if ctl.json:
        print_json({"imported": imported, "failed": failed})
    elif not imported and not failed:
        echo(f"No {SKILL_FILE} found.", err=True)
    else:
        for result in imported:
            echo(f"{result.outcome:9}  {one_line(result.skill.name)}")
    if failed or not imported:
        context.exit(1)


def _skill_folders(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield each folder that contains a SKILL.md; for a folder without one, its subfolders that do."""
    for folder in folders:
        if (folder / SKILL_FILE).is_file():
            yield folder
        else:
            yield from (child for child in sorted(folder.iterdir()) if (child / SKILL_FILE).is_file())


def _other_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a skill other than SKILL.md, except links and hidden files."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in IGNORED_FOLDERS or path.is_symlink():
            continue
        if path.is_dir():
            yield from _other_files(path)
        elif path.is_file() and path != folder / SKILL_FILE:
            yield path


def _read_file(folder: Path, path: Path) -> SkillFile | None:
    name = path.relative_to(folder).as_posix()
    try:
        if path.stat().st_size <= MAX_FILE_BYTES:
            return SkillFile(name, path.read_text("utf-8"))
        problem = f"it is larger than {MAX_FILE_BYTES:,} bytes"
    except UnicodeDecodeError:
        problem = "it is not a text file"
    secho(f"{path} was skipped: {problem}.", err=True, fg="yellow")
    return None


@skill.command()
@click.argument("names", nargs=-1, shell_complete=_complete_names)
@click.option("--all", "everything", is_flag=True, help="Export all skills.")
@click.option(
    "--to",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Write the folders of the skills into this folder.",
)
@click.option("--force", is_flag=True, help="Overwrite files in folders that already exist.")
@common_options
def export(ctl: Ctl, names: tuple[str, ...], everything: bool, target: Path, force: bool) -> None:
    """Write skills as folders with a SKILL.md, like Claude Code.

    \b
    Examples:
      clankers-ctl skill export git-bisect --to .claude/skills
      clankers-ctl skill export --all --to ~/.claude/skills --force
    """
    if bool(names) == everything:
        raise click.UsageError("Specify the names of skills, or --all.")
    if everything:
        names = tuple(skill.id for page in ctl.pages(SkillList(limit=1000)) for skill in page.skills)
    exported = [ctl.call(SkillExport(name)) for name in names]
    _check_targets(target, exported, force)
    with explain_os_errors():
        written = [str(_write(target, folder)) for folder in exported]
    ctl.report({"written": written}, "\n".join(written) or "There are no skills.")


def _check_targets(target: Path, exported: list[SkillFolder], force: bool) -> None:
    """Raise an error if a folder would be written twice or, without `force`, already exists."""
    folders = [skill.folder for skill in exported]
    for name in folders:
        if folders.count(name) > 1:
            raise click.ClickException(
                f"Two skills would be written to the folder {name}. Export them to different folders."
            )
        if (target / name).exists() and not force:
            raise click.ClickException(f"{target / name} already exists. Use --force to overwrite its files.")


def _write(target: Path, exported: SkillFolder) -> Path:
    """Write the files of a skill. No path from the daemon may lead out of the folder."""
    folder = target / PurePosixPath(exported.folder).name
    for file in exported.files:
        if not Path(os.path.abspath(folder / file.path)).is_relative_to(os.path.abspath(folder)):  # noqa: PTH100
            raise click.ClickException(f"{file.path!r} leads out of the folder of the skill.")
        writable_path(folder / file.path, inside=target)  # check all before writing any
    for file in exported.files:
        write_file(folder / file.path, file.text.encode(), inside=target)
    return folder


_FIELD_OPTIONS = [
    click.option("--description", help="What the skill is for; agents find it by this."),
    click.option("--tag", "tags", multiple=True, help="Tag. Can be repeated."),
    click.option("--tool", "tools", multiple=True, help="Tool that the skill may use. Can be repeated."),
    click.option("--model", help="Model that the skill is for."),
    click.option(
        "--instructions", type=click.File(encoding="utf-8"), help="File with the instructions; - reads standard input."
    ),
]


def _field_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the fields of a skill to a command."""
    for option in reversed(_FIELD_OPTIONS):
        command = option(command)
    return command


@skill.command()
@click.argument("name")
@_field_options
@common_options
def create(
    ctl: Ctl,
    name: str,
    description: str | None,
    tags: tuple[str, ...],
    tools: tuple[str, ...],
    model: str | None,
    instructions: TextIO | None,
) -> None:
    """Create a skill. Without --instructions, they are written in $VISUAL or $EDITOR.

    \b
    Examples:
      clankers-ctl skill create git-bisect --description "Find the commit that broke it" --instructions bisect.md
      echo "Run make release." | clankers-ctl skill create release --description "Release the shop" --instructions -
    """
    if not description:
        raise click.UsageError("Describe the skill with --description: agents find it by its description.")
    text = _edit_text("") if instructions is None else instructions.read()
    request = SkillCreate(name, description, text, tools=list(tools), model=model, tags=list(tags))
    _print_changed(ctl, "Created", ctl.call(request))


@skill.command()
@click.argument("name", shell_complete=_complete_names)
@click.option("--name", "new_name", help="Rename the skill.")
@_field_options
@common_options
def edit(
    ctl: Ctl,
    name: str,
    new_name: str | None,
    description: str | None,
    tags: tuple[str, ...],
    tools: tuple[str, ...],
    model: str | None,
    instructions: TextIO | None,
) -> None:
    """Change a skill; its old version is kept. Without options, edit the instructions in $VISUAL or $EDITOR.

    \b
    Examples:
      clankers-ctl skill edit git-bisect
      clankers-ctl skill edit git-bisect --tag git --tag debugging
      clankers-ctl skill edit git-bisect --instructions bisect.md
    """
    found = ctl.call(SkillGet(name))
    request = SkillUpdate(found.id)
    if new_name is not None:
        request.name = new_name
    if description is not None:
        request.description = description
    if tags:
        request.tags = list(tags)
    if tools:
        request.tools = list(tools)
    if model is not None:
        request.model = model or None
    if instructions is not None:
        request.instructions = instructions.read()
    elif request == SkillUpdate(found.id):
        request.instructions = _edit_text(found.instructions)
        if request.instructions == found.instructions:
            echo("Nothing was changed.", err=True)
            return
    _print_changed(ctl, "Changed", ctl.call(request))


def _edit_text(text: str) -> str:
    """Have the user edit a text; an editor that is closed without saving leaves it as it is."""
    if not sys.stdin.isatty():
        raise click.UsageError("Without a terminal there is no editor: use --instructions FILE.")
    edited = click.edit(text, extension=".md", require_save=False)
    return text if edited is None else edited


def _print_changed(ctl: Ctl, verb: str, changed: Skill) -> None:
    ctl.report(changed, f"{verb} {one_line(changed.name)}, version {changed.version}.")


@skill.command()
@click.argument("name", shell_complete=_complete_names)
@common_options
def versions(ctl: Ctl, name: str) -> None:
    """List the versions of a skill, newest first.

    \b
    Examples:
      clankers-ctl skill versions git-bisect
    """
    found = ctl.call(SkillVersions(name))
    if ctl.json:
        print_json(found)
        return
    rows = []
    for one in found:
        made = format_time(one.created_at)
        rows.append([str(one.version), made, one_line(one.description), one_line(one.created_by or "")])
    print_table(VERSION_COLUMNS, rows)


@skill.command()
@click.argument("name", shell_complete=_complete_names)
@deletion_options
@common_options
def delete(ctl: Ctl, name: str, dry_run: bool, yes: bool) -> None:
    """Delete a skill and all its versions. Asks for confirmation first.

    \b
    Examples:
      clankers-ctl skill delete git-bisect --dry-run
      clankers-ctl skill delete git-bisect --yes
    """
    planned = ctl.call(SkillDelete(name, dry_run=True))
    what = f"skill {one_line(planned.name)} with {plural(planned.versions, 'version')}"
    confirm_and_delete(ctl, what, planned, SkillDelete(planned.id), dry_run=dry_run, yes=yes)
