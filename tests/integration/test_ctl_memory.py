"""`clankers-ctl memory`, run against a real daemon."""

import json
import re
import stat
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from helpers.clock import DAY_SECONDS, ClockedDaemon
from helpers.ctl import Ran, command, ctl, on_a_terminal
from helpers.daemon import DaemonProcess, running_daemon
from helpers.fake_daemon import Peer, played
from rich.cells import cell_len

from clankers import Client
from clankers.ctl import cli

NOW = int(time.time() * 1000)
HOUR = 3_600_000
SESSION = "5d6f0c9e-8d0e-4a52-9c4e-5f1f5c1b7a10"
NOWHERE = "01990000-0000-7000-8000-000000000000"
MANUAL = Path(__file__).parents[2] / "docs" / "clankers-ctl.md"

ASKING = [
    ["add", "x"],
    ["list"],
    ["search", "x"],
    ["show", NOWHERE],
    ["edit", NOWHERE],
    ["forget", NOWHERE, "--yes"],
    ["forget", "--tag", "x", "--yes"],
    ["restore", NOWHERE],
    ["pin", NOWHERE],
    ["unpin", NOWHERE],
    ["history", NOWHERE],
    ["compare", "7d"],
    ["related", NOWHERE],
    ["graph", NOWHERE],
    ["context"],
    ["extract", SESSION],
    ["maintain"],
    ["stats"],
    ["export", "-"],
]
"""Arguments for every command; all of them need the daemon."""


def memory(daemon: DaemonProcess, *words: str, **environ: Any) -> Ran:
    return ctl(daemon, "memory", *words, **environ)


def remember(daemon: DaemonProcess, content: str, **fields: Any) -> str:
    """Store a memory, even a duplicate, and return its id."""
    with daemon.connect() as connection:
        added = connection.call("memory.add", content=content, scopes=["*"], force=True, **fields)
    return str(added["memory"]["id"])


def recall(daemon: DaemonProcess, memory_id: str) -> dict[str, Any]:
    with daemon.connect() as connection:
        return dict(connection.call("memory.get", id=memory_id, scopes=["*"]))


def contents(ran: Ran) -> list[str]:
    return [found["content"] for found in ran.json["memories"]]


@pytest.fixture(scope="module")
def filled() -> Iterator[DaemonProcess]:
    """Start a daemon with memories of several kinds, for tests that only read."""
    with (
        tempfile.TemporaryDirectory(prefix="clk-") as folder,
        running_daemon(Path(folder), CLANKERS_MAINTAIN_HOURS="0") as daemon,
    ):
        (daemon.home / "shop").mkdir()
        fill(daemon)
        yield daemon


def fill(daemon: DaemonProcess) -> None:
    with Client(daemon.socket_path, timeout=30) as client:
        client.events.session(SESSION, title="Databases", project_path=str(daemon.home / "shop"), created_at=NOW)
        client.events.message(
            "m1", SESSION, role="user", text_content="Remember that the staging database is read-only.", created_at=NOW
        )
    shop = str(daemon.home / "shop")
    remember(daemon, "We deploy the shop on Tuesdays", project=shop, category="decision", tags=["deploy"])
    remember(daemon, "Ada prefers \x1b[31mtabs\x1b[0m", scope="user:ada", category="preference", importance=0.9)
    old = remember(
        daemon, "The pool in src/db/pool.py uses PostgreSQL 15", files=["src/db/pool.py"], sector="procedural"
    )
    remember(daemon, "The pool in src/db/pool.py uses PostgreSQL 16", files=["src/db/pool.py"], supersedes=old)
    remember(daemon, "src/db/pool.py holds 20 connections", files=["src/db/pool.py"], pinned=True, sessionId=SESSION)
    forgotten = remember(daemon, "The moon is made of cheese")
    with daemon.connect() as connection:
        connection.call("memory.delete", id=forgotten, scopes=["*"], reason="it is not")


def the(daemon: DaemonProcess, words: str) -> str:
    """Return the id of the memory whose content starts with `words`."""
    states = ["superseded", "deleted"]
    with daemon.connect() as connection:
        listed = connection.call("memory.list", scopes=["*"], include=states)["memories"]
    return next(str(found["id"]) for found in listed if found["content"].startswith(words))


@pytest.fixture
def down(home: Path) -> DaemonProcess:
    """Describe a daemon that was never started."""
    return DaemonProcess(home)


def editor(home: Path, script: str) -> dict[str, str]:
    """Create an editor that runs a shell script on the draft; return the environment that selects it."""
    path = home / "editor.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return {"EDITOR": str(path), "VISUAL": ""}


# All commands


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_memory_commands_exit_3_without_a_daemon(down: DaemonProcess, words: list[str]) -> None:
    shown, as_json = memory(down, *words), memory(down, *words, "--json")

    assert (shown.code, shown.out, as_json.code) == (3, "", 3)
    assert len(shown.err.splitlines()) == 1
    assert "clankersd" in as_json.json["error"]["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["add"],
        ["add", "x", "--importance", "2"],
        ["add", "x", "--sector", "psychic"],
        ["add", "x", "--expires", "soon"],
        ["list", "--scope", "nonsense"],
        ["list", "--tier", "cosmic"],
        ["list", "--include", "nonsense"],
        ["search"],
        ["forget"],
        ["forget", NOWHERE, "--tag", "x"],
        ["forget", "--tag", "x", "--reason", "why"],
        ["graph", NOWHERE, "--hops", "7"],
        ["graph", NOWHERE, "--type", "LOVES"],
        ["import", "/no/such/file"],
        ["extract"],
    ],
    ids=" ".join,
)
def test_memory_commands_exit_2_for_invalid_arguments(down: DaemonProcess, words: list[str]) -> None:
    assert memory(down, *words).code == 2


