"""`clankers-ctl sessions` and `clankers-ctl session`."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from clankers.ctl.command import Ctl, common_options, confirm_and_delete, deletion_options, project_option
from clankers.ctl.formatting import abbreviate, format_dollars, format_time, since_callback, until_callback
from clankers.ctl.ids import display_ids
from clankers.ctl.output import Column, echo, one_line, print_json, print_table
from clankers.ctl.replacement import replace_text_file
from clankers.ctl.transcript import describe_counts, print_transcript
from clankers.session_export import to_html, to_markdown
from clankers_protocol.sessions import (
    Session,
    SessionCounts,
    SessionDelete,
    SessionGet,
    SessionList,
    SessionPage,
    SessionTimeline,
    TimelineEntry,
)

OUTPUT_FILE = click.Path(dir_okay=False, allow_dash=True)
COLUMNS = [
    Column("Id", style="cyan"),
    Column("Began"),
    Column("Title", min_width=24),
    Column("Project", min_width=12, optional=True),
    Column("Source", optional=True),
    Column("Status", optional=True),
    Column("Messages", align_right=True, optional=True),
    Column("Tools", align_right=True, optional=True),
    Column("Tokens", align_right=True, optional=True),
    Column("Cost", align_right=True, optional=True),
]


@click.command()
@project_option("Only list sessions of this project")
@click.option("--source", help="Only list sessions of this harness, for example claude-code.")
@click.option("--status", help="Only list sessions in this state, for example active or ended.")
@click.option(
    "--since",
    metavar="TIME",
    callback=since_callback,
    help="Only list sessions started since TIME: 2h, 3d, today, 2025-01-31 …",
)
@click.option("--until", metavar="TIME", callback=until_callback, help="Only list sessions started until TIME.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Show at most this many.")
@click.option("--all", "everything", is_flag=True, help="List all sessions.")
@common_options
def sessions(
    ctl: Ctl,
    project: str | None,
    source: str | None,
    status: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    everything: bool,
) -> None:
    """List sessions, newest first.

    \b
    Examples:
      clankers-ctl sessions
      clankers-ctl sessions --project . --since yesterday
      clankers-ctl sessions --source claude-code --since 1w --all --json
    """
    request = SessionList(
        project=project,
        source=source,
        status=status,
        since=since,
        until=until,
        limit=1000 if everything else limit,
    )
    if everything:
        page = SessionPage([session for each in ctl.pages(request) for session in each.sessions])
    else:
        page = ctl.call(request)
    if ctl.json:
        print_json(page)
    elif not page.sessions:
        echo("No sessions.", err=True)
    else:
        ids = display_ids(ctl, "session", [session.id for session in page.sessions])
        print_table(COLUMNS, [_row(shown, session) for shown, session in zip(ids, page.sessions, strict=True)])
        if page.cursor:
            echo("There are more sessions. Use --limit N or --all to see them.", err=True)


def _row(shown: str, session: Session) -> list[str]:
    counts = session.counts or SessionCounts()
    tokens = (session.prompt_tokens or 0) + (session.completion_tokens or 0)
    return [
        one_line(shown),
        format_time(session.created_at),
        one_line(session.title or session.user_prompt or "–"),
        one_line(session.project_name or Path(session.project_path or "").name),
        one_line(session.source or ""),
        one_line(session.status or ""),
        f"{counts.messages or session.message_count or 0:,}",
        f"{counts.tools or session.tool_call_count or 0:,}",
        abbreviate(tokens) if tokens else "",
        format_dollars(session.cost) if session.cost else "",
    ]


def complete_session_ids(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[str]:
    """Complete the id of a recent session."""
    with suppress(Exception):  # completion must not print errors while someone types
        page = ctx.ensure_object(Ctl).call(SessionList(limit=100), timeout=1)
        return [session.id for session in page.sessions if session.id.startswith(incomplete)]
    return []


class SessionGroup(click.Group):
    """A group whose first argument may also be the id of a session, which is then shown."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own_words = {*self.commands, *ctx.help_option_names, "--help"}
        if args and args[0] not in own_words:
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        ids = complete_session_ids(ctx, None, incomplete)
        return [*super().shell_complete(ctx, incomplete), *map(CompletionItem, ids)]


@click.group(cls=SessionGroup, options_metavar="", subcommand_metavar="ID | COMMAND [ARGS]…")
def session() -> None:
    """Show or delete a session.

    You can shorten an id to its first or last 8 characters, or more if that is ambiguous.

    \b
    Examples:
      clankers-ctl session 0199c5a2
      clankers-ctl session 0199c5a2 --full
      clankers-ctl session delete 0199c5a2 --dry-run
    """


@session.command()
@click.argument("id", shell_complete=complete_session_ids)
@click.option("--full", is_flag=True, help="Show full tool inputs and outputs, not only their first lines.")
@click.option("--markdown", metavar="FILE", type=OUTPUT_FILE, help="Write the transcript to FILE as Markdown.")
@click.option("--html", metavar="FILE", type=OUTPUT_FILE, help="Write the transcript to FILE as one HTML page.")
@common_options
def show(ctl: Ctl, id: str, full: bool, markdown: str | None, html: str | None) -> None:  # noqa: A002
    """Show a session as a transcript: messages, tool calls, errors and compactions.

    With --markdown or --html, write the transcript to a file that you can send to a colleague. The texts are as stored:
    secrets are redacted. With - as FILE, write to standard output.

    \b
    Examples:
      clankers-ctl session show 0199c5a2
      clankers-ctl session 0199c5a2 --full | less
      clankers-ctl session 0199c5a2 --html session.html
    """
    found = ctl.call(SessionGet(id))
    entries = session_entries(ctl, found.id)
    for file, render in ((markdown, to_markdown), (html, to_html)):
        if file:
            _export(ctl, file, render(found, entries))
            return
    if ctl.json:
        print_json({"session": found, "entries": list(entries)})
    else:
        print_transcript(found, entries, full)


def _export(ctl: Ctl, file: str, pieces: Iterator[str]) -> None:
    if file == "-":
        for piece in pieces:
            echo(piece, nl=False)
        return
    with replace_text_file(Path(file)) as output:
        output.writelines(pieces)
    ctl.report({"path": str(Path(file).absolute())}, f"Wrote {file}.")


def session_entries(ctl: Ctl, session_id: str) -> Iterator[TimelineEntry]:
    """Yield the timeline of a session; pages are fetched when needed."""
    for page in ctl.pages(SessionTimeline(session_id, limit=500)):
        yield from page.entries


@session.command()
@click.argument("id", shell_complete=complete_session_ids)
@deletion_options
@common_options
def delete(ctl: Ctl, id: str, dry_run: bool, yes: bool) -> None:  # noqa: A002
    """Delete a session and everything captured in it. Asks for confirmation first.

    \b
    Examples:
      clankers-ctl session delete 0199c5a2 --dry-run
      clankers-ctl session delete 0199c5a2 --yes
    """
    found = ctl.call(SessionGet(id))
    planned = ctl.call(SessionDelete(found.id, dry_run=True))
    what = f"session {found.id} ({one_line(found.title or 'untitled')}) with {describe_counts(planned.counts)}"
    confirm_and_delete(ctl, what, planned, SessionDelete(found.id), dry_run=dry_run, yes=yes)
