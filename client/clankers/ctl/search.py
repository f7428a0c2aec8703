"""`clankers-ctl search`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from clankers.ctl.command import Ctl, common_options, project_option
from clankers.ctl.formatting import format_duration, format_time, plural, since_callback, until_callback
from clankers.ctl.output import Column, console, echo, one_line, plain, print_json, print_table, secho, shorten_ids
from clankers.ctl.transcript import MAX_TEXT_WIDTH, ROLE_STYLES
from clankers_protocol.recall import RecallPreview
from clankers_protocol.search import GraphOptions, Hit, Mode, Search, SearchResult, Source
from clankers_protocol.sessions import SessionGet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

MODE_NAMES = {"hybrid": "words and meaning", "keyword": "words", "vector": "meaning"}

MARKED = re.compile(r"«([^\s«»](?:[^«»]*[^\s«»])?)»")
"""What matched. Guillemets that somebody wrote stand apart from their words more often than not."""

AT_ONCE = 100
"""Hits that are asked for at a time, when all are wanted."""


@click.command()
@click.argument("words", nargs=-1, required=True)
@project_option
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Choice(get_args(Source)),
    help="Only in this source; may be given twice.",
)
@click.option("--session", metavar="ID", help="Only in this session.")
@click.option("--since", metavar="TIME", callback=since_callback, help="Only what was said since: 2h, 3d, today …")
@click.option("--until", metavar="TIME", callback=until_callback, help="Only what was said until.")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Hits per page.")
@click.option("--page", type=click.IntRange(1), default=1, metavar="N", help="The Nth page of hits.")
@click.option("--all", "everything", is_flag=True, help="All hits, not just the best.")
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    default="hybrid",
    show_default=True,
    help="By words (keyword), by meaning (vector) or both.",
)
@click.option(
    "--min-score",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Leave out hits below, unless the words stand in them.",
)
@click.option(
    "--half-life",
    type=click.FloatRange(0, 100_000, min_open=True),
    metavar="DAYS",
    help="Let what is so old count half.",
)
@click.option(
    "--diversity",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="From 0 to 1: how much like hits make room for others.",
)
@click.option(
    "--hops", type=click.IntRange(1, 5), metavar="N", help="Follow the graph of documents so far from the best hits."
)
@click.option("--explain", is_flag=True, help="Show what each score is made of.")
@common_options
def search(
    ctl: Ctl,
    words: tuple[str, ...],
    project: str | None,
    sources: tuple[Source, ...],
    session: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    page: int,
    everything: bool,
    mode: Mode,
    min_score: float,
    half_life: float | None,
    diversity: float,
    hops: int | None,
    explain: bool,
) -> None:
    """Search what was said and noted, by words and by meaning, best first.

    The words are plain text: nothing in them is syntax. Finding nothing is no error.

    \b
    Examples:
      clankers-ctl search why does the login fail on Safari
      clankers-ctl search "retry budget" --project . --since 2w
      clankers-ctl search deploy --source memory --explain
      clankers-ctl search "flaky test" --all --json | jq '.hits[].text'
    """
    request = Search(
        query=" ".join(words),
        sources=list(sources) or None,
        project=project,
        scopes=["*"],  # the owner's own
        session_id=session and ctl.call(SessionGet(session)).id,
        since=since,
        until=until,
        limit=AT_ONCE if everything else limit,
        mode=mode,
        min_score=min_score,
        half_life_days=half_life,
        diversity=diversity,
        graph=GraphOptions(hops=hops) if hops else None,
        explain=explain,
    )
    found = _all_pages(ctl, request) if everything else _page(ctl, request, page)
    if ctl.json:
        print_json(found)
    else:
        _print_result(request, found, 1 if everything else 1 + (page - 1) * limit)


def _page(ctl: Ctl, request: Search, number: int) -> SearchResult:
    """The page of that number, or one without hits when there are not so many."""
    found = ctl.call(request)
    for _ in range(number - 1):
        if found.cursor is None:
            return msgspec.structs.replace(found, hits=[])
        found = ctl.call(msgspec.structs.replace(request, cursor=found.cursor))
    return found


def _all_pages(ctl: Ctl, request: Search) -> SearchResult:
    page = ctl.call(request)
    hits, took = {hit.chunk_id: hit for hit in page.hits}, page.took_ms
    while page.cursor:
        page = ctl.call(msgspec.structs.replace(request, cursor=page.cursor))
        hits |= {hit.chunk_id: hit for hit in page.hits}  # what is indexed meanwhile moves the others
        took += page.took_ms
    return msgspec.structs.replace(page, hits=list(hits.values()), took_ms=took)


def _print_result(request: Search, found: SearchResult, first: int) -> None:
    if found.hits:
        _print_hits(found.hits, first)
        if request.explain:
            print_score_components([(hit_location(hit), hit.score, hit.components or {}) for hit in found.hits], first)
        echo()
        secho(_summary(found), dim=True)
    elif first > 1:
        echo("There are no more hits: try an earlier --page.", err=True)
        return
    else:
        echo(f"Nothing found for “{one_line(request.query)}”.", err=True)
    if found.degraded:
        secho(f"Incomplete: {one_line(found.degraded)}.", fg="yellow", err=True)
    for line in _advice(request, found):
        echo(line, err=True)


def _summary(found: SearchResult) -> str:
    pending = f"; {plural(found.pending, 'chunk')} cannot be found by meaning yet" if found.pending else ""
    how = f"by {MODE_NAMES[found.mode]} in {format_duration(found.took_ms / 1000)}"
    return f"{plural(len(found.hits), 'hit')} {how}{pending}"


def _advice(request: Search, found: SearchResult) -> list[str]:
    """What may be done about it."""
    if found.hits:
        return ["There are more: --page N, --limit N or --all shows them."] if found.cursor else []
    advice = []
    if found.pending:
        advice.append(f"{plural(found.pending, 'chunk')} cannot be found by meaning yet: try again in a while.")
    if request.mode == "vector" and found.degraded:
        advice.append("Search without --mode vector to search by words.")
    if any((request.project, request.sources, request.session_id, request.since, request.until)):
        advice.append("Search without --project, --source, --session, --since and --until to search everything.")
    if not advice or found.degraded:
        advice.append("`clankers-ctl index status` says what is indexed, and what is in the way.")
    return advice


def _print_hits(hits: Sequence[Hit], first: int) -> None:
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    margin = len(str(first + len(hits) - 1)) + 2
    ids = iter(shorten_ids([hit.ref.session_id for hit in hits if hit.ref.session_id]))
    for number, hit in enumerate(hits, first):
        if number > first:
            out.print()
        session = next(ids) if hit.ref.session_id else None
        out.print(_heading(hit, f"{number}.".ljust(margin), width))
        for block in (_origin(hit, session), highlight(hit.snippet, out)):
            for line in block.wrap(out, width - margin, overflow="fold"):
                line.rstrip()
                out.print(" " * margin, line, sep="")


def _heading(hit: Hit, number: str, width: int) -> "Text":
    from rich.text import Text  # slow to load

    score = f"{hit.score:.3f}  "
    name = Text(hit_location(hit), "bold")
    name.truncate(max(width - len(number) - len(score), 8), overflow="ellipsis")
    return Text().append(number, "dim").append(score, "cyan").append(name)


def hit_location(hit: Hit) -> str:
    """What a hit is a part of: a memory, a skill, a document or file with its lines, or a session by its title."""
    ref = hit.ref
    if ref.memory_id is not None:
        return f"Memory {one_line(ref.memory_id)}"
    if ref.skill_id is not None:
        name, _, _ = hit.text.partition("\n")
        return one_line(f"skill {name}")
    path = ref.document_source or ref.path
    if path is None:
        return one_line(ref.session_title or "Untitled session")
    lines = "" if ref.start_line is None else f":{ref.start_line}"
    if ref.end_line is not None and ref.end_line != ref.start_line:
        lines += f"-{ref.end_line}"
    return one_line(_home(path)) + lines


def _origin(hit: Hit, session: str | None) -> "Text":
    from rich.text import Text  # slow to load

    ref = hit.ref
    role = one_line(ref.role or ("tool" if ref.tool_id else hit.source))
    facts = [
        format_time(hit.created_at),
        ref.project_path and one_line(_home(ref.project_path)),
        session and f"session {one_line(session)}",
        hit.way and f"reached by {', '.join(step.relation for step in hit.way)}",
    ]
    text = Text().append(role, ROLE_STYLES.get(role, "bold").removeprefix("bold "))
    return text.append("".join(f" · {fact}" for fact in facts if fact), "dim")


def _home(path: str) -> str:
    """The path as its owner writes it."""
    home = str(Path.home())
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path


def highlight(snippet: str, out: "Console") -> "Text":
    """On a terminal what matched stands out; elsewhere it keeps its marks."""
    from rich.text import Text  # slow to load

    shown = one_line(snippet)
    if not out.is_terminal or out.color_system is None:
        return Text(shown)
    text, at = Text(), 0
    for match in MARKED.finditer(shown):
        text.append(shown[at : match.start()]).append(match[1], "bold yellow")
        at = match.end()
    return text.append(shown[at:])


def print_score_components(scored: Sequence[tuple[str, float, dict[str, float]]], first: int) -> None:
    """What each score is made of: a table of where, how much, and the parts."""
    names = list(dict.fromkeys(name for _, _, parts in scored for name in parts))
    columns = [
        Column("#", align_right=True, style="dim"),
        Column("Score", align_right=True, style="cyan"),
        *(
            Column(one_line(name).capitalize(), align_right=True, optional=place > 1)
            for place, name in enumerate(names)
        ),
        Column("Where", min_width=12, optional=True, truncate_start=True),
    ]
    rows = [
        [
            str(number),
            f"{score:.3f}",
            *("–" if (part := parts.get(name)) is None else f"{part:.3f}" for name in names),
            place,
        ]
        for number, (place, score, parts) in enumerate(scored, first)
    ]
    echo()
    print_table(columns, rows)


# -- recall


@click.command()
@click.argument("prompt", nargs=-1)
@project_option
@click.option("--session", "session_id", metavar="ID", help="Leave out what this session was told already.")
@common_options
def recall(ctl: Ctl, prompt: tuple[str, ...], project: str | None, session_id: str | None) -> None:
    """Show what an agent would be told with a PROMPT; without one, at the start of a session. Nothing is recorded.

    The project is the folder you are in, unless you name another.

    \b
    Examples:
      clankers-ctl recall "why is the watcher test flaky?"
      clankers-ctl recall --project ~/src/parser
    """
    query = " ".join(prompt)
    answer = ctl.call(
        RecallPreview(
            kind="prompt" if query else "start",
            query=query or None,
            project=project or str(Path.cwd()),
            session_id=session_id,
        )
    )
    if ctl.json:
        print_json(answer)
    elif answer.text:
        echo(plain(answer.text))
        echo(f"{plural(answer.characters, 'character')} from {plural(len(answer.ids), 'item')}", err=True)
    else:
        echo(f"Nothing would be told: {answer.reason or 'nothing fits'}.", err=True)
