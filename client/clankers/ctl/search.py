"""`clankers-ctl search` and `clankers-ctl recall`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from clankers.ctl.command import Ctl, common_options, normalize_project
from clankers.ctl.formatting import format_duration, format_time, plural, since_callback, until_callback
from clankers.ctl.ids import short_ids
from clankers.ctl.output import (
    Column,
    Console,
    can_run_full_screen,
    console,
    echo,
    note,
    one_line,
    plain,
    print_json,
    print_table,
    secho,
)
from clankers.ctl.text import Text
from clankers.ctl.transcript import MAX_TEXT_WIDTH, ROLE_STYLES
from clankers_protocol.recall import RecallPreview
from clankers_protocol.search import GraphOptions, Hit, Mode, Search, SearchResult, Source, ToolSearch
from clankers_protocol.sessions import SessionGet

MODE_NAMES = {"hybrid": "keyword and vector search", "keyword": "keyword search", "vector": "vector search"}

SOURCE_NAMES = {"memory": "file", "memories": "memory", "documents": "document", "skills": "skill"}
"""Names of what a hit is, by its source."""

MATCH_MARKS = re.compile(r"«([^\s«»](?:[^«»]*[^\s«»])?)»")
"""Matched words in a snippet. Guillemets in the text itself usually have a space before or after the words."""

MAX_HITS_PER_PAGE = 100

NOTHING_CLOSE = "Nothing close; the nearest are:"
"""Heading of a list of hits that have little to do with the query."""

FILES = "files"
"""Name of the source `memory` at the command line: beside `memories`, its own name confuses."""


def _parse_sources(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> list[Source]:
    return msgspec.convert(list(dict.fromkeys("memory" if name == FILES else name for name in value)), list[Source])


def _require_words(context: click.Context, _: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a search without words where no finder can run."""
    if not value and (context.ensure_object(Ctl).json or not can_run_full_screen()):
        raise click.UsageError(
            "Missing argument 'WORDS...'. Only on a terminal, a finder opens without words.", context
        )
    return value


@click.command()
@click.argument("words", nargs=-1, callback=_require_words)
@click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Only search sessions, files, documents and memories of this project: a folder, or its name or id.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Choice([FILES, *get_args(Source)]),
    callback=_parse_sources,
    help="Only search this source: files are memory files (also called memory), memories are what was remembered. "
    "Can be repeated.",
)
@click.option("--session", metavar="ID", help="Only search this session.")
@click.option(
    "--tool-calls",
    is_flag=True,
    help="Search the whole input and output of tool calls instead, newest first: those with all the words.",
)
@click.option(
    "--since", metavar="TIME", callback=since_callback, help="Only find what is newer than TIME: 2h, 3d, today …"
)
@click.option("--until", metavar="TIME", callback=until_callback, help="Only find what is older than TIME.")
@click.option(
    "--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Show this many hits per page."
)
@click.option("--page", type=click.IntRange(1), default=1, metavar="N", help="Show the Nth page of hits.")
@click.option("--all", "everything", is_flag=True, help="Show all hits.")
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    default="hybrid",
    show_default=True,
    help="Match words (keyword), meaning (vector), or both (hybrid).",
)
@click.option(
    "--min-score",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Leave out hits with a lower score, unless they contain the words.",
)
@click.option(
    "--half-life",
    type=click.FloatRange(0, 100_000, min_open=True),
    metavar="DAYS",
    help="Halve the score of hits for every DAYS of their age.",
)
@click.option(
    "--diversity",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Replace similar hits by different ones: 0 not at all, 1 as much as possible.",
)
@click.option(
    "--vector-weight",
    type=click.FloatRange(0, 1),
    metavar="W",
    help="Weight of meaning against words in a hybrid search, 0 to 1, instead of one that fits.",
)
@click.option(
    "--pool",
    type=click.IntRange(10, 1000),
    metavar="N",
    help="Rank the best N candidates of keyword search and of vector search.  [default: 150]",
)
@click.option("--duplicates", is_flag=True, help="List hits with nearly the same words one by one.")
@click.option("--no-rerank", is_flag=True, help="Do not ask the reranker, if one is configured.")
@click.option(
    "--hops", type=click.IntRange(1, 5), metavar="N", help="Also find chunks up to N edges away from the best hits."
)
@click.option("--as-of", metavar="TIME", callback=until_callback, help="Find memories as they were known at TIME.")
@click.option("--valid-at", metavar="TIME", callback=until_callback, help="Find memories that were true at TIME.")
@click.option("--explain", is_flag=True, help="Show the components of each score.")
@common_options
def search(
    ctl: Ctl,
    words: tuple[str, ...],
    sources: list[Source],
    session: str | None,
    tool_calls: bool,
    limit: int,
    page: int,
    everything: bool,
    half_life: float | None,
    duplicates: bool,
    no_rerank: bool,
    hops: int | None,
    **criteria: Any,
) -> None:
    """Search sessions, memories, documents, skills and files.

    Without WORDS, opens a finder on the terminal: it searches while you type, shows each hit in its conversation, and
    Enter opens the session there.

    Combines keyword and vector search, and shows the best hits first. The words are plain text, without any query
    syntax. If nothing is found, the exit code is still 0.

    \b
    Examples:
      clankers-ctl search
      clankers-ctl search why does the login fail on Safari
      clankers-ctl search "retry budget" --project . --since 2w
      clankers-ctl search deploy --source files --explain
      clankers-ctl search ECONNREFUSED --tool-calls
      clankers-ctl search "flaky test" --all --json | jq '.hits[].text'
    """
    request = Search(
        query=" ".join(words) or " ",
        sources=sources or None,
        scopes=["*"],  # the user may see the memories of all scopes
        session_id=session and ctl.call(SessionGet(session)).id,
        limit=MAX_HITS_PER_PAGE if everything else limit,
        half_life_days=half_life,
        graph=GraphOptions(hops=hops) if hops else None,
        collapse=not duplicates,
        rerank=not no_rerank,
        recorded=False,
        **criteria,  # options with the names of the fields
    )
    if not words:
        from clankers.ctl.finder import find  # slow to load

        find(ctl, request, tool_calls)
        return
    if tool_calls:
        _search_tool_calls(ctl, request, everything)
        return
    result = _all_pages(ctl, request) if everything else _page(ctl, request, page)
    _print_result(ctl, request, result, first_number=1 if everything else 1 + (page - 1) * limit)