@pytest.mark.parametrize(
    "words",
    [["list"], ["search", "pool"], ["show"], ["history"], ["related"], ["graph"], ["context"], ["stats"]],
    ids=" ".join,
)
def test_memory_commands_print_only_json_with_json_and_fit_a_narrow_terminal(
    filled: DaemonProcess, words: list[str]
) -> None:
    one = [the(filled, "src/db/pool.py holds")] if words[0] in ("show", "history", "related", "graph") else []
    as_json, shown = memory(filled, *words, *one, "--json"), memory(filled, *words, *one, COLUMNS="60")

    assert as_json.json is not None
    assert (as_json.code, shown.code) == (0, 0)
    if words[0] != "context":  # the text for a prompt is not truncated
        assert max(map(cell_len, shown.out.splitlines())) <= 60


def test_memory_commands_use_colour_only_on_terminals_and_sanitise_text(filled: DaemonProcess) -> None:
    for words in (["list"], ["search", "tabs"], ["show", the(filled, "Ada")], ["history", the(filled, "Ada")]):
        out = on_a_terminal(filled, "memory", *words)

        assert "\x1b[" in out
        assert "␛[31mtabs" in out
        assert "\x1b[31mtabs" not in out
        assert "\x1b[" not in memory(filled, *words).out


def test_memory_commands_report_an_unknown_or_ambiguous_id(filled: DaemonProcess) -> None:
    for words in (["show", NOWHERE], ["pin", NOWHERE], ["forget", NOWHERE, "--yes"], ["graph", NOWHERE]):
        ran = memory(filled, *words)

        assert ran.code == 1
        assert NOWHERE in ran.err
    assert memory(filled, "show", "0199").code == 1


def test_memory_options_are_all_in_the_manual() -> None:
    group = cli.commands["memory"]
    assert isinstance(group, click.Group)
    text = MANUAL.read_text()

    for name, leaf in group.commands.items():
        for option in (each for each in leaf.params if isinstance(each, click.Option)):
            assert option.opts[0] in text, f"{name} {option.opts[0]}"


def completed(daemon: DaemonProcess, typed: str) -> list[str]:
    """Return the completions that bash would offer for the last word."""
    words: dict[str, Any] = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    out = ctl(daemon, _CLANKERS_CTL_COMPLETE="bash_complete", **words).out
    return [offer.partition(",")[2] for offer in out.splitlines() if offer]


def test_memory_ids_are_completed_by_the_shell(filled: DaemonProcess, down: DaemonProcess) -> None:
    known = the(filled, "Ada")

    for name in ("show", "edit", "forget", "pin", "history", "graph"):
        assert completed(filled, f"clankers-ctl memory {name} {known[:-2]}") == [known]
    assert completed(down, "clankers-ctl memory show 01") == []


# add


def test_add_stores_a_memory_and_reinforces_a_duplicate(shared_daemon: DaemonProcess) -> None:
    words = [
        "add",
        "The",
        "cache",
        "is",
        "in",
        "Redis",
        "--scope",
        "custom:add",
        "--tag",
        "cache",
        "--category",
        "fact",
    ]
    first, second = memory(shared_daemon, *words), memory(shared_daemon, *words, "--json")

    assert re.match(r"Remembered as [0-9a-f-]{36} \(\w+, custom:add\)\.", first.out)
    assert second.json["outcome"] == "duplicate"
    assert second.json["memory"]["tags"] == ["cache"]
    assert second.json["memory"]["confidence"] > 0.5
    assert "Already known" in memory(shared_daemon, *words).out


def test_add_supersedes_another_memory(shared_daemon: DaemonProcess) -> None:
    old = remember(shared_daemon, "The port is 8080", scope="custom:ports")
    ran = memory(shared_daemon, "add", "The port is 9090", "--scope", "custom:ports", "--supersedes", old)

    assert f"in place of {old}" in ran.out
    assert recall(shared_daemon, old)["state"] == "superseded"


def test_add_reads_standard_input_and_stores_every_option(shared_daemon: DaemonProcess) -> None:
    ran = memory(
        shared_daemon, "add", "-", "--pin", "--importance", "0.9", "--confidence", "0.8", "--tier", "session",
        "--summary", "in short", "--file", "a.py", "--file", "b.py", "--expires", "2w", "--valid-from", "3d",
        "--valid-until", "4w", "--sector", "episodic", "--scope", "custom:stdin", "--json",
        typed="Two\nlines\n",
    )  # fmt: skip
    found = ran.json["memory"]

    assert found["content"] == "Two\nlines\n"
    assert (found["pinned"], found["importance"], found["confidence"], found["tier"]) == (True, 0.9, 0.8, "session")
    assert (found["summary"], found["files"], found["sector"]) == ("in short", ["a.py", "b.py"], "episodic")
    week = 7 * 24 * HOUR
    assert abs(found["expiresAt"] - NOW - 2 * week) < HOUR
    assert found["validFrom"] < NOW - 2 * 24 * HOUR
    assert found["validUntil"] > NOW + 3 * week


