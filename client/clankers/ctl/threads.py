"""`clankers-ctl thread`: threads of chats, which are sessions, too."""

from contextlib import suppress

import click
import msgspec

from clankers.ctl.command import (
    Ctl,
    common_options,
    confirm_and_delete,
    deletion_options,
    normalize_project,
    project_option,
)
from clankers.ctl.formatting import format_time, plural, since_callback, until_callback
from clankers.ctl.ids import display_ids
from clankers.ctl.output import Column, echo, one_line, print_facts, print_json, print_table, secho
from clankers.ctl.search import NOTHING_CLOSE
from clankers.ctl.sessions import session_entries
from clankers.ctl.transcript import describe_counts, print_transcript
from clankers_protocol.errors import NotFound
from clankers_protocol.sessions import MessageList, SessionGet
from clankers_protocol.threads import (
    FoundMessages,
    MessageSearch,
    MessageStore,
    Thread,
    ThreadCreate,
    ThreadDelete,
    ThreadGet,
    ThreadList,
    ThreadUpdate,
)

COLUMNS = [
    Column("Id", style="cyan"),
    Column("Chat", min_width=8),
    Column("Title", min_width=20),
    Column("Messages", align_right=True),
    Column("Changed", optional=True),
    Column("Project", min_width=12, truncate_start=True, optional=True),
]
HIT_COLUMNS = [
    Column("Score", align_right=True, style="cyan"),
    Column("Role"),
    Column("Text", min_width=20),
    Column("When", optional=True),
    Column("Chat", min_width=8, optional=True),
    Column("Thread", optional=True),
]