TOOL_CALL_OPTIONS = {"words", "tool_calls", "project", "session", "since", "until", "limit", "everything", "json"}


def _search_tool_calls(ctl: Ctl, request: Search, everything: bool) -> None:
    """Print the tool calls whose texts have all the words, newest first."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") == click.core.ParameterSource.COMMANDLINE
        if given and parameter.name not in TOOL_CALL_OPTIONS and parameter.expose_value:
            raise click.UsageError(f"{parameter.opts[0]} has no meaning with --tool-calls.", context)
    asked = tool_search(request)
    found = ctl.call(asked)
    while found.cursor and (everything or len(found.hits) < request.limit):
        wanted = request.limit if everything else request.limit - len(found.hits)
        older = ctl.call(msgspec.structs.replace(asked, cursor=found.cursor, limit=wanted))
        older.hits, older.scanned = found.hits + older.hits, found.scanned + older.scanned
        found = older
    if ctl.json:
        print_json(found)
        return
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    for number, hit in enumerate(found.hits):
        if number:
            out.print()
        title = Text(one_line(hit.session_title or "Untitled session"), "bold")
        title.truncate(width, overflow="ellipsis")
        out.print(title)
        origin = Text(one_line(hit.tool_name), "red" if hit.success is False else "cyan")
        facts = [format_time(hit.created_at), one_line(hit.file_path or ""), f"session {one_line(hit.session_id)}"]
        _print_block(out, origin.append("".join(f" · {fact}" for fact in facts if fact), "dim"), "", 2, width)
        _print_block(out, highlight(hit.snippet, out), "", 2, width)
    searched = f"the newest {found.scanned:,}" if found.cursor else f"all {found.scanned:,}"
    note(f"{plural(len(found.hits), 'tool call')} found; searched {searched} tool calls.")
    if found.cursor:
        echo("Older tool calls were not searched. Use --limit N or --all to search them too.", err=True)


def tool_search(request: Search) -> ToolSearch:
    """Return the search of tool calls with the same words, project, session and time."""
    return ToolSearch(
        query=request.query,
        project=request.project,
        session_id=request.session_id,
        since=request.since,
        until=request.until,
        limit=request.limit,
    )


def _page(ctl: Ctl, request: Search, number: int) -> SearchResult:
    """Return a page of hits; it is empty if there are fewer pages."""
    result = ctl.call(request)
    for _ in range(number - 1):
        if result.cursor is None:
            return msgspec.structs.replace(result, hits=[])
        result = ctl.call(msgspec.structs.replace(request, cursor=result.cursor))
    return result


def _all_pages(ctl: Ctl, request: Search) -> SearchResult:
    hits: dict[str, Hit] = {}  # by chunk: while new chunks are indexed, a hit may move to the next page
    took_ms = 0.0
    for page in ctl.pages(request):
        hits |= {hit.chunk_id: hit for hit in page.hits}
        took_ms += page.took_ms
    return msgspec.structs.replace(page, hits=list(hits.values()), took_ms=took_ms)


def _print_result(ctl: Ctl, request: Search, result: SearchResult, first_number: int) -> None:
    """Print hits for people, or as JSON."""
    if ctl.json:
        print_json(result)
        return
    hits = result.hits
    if hits:
        if result.weak:
            echo(NOTHING_CLOSE)
            echo()
        _print_hits(ctl, hits, first_number)
        if request.explain:
            scored = [(hit_location(hit), hit.score, hit.components or {}) for hit in hits]
            print_score_components(scored, first_number)
        echo()
        took = format_duration(result.took_ms / 1000)
        pending = f"; {_pending(result)}" if result.pending else ""
        secho(f"{plural(len(hits), 'hit')} by {MODE_NAMES[result.mode]} in {took}{pending}", dim=True)
    elif first_number > 1:
        echo("There are no more hits. Try an earlier --page.", err=True)
        return
    else:
        echo(f"Nothing found for “{one_line(request.query)}”.", err=True)
    if result.degraded:
        secho(f"Incomplete: {one_line(result.degraded)}.", fg="yellow", err=True)
    if not hits:
        _print_advice(request, result)
    elif result.cursor:
        echo("There are more hits. Use --page N, --limit N or --all to see them.", err=True)


def _pending(result: SearchResult) -> str:
    return f"{plural(result.pending, 'chunk')} cannot be found by vector search yet"


def _print_advice(request: Search, result: SearchResult) -> None:
    """Print what to try when nothing was found."""
    advice = []
    if result.pending:
        advice.append(f"{_pending(result)}. Try again later.")
    if request.mode == "vector" and result.degraded:
        advice.append("Search without --mode vector to use keyword search.")
    if any((request.project, request.sources, request.session_id, request.since, request.until)):
        advice.append("Search without --project, --source, --session, --since and --until to search everything.")
    if not advice or result.degraded:
        advice.append("Run `clankers-ctl index status` to see what is indexed and whether there are problems.")
    for line in advice:
        echo(line, err=True)


def _print_hits(ctl: Ctl, hits: Sequence[Hit], first_number: int) -> None:
    """Print hits, best first; further hits of a session stand below its best one."""
    groups: dict[str, list[tuple[int, Hit]]] = {}
    for number, hit in enumerate(hits, first_number):
        groups.setdefault(hit.ref.session_id or hit.chunk_id, []).append((number, hit))
    sessions = [hits[0][1].ref.session_id for hits in groups.values() if hits[0][1].ref.session_id]
    shown_ids = dict(zip(sessions, short_ids(ctl, "session", sessions), strict=True)) if sessions else {}
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    margin = len(str(first_number + len(hits) - 1)) + 2
    for index, [(number, best), *others] in enumerate(groups.values()):
        if index:
            out.print()
        out.print(_heading(best, f"{number}.".ljust(margin), width))
        session = shown_ids.get(best.ref.session_id or "")
        _print_block(out, _origin(best, session), "", margin, width)
        if not _is_title(best):
            _print_block(out, highlight(best.snippet, out), "", margin, width)
        for number, hit in others:
            if _is_title(hit):
                continue  # the heading says it
            label = f"{number}.".ljust(margin)
            _print_block(out, _origin(hit, None, hit.score), label, margin, width)
            _print_block(out, highlight(hit.snippet, out), "", margin, width)


def _print_block(out: Console, block: Text, label: str, margin: int, width: int) -> None:
    """Print text with a margin, in which a label stands beside its first line."""
    for line in block.wrap(out, width - margin, overflow="fold"):
        line.rstrip()
        out.print(Text(label.ljust(margin), "dim"), line, sep="")
        label = ""


def _heading(hit: Hit, number: str, width: int) -> Text:
    score = f"{hit.score:.3f}  "
    name = Text(hit_location(hit), "bold")
    name.truncate(max(width - len(number) - len(score), 8), overflow="ellipsis")
    return Text().append(number, "dim").append(score, "cyan").append(name)


def hit_location(hit: Hit) -> str:
    """Describe where a hit is: a memory, a skill, lines of a document or file, or a session by its title."""
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
    return one_line(_abbreviate_home(path)) + lines


def _origin(hit: Hit, session: str | None, score: float | None = None) -> Text:
    """Describe who wrote a hit, when and where. Below another hit of its session, its score replaces the place."""
    ref = hit.ref
    role = one_line(ref.role or ("title" if _is_title(hit) else SOURCE_NAMES.get(hit.source, hit.source)))
    facts = [
        format_time(hit.created_at),
        ref.project_path and score is None and one_line(_abbreviate_home(ref.project_path)),
        session and f"session {one_line(session)}",
        hit.way and f"reached via {', '.join(step.relation for step in hit.way)}",
        hit.duplicates and f"{hit.duplicates:,} more like it",
    ]
    text = Text() if score is None else Text(f"{score:.3f}  ", "cyan")
    text.append(role, ROLE_STYLES.get(role, "bold").removeprefix("bold "))
    return text.append("".join(f" · {fact}" for fact in facts if fact), "dim")


def _is_title(hit: Hit) -> bool:
    """Return whether the hit is the title of a session."""
    return hit.source == "sessions" and hit.ref.message_id is None and hit.ref.tool_id is None


def _abbreviate_home(path: str) -> str:
    """Replace the home folder by ~."""
    home = str(Path.home())
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path


def highlight(snippet: str, out: Console) -> Text:
    """Highlight the matched words on a terminal; elsewhere leave the marks around them."""
    line = one_line(snippet)
    if not out.is_terminal or out.color_system is None:
        return Text(line)
    text, position = Text(), 0
    for match in MATCH_MARKS.finditer(line):
        text.append(line[position : match.start()]).append(match[1], "bold yellow")
        position = match.end()
    return text.append(line[position:])


def print_score_components(scored: Sequence[tuple[str, float, dict[str, float]]], first_number: int) -> None:
    """Print a table of the components of each score; `scored` has the location, score and components of each hit."""
    names = list(dict.fromkeys(name for _, _, components in scored for name in components))
    columns = [
        Column("#", align_right=True, style="dim"),
        Column("Score", align_right=True, style="cyan"),
        *(
            Column(one_line(name).capitalize(), align_right=True, optional=index > 1)
            for index, name in enumerate(names)
        ),
        Column("Where", min_width=12, optional=True, truncate_start=True),
    ]
    rows = []
    for number, (location, score, components) in enumerate(scored, first_number):
        parts = [f"{components[name]:.3f}" if components.get(name) is not None else "–" for name in names]
        rows.append([str(number), f"{score:.3f}", *parts, location])
    echo()
    print_table(columns, rows)


# -- recall


@click.command()
@click.argument("prompt", nargs=-1)
@click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Recall for this project: a folder, or its name or id.  [default: the current folder]",
)
@click.option("--session", "session_id", metavar="ID", help="Leave out what this session was already given.")
@click.option("--harness", metavar="NAME", help="Include the memories of this harness's agent, such as codex.")
@common_options
def recall(
    ctl: Ctl, prompt: tuple[str, ...], project: str | None, session_id: str | None, harness: str | None
) -> None:  # fmt: skip
    """Preview the context that an agent is given for a PROMPT.

    Without PROMPT, shows the context that an agent is given at the start of a session. Nothing is recorded.

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
            harness=harness,
        )
    )
    if ctl.json:
        print_json(answer)
    elif answer.text:
        echo(plain(answer.text))
        note(f"{plural(answer.characters, 'character')} from {plural(len(answer.ids), 'item')}")
        if answer.degraded:
            secho(f"Incomplete: {one_line(answer.degraded)}.", fg="yellow", err=True)
    else:
        echo(f"Nothing would be recalled: {answer.reason or 'nothing relevant was found'}.", err=True)
    if answer.degraded and not ctl.json:
        secho(f"Incomplete: {one_line(answer.degraded)}.", fg="yellow", err=True)