def test_add_resolves_the_project_of_the_current_folder(shared_daemon: DaemonProcess) -> None:
    place = shared_daemon.home / "here"
    (place / "deep").mkdir(parents=True)
    (place / ".git").mkdir()
    added = memory(shared_daemon, "add", "Tests run with make", "--project", ".", "--json", cwd=place / "deep").json
    listed = memory(shared_daemon, "list", "--project", ".", "--json", cwd=place)

    assert added["memory"]["projectPath"] == str(place)
    assert added["memory"]["scope"].startswith("project:")
    assert contents(listed) == ["Tests run with make"]
    assert "project:here" in memory(shared_daemon, "list", "--project", str(place)).out


@pytest.mark.parametrize(
    ("words", "typed", "field"),
    [
        (["-"], "   ", "the content is empty"),
        (["-"], "x" * 100_001, "(content)"),
        (["x", "--scope", "nonsense"], "", "(scope)"),
        (["x", "--category", "Not A Category"], "", "(category)"),
        (["x", "--valid-from", "1d", "--valid-until", "2d ago"], "", "(valid until)"),
    ],
    ids=["empty", "too long", "scope", "category", "validity"],
)
def test_add_reports_the_invalid_field(shared_daemon: DaemonProcess, words: list[str], typed: str, field: str) -> None:
    before = memory(shared_daemon, "stats", "--json").json["total"]
    ran = memory(shared_daemon, "add", *words, typed=typed)

    assert ran.code == 1
    assert field in ran.err
    assert memory(shared_daemon, "stats", "--json").json["total"] == before


