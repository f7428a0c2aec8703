"""Memory commands that only read: `list`, `search`, `show`, `history`, `related`, `context` and `stats`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import click

from clankers.ctl.command import Ctl, common_options, normalize_project
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.ids import short_ids
from clankers.ctl.memory.display import (
    count_entities,
    count_memories,
    print_change_log,
    print_memories,
    print_memory,
    scope_name,
    summary_line,
    validity,
)
from clankers.ctl.memory.options import (
    ALL_SCOPES,
    as_of_option,
    filter_fields,
    filter_options,
    id_argument,
    include_option,
    project_option,
    query_option,
    scope_option,
    valid_at_option,
)
from clankers.ctl.output import (
    Column,
    bar,
    console,
    echo,
    note,
    one_line,
    plain,
    print_facts,
    print_json,
    print_table,
    secho,
)
from clankers.ctl.search import MODE_NAMES, NOTHING_CLOSE, highlight, print_score_components
from clankers.ctl.text import Text
from clankers.ctl.transcript import MAX_TEXT_WIDTH
from clankers_protocol.memories import (
    Memory,
    MemoryContext,
    MemoryGet,
    MemoryHistory,
    MemoryHit,
    MemoryHits,
    MemoryList,
    MemoryPage,
    MemoryRelated,
    MemorySearch,
    MemoryStats,
    MemoryStatsOf,
    State,
)
from clankers_protocol.projects import ProjectList
from clankers_protocol.search import Mode

Sort = Literal["created", "updated", "salience", "importance", "accessed"]
PAGE_SIZE = 100
"""Memories per request of `list --all`."""


@click.command(name="list")
@query_option
@filter_options
@include_option
@as_of_option
@valid_at_option
@click.option("--sort", type=click.Choice(get_args(Sort)), default="created", show_default=True, help="Sort order.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of memories."
)
@click.option("--all", "everything", is_flag=True, help="List all matching memories, ignoring --limit.")
@common_options
def list_(
    ctl: Ctl,
    include: list[State],
    as_of: int | None,
    valid_at: int | None,
    sort: Sort,
    limit: int,
    everything: bool,
    **filters: Any,
) -> None:
    """List memories, newest first.

    ★ marks pinned memories.

    \b
    Examples:
      clankers-ctl memory list --project . --category decision
      clankers-ctl memory list --sort salience --limit 50
      clankers-ctl memory list --include deleted --include archived
      clankers-ctl memory list --as-of 2025-01-31 --all --json
      clankers-ctl memory list --valid-at 2025-01-31
    """
    fields = filter_fields(ctl, filters)
    request = MemoryList(
        **fields, include=include, as_of=as_of, valid_at=valid_at, sort=sort, limit=PAGE_SIZE if everything else limit
    )
    if everything:
        page = MemoryPage([memory for page in ctl.pages(request) for memory in page.memories])
    else:
        page = ctl.call(request)
    if ctl.json:
        print_json(page)
    elif not page.memories:
        echo("No memories.", err=True)
    else:
        print_memories(ctl, page.memories)
        if page.cursor:
            echo("There are more memories: use --limit N or --all.", err=True)


@click.command()
@click.argument("words", nargs=-1, required=True)
@filter_options
@include_option
@as_of_option
@valid_at_option
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Maximum number of hits.")
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    default="hybrid",
    show_default=True,
    help="Match words (keyword), meaning (vector) or both (hybrid).",
)
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.0, help="Leave out hits with a lower score.")
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
@click.option("--no-rerank", is_flag=True, help="Do not ask the reranker, if one is configured.")
@click.option("--explain", is_flag=True, help="Show the components of each score.")
@common_options
def search(
    ctl: Ctl,
    words: tuple[str, ...],
    include: list[State],
    as_of: int | None,
    valid_at: int | None,
    limit: int,
    mode: Mode,
    min_score: float,
    vector_weight: float | None,
    pool: int | None,
    no_rerank: bool,
    explain: bool,
    **filters: Any,
) -> None:
    """Search memories by keyword and meaning.

    Hits are ranked by how well they match, and by their salience, importance and age.

    \b
    Examples:
      clankers-ctl memory search which database do we use
      clankers-ctl memory search deploy --project . --explain
      clankers-ctl memory search port --include superseded --json | jq '.hits[].memory.content'
    """
    request = MemorySearch(
        query=" ".join(words),
        include=include,
        as_of=as_of,
        valid_at=valid_at,
        limit=limit,
        mode=mode,
        min_score=min_score,
        vector_weight=vector_weight,
        pool=pool,
        rerank=not no_rerank,
        explain=explain,
        **filter_fields(ctl, filters),
    )
    result = ctl.call(request)
    if ctl.json:
        print_json(result)
    else:
        _print_search_result(ctl, result, request)


def _print_search_result(ctl: Ctl, result: MemoryHits, request: MemorySearch) -> None:
    if result.hits:
        ids = short_ids(ctl, "memory", [hit.memory.id for hit in result.hits])
        if result.weak:
            echo(NOTHING_CLOSE)
            echo()
        _print_hits(result.hits, ids)
        if request.explain:
            scores = [(one_line(i), hit.score, hit.components or {}) for i, hit in zip(ids, result.hits, strict=True)]
            print_score_components(scores, 1)
        echo()
        took = format_duration(result.took_ms / 1000)
        secho(f"{plural(len(result.hits), 'hit')} by {MODE_NAMES[result.mode]} in {took}", dim=True)
    else:
        echo(f"No memory matches “{one_line(request.query or 'a vector')}”.", err=True)
    if result.cursor:
        echo("There are more hits: use --limit N.", err=True)
    if result.degraded:
        secho(f"Incomplete: {one_line(result.degraded)}.", fg="yellow", err=True)


def _print_hits(hits: Sequence[MemoryHit], ids: Sequence[str]) -> None:
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    margin = len(str(len(hits))) + 2
    for number, (hit, shown_id) in enumerate(zip(hits, ids, strict=True), 1):
        if number > 1:
            out.print()
        memory = hit.memory
        facts = [memory.sector, memory.category, scope_name(memory), format_time(memory.created_at)]
        if memory.state != "current":
            facts.append(memory.state)
        heading = Text().append(f"{hit.score:.3f}  ", "cyan").append(one_line(shown_id), "bold")
        heading.append("  " + " · ".join(map(one_line, facts)), "dim")
        _print_numbered(f"{number}.".ljust(margin), [heading, highlight(hit.snippet, out)], width)


def _print_numbered(number: str, blocks: Sequence[Text], width: int) -> None:
    """Print blocks of text with a hanging indent below a number."""
    out = console()
    lead = Text(number, "dim")
    for block in blocks:
        for line in block.wrap(out, width - len(number), overflow="fold"):
            line.rstrip()
            out.print(lead, line, sep="")
            lead = Text(" " * len(number))


@click.command()
@id_argument
@as_of_option
@valid_at_option
@common_options
def show(ctl: Ctl, id: str, as_of: int | None = None, valid_at: int | None = None) -> None:  # noqa: A002  # the name on the command line
    """Show all fields of a memory in any state.

    \b
    Examples:
      clankers-ctl memory show 0199c5a2-1b3c
      clankers-ctl memory show 0199c5a2-1b3c --as-of 3d
    """
    memory = ctl.call(MemoryGet(id=id, as_of=as_of, valid_at=valid_at, scopes=ALL_SCOPES))
    ctl.report(memory, print_memory)


@click.command()
@id_argument
@click.option("--full", is_flag=True, help="Do not shorten the values that a change replaced.")
@common_options
def history(ctl: Ctl, id: str, full: bool) -> None:  # noqa: A002  # the name on the command line
    """Show the versions of a memory and the log of its changes.

    \b
    Examples:
      clankers-ctl memory history 0199c5a2-1b3c
      clankers-ctl memory history 0199c5a2-1b3c --json | jq '.log[].reason'
    """
    result = ctl.call(MemoryHistory(id=id, scopes=ALL_SCOPES))
    if ctl.json:
        print_json(result)
        return
    _print_versions(ctl, result.versions)
    if result.log:
        echo()
        print_change_log(ctl, result.log, full)


def _print_versions(ctl: Ctl, versions: Sequence[Memory]) -> None:
    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    ids = short_ids(ctl, "memory", [memory.id for memory in versions])
    for number, (shown_id, memory) in enumerate(zip(ids, versions, strict=True), 1):
        facts = f"  {one_line(shown_id)}  {memory.state}, valid {validity(memory)}"
        out.print(Text(f"{number}.", "bold").append(facts, "dim"), width=width)
        for line in Text(plain(memory.content.strip("\n"))).wrap(out, width - 3, overflow="fold"):
            line.rstrip()
            out.print("   ", line, sep="")


@click.command()
@id_argument
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Maximum number of memories.")
@common_options
def related(ctl: Ctl, id: str, limit: int) -> None:  # noqa: A002  # the name on the command line
    """List memories related to a memory.

    Memories are related by a stored relation, by an entity that both mention, or by similar meaning.

    \b
    Examples:
      clankers-ctl memory related 0199c5a2-1b3c
    """
    found = ctl.call(MemoryRelated(id=id, limit=limit, scopes=ALL_SCOPES))
    if ctl.json:
        print_json(found)
        return
    if not found:
        echo("No related memories.", err=True)
        return
    columns = [
        Column("Score", align_right=True, style="cyan"),
        Column("Id", style="cyan"),
        Column("Memory", min_width=24),
        Column("Via", optional=True, min_width=16),
    ]
    rows = []
    for each, shown_id in zip(found, short_ids(ctl, "memory", [each.memory.id for each in found]), strict=True):
        via = f"{each.via}: {each.detail}" if each.detail else each.via
        rows.append([f"{each.score:.3f}", one_line(shown_id), summary_line(each.memory), one_line(via)])
    print_table(columns, rows)


@click.command()
@click.argument("words", nargs=-1)
@click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Give what an agent in this project is given: a folder, its name or id.  [default: the current folder]",
)
@click.option("--agent", metavar="NAME", help="Include the memories in the scope of this agent.")
@scope_option
@click.option(
    "--max-characters",
    type=click.IntRange(200, 100_000),
    help="Maximum length of the text.  [default: the setting recall_characters]",
)
@click.option(
    "--limit", type=click.IntRange(1, 100), help="Maximum number of memories.  [default: 5 with WORDS, 10 without]"
)
@common_options
def context(
    ctl: Ctl,
    words: tuple[str, ...],
    project: str | None,
    agent: str | None,
    scopes: list[str],
    max_characters: int | None,
    limit: int | None,
) -> None:
    """Print the memories that an agent is given, exactly as it is given them.

    With WORDS, these are the memories that match the words; without, the pinned and strongest ones. By default they are
    what an agent in this project may see: the memories of the project and the global ones. --scope selects others.

    \b
    Examples:
      clankers-ctl memory context
      clankers-ctl memory context fix the login test --project ~/src/shop
      clankers-ctl memory context --scope '*' --max-characters 1000
    """
    no_scope_given = scopes is ALL_SCOPES
    if no_scope_given and project is None:
        project = str(Path.cwd())
    request = MemoryContext(
        query=" ".join(words) or None,
        project=project,
        agent=agent,
        scopes=None if no_scope_given else scopes,
        max_characters=max_characters,
        limit=limit,
    )
    result = ctl.call(request)
    if ctl.json:
        print_json(result)
        return
    if result.text:
        echo(plain(result.text))
    else:
        echo("No memory would be given.", err=True)
    if result.text:
        left_out = f", {result.left_out:,} left out" if result.left_out else ""
        note(f"{count_memories(len(result.ids))} in {plural(len(result.text), 'character')}{left_out}.")
    if result.degraded:
        secho(f"Incomplete: {one_line(result.degraded)}.", fg="yellow", err=True)


@click.command()
@project_option
@scope_option
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="Maximum rows per chart.")
@common_options
def stats(ctl: Ctl, project: str | None, scopes: list[str], limit: int) -> None:
    """Count memories by state, sector, tier, category and scope.

    \b
    Examples:
      clankers-ctl memory stats
      clankers-ctl memory stats --project . --json | jq .bySector
    """
    result = ctl.call(MemoryStatsOf(scopes=scopes, project=project))
    if ctl.json:
        print_json(result)
        return
    _print_totals(result)
    charts = {
        "Sector": result.by_sector,
        "Tier": result.by_tier,
        "Category": result.by_category,
        "Scope": _name_projects(ctl, result.by_scope),
    }
    for name, counts in charts.items():
        if counts:
            echo()
            _print_chart(name, counts, limit)


def _name_projects(ctl: Ctl, counts: Mapping[str, int]) -> dict[str, int]:
    """Put the names of projects into their scopes, as --scope accepts them."""
    if not any(scope.startswith("project:") for scope in counts):
        return dict(counts)
    names = {f"project:{project.id}": f"project:{project.name}" for project in ctl.call(ProjectList())}
    return {names.get(scope, scope): count for scope, count in counts.items()}


def _print_totals(stats: MemoryStats) -> None:
    states = {
        "upcoming": stats.upcoming,
        "superseded": stats.superseded,
        "expired": stats.expired,
        "archived": stats.archived,
        "forgotten": stats.deleted,
    }
    others = "".join(f", {count:,} {name}" for name, count in states.items() if count)
    mean = stats.salience
    print_facts(
        [
            ("memories", f"{stats.total:,}: {stats.current:,} current{others}"),
            ("pinned", f"{stats.pinned:,}" if stats.pinned else None),
            ("salience", None if mean is None else f"{bar(mean, 10)} {mean:.2f} on average"),
            ("graph", f"{count_entities(stats.entities)}, {plural(stats.relations, 'relation')}"),
            ("created", f"{format_time(stats.oldest)} to {format_time(stats.newest)}" if stats.oldest else None),
        ]
    )


def _print_chart(name: str, counts: Mapping[str, int], limit: int) -> None:
    bars = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    largest = max(max(counts.values()), 1)
    width = max(10, min(40, console().width // 4))
    columns = [
        Column(name, min_width=16, truncate_start=name == "Scope"),
        Column("", style="cyan"),
        Column("Memories", align_right=True),
    ]
    rows = [[one_line(value), bar(count / largest, width), f"{count:,}"] for value, count in bars[:limit]]
    print_table(columns, rows)
    if len(bars) > limit:
        echo(f"{len(bars) - limit:,} more: use --limit N.", err=True)