def _complete_ids(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[str]:
    """Complete the id of a recently changed thread."""
    with suppress(Exception):  # completion must not print errors while someone types
        page = ctx.ensure_object(Ctl).call(ThreadList(limit=100), timeout=1)
        return [found.id for found in page.threads if found.id.startswith(incomplete)]
    return []


@click.group()
def thread() -> None:
    """Show and change the threads (conversations) of a chat.

    Every thread is also a session, so sessions captured from harnesses appear here, and `clankers-ctl session` shows
    threads, too.

    \b
    Examples:
      clankers-ctl thread list --chat support
      clankers-ctl thread show 0199c5a2
      clankers-ctl thread search "refund for order" --chat support
    """


@thread.command("list")
@click.option("--chat", metavar="ID", help="Only list threads of this chat.")
@project_option("Only list threads of this project")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Show at most this many.")
@common_options
def list_threads(ctl: Ctl, chat: str | None, project: str | None, limit: int) -> None:
    """List threads, most recently changed first.

    \b
    Examples:
      clankers-ctl thread list
      clankers-ctl thread list --chat support --json
    """
    page = ctl.call(ThreadList(chat_id=chat, project=project, limit=limit))

    def rows() -> list[list[str]]:
        ids = display_ids(ctl, "session", [found.id for found in page.threads])
        return [_row(shown, found) for shown, found in zip(ids, page.threads, strict=True)]

    ctl.report_page(page, "threads", COLUMNS, rows)


def _row(shown: str, found: Thread) -> list[str]:
    return [
        one_line(shown),
        one_line(found.chat_id or "–"),
        one_line(found.title or "–"),
        f"{found.messages:,}",
        format_time(found.updated_at),
        one_line(found.project_path or ""),
    ]


@thread.command()
@click.argument("id", shell_complete=_complete_ids)
@click.option("--full", is_flag=True, help="Show full tool inputs and outputs, not only their first lines.")
@common_options
def show(ctl: Ctl, id: str, full: bool) -> None:  # noqa: A002  # the name on the command line
    """Show a thread and its messages.

    \b
    Examples:
      clankers-ctl thread show 0199c5a2
      clankers-ctl thread show 0199c5a2 --json | jq .thread.metadata
    """
    found = ctl.call(ThreadGet(id))
    entries = session_entries(ctl, found.id)
    if ctl.json:
        print_json({"thread": found, "entries": list(entries)})
    else:
        print_transcript(ctl.call(SessionGet(found.id)), entries, full)


@thread.command()
@click.argument("id", shell_complete=_complete_ids)
@click.option("--role", help="Only list messages of this role, for example user.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Show the newest so many.")
@common_options
def messages(ctl: Ctl, id: str, role: str | None, limit: int) -> None:  # noqa: A002
    """List the newest messages of a thread, oldest first, with their ids.

    \b
    Examples:
      clankers-ctl thread messages 4f1c02d7
      clankers-ctl thread messages 4f1c02d7 --role user --limit 5 --json
    """
    page = ctl.call(MessageList(session_id=ctl.call(ThreadGet(id)).id, role=role, limit=limit))
    if ctl.json:
        print_json(page)
    elif not page.messages:
        echo("No messages.", err=True)
    else:
        columns = [
            Column("Id", style="cyan"),
            Column("When", optional=True),
            Column("Role"),
            Column("Text", min_width=20),
        ]
        ids = display_ids(ctl, "message", [message.id for message in page.messages])
        rows = [
            [
                one_line(shown),
                format_time(each.created_at),
                one_line(each.role or ""),
                one_line(each.text_content or ""),
            ]
            for shown, each in zip(ids, page.messages, strict=True)
        ]
        print_table(columns, rows)
        if page.cursor:
            echo("There are older messages. Use --limit N to see them.", err=True)


@thread.command()
@click.argument("id", shell_complete=_complete_ids)
@click.argument("text")
@click.option("--role", default="user", show_default=True, help="Who wrote the message.")
@common_options
def post(ctl: Ctl, id: str, text: str, role: str) -> None:  # noqa: A002
    """Store a message in a thread. A thread that does not exist is created.

    \b
    Examples:
      clankers-ctl thread post refund-12 "The parcel has arrived." --role user
    """
    with suppress(NotFound):
        id = ctl.call(ThreadGet(id)).id  # noqa: A001
    stored = ctl.call(MessageStore(thread_id=id, role=role, content=text))
    ctl.report(stored, f"Stored message {one_line(stored.id)}.")


@thread.command()
@click.option("--chat", metavar="ID", required=True, help="Chat that the thread belongs to.")
@click.option("--title", help="Title of the thread.")
@click.option("--id", "thread_id", metavar="ID", help="Id of the thread.  [default: a new id]")
@click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Project of the thread: a folder, or its name or id.",
)
@click.option("--metadata", metavar="JSON", help="Metadata of the thread, as a JSON object.")
@common_options
def create(
    ctl: Ctl, chat: str, title: str | None, thread_id: str | None, project: str | None, metadata: str | None
) -> None:
    """Create a thread.

    \b
    Examples:
      clankers-ctl thread create --chat support --title "Refund for order 12"
      clankers-ctl thread create --chat support --metadata '{"customer": 7}'
    """
    request = ThreadCreate(chat, id=thread_id, title=title, project=project, metadata=_parse_metadata(metadata))
    _print_thread(ctl, ctl.call(request))


@thread.command()
@click.argument("id", shell_complete=_complete_ids)
@click.option("--chat", metavar="ID", help="Move the thread to this chat.")
@click.option("--title", help='Set the title; "" removes it.')
@click.option("--metadata", metavar="JSON", help="Replace the metadata by this JSON object.")
@common_options
def update(ctl: Ctl, id: str, chat: str | None, title: str | None, metadata: str | None) -> None:  # noqa: A002
    """Change the title, chat or metadata of a thread.

    \b
    Examples:
      clankers-ctl thread update 0199c5a2 --title "Refund, settled"
      clankers-ctl thread update 0199c5a2 --metadata '{"settled": true}'
    """
    request = ThreadUpdate(ctl.call(ThreadGet(id)).id)
    if chat is not None:
        request.chat_id = chat
    if title is not None:
        request.title = title or None
    if metadata is not None:
        request.metadata = _parse_metadata(metadata) or None
    _print_thread(ctl, ctl.call(request))


