"""`clankers-ctl skill`: skills in the database, and as folders with a SKILL.md."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import click

from clankers.ctl.command import Ctl, common_options, confirm_and_delete, deletion_options
from clankers.ctl.edits import explain_os_errors
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.output import Column, console, echo, one_line, plain, print_facts, print_json, print_table, secho
from clankers_protocol.errors import RpcError
from clankers_protocol.safe_writes import writable_path, write_file
from clankers_protocol.skills import (
    Skill,
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
    SkillVersions,
)

NAME = "SKILL.md"
LARGEST = 1024 * 1024
"""Bytes. A larger file of a skill's folder is left where it is."""

IGNORED = {"__pycache__", "node_modules"}


def _skill_names(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[str]:
    """Names of skills that begin like this, for the shell to complete."""
    with suppress(Exception):  # a shell has no use for an error while someone types
        page = ctx.ensure_object(Ctl).call(SkillList(limit=1000), timeout=1)
        return [found.name for found in page.skills if found.name.startswith(incomplete)]
    return []


@click.group()
def skill() -> None:
    """Keep skills: instructions that agents look up when a task calls for them.

    A skill is named by its name or its id.

    \b
    Examples:
      clankers-ctl skill import ~/.claude/skills
      clankers-ctl skill search "which commit broke the build"
      clankers-ctl skill export git-bisect --to .claude/skills
    """


@skill.command("list")
@click.option("--tag", "tags", multiple=True, help="Only those with this tag; may be given more than once.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many.")
@common_options
def list_skills(ctl: Ctl, tags: tuple[str, ...], limit: int) -> None:
    """List skills by name.

    \b
    Examples:
      clankers-ctl skill list
      clankers-ctl skill list --tag git --json
    """
    page = ctl.call(SkillList(tags=list(tags) or None, limit=limit))
    if ctl.json:
        print_json(page)
    elif not page.skills:
        echo("No skills.", err=True)
    else:
        columns = [
            Column("Name", style="cyan"),
            Column("Description", min_width=24),
            Column("Tags", min_width=8, optional=True),
            Column("Version", align_right=True, optional=True),
            Column("Changed", optional=True),
        ]
        print_table(columns, [_row(found) for found in page.skills])
        if page.cursor:
            echo("There are more: --limit N shows them.", err=True)


def _row(found: SkillSummary) -> list[str]:
    return [
        one_line(found.name),
        one_line(found.description),
        one_line(", ".join(found.tags)),
        str(found.version),
        format_time(found.updated_at),
    ]


@skill.command()
@click.argument("name", shell_complete=_skill_names)
@click.option("--version", type=click.IntRange(1), metavar="N", help="As it was in this version.")
@common_options
def show(ctl: Ctl, name: str, version: int | None) -> None:
    """Show a skill: what it is for, and its instructions.

    \b
    Examples:
      clankers-ctl skill show git-bisect
      clankers-ctl skill show git-bisect --version 1
    """
    found = ctl.call(SkillGet(name, version))
    if ctl.json:
        print_json(found)
    else:
        _print_skill(found)


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
@click.option("--tag", "tags", multiple=True, help="Only those with this tag; may be given more than once.")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="How many.")
@common_options
def search(ctl: Ctl, words: tuple[str, ...], tags: tuple[str, ...], limit: int) -> None:
    """Find skills by words and by meaning, best first.

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
    else:
        columns = [Column("Score", align_right=True, style="cyan"), Column("Name"), Column("Description", min_width=24)]
        rows = [[f"{one.score:.3f}", one_line(one.skill.name), one_line(one.skill.description)] for one in found.skills]
        print_table(columns, rows)
    if found.degraded:
        secho(one_line(found.degraded), err=True, fg="yellow")


@skill.command("import")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.pass_context
@common_options
def import_skills(ctl: Ctl, context: click.Context, folders: tuple[Path, ...]) -> None:
    """Take skills from folders that hold a SKILL.md, or from folders of such folders.

    A skill that is there already gets a new version, if anything changed. A bad one is named, and the others are taken.

    \b
    Examples:
      clankers-ctl skill import ~/.claude/skills
      clankers-ctl skill import ./skills/git-bisect
    """
    done: list[SkillImported] = []
    failed: list[dict[str, str]] = []
    for folder in _skill_folders(folders):
        try:
            done.append(ctl.call(_read_folder(folder)))
        except (RpcError, OSError, UnicodeDecodeError) as error:
            problem = error.message if isinstance(error, RpcError) else str(error)
            failed.append({"folder": str(folder), "error": problem})
            secho(f"{folder}: {one_line(problem)}", err=True, fg="red")
    if ctl.json:
        print_json({"imported": done, "failed": failed})
    elif not done and not failed:
        echo(f"No {NAME} found.", err=True)
    else:
        for one in done:
            echo(f"{one.outcome:9}  {one_line(one.skill.name)}")
    if failed or not done:
        context.exit(1)


def _skill_folders(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Those that hold a SKILL.md: each given folder, or else the ones in it."""
    for folder in folders:
        if (folder / NAME).is_file():
            yield folder
        else:
            yield from (child for child in sorted(folder.iterdir()) if (child / NAME).is_file())


