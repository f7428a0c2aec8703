"""Which project a folder belongs to, by what is stored of folders and repositories."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from clankers_protocol.errors import Conflict, NotFound
from clankersd.db.connection import Db
from clankersd.db.migrations import bundled, migrate
from clankersd.projects.repositories import Folder
from clankersd.projects.store import (
    Merge,
    ensure_project,
    find_project_id,
    learn_folder,
    match_folder,
    resolve_project,
    resolve_scope,
)

SHOP = "github.com/ada/shop"
FORK = "github.com/bob/shop"
COMMIT = f"commit:{'a' * 40}"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Db]:
    raw = apsw.Connection(":memory:")
    raw.pragma("foreign_keys", True)
    db = Db(raw)
    migrate(db, tmp_path)
    yield db
    raw.close()


def clone(path: str, repository: str | None = SHOP, directory: str | None = None) -> Folder:
    return Folder(path, repository, f"{path}/.git", directory or f"inode of {path}")


def plain(path: str, directory: str | None = None) -> Folder:
    return Folder(path, directory=directory or f"inode of {path}")


def paths(db: Db) -> list[str]:
    return [path for (path,) in db.tuples("SELECT path FROM projects ORDER BY created_at, id")]


def test_clones_of_one_remote_are_one_project_and_forks_are_not(db: Db) -> None:
    first = ensure_project(db, clone("/a/shop"))
    assert ensure_project(db, clone("/b/shop-2")) == first
    assert ensure_project(db, clone("/c/shop", FORK)) != first
    assert paths(db) == ["/a/shop", "/c/shop"]


def test_folder_that_was_renamed_is_the_same_project(db: Db) -> None:
    first = ensure_project(db, plain("/a/notes", "inode 1"))
    assert ensure_project(db, plain("/b/diary", "inode 1")) == first
    assert ensure_project(db, plain("/a/notes", "inode 2")) == first  # a folder is known by its path, too
    assert ensure_project(db, plain("/c/notes", "inode 3")) != first


def test_repository_in_the_place_of_another_is_another_project(db: Db) -> None:
    first = ensure_project(db, clone("/tmp/work", SHOP, "inode 1"))
    second = ensure_project(db, clone("/tmp/work", "github.com/ada/blog", "inode 2"))
    assert second != first
    assert paths(db) == [SHOP, "/tmp/work"]
    assert find_project_id(db, SHOP) == first
    assert ensure_project(db, clone("/home/shop", SHOP)) == first
    assert ensure_project(db, clone("/tmp/work", SHOP, "inode 3")) == first
    assert len(paths(db)) == 2


def test_repository_whose_remote_was_renamed_stays_the_same_project(db: Db) -> None:
    first = ensure_project(db, clone("/a/shop", SHOP))
    assert ensure_project(db, clone("/a/shop", "github.com/ada/store")) == first
    assert ensure_project(db, clone("/b/new", "github.com/ada/store")) == first
    assert ensure_project(db, clone("/c/old", SHOP)) == first


def test_clone_whose_remote_became_that_of_another_project_moves_there(db: Db) -> None:
    shop, fork = ensure_project(db, clone("/a", SHOP)), ensure_project(db, clone("/b", FORK))
    assert ensure_project(db, clone("/b", SHOP)) == shop
    assert learn_folder(db, clone("/b", SHOP)) is None
    assert find_project_id(db, FORK) == fork


def test_repository_without_a_remote_is_known_by_its_root_commit(db: Db) -> None:
    first = ensure_project(db, clone("/a", None))
    assert learn_folder(db, clone("/a", COMMIT)) is None
    second = ensure_project(db, clone("/copy", None))
    assert second != first  # git has not been asked yet
    merge = learn_folder(db, clone("/copy", COMMIT))
    assert merge is not None
    assert (merge.merged, merge.kept) == (second, first)
    assert ensure_project(db, clone("/copy", None)) == first
    assert find_project_id(db, second) == first  # the id that somebody may have noted


def test_repository_that_gets_a_remote_joins_the_clones_of_it(db: Db) -> None:
    first = ensure_project(db, clone("/a", None))
    learn_folder(db, clone("/a", COMMIT))
    other = ensure_project(db, clone("/b", SHOP))
    assert ensure_project(db, clone("/a", SHOP)) == other
    merge = learn_folder(db, clone("/a", SHOP))
    assert merge is not None
    assert (merge.merged, merge.kept) == (other, first)
    assert [match_folder(db, clone(path, SHOP)).project_id for path in ("/a", "/b", "/c")] == [first] * 3


def test_folder_that_moved_and_got_a_remote_joins_the_clones_of_it(db: Db) -> None:
    first = ensure_project(db, plain("/a", "inode 1"))
    other = ensure_project(db, clone("/b", SHOP))
    moved = clone("/moved", SHOP, "inode 1")
    assert ensure_project(db, moved) == other
    assert learn_folder(db, moved) == Merge(other, first, [])
    assert ensure_project(db, moved) == first


def test_folder_of_a_forgotten_project_is_not_learned(db: Db) -> None:
    ensure_project(db, clone("/a", None))
    db.execute("DELETE FROM projects")
    assert learn_folder(db, clone("/a", COMMIT)) is None
    assert paths(db) == []


def test_remote_that_was_removed_changes_nothing(db: Db) -> None:
    first = ensure_project(db, clone("/a", SHOP))
    ensure_project(db, clone("/b", None))
    learn_folder(db, clone("/b", COMMIT))
    assert ensure_project(db, clone("/a", None)) == first
    assert learn_folder(db, clone("/a", COMMIT)) is None
    assert match_folder(db, clone("/a", None)).project_id == first


def test_merge_moves_every_row(db: Db) -> None:
    old, new = ensure_project(db, clone("/b", None)), ensure_project(db, clone("/a", SHOP))
    db.execute(
        """
        INSERT INTO sessions (id, project_id, created_at, updated_at) VALUES ('s', :new, 1, 1);
        INSERT INTO files (source, path, project_id, hash, mtime, size, indexed_at)
        VALUES ('memory', '/a/MEMORY.md', :new, 'h', 1, 1, 1);
        INSERT INTO documents (id, source, title, project_id, kind, strategy, bytes, characters, created_at, updated_at)
        VALUES ('d', 'd', 'd', :new, 'text', 'recursive', 1, 1, 1, 1);
        """,
        {"new": new},
    )
    merge = learn_folder(db, clone("/b", SHOP))
    assert merge == Merge(new, old, [])
    for table in ("sessions", "files", "documents"):
        assert db.tuples(f"SELECT DISTINCT project_id FROM {table}") == [(old,)]
    referring = db.tuples(
        "SELECT DISTINCT m.name FROM sqlite_master AS m JOIN pragma_foreign_key_list(m.name) AS f "
        "WHERE m.type = 'table' AND f.\"table\" = 'projects' ORDER BY 1"
    )
    known = {"sessions", "memories", "documents", "files", "project_folders", "project_repositories"}
    assert {name for (name,) in referring} == known  # a new table must be merged, too


def test_projects_of_an_older_database_learn_their_repository_and_are_merged(tmp_path: Path) -> None:
    raw = apsw.Connection(str(tmp_path / "old.db"))
    raw.pragma("foreign_keys", True)
    db = Db(raw)
    migrate(db, tmp_path / "backups", bundled()[:8])
    db.execute(
        """
        INSERT INTO projects (id, path, name, created_at, updated_at)
        VALUES ('p1', '/a', 'a', 1, 1), ('p2', '/b', 'b', 2, 2);
        INSERT INTO sessions (id, project_id, project_path, created_at, updated_at)
        VALUES ('s1', 'p1', '/a', 1, 1), ('s2', 'p2', '/b', 2, 2);
        """
    )
    migrate(db, tmp_path / "backups")
    assert ensure_project(db, clone("/a")) == "p1"
    assert ensure_project(db, clone("/b")) == "p1"  # by its remote; the folder is learned by the service
    assert learn_folder(db, clone("/b")) == Merge("p2", "p1", [])
    assert db.tuples("SELECT DISTINCT project_id FROM sessions") == [("p1",)]
    assert paths(db) == ["/a"]
    raw.close()


def test_project_is_found_by_name_folder_repository_and_id(db: Db) -> None:
    shop = ensure_project(db, clone("/a/shop"))
    for text in ("shop", "SHOP", "/a/shop", SHOP, "ada/shop", shop, shop[:13]):
        assert find_project_id(db, text) == shop, text
    assert find_project_id(db, "/nothing/here") is None
    assert resolve_scope(db, "project:shop") == f"project:{shop}"
    assert resolve_scope(db, f"project:{shop}") == f"project:{shop}"
    assert resolve_scope(db, "custom:shop") == "custom:shop"


def test_name_of_no_project_is_an_error_that_lists_the_near_ones(db: Db) -> None:
    for name in ("shop", "blog", "shopping-list"):
        ensure_project(db, plain(f"/a/{name}"))
    for find in (find_project_id, resolve_project, lambda db, name: resolve_scope(db, f"project:{name}")):
        with pytest.raises(NotFound, match=r"no project 'shpo'.*shop \(/a/shop\)") as raised:
            find(db, "shpo")
        assert raised.value.data["near"][0]["name"] == "shop"
    with pytest.raises(NotFound, match="project list"):
        find_project_id(db, "zzzzzz")


def test_name_of_several_projects_is_an_error_that_lists_their_folders(db: Db) -> None:
    ids = [ensure_project(db, plain(path)) for path in ("/a/shop", "/b/shop")]
    with pytest.raises(Conflict, match=r"several projects: /a/shop \(.*\), /b/shop \(") as raised:
        find_project_id(db, "shop")
    assert [one["id"] for one in raised.value.data["candidates"]] == ids
    assert [find_project_id(db, path) for path in ("/a/shop", "/b/shop")] == ids


def test_storing_an_event_reads_nothing_with_git(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    monkeypatch.setattr("anyio.open_process", refuse)
    here = str(Path(__file__).parent)
    assert resolve_project(db, here) == resolve_project(db, here)