# list, search, show


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {"We", "Ada", "The", "src/db/pool.py"}),
        (["--scope", "user:ada"], {"Ada"}),
        (["--scope", "user:ada", "--scope", "global"], {"Ada", "The", "src/db/pool.py"}),
        (["--category", "decision"], {"We"}),
        (["--tag", "deploy"], {"We"}),
        (["--tag", "nothing"], set()),
        (["--pinned"], {"src/db/pool.py"}),
        (["--not-pinned"], {"We", "Ada", "The"}),
        (["--session", SESSION[:8]], {"src/db/pool.py"}),
        (["--entity", "src/db/pool.py"], {"The", "src/db/pool.py"}),
        (["--query", "holds connections"], {"src/db/pool.py"}),
        (["--include", "deleted", "--query", "moon"], {"The"}),
        (["--sector", "procedural", "--query", "PostgreSQL 15", "--include", "all"], {"The"}),
        (["--tier", "project"], {"We"}),
        (["--since", "1h", "--min-salience", "0.9", "--tag", "deploy"], {"We"}),
        (["--until", "1d"], set()),
        (["--as-of", "1d"], set()),
        (["--sort", "importance", "--limit", "1"], {"Ada"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_list_filters_memories(filled: DaemonProcess, words: list[str], found: set[str]) -> None:
    listed = memory(filled, "list", *words, "--json")

    assert {content.split()[0] for content in contents(listed)} == found


def test_list_project_selects_only_memories_of_the_project(filled: DaemonProcess) -> None:
    for words in (["list"], ["list", "--scope", "*"]):
        assert contents(memory(filled, *words, "--project", str(filled.home / "shop"), "--json")) == [
            "We deploy the shop on Tuesdays"
        ]


def test_list_shows_state_and_pin_columns_only_when_needed(filled: DaemonProcess) -> None:
    shown = memory(filled, "list", "--include", "superseded").out

    assert shown.splitlines()[0].split() == [
        "Id", "Memory", "State", "Created", "Salience", "Sector", "Category", "Scope",
    ]  # fmt: skip
    assert "superseded" in shown
    assert "★" in shown
    assert "State" not in memory(filled, "list").out


def test_list_says_that_there_are_more_and_all_returns_everything(shared_daemon: DaemonProcess) -> None:
    for number in range(120):
        remember(shared_daemon, f"Number {number} of many", scope="custom:many")

    assert "--all" in memory(shared_daemon, "list", "--scope", "custom:many").err
    everything = memory(shared_daemon, "list", "--scope", "custom:many", "--all", "--json").json
    assert len({found["id"] for found in everything["memories"]}) == 120
    assert everything["cursor"] is None


def test_list_shows_unambiguous_short_ids(shared_daemon: DaemonProcess) -> None:
    ids = [remember(shared_daemon, f"Made at once {number}", scope="custom:ids") for number in range(3)]
    listed = memory(shared_daemon, "list", "--scope", "custom:ids", COLUMNS="80").out.splitlines()[1:]
    shown = [line.split()[0] for line in listed]

    assert all(len(short) < len(ids[0]) for short in shown)
    assert {memory(shared_daemon, "show", short, "--json").json["id"] for short in shown} == set(ids)


def test_search_hit_shows_score_facts_and_snippet(filled: DaemonProcess) -> None:
    ran = memory(filled, "search", "when", "do", "we", "deploy", "--limit", "1")
    heading, snippet, _, summary = ran.out.splitlines()

    assert re.fullmatch(r"1\. [01]\.\d{3}  [0-9a-f]{8}  \w+ · decision · project:shop · .*", heading)
    assert "«deploy»" in snippet
    assert summary.startswith("1 hit by keyword and vector search in ")


def test_search_takes_the_weight_of_vectors_and_the_pool(filled: DaemonProcess) -> None:
    def components(*options: str) -> list[dict[str, float]]:
        found = memory(filled, "search", "when", "do", "we", "deploy", "--explain", "--json", *options).json
        return [hit["components"] for hit in found["hits"]]

    assert all("vector" not in one for one in components("--vector-weight", "0"))
    assert all("vector" in one for one in components("--vector-weight", "1", "--pool", "10", "--no-rerank"))
    assert memory(filled, "search", "deploy", "--pool", "5").code == 2


def test_search_filters_explains_scores_and_includes_superseded_memories(filled: DaemonProcess) -> None:
    found = memory(filled, "search", "PostgreSQL", "--mode", "keyword", "--json").json
    past = memory(filled, "search", "PostgreSQL", "--mode", "keyword", "--include", "superseded", "--json").json
    shown = memory(filled, "search", "PostgreSQL", "--explain").out

    assert [hit["memory"]["content"][-2:] for hit in found["hits"]] == ["16"]
    assert {hit["memory"]["content"][-2:] for hit in past["hits"]} == {"15", "16"}
    assert (
        memory(filled, "search", "PostgreSQL", "--scope", "user:ada", "--mode", "keyword", "--json").json["hits"] == []
    )
    assert {"Keyword", "Vector", "Salience", "Importance", "Recency"} <= set(shown.split())


def test_search_without_hits_exits_0_with_a_message(filled: DaemonProcess) -> None:
    ran = memory(filled, "search", "xylophone", "--mode", "keyword")

    assert (ran.code, ran.out) == (0, "")
    assert "xylophone" in ran.err


def test_show_prints_every_field(filled: DaemonProcess) -> None:
    old, new = (
        the(filled, "The pool in src/db/pool.py uses PostgreSQL 15"),
        the(filled, "The pool in src/db/pool.py uses PostgreSQL 16"),
    )
    out = memory(filled, "show", old).out

    assert out.startswith("The pool in src/db/pool.py uses PostgreSQL 15\n")
    assert f"superseded by {new}" in out
    assert re.search(r"^salience +█+", out, re.MULTILINE)
    assert "(pinned)" in memory(filled, "show", the(filled, "src/db/pool.py holds")).out
    assert memory(filled, "show", old, "--as-of", "1d").code == 1


def test_global_search_includes_memories(filled: DaemonProcess) -> None:
    ran = ctl(filled, "search", "tabs", "--source", "memories")

    assert f"Memory {the(filled, 'Ada')}" in ran.out


# edit


def test_edit_changes_only_the_edited_fields(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "The limit is 10", scope="custom:edit", tags=["limit"], summary="limit")
    before = recall(shared_daemon, known)
    script = """sed -i -e 's/is 10/is 20/' -e 's/^importance = .*/importance = 0.9/' \
        -e 's/^tags = .*/tags = ["limit", "a, b"]/' -e 's/^reason = .*/reason = "it was raised"/' "$1" """
    ran = memory(shared_daemon, "edit", known, **editor(home, script))
    after = recall(shared_daemon, known)

    assert (ran.code, ran.out.startswith("Changed ")) == (0, True)
    assert (after["content"], after["importance"], after["tags"]) == ("The limit is 20", 0.9, ["limit", "a, b"])
    for same in ("summary", "sector", "tier", "category", "validFrom", "files", "scope"):
        assert after[same] == before[same]
    shown = memory(shared_daemon, "history", known).out
    assert "it was raised" in shown
    assert "content was The limit is 10" in shown
    assert drafts(shared_daemon, known) == []


def drafts(daemon: DaemonProcess, memory_id: str) -> list[Path]:
    return sorted((daemon.data / "drafts").glob(f"{memory_id}*"))


def test_edit_without_a_change_sends_nothing(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "Stay\r\n as \r you are ", scope="custom:edit")
    ran = memory(shared_daemon, "edit", known, **editor(home, "cat $1 > /dev/null; echo >> $1"))

    assert (ran.code, ran.out) == (0, "")
    assert "Nothing was changed" in ran.err
    assert [entry["action"] for entry in memory(shared_daemon, "history", known, "--json").json["log"]] == ["created"]
    assert drafts(shared_daemon, known) == []


def test_edit_reopens_the_editor_after_an_invalid_draft(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "Ask again", scope="custom:edit")
    script = f"""if [ -e {home}/once ]; then sed -i 's/^importance = .*/importance = 0.7/' "$1"
    else touch {home}/once; sed -i 's/^importance = .*/importance = 7/' "$1"; fi"""
    ran = memory(shared_daemon, "edit", known, typed="y\n", **editor(home, script))

    assert ran.code == 0
    assert "line 7, importance" in ran.err
    assert recall(shared_daemon, known)["importance"] == 0.7
    assert drafts(shared_daemon, known) == []


def test_edit_saves_a_rejected_draft_and_continues_with_it(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "Not lost", scope="custom:edit")
    script = """sed -i -e 's/Not lost/Much typed/' -e 's/^valid_until = .*/valid_until = "2001-01-01"/' "$1" """
    ran = memory(shared_daemon, "edit", known, typed="n\n", **editor(home, script))
    [draft] = drafts(shared_daemon, known)

    assert ran.code == 1
    assert re.search(r"line \d+, valid_until: it ends before it begins", ran.err)  # the error of the daemon
    assert str(draft) in ran.err
    assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert "Much typed" in draft.read_text()
    assert recall(shared_daemon, known)["content"] == "Not lost"

    mended = editor(home, """sed -i 's/^valid_until = .*/valid_until = ""/' "$1" """)
    assert memory(shared_daemon, "edit", known, "--draft", str(draft), **mended).code == 0
    assert recall(shared_daemon, known)["content"] == "Much typed"
    assert drafts(shared_daemon, known) == []


def test_edit_refuses_a_draft_of_another_memory(shared_daemon: DaemonProcess, home: Path) -> None:
    one, other = (remember(shared_daemon, f"Mine {number}", scope="custom:edit") for number in range(2))
    text = editor(home, f"cp $1 {home}/draft")
    memory(shared_daemon, "edit", one, **text)
    ran = memory(shared_daemon, "edit", other, "--draft", str(home / "draft"), **editor(home, "true"))

    assert ran.code == 1
    assert f"draft of {one}" in ran.err
    assert (home / "draft").is_file()


def test_edit_saves_the_draft_when_the_editor_fails(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "Crash", scope="custom:edit")
    ran = memory(shared_daemon, "edit", known, **editor(home, "sed -i s/Crash/Typed/ $1; exit 3"))
    [draft] = drafts(shared_daemon, known)

    assert ran.code == 1
    assert "exited with code 3" in ran.err
    assert "Typed" in draft.read_text()
    assert recall(shared_daemon, known)["content"] == "Crash"
    draft.unlink()
    assert memory(shared_daemon, "edit", known, EDITOR="/no/such/editor", VISUAL="").code == 1
    assert "cannot be read" in memory(shared_daemon, "edit", known, **editor(home, "rm $1")).err
    assert drafts(shared_daemon, known) == []


def test_edit_does_not_overwrite_a_concurrent_change(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "Both write", scope="custom:edit")
    request = {"jsonrpc": "2.0", "id": 1, "method": "memory.update"}
    request["params"] = {"id": known, "content": "They wrote", "scopes": ["*"]}
    body = json.dumps(request)
    (home / "frame").write_bytes(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    (home / "send.py").write_text(
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        " s.sendall(open(sys.argv[2], 'rb').read()); s.recv(65536)"
    )
    script = (
        f"{command()[0]} {home}/send.py {shared_daemon.socket_path} {home}/frame; sed -i 's/Both write/I wrote/' $1"
    )
    ran = memory(shared_daemon, "edit", known, **editor(home, script))
    [draft] = drafts(shared_daemon, known)

    assert ran.code == 1
    assert "was modified while you were editing" in ran.err
    assert recall(shared_daemon, known)["content"] == "They wrote"
    assert "I wrote" in draft.read_text()
    draft.unlink()


def test_edit_saves_the_draft_when_the_daemon_is_gone(
    shared_daemon: DaemonProcess, down: DaemonProcess, home: Path
) -> None:
    found = recall(shared_daemon, remember(shared_daemon, "Daemon dies", scope="custom:edit"))
    typing = editor(home, "sed -i 's/Daemon dies/Typed anyway/' $1")

    with played(home / "s", lambda peer: peer.answer(peer.receive(), found), lambda peer: None):
        ran = memory(down, "edit", found["id"], "--socket", str(home / "s"), **typing)

    [draft] = drafts(down, found["id"])
    assert ran.code == 3
    assert str(draft) in ran.err
    assert "Typed anyway" in draft.read_text()


def test_edit_ignores_sigint_while_the_editor_runs(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "Interrupt me", scope="custom:edit")
    ran = memory(shared_daemon, "edit", known, **editor(home, "kill -INT $PPID; sed -i s/me/not/ $1"))

    assert ran.code == 0, ran.err
    assert recall(shared_daemon, known)["content"] == "Interrupt not"


def test_edit_clears_fields_that_are_emptied(shared_daemon: DaemonProcess, home: Path) -> None:
    known = remember(shared_daemon, "Clear me", scope="custom:edit", summary="s", expiresAt=NOW + HOUR, tags=["t"])
    script = """sed -i -e 's/^summary = .*/summary = ""/' -e 's/^expires_at = .*/expires_at = ""/' \
        -e 's/^tags = .*/tags = []/' "$1" """
    ran = memory(shared_daemon, "edit", known, "--json", **editor(home, script))

    assert ran.code == 0, ran.err
    assert (ran.json["summary"], ran.json["expiresAt"], ran.json["tags"]) == (None, None, [])


# forget, restore, pin


def test_forget_asks_for_confirmation_and_restore_undoes_it(shared_daemon: DaemonProcess) -> None:
    known = remember(shared_daemon, "Let me go", scope="custom:forget")
    asked = memory(shared_daemon, "forget", known[:13], typed="n\n")

    assert asked.code == 1
    assert "Let me go" in asked.err
    assert recall(shared_daemon, known)["state"] == "current"

    assert memory(shared_daemon, "forget", known, "--reason", "enough", typed="y\n").out == "Forgot 1 memory.\n"
    assert recall(shared_daemon, known)["state"] == "deleted"
    assert "enough" in memory(shared_daemon, "history", known).out
    assert "nothing to forget" in memory(shared_daemon, "forget", known, "--yes").err

    assert "Restored" in memory(shared_daemon, "restore", known).out
    assert recall(shared_daemon, known)["state"] == "current"


def test_forget_with_one_unknown_id_forgets_nothing(shared_daemon: DaemonProcess) -> None:
    known = remember(shared_daemon, "Stay with me", scope="custom:forget")

    assert memory(shared_daemon, "forget", known, NOWHERE, "--yes").code == 1
    assert recall(shared_daemon, known)["state"] == "current"


def test_forget_purge_is_permanent(shared_daemon: DaemonProcess) -> None:
    ids = [remember(shared_daemon, f"Burn {number}", scope="custom:purge") for number in range(2)]
    ran = memory(shared_daemon, "forget", *ids, "--purge", "--yes", "--json")

    assert ran.json == {"count": 2, "ids": ids}
    assert memory(shared_daemon, "show", ids[0]).code == 1
    assert memory(shared_daemon, "restore", ids[0]).code == 1


def test_forget_by_filters_lists_the_memories_first(shared_daemon: DaemonProcess) -> None:
    ids = {remember(shared_daemon, f"Scratch {number}", scope="custom:bulk", tags=["scratch"]) for number in range(25)}
    keep = remember(shared_daemon, "Keep", scope="custom:bulk")
    words = ["forget", "--scope", "custom:bulk", "--tag", "scratch"]
    dry = memory(shared_daemon, *words, "--dry-run")

    assert dry.out.endswith("Would forget 25 memories.\n")
    assert "and 5 more" in dry.err
    assert set(memory(shared_daemon, *words, "--dry-run", "--json").json["ids"]) == ids
    assert memory(shared_daemon, *words, typed="n\n").code == 1
    assert len(memory(shared_daemon, "list", "--scope", "custom:bulk", "--all", "--json").json["memories"]) == 26

    assert set(memory(shared_daemon, *words, "--yes", "--json").json["ids"]) == ids
    assert [
        found["id"] for found in memory(shared_daemon, "list", "--scope", "custom:bulk", "--json").json["memories"]
    ] == [keep]
    nothing = memory(shared_daemon, *words, "--yes")
    assert (nothing.code, nothing.out) == (0, "")


def test_pin_and_unpin_change_the_memory(shared_daemon: DaemonProcess) -> None:
    known = remember(shared_daemon, "Pin me", scope="custom:pin")

    assert "Pinned" in memory(shared_daemon, "pin", known).out
    assert recall(shared_daemon, known)["pinned"] is True
    assert memory(shared_daemon, "unpin", known, "--json").json[0]["pinned"] is False


# history, related, graph


def test_history_shows_versions_and_log(filled: DaemonProcess) -> None:
    out = memory(filled, "history", the(filled, "The pool in src/db/pool.py uses PostgreSQL 16")).out
    found = memory(filled, "history", the(filled, "The pool in src/db/pool.py uses PostgreSQL 15"), "--json").json

    assert re.search(r"^1\..*superseded, valid since .* until .*\n.*PostgreSQL 15\n2\..*current", out, re.MULTILINE)
    assert out.count("created") == 2
    assert "supersedes" in out
    assert [version["content"][-2:] for version in found["versions"]] == ["15", "16"]


def test_history_shows_the_reason_of_a_deletion(filled: DaemonProcess) -> None:
    assert "it is not" in memory(filled, "history", the(filled, "The moon")).out


def test_related_shows_memories_with_the_relation(filled: DaemonProcess) -> None:
    ran = memory(filled, "related", the(filled, "The pool in src/db/pool.py uses PostgreSQL 15"))

    assert "PostgreSQL 16" in ran.out
    assert "SUPERSEDES" in ran.out
    assert len(memory(filled, "related", the(filled, "The pool"), "--limit", "1", "--json").json) == 1


def test_graph_prints_a_tree_from_the_given_memory(filled: DaemonProcess) -> None:
    lines = memory(filled, "graph", the(filled, "The pool in src/db/pool.py uses PostgreSQL 15")).out.splitlines()

    assert lines[0].startswith("The pool in src/db/pool.py uses PostgreSQL 15")
    assert any("SUPERSEDES ← The pool in src/db/pool.py uses PostgreSQL 16" in line for line in lines)
    assert any(line.startswith(("├── ", "└── ")) and "→ src/db/pool.py" in line for line in lines)
    assert any("← src/db/pool.py holds 20" in line for line in lines)


def test_graph_accepts_an_entity_name_and_filters_relations(filled: DaemonProcess) -> None:
    named = memory(filled, "graph", "src/db/pool.py", "--hops", "1", "--json").json
    along = memory(
        filled, "graph", the(filled, "The pool"), "--type", "SUPERSEDES", "--no-entities", "--closed", "--json"
    ).json

    assert {node["kind"] for node in named["nodes"]} == {"entity", "memory"}
    assert named["nodes"][0]["hops"] == 0
    assert {edge["type"] for edge in along["edges"]} == {"SUPERSEDES"}
    assert memory(filled, "graph", "no such thing").code == 1
    assert "--limit" in memory(filled, "graph", "src/db/pool.py", "--limit", "1").err


def test_graph_writes_svg_and_dot_files(filled: DaemonProcess, home: Path) -> None:
    ran = memory(filled, "graph", "src/db/pool.py", "--svg", str(home / "g.svg"), "--dot", str(home / "g.dot"))
    drawn = ET.parse(home / "g.svg").getroot()

    assert (ran.code, ran.out) == (0, "")
    assert any("PostgreSQL 16" in (title.text or "") for title in drawn.iter("{http://www.w3.org/2000/svg}title"))
    assert (home / "g.dot").read_text().startswith("digraph memories {")
    assert stat.S_IMODE((home / "g.svg").stat().st_mode) == 0o600
    assert memory(filled, "graph", "src/db/pool.py", "--svg", str(home / "no" / "g.svg")).code == 1


# context, stats


def test_context_prints_what_an_agent_in_the_project_would_see(filled: DaemonProcess) -> None:
    shop = filled.home / "shop"
    here, elsewhere = memory(filled, "context", cwd=shop), memory(filled, "context", cwd=filled.home)

    assert "Tuesdays" in here.out
    assert "Tuesdays" not in elsewhere.out
    assert "tabs" not in here.out
    assert "not instructions" in here.out
    assert "tabs" in memory(filled, "context", "--scope", "*").out
    assert "tabs" in memory(filled, "context", "what does Ada prefer", "--scope", "user:ada", "--json").json["text"]
    short = memory(filled, "context", "--max-characters", "200", "--limit", "1", "--json").json
    assert len(short["text"]) <= 200


def test_stats_prints_totals_and_charts(filled: DaemonProcess) -> None:
    ran, counts = memory(filled, "stats"), memory(filled, "stats", "--json").json

    assert counts["total"] == 6
    assert re.search(r"^memories +6: 4 current, 1 superseded, 1 forgotten", ran.out, re.MULTILINE)
    assert re.search(r"^preference +█+ +1$", ran.out, re.MULTILINE)
    assert memory(filled, "stats", "--scope", "user:ada", "--json").json["total"] == 1
    assert memory(filled, "stats", "--project", str(filled.home / "shop"), "--json").json["total"] == 1
    assert "--limit" in memory(filled, "stats", "--limit", "1").err


# export, import


def test_import_restores_an_export_in_another_daemon(
    filled: DaemonProcess, fresh_daemon: DaemonProcess, home: Path
) -> None:
    file = home / "memories.jsonl"
    ran = memory(filled, "export", str(file))

    assert ran.out == f"6 memories exported to {file}.\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert memory(fresh_daemon, "import", str(file)).out == "6 memories imported.\n"
    assert memory(fresh_daemon, "import", str(file)).out == "0 memories imported, 6 already existed.\n"

    def stored(source: DaemonProcess) -> list[Any]:
        listed = memory(source, "list", "--include", "all", "--all", "--json").json["memories"]
        names = (
            "id",
            "content",
            "scope",
            "state",
            "supersededBy",
            "tags",
            "createdAt",
            "importance",
            "pinned",
            "files",
        )
        return sorted(([found[name] for name in names] for found in listed), key=str)

    assert stored(fresh_daemon) == stored(filled)


def test_export_filters_and_writes_to_standard_output(filled: DaemonProcess) -> None:
    def exported(*words: str) -> list[str]:
        return [
            json.loads(line)["content"].split()[0] for line in memory(filled, "export", "-", *words).out.splitlines()
        ]

    assert exported("--scope", "user:ada") == ["Ada"]
    assert exported("--project", str(filled.home / "shop")) == ["We"]


def test_export_leaves_the_old_file_when_the_daemon_is_lost(
    filled: DaemonProcess, down: DaemonProcess, home: Path
) -> None:
    file = home / "memories.jsonl"
    file.write_text("what was there\n")
    counted = memory(filled, "stats", "--json").json
    page = {"memories": [json.loads(memory(filled, "export", "-").out.splitlines()[0])], "cursor": "more"}

    def breaking(peer: Peer) -> None:
        peer.answer(peer.receive(), counted)
        peer.answer(peer.receive(), page)
        peer.receive()

    with played(home / "s", breaking, lambda peer: None):
        ran = memory(down, "export", str(file), "--socket", str(home / "s"))

    assert ran.code == 3
    assert file.read_text() == "what was there\n"
    assert [path.name for path in home.iterdir() if path.name.startswith(".mem")] == []


def test_export_and_import_show_progress_on_a_terminal(filled: DaemonProcess, home: Path) -> None:
    file = str(home / "memories.jsonl")

    assert "exporting" in on_a_terminal(filled, "memory", "export", file)
    assert "importing" in on_a_terminal(filled, "memory", "import", file)
    assert memory(filled, "export", file).err == ""


def test_export_does_not_replace_a_device(filled: DaemonProcess) -> None:
    assert memory(filled, "export", "/dev/null").code == 1
    assert Path("/dev/null").is_char_device()


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"deeper": value}
    return value


def test_import_reports_invalid_lines_by_number_and_imports_the_others(
    shared_daemon: DaemonProcess, home: Path
) -> None:
    good = {"id": "import-good-1", "content": "A good one", "createdAt": NOW, "scope": "custom:import"}
    lines = [
        json.dumps(good),
        "{not json",
        json.dumps(good | {"id": "import-bad-1", "importance": 9}),
        "",
        json.dumps(good | {"id": "import-bad-2", "validFrom": NOW, "validUntil": NOW - 1}),  # refused by the daemon
        json.dumps(["a", "list"]),
        '{"id": "\\ud800", "content": "half a character", "createdAt": 1}',
        "[" * 5000,
        json.dumps(good | {"id": "import-bad-4", "metadata": nested(300)}),  # deeper than the daemon reads
        json.dumps(good | {"id": "import-bad-3", "mood": "good"}),
        json.dumps(good | {"id": "import-good-2", "content": "Another good one"}),
    ]
    (home / "in.jsonl").write_text("\n".join(lines))
    ran = memory(shared_daemon, "import", str(home / "in.jsonl"))

    assert ran.code == 4
    assert ran.out == "2 memories imported, 8 refused.\n"
    lines_reported = re.findall(r"^  line (\d+): ", ran.err, re.MULTILINE)
    assert sorted(map(int, lines_reported)) == [2, 3, 5, 6, 7, 8, 9, 10]
    assert "importance" in ran.err
    assert recall(shared_daemon, "import-good-2")["createdAt"] == NOW
    again = memory(shared_daemon, "import", str(home / "in.jsonl"), "--json")
    assert (again.code, again.json["unchanged"], len(again.json["refused"])) == (4, 2, 8)


def test_import_reads_exports_of_other_stores(shared_daemon: DaemonProcess, home: Path) -> None:
    tea = {"id": "mem0-tea", "memory": "Likes tea", "created_at": "2025-01-31T12:00:00Z", "user_id": "ada"}
    (home / "mem0.json").write_text(json.dumps({"results": [tea, tea | {"id": None}]}, indent=1))
    wal = {"content": "Use WAL", "content_hash": "ab" * 32, "tags": ["db"], "created_at": 1_738_324_800.5}
    (home / "service.json").write_text(json.dumps({"export_metadata": {}, "memories": [wal]}))
    dark = {"id": "open-dark", "content": "Dark", "primary_sector": "emotional", "created_at": NOW}
    (home / "open.jsonl").write_text(json.dumps(dark) + "\n")

    ran = memory(shared_daemon, "import", str(home / "mem0.json"))
    assert (ran.code, ran.out) == (4, "1 memory imported, 1 refused.\n")
    assert "item 2: " in ran.err
    assert recall(shared_daemon, "mem0-tea")["createdAt"] == 1_738_324_800_000
    assert memory(shared_daemon, "import", str(home / "service.json")).code == 0
    assert recall(shared_daemon, "ab" * 32)["tags"] == ["db"]
    assert memory(shared_daemon, "import", str(home / "open.jsonl")).code == 0
    assert recall(shared_daemon, "open-dark")["sector"] == "emotional"


# maintain, extract


@pytest.fixture
def unmaintained(home: Path) -> Iterator[ClockedDaemon]:
    """Start a daemon that runs maintenance only on request, and whose clock the test sets."""
    process = ClockedDaemon(home, CLANKERS_MAINTAIN_HOURS="0")
    process.start()
    yield process
    process.close()


def test_maintain_dry_run_reports_what_maintain_does(unmaintained: ClockedDaemon, home: Path) -> None:
    daemon = unmaintained
    daemon.set_clock(-3000 * DAY_SECONDS)
    faded: dict[str, Any] = {
        "id": "faded-and-gone",
        "content": "It rained in Oslo",
        "createdAt": NOW - 3000 * 24 * HOUR,
    }
    faded |= {"sector": "episodic", "importance": 0.0, "salience": 0.05}
    (home / "in.jsonl").write_text(json.dumps(faded))
    assert memory(daemon, "import", str(home / "in.jsonl")).code == 0
    daemon.set_clock(0)

    dry = memory(daemon, "maintain", "--dry-run")
    assert "Would be: 1 archived" in dry.out
    assert "faded to 0.05" in dry.out
    assert recall(daemon, faded["id"])["state"] == "current"

    done = memory(daemon, "maintain", "--json").json
    assert (done["archived"], done["dryRun"]) == (1, False)
    assert recall(daemon, faded["id"])["state"] == "archived"
    assert "archived" in memory(daemon, "history", faded["id"]).out
    assert memory(daemon, "maintain").out == "Nothing to do.\n"
    assert "Restored" in memory(daemon, "restore", faded["id"]).out


def test_extract_finds_memories_in_a_session(shared_daemon: DaemonProcess) -> None:
    (shared_daemon.home / "shop").mkdir()
    with Client(shared_daemon.socket_path, timeout=30) as client:
        client.events.session(SESSION, project_path=str(shared_daemon.home / "shop"), created_at=NOW)
        prompt = "Remember that the staging database is read-only."
        client.events.message("m1", SESSION, role="user", text_content=prompt, created_at=NOW)

    before = memory(shared_daemon, "stats", "--json").json["total"]
    dry = memory(shared_daemon, "extract", SESSION[:8], "--by", "rules", "--dry-run")
    assert "staging database" in dry.out
    assert dry.out.endswith("1 candidate in 1 message by rules.\n")
    assert memory(shared_daemon, "stats", "--json").json["total"] == before

    done = memory(shared_daemon, "extract", SESSION[:8], "--by", "rules", "--json").json
    assert [candidate["outcome"] for candidate in done["candidates"]] == ["created"]
    assert len(memory(shared_daemon, "list", "--session", SESSION, "--json").json["memories"]) == 1
    assert memory(shared_daemon, "extract", "no-such-session").code == 1
