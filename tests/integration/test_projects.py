"""A project is its repository: over the socket, with real repositories."""

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import message
from helpers.waiting import eventually, settled

from clankersd.db.connection import Db
from clankersd.db.migrations import bundled, migrate

NUMBERS = itertools.count()


@pytest.fixture
def rpc(shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """A connection to the shared daemon; its projects are forgotten after the test."""
    with shared_daemon.connect() as connection:
        yield connection
        for project in connection.call("project.list"):
            connection.call("project.forget", project=project["id"])


def git(*arguments: str, cwd: Path) -> None:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *arguments]
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


def repository(path: Path, remote: str | None = None) -> Path:
    path.mkdir(parents=True)
    git("init", "-q", cwd=path)
    git("commit", "-q", "--allow-empty", "-m", f"first of {path}", cwd=path)
    if remote:
        git("remote", "add", "origin", remote, cwd=path)
    return path


def work(rpc: RawConnection, folder: Path | str, text: str = "hello") -> str:
    """Run a session in a folder and return its id."""
    session = f"s{next(NUMBERS)}"
    rpc.call("upsertSession", session={"id": session, "projectPath": str(folder)})
    rpc.call("upsertMessage", message=message(f"m-{session}", session, text))
    return session


def project_of(rpc: RawConnection, folder: Path | str) -> dict[str, Any]:
    return dict(rpc.call("project.show", project=str(folder)))


def sessions(rpc: RawConnection, project: Path | str) -> set[str]:
    return {one["id"] for one in rpc.call("session.list", project=str(project))["sessions"]}


def test_clone_worktree_and_moved_repository_are_one_project(rpc: RawConnection, tmp_path: Path) -> None:
    shop = repository(tmp_path / "shop", "https://ada:s3cretT0ken@github.com/ada/shop.git")
    first = work(rpc, shop / "src", "the login fails")
    rpc.call("memory.add", content="We deploy on Tuesdays", project=str(shop))
    git("worktree", "add", "-q", str(tmp_path / "tree"), cwd=shop)
    clone = repository(tmp_path / "clone", "git@github.com:ada/shop")
    known = project_of(rpc, shop)
    assert known["repositories"] == ["github.com/ada/shop"]

    found = {first, work(rpc, tmp_path / "tree"), work(rpc, clone)}
    git("worktree", "remove", str(tmp_path / "tree"), cwd=shop)
    shop.rename(tmp_path / "store")
    found.add(work(rpc, tmp_path / "store" / "src"))

    assert len(rpc.call("project.list")) == 1
    for folder in (tmp_path / "store", clone):
        assert sessions(rpc, folder) == found
        [hit] = rpc.call("memory.search", query="deploy", project=str(folder))["hits"]
        assert hit["memory"]["projectId"] == known["id"]
        hits = rpc.call("search", query="login fails", project=str(folder))["hits"]
        assert first in [hit["ref"].get("sessionId") for hit in hits]
    recalled = rpc.call("recall.preview", kind="start", project=str(tmp_path / "store"))
    assert "We deploy on Tuesdays" in recalled["text"]
    eventually(lambda: project_of(rpc, clone)["path"] != str(shop), "the project is shown where it is now")
    assert project_of(rpc, clone)["path"] in (str(tmp_path / "store"), str(clone))


def test_fork_with_another_remote_is_another_project(rpc: RawConnection, tmp_path: Path) -> None:
    shop = repository(tmp_path / "shop", "https://github.com/ada/shop")
    shutil.copytree(shop, tmp_path / "fork")
    git("remote", "set-url", "origin", "https://github.com/bob/shop", cwd=tmp_path / "fork")
    mine, theirs = work(rpc, shop), work(rpc, tmp_path / "fork")
    assert (sessions(rpc, shop), sessions(rpc, tmp_path / "fork")) == ({mine}, {theirs})