@thread.command()
@click.argument("id", shell_complete=_complete_ids)
@deletion_options
@common_options
def delete(ctl: Ctl, id: str, dry_run: bool, yes: bool) -> None:  # noqa: A002
    """Delete a thread and everything in it. Asks for confirmation first.

    \b
    Examples:
      clankers-ctl thread delete 0199c5a2 --dry-run
      clankers-ctl thread delete 0199c5a2 --yes
    """
    found = ctl.call(ThreadGet(id))
    planned = ctl.call(ThreadDelete(found.id, dry_run=True))
    what = f"thread {found.id} ({one_line(found.title or 'untitled')}) with {describe_counts(planned.counts)}"
    confirm_and_delete(ctl, what, planned, ThreadDelete(found.id), dry_run=dry_run, yes=yes)


@thread.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--chat", metavar="ID", help="Only search this chat.")
@click.option("--thread", "thread_id", metavar="ID", help="Only search this thread.")
@project_option("Only search threads of this project")
@click.option("--role", help="Only search messages of this role, for example user.")
@click.option("--since", metavar="TIME", callback=since_callback, help="Only search messages newer than TIME: 2h, 3d …")
@click.option("--until", metavar="TIME", callback=until_callback, help="Only search messages older than TIME.")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Show at most this many.")
@click.option("--duplicates", is_flag=True, help="List messages with nearly the same words one by one.")
@common_options
def search(
    ctl: Ctl,
    words: tuple[str, ...],
    chat: str | None,
    thread_id: str | None,
    project: str | None,
    role: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    duplicates: bool,
) -> None:
    """Search messages with keyword and vector search, best first.

    \b
    Examples:
      clankers-ctl thread search refund for order --chat support
      clankers-ctl thread search "the parcel is late" --role user --since 1w
    """
    request = MessageSearch(
        query=" ".join(words),
        chat_id=chat,
        thread_id=thread_id and ctl.call(ThreadGet(thread_id)).id,
        project=project,
        role=role,
        since=since,
        until=until,
        limit=limit,
        collapse=not duplicates,
    )
    found = ctl.call(request)
    if ctl.json:
        print_json(found)
    elif not found.messages:
        echo("Nothing found.", err=True)
    else:
        if found.weak:
            echo(NOTHING_CLOSE)
        _print_hits(ctl, found)
    if not ctl.json and found.degraded:
        secho(one_line(found.degraded), err=True, fg="yellow")


def _print_hits(ctl: Ctl, found: FoundMessages) -> None:
    threads = display_ids(ctl, "session", [hit.message.session_id for hit in found.messages])
    rows = [
        [
            f"{hit.score:.3f}",
            one_line(hit.message.role or ""),
            one_line(hit.snippet) + (f" ({hit.duplicates:,} more like it)" if hit.duplicates else ""),
            format_time(hit.message.created_at),
            one_line(hit.chat_id or ""),
            one_line(thread),
        ]
        for hit, thread in zip(found.messages, threads, strict=True)
    ]
    print_table(HIT_COLUMNS, rows)


def _print_thread(ctl: Ctl, found: Thread) -> None:
    if ctl.json:
        print_json(found)
        return
    print_facts(
        [
            ("id", one_line(found.id)),
            ("chat", found.chat_id and one_line(found.chat_id)),
            ("title", found.title and one_line(found.title)),
            ("project", found.project_path and one_line(found.project_path)),
            ("metadata", one_line(msgspec.json.encode(found.metadata).decode()) if found.metadata else None),
            ("messages", plural(found.messages, "message")),
            ("changed", format_time(found.updated_at)),
        ]
    )


def _parse_metadata(text: str | None) -> dict[str, object] | None:
    """Parse --metadata."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"{text!r} is not a JSON object: {error}") from error