def _read_folder(folder: Path) -> SkillImport:
    files = [found for path in sorted(_files(folder)) if (found := _read_file(folder, path))]
    return SkillImport((folder / NAME).read_text("utf-8"), folder=folder.resolve().name, files=files)


def _files(folder: Path) -> Iterator[Path]:
    """The other files of a skill. Links are not followed, and what is hidden stays so."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in IGNORED or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file() and path != folder / NAME:
            yield path


def _read_file(folder: Path, path: Path) -> SkillFile | None:
    name = path.relative_to(folder).as_posix()
    try:
        if path.stat().st_size <= LARGEST:
            return SkillFile(name, path.read_text("utf-8"))
        problem = f"larger than {LARGEST:,} bytes"
    except UnicodeDecodeError:
        problem = "no text"
    secho(f"{path} is left out: {problem}", err=True, fg="yellow")
    return None


@skill.command()
@click.argument("names", nargs=-1, shell_complete=_skill_names)
@click.option("--all", "everything", is_flag=True, help="Every skill.")
@click.option(
    "--to",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Where the skills' folders are put.",
)
@click.option("--force", is_flag=True, help="Overwrite the files of a folder that is there already.")
@common_options
def export(ctl: Ctl, names: tuple[str, ...], everything: bool, target: Path, force: bool) -> None:
    """Write skills as folders with a SKILL.md, as Claude Code reads them.

    \b
    Examples:
      clankers-ctl skill export git-bisect --to .claude/skills
      clankers-ctl skill export --all --to ~/.claude/skills --force
    """
    if bool(names) == everything:
        raise click.UsageError("name the skills, or say --all")
    chosen = _all_names(ctl) if everything else list(names)
    exported = [ctl.call(SkillExport(name)) for name in chosen]
    _refuse_overwriting(target, exported, force)
    with explain_os_errors():
        written = [str(_write(target, one)) for one in exported]
    if ctl.json:
        print_json({"written": written})
    else:
        for folder in written:
            echo(folder)


def _all_names(ctl: Ctl) -> list[str]:
    return [one.id for page in ctl.pages(SkillList(limit=1000)) for one in page.skills]


def _refuse_overwriting(target: Path, exported: list[SkillFolder], force: bool) -> None:
    folders = [one.folder for one in exported]
    for name in folders:
        if folders.count(name) > 1:
            raise click.ClickException(f"two skills would be the folder {name}: export them to different places")
        if (target / name).exists() and not force:
            raise click.ClickException(f"{target / name} is there already: --force overwrites its files")


def _write(target: Path, exported: SkillFolder) -> Path:
    """Write a skill's files, each inside its folder whatever the daemon says."""
    folder = target / PurePosixPath(exported.folder).name
    for file in exported.files:
        _check_inside(folder, file.path)
        writable_path(folder / file.path, inside=target)  # before the first one is written
    for file in exported.files:
        write_file(folder / file.path, file.text.encode(), inside=target)
    return folder


def _check_inside(folder: Path, path: str) -> None:
    if not Path(os.path.abspath(folder / path)).is_relative_to(os.path.abspath(folder)):  # noqa: PTH100
        raise click.ClickException(f"{path!r} leads out of the skill's folder")


@skill.command()
@click.argument("name", shell_complete=_skill_names)
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
    columns = [
        Column("Version", align_right=True, style="cyan"),
        Column("Made"),
        Column("Description", min_width=24),
        Column("By", optional=True),
    ]
    rows = [
        [str(one.version), format_time(one.created_at), one_line(one.description), one_line(one.created_by or "")]
        for one in found
    ]
    print_table(columns, rows)


@skill.command()
@click.argument("name", shell_complete=_skill_names)
@deletion_options
@common_options
def delete(ctl: Ctl, name: str, dry_run: bool, yes: bool) -> None:
    """Delete a skill with all its versions. Asks first.

    \b
    Examples:
      clankers-ctl skill delete git-bisect --dry-run
      clankers-ctl skill delete git-bisect --yes
    """
    planned = ctl.call(SkillDelete(name, dry_run=True))
    what = f"skill {one_line(planned.name)} with {plural(planned.versions, 'version')}"
    confirm_and_delete(ctl, what, planned, SkillDelete(planned.id), dry_run=dry_run, yes=yes)