def test_copy_without_a_remote_joins_its_project_by_the_root_commit(rpc: RawConnection, tmp_path: Path) -> None:
    shop = repository(tmp_path / "shop")
    first = work(rpc, shop)
    eventually(lambda: project_of(rpc, shop)["repositories"], "the root commit is known")
    git("clone", "-q", str(shop), str(tmp_path / "copy"), cwd=tmp_path)
    second = work(rpc, tmp_path / "copy")
    rpc.call("memory.add", content="Invoices are rounded up", project=str(tmp_path / "copy"))
    settled(rpc)
    eventually(lambda: project_of(rpc, tmp_path / "copy")["id"] == project_of(rpc, shop)["id"], "the two are one")
    assert sessions(rpc, shop) == {first, second}
    for mode in ("keyword", "vector"):
        found = rpc.call("memory.search", query="rounded invoices", mode=mode, project=str(shop))["hits"]
        assert [hit["memory"]["content"] for hit in found] == ["Invoices are rounded up"], mode
    [kept] = rpc.call("project.list")
    assert kept["memories"] == 1


def test_plain_folder_that_was_renamed_is_recognised(rpc: RawConnection, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    first = work(rpc, tmp_path / "notes")
    known = project_of(rpc, tmp_path / "notes")
    if rpc.call("query", sql="SELECT 1 FROM project_folders WHERE directory IS NOT NULL")["rows"] == []:
        pytest.skip("this file system does not record when a directory was created")
    (tmp_path / "notes").rename(tmp_path / "diary")
    assert sessions(rpc, tmp_path / "diary") == {first}
    work(rpc, tmp_path / "diary")
    eventually(lambda: project_of(rpc, known["id"])["path"] == str(tmp_path / "diary"), "the project is shown there")
    shown = project_of(rpc, known["id"])
    assert (shown["name"], [folder["exists"] for folder in shown["folders"]]) == ("diary", [True, False])


def test_projects_of_an_older_database_are_one_after_the_start(home: Path, tmp_path: Path) -> None:
    """They learn their repository at once: later, one of their folders may have been moved."""
    clones = [repository(tmp_path / name, "https://github.com/ada/shop") for name in ("one", "two")]
    daemon = DaemonProcess(home, CLANKERS_EMBEDDER="none")
    daemon.data.mkdir()
    raw = apsw.Connection(str(daemon.database))
    old = Db(raw)
    migrate(old, home / "backups", bundled()[:8])
    for clone in clones:
        row = {"id": clone.name, "path": str(clone), "scope": f"project:{clone.name}"}
        old.execute(
            """
            INSERT INTO projects (id, path, name, created_at, updated_at) VALUES (:id, :path, :id, 1, 1);
            INSERT INTO sessions (id, project_id, project_path, created_at, updated_at) VALUES (:id, :id, :path, 1, 1);
            """,
            row,
        )
    raw.close()
    try:
        with daemon.start().connect() as rpc:
            eventually(lambda: len(rpc.call("project.list")) == 1, "the two are one")
            clones[0].rename(tmp_path / "moved")
            assert sessions(rpc, tmp_path / "moved") == {"one", "two"}
            assert sessions(rpc, "two") == {"one", "two"}
    finally:
        daemon.close()


def test_name_that_a_harness_gives_is_that_of_the_shown_folder(rpc: RawConnection, tmp_path: Path) -> None:
    shop = repository(tmp_path / "shop", "https://github.com/ada/shop")
    clone = repository(tmp_path / "clone", "https://github.com/ada/shop")
    for folder, name in ((shop, "The shop"), (clone, "clone"), (shop / "src", "src")):
        rpc.call("upsertSession", session={"id": folder.name, "projectPath": str(folder), "projectName": name})
    assert [one["name"] for one in rpc.call("project.list")] == ["The shop"]


def test_credentials_of_a_remote_are_never_stored(home: Path, tmp_path: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as rpc:
        for number, url in enumerate((
            "https://ada:p4ssw0rd-x@example.org/ada/shop.git",
            "https://p4ssw0rd-x@example.org/ada/shop",
            "ada:p4ssw0rd-x@example.org:ada/shop",
            "https://example.org/ada/shop?private_token=p4ssw0rd-x",
        )):  # fmt: skip
            work(rpc, repository(tmp_path / str(number), url))
        assert [one["repository"] for one in rpc.call("project.list")] == ["example.org/ada/shop"]
        daemon.stop()
        assert not any(b"p4ssw0rd-x" in path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_memory_files_of_two_clones_are_of_one_project_and_stay_indexed(home: Path, tmp_path: Path) -> None:
    clones = [repository(tmp_path / name, "https://github.com/ada/shop") for name in ("one", "two")]
    for number, clone in enumerate(clones):
        (clone / "MEMORY.md").write_text(f"# Clone {number}\n\nInvoices are rounded up.\n")
    (home / "clankers.toml").write_text(f"watch_roots = {[str(clone) for clone in clones]!r}\n")
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon, daemon.connect() as rpc:
        eventually(lambda: [one["files"] for one in rpc.call("project.list")] == [2], "both files are indexed")
        found = rpc.call("search", query="invoices", project=str(clones[1]), sources=["memory"])["hits"]
        assert {hit["ref"]["path"] for hit in found} == {str(clone / "MEMORY.md") for clone in clones}
        report = rpc.call("index.sync")
        assert (report["added"], report["changed"], report["unchanged"]) == (0, 0, 2)


# -- names and scopes


def test_scope_of_a_project_is_accepted_by_the_name_that_is_shown(rpc: RawConnection, tmp_path: Path) -> None:
    shop = tmp_path / "my shop"
    added = rpc.call("memory.add", content="We deploy on Tuesdays", project=str(shop))["memory"]
    assert (added["projectName"], added["scope"]) == ("my shop", f"project:{added['projectId']}")
    assert added["scopeLabel"] == "project:my shop"
    for scope in ("project:my shop", f"project:{shop}", added["scope"]):
        [listed] = rpc.call("memory.list", scopes=[scope])["memories"]
        assert listed["id"] == added["id"]
        [hit] = rpc.call("search", query="deploy", scopes=[scope], sources=["memories"])["hits"]
        assert hit["ref"]["memoryId"] == added["id"]
        new = rpc.call("memory.add", content=f"Noted in {scope}", scope=scope, scopes=["*"])["memory"]
        assert (new["scope"], new["scopeLabel"]) == (added["scope"], "project:my shop")
        rpc.call("memory.purge", id=new["id"], scopes=[scope])


def test_scope_label_of_a_promoted_memory_names_the_other_project(rpc: RawConnection, tmp_path: Path) -> None:
    rpc.call("memory.add", content="The other project", project=str(tmp_path / "other shop"))
    added = rpc.call("memory.add", content="We deploy on Mondays", project=str(tmp_path / "first shop"))["memory"]
    rpc.call("memory.promote", id=added["id"], tier="project", scope="project:other shop", scopes=["*"])
    at_first = rpc.call("memory.get", id=added["id"], scopes=["*"], asOf=added["createdAt"])
    now = rpc.call("memory.get", id=added["id"], scopes=["*"])
    assert (at_first["scopeLabel"], now["scopeLabel"]) == ("project:first shop", "project:other shop")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.list", {"project": "shpo"}),
        ("stats", {"project": "shpo"}),
        ("thread.list", {"project": "shpo"}),
        ("thread.create", {"chatId": "c", "project": "shpo"}),
        ("message.search", {"query": "x", "project": "shpo"}),
        ("search", {"query": "x", "project": "shpo"}),
        ("search", {"query": "x", "scopes": ["project:shpo"]}),
        ("search", {"query": "x", "filters": [{"field": "project", "op": "eq", "value": "shpo"}]}),
        ("memory.add", {"content": "x", "project": "shpo"}),
        ("memory.add", {"content": "x", "scope": "project:shpo"}),
        ("memory.list", {"scopes": ["project:shpo"]}),
        ("memory.list", {"scopes": ["*"], "project": "shpo"}),
        ("memory.search", {"query": "x", "project": "shpo"}),
        ("memory.context", {"project": "shpo"}),
        ("memory.export", {"scopes": ["project:shpo"]}),
        ("document.list", {"project": "shpo"}),
        ("document.ingest", {"text": "x", "project": "shpo"}),
        ("recall.preview", {"kind": "start", "project": "shpo"}),
        ("subscribe", {"kinds": ["session"], "project": "shpo"}),
        ("project.show", {"project": "shpo"}),
    ],
)
def test_name_of_no_project_is_an_error_with_the_near_ones(
    rpc: RawConnection, tmp_path: Path, method: str, params: dict[str, Any]
) -> None:
    work(rpc, tmp_path / "shop")
    error = rpc.request(method, params)["error"]
    assert error["code"] == 4004
    assert "there is no project 'shpo'; near ones are shop" in error["message"]
    assert len(rpc.call("project.list")) == 1


def test_name_of_several_projects_is_refused_with_their_folders(rpc: RawConnection, tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "shop", tmp_path / "b" / "shop"]
    for folder in folders:
        work(rpc, folder)
    error = rpc.request("session.list", {"project": "shop"})["error"]
    assert error["code"] == 4009
    assert all(str(folder) in error["message"] for folder in folders)
    names = [one["name"] for one in rpc.call("project.list")]
    assert sorted(names) == [str(folder) for folder in folders]  # shown by what is accepted
    assert all(len(sessions(rpc, name)) == 1 for name in names)


def test_subscription_to_a_folder_hears_of_all_clones(rpc: RawConnection, tmp_path: Path) -> None:
    shop = repository(tmp_path / "shop", "https://github.com/ada/shop")
    clone = repository(tmp_path / "clone", "https://github.com/ada/shop.git")
    work(rpc, shop)
    rpc.call("subscribe", kinds=["session"], project=str(clone))
    rpc.notifications.clear()
    session = work(rpc, shop)

    def heard() -> bool:
        rpc.call("health")
        return session in [one["params"].get("id") for one in rpc.notifications]

    eventually(heard, "the change is announced")


# -- commands


def test_command_lists_and_shows_projects(rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    shop = repository(tmp_path / "shop", "https://github.com/ada/shop")
    work(rpc, shop)
    listed = ctl(shared_daemon, "project", "list")
    assert (listed.code, "github.com/ada/shop" in listed.out, str(shop) in listed.out) == (0, True, True)
    [as_json] = ctl(shared_daemon, "project", "list", "--json").json
    for words in (("shop",), (".",), ("github.com/ada/shop",), (as_json["id"],), (str(shop),)):
        shown = ctl(shared_daemon, "project", "show", *words, cwd=shop)
        assert (shown.code, "1 session, 1 message" in shown.out) == (0, True), shown.err


def test_command_with_a_word_that_is_no_project_fails(
    rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    work(rpc, tmp_path / "shop")
    for words in (
        ("sessions",), ("search", "x"), ("stats",), ("memory", "list"), ("memory", "add", "x"), ("docs", "list"),
        ("thread", "create", "--chat", "c"), ("recall", "x"), ("memory", "context"),
    ):  # fmt: skip
        for name in ("shpo", "./shpo", "/no/such/shpo") if words == ("sessions",) else ("shpo",):
            ran = ctl(shared_daemon, *words, "--project", name, cwd=tmp_path)
            assert (ran.code, "there is no project" in ran.err, "shop" in ran.err) == (1, True, True), (words, ran.err)
    failed = ctl(shared_daemon, "memory", "list", "--scope", "project:shpo")
    assert (failed.code, "near ones are shop" in failed.err) == (1, True)
    assert len(rpc.call("project.list")) == 1


def test_command_shows_scopes_that_it_accepts(rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    added = ctl(shared_daemon, "memory", "add", "We deploy on Tuesdays", "--project", ".", cwd=shop)
    assert "project:shop" in added.out
    for words in (("--scope", "project:shop"), ("--project", "shop")):
        listed = ctl(shared_daemon, "memory", "list", *words, cwd=tmp_path.parent)
        assert ("We deploy" in listed.out, "project:shop" in listed.out) == (True, True), listed.err
    assert "project:shop" in ctl(shared_daemon, "memory", "stats").out
    scoped = ctl(shared_daemon, "memory", "add", "Cats sleep a lot", "--scope", "project:shop")
    assert "project:shop" in scoped.out
    memory = rpc.call("memory.list", scopes=["*"], project="shop")["memories"][0]
    assert memory["content"] == "Cats sleep a lot"
    for command in ("memory show", "show", "memory promote"):
        assert "project:shop" in ctl(shared_daemon, *command.split(), memory["id"]).out


def test_command_renames_a_project(rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    work(rpc, tmp_path / "a")
    work(rpc, tmp_path / "b")
    assert ctl(shared_daemon, "project", "rename", "a", "shop").code == 0
    rpc.call("upsertSession", session={"id": "named", "projectPath": str(tmp_path / "a"), "projectName": "other"})
    assert project_of(rpc, "shop")["path"] == str(tmp_path / "a")
    taken = ctl(shared_daemon, "project", "rename", "b", "Shop")
    assert (taken.code, str(tmp_path / "a") in taken.err) == (1, True)
    assert rpc.request("project.rename", {"project": "b", "name": "/x"})["error"]["code"] == -32602


def test_command_merges_two_projects(rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    for name in ("old", "new"):
        work(rpc, tmp_path / name)
        rpc.call("memory.add", content=f"Memory of {name} things", project=str(tmp_path / name))
    rpc.call("document.ingest", text="The manual", source="manual", project=str(tmp_path / "old"))
    old = project_of(rpc, "old")
    settled(rpc)
    planned = ctl(shared_daemon, "project", "merge", "old", "new", "--dry-run")
    assert "Would merge" in planned.out
    assert "1 session (1 message, 0 tool calls), 1 memory, 1 document" in planned.out
    refused = ctl(shared_daemon, "project", "merge", "old", "new", typed="n\n")
    assert (refused.code != 0, len(rpc.call("project.list"))) == (True, 2)
    assert ctl(shared_daemon, "project", "merge", "old", "new", typed="y\n").code == 0
    [kept] = rpc.call("project.list")
    assert (kept["sessions"], kept["memories"], kept["documents"], kept["name"]) == (2, 2, 1, "new")
    assert project_of(rpc, old["id"])["id"] == kept["id"]
    assert len(sessions(rpc, tmp_path / "old")) == 2
    assert len(rpc.call("memory.list", scopes=[f"project:{old['id']}"])["memories"]) == 2
    found = rpc.call("memory.search", query="old things memory", mode="vector", project="new")["hits"]
    assert "Memory of old things" in [hit["memory"]["content"] for hit in found]
    assert rpc.request("project.merge", {"project": "new", "into": kept["id"]})["error"]["code"] == 4009


def test_command_moves_a_project(rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    session = work(rpc, "/gone/from/here/shop")
    (tmp_path / "store").mkdir()
    assert ctl(shared_daemon, "project", "move", "shop", "store", cwd=tmp_path).code == 0
    assert sessions(rpc, tmp_path / "store") == {session}
    assert (project_of(rpc, "store")["path"], sessions(rpc, "/gone/from/here/shop")) == (
        str(tmp_path / "store"), {session}
    )  # fmt: skip
    work(rpc, tmp_path / "other")
    refused = rpc.request("project.move", {"project": "store", "folder": str(tmp_path / "other")})["error"]
    assert (refused["code"], "project merge" in refused["message"]) == (4009, True)


def test_command_forgets_a_project_for_good(rpc: RawConnection, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    kept = work(rpc, tmp_path / "kept", "the zebra stays")
    for _ in range(12):
        gone = work(rpc, tmp_path / "gone", "the zebra goes")
    rpc.call("memory.add", content="A zebra is striped", project=str(tmp_path / "gone"))
    rpc.call("document.ingest", text="All about the zebra", source="zebra", project=str(tmp_path / "gone"))
    planned = ctl(shared_daemon, "project", "forget", "gone", "--dry-run")
    assert "Would forget" in planned.out
    assert "12 sessions (12 messages, 0 tool calls), 1 memory, 1 document" in planned.out
    assert ctl(shared_daemon, "project", "forget", "gone", typed="n\n").code != 0
    assert len(sessions(rpc, tmp_path / "gone")) == 12
    done = ctl(shared_daemon, "project", "forget", "gone", "--yes", "--json")
    assert (done.code, done.json["deleted"]["sessions"]) == (0, 12)
    hits = rpc.call("search", query="zebra", scopes=["*"])["hits"]
    assert [hit["ref"].get("sessionId") for hit in hits] == [kept]
    assert rpc.request("session.get", {"id": gone})["error"]["code"] == 4004
    assert [one["name"] for one in rpc.call("project.list")] == ["kept"]
    for table in ("memories", "documents", "project_folders"):
        left = rpc.call("query", sql=f"SELECT count(*) FROM {table}")["rows"]
        assert left == [[1 if table == "project_folders" else 0]], table


def test_hook_that_names_no_project_gets_no_error(rpc: RawConnection, tmp_path: Path) -> None:
    work(rpc, tmp_path / "shop")
    event = {"kind": "start", "sessionId": "s", "project": "shpo"}
    assert rpc.request("recall.hook", {"harness": "generic", "event": event})["result"] == {"output": None}
