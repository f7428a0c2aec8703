"""Watched files: which are indexed, how a file is read, and which of its chunks change."""

import os
from datetime import datetime
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clankersd.db.connection import Db
from clankersd.db.migrations import migrate
from clankersd.index.chunks import Chunking, Owner, chunk_text, replace_chunks
from clankersd.index.files.reconcile import MAX_FILE_BYTES, NotIndexable, date_in_name, file_header, load_file
from clankersd.index.files.scan import Scan, WatchSettings, scan

CHUNKING = Chunking(1, 16, 0)


def write(path: Path, text: str = "text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(found: Scan) -> set[str]:
    return {file.name for file in found.files.values()}


def of_root(root: Path, *, agent_files: bool = False) -> Scan:
    return scan(WatchSettings(roots=(root,), agent_files=agent_files), [])


def of_extra(*paths: Path) -> Scan:
    return scan(WatchSettings(extra=paths), [])


# -- which files


def test_workspace_scan_finds_memory_files_only(tmp_path: Path) -> None:
    for name in ("MEMORY.md", "memory.md", "memory/a.md", "memory/deep/er/b.md", "memory/c.txt", "README.md"):
        write(tmp_path / name)
    write(tmp_path / "docs/memory/d.md")
    found = of_root(tmp_path)
    assert names(found) == {"MEMORY.md", "memory.md", "memory/a.md", "memory/deep/er/b.md"}
    assert {file.project and file.project.path for file in found.files.values()} == {str(tmp_path)}


def test_agent_files_are_indexed_only_when_configured(tmp_path: Path) -> None:
    write(tmp_path / "CLAUDE.md")
    write(tmp_path / "AGENTS.md")
    assert names(of_root(tmp_path)) == set()
    assert names(of_root(tmp_path, agent_files=True)) == {"CLAUDE.md", "AGENTS.md"}


def test_extra_path_is_a_markdown_file_or_a_folder_and_has_no_project(tmp_path: Path) -> None:
    write(tmp_path / "notes/a.md")
    write(tmp_path / "notes/deep/b.md")
    single = write(tmp_path / "single.md")
    text = write(tmp_path / "plain.txt")
    found = of_extra(tmp_path / "notes", single, text)
    assert names(found) == {"a.md", "deep/b.md", "single.md"}
    assert {file.project for file in found.files.values()} == {None}
    assert found.failed == [f"{text}: neither a folder nor a markdown file"]


def test_relative_path_is_reported_as_a_failure(tmp_path: Path) -> None:
    found = scan(WatchSettings(roots=(Path("work"),), extra=(Path("notes"),)), [])
    assert found.failed == ["work: the path must begin with / or ~", "notes: the path must begin with / or ~"]


def test_tilde_means_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "notes/a.md")
    assert names(of_extra(Path("~/notes"))) == {"a.md"}


@pytest.mark.parametrize("folder", [".git", "node_modules", ".pnpm-store", ".venv", "venv", ".tox", "__pycache__"])
def test_ignored_folders_are_neither_read_nor_watched(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder / "deep/a.md")
    write(tmp_path / "deep" / folder / "a.md")
    found = of_extra(tmp_path)
    assert names(found) == set()
    assert not any(folder in Path(watched).parts for watched in found.folders)


def test_link_that_leaves_the_root_is_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside/secret.md")
    memory = tmp_path / "root/memory"
    write(memory / "a.md")
    (memory / "link.md").symlink_to(outside)
    (memory / "folder").symlink_to(outside.parent)
    (tmp_path / "root/MEMORY.md").symlink_to(outside)
    (memory / "broken.md").symlink_to("nowhere.md")
    (memory / "loop.md").symlink_to("loop.md")
    found = of_root(tmp_path / "root")
    assert names(found) == {"memory/a.md"}
    assert str(outside.parent) not in found.folders


def test_linked_memory_folder_is_not_entered(tmp_path: Path) -> None:
    write(tmp_path / "outside/a.md")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/memory").symlink_to(tmp_path / "outside")
    assert names(of_root(tmp_path / "root")) == set()


def test_link_inside_the_root_is_followed_and_its_target_watched(tmp_path: Path) -> None:
    write(tmp_path / "docs/guide.md")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/guide.md").symlink_to("../docs/guide.md")
    found = of_root(tmp_path)
    assert names(found) == {"memory/guide.md"}
    assert found.folders[str(tmp_path / "docs")] == frozenset({"guide.md"})


def test_file_with_two_names_is_indexed_once(tmp_path: Path) -> None:
    """Which is also what MEMORY.md and memory.md are where case does not count."""
    os.link(write(tmp_path / "MEMORY.md"), tmp_path / "memory.md")
    (tmp_path / "AGENTS.md").symlink_to("MEMORY.md")
    assert names(of_root(tmp_path, agent_files=True)) == {"MEMORY.md"}


def test_file_below_two_paths_belongs_to_the_workspace(tmp_path: Path) -> None:
    write(tmp_path / "memory/a.md")
    found = scan(WatchSettings(roots=(tmp_path,), extra=(tmp_path / "memory",)), [str(tmp_path)])
    [file] = found.files.values()
    assert file.project
    assert (file.name, file.project.path) == ("memory/a.md", str(tmp_path))


def test_scan_finds_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "folder.md").mkdir()
    write(tmp_path / "folder.md/a.md")
    assert names(of_extra(tmp_path)) == {"folder.md/a.md"}


def test_file_name_that_is_not_utf8_is_reported_and_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.md")
    write(tmp_path / os.fsdecode(b"\xff.md"))
    found = of_extra(tmp_path)
    assert names(found) == {"a.md"}
    assert found.failed == [f"{tmp_path}/?.md: its name is not UTF-8"]


def test_workspace_watch_covers_relevant_names_only(tmp_path: Path) -> None:
    write(tmp_path / "src/deep/code.py")
    write(tmp_path / "memory/deep/a.md")
    assert of_root(tmp_path).folders == {
        str(tmp_path): {"MEMORY.md", "memory.md", "memory"},
        str(tmp_path / "memory"): None,
        str(tmp_path / "memory/deep"): None,
    }


def test_missing_workspace_is_no_failure(tmp_path: Path) -> None:
    found = of_root(tmp_path / "later")
    assert (found.files, found.failed) == ({}, [])
    assert found.tops == {str(tmp_path / "later"): None}


# -- how it is read


def loaded_text(path: Path) -> str:
    found = next(iter(of_extra(path).files.values()))
    return "".join(piece.text for piece in load_file(found, [Chunking(1, 400, 0)], None).chunked[0].chunks)


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(b"\xef\xbb\xbfcaf\xe9 and more\n")
    assert loaded_text(path) == "caf� and more\n"


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\x89PNG\x00", "not text"), (b"a" * (MAX_FILE_BYTES + 1), "larger than 10 MiB")]
)
def test_file_that_is_binary_or_too_large_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(content)
    with pytest.raises(NotIndexable, match=reason):
        loaded_text(path)


def test_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    path = write(tmp_path / "a.md")
    found = next(iter(of_extra(path).files.values()))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(NotIndexable, match="regular"):
        load_file(found, [CHUNKING], None)


def test_date_is_read_from_the_file_name() -> None:
    assert date_in_name("memory/2026-11-16.md") == datetime(2026, 11, 16).astimezone()
    assert date_in_name("memory/2026-11-16-planning.md") == datetime(2026, 11, 16).astimezone()
    for name in ("2026-13-45.md", "12026-11-16.md", "notes.md", "2026-11-16/notes.md", "0000-00-00.md"):
        assert date_in_name(name) is None


def test_file_header_holds_the_name_its_words_and_the_date() -> None:
    name = "memory/2026-11-16-dbMigration.md"
    assert file_header(name, date_in_name(name)) == f"{name} db migration Monday 16 November 2026"
    assert file_header("MEMORY.md", None) == "MEMORY.md"


# -- which chunks change

PARAGRAPHS = st.lists(st.sampled_from(["alpha " * 9, "beta " * 9, "gamma " * 9, "delta " * 9]), max_size=8)
COLUMNS = "chunk_id, position, start_line, end_line, start_offset, end_offset, hash, text, header, created_at"


def empty_index() -> Db:
    raw = apsw.Connection(":memory:")
    raw.pragma("foreign_keys", True)
    db = Db(raw)
    migrate(db, Path("/nonexistent"))
    db.execute(
        "INSERT INTO files (id, source, path, hash, mtime, size, indexed_at) VALUES (1, 'memory', 'a', '', 0, 0, 0)"
    )
    return db


def replace_with(db: Db, paragraphs: list[str], path: str = "a") -> bool:
    with db.transaction():
        return replace_inside(db, paragraphs, path)


def replace_inside(db: Db, paragraphs: list[str], path: str) -> bool:
    return replace_chunks(
        db, Owner("file_id", 1, "memory", path, 7, header=path), chunk_text("\n".join(paragraphs), CHUNKING)
    )


@given(st.lists(st.tuples(PARAGRAPHS, st.sampled_from("ab")), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_chunks_after_any_changes_are_those_of_the_last_text(versions: list[tuple[list[str], str]]) -> None:
    changed, fresh = empty_index(), empty_index()
    for paragraphs, path in versions:
        replace_with(changed, paragraphs, path)
    replace_with(fresh, *versions[-1])
    rows = f"SELECT {COLUMNS} FROM chunks ORDER BY position"
    assert changed.fetch(rows) == fresh.fetch(rows)
    changed.execute("INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('integrity-check', 1)")
    stored = changed.fetch("SELECT * FROM chunks ORDER BY id")
    replace_with(changed, *versions[-1])
    assert changed.fetch("SELECT * FROM chunks ORDER BY id") == stored


@given(st.lists(st.tuples(PARAGRAPHS, st.sampled_from("ab")), min_size=1, max_size=4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_full_text_after_changes_in_one_transaction_is_that_of_the_last(
    versions: list[tuple[list[str], str]], deleted: bool
) -> None:
    db = empty_index()
    with db.transaction():
        for paragraphs, path in versions:
            replace_inside(db, paragraphs, path)
        if deleted:
            db.execute("DELETE FROM files")
        db.index_full_text()
    db.execute("INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('integrity-check', 1)")
    assert db.value("SELECT count(*) FROM chunks_fts_docsize") == db.value("SELECT count(*) FROM chunks")


@given(PARAGRAPHS, PARAGRAPHS)
@settings(max_examples=60, deadline=None)
def test_chunk_with_unchanged_text_keeps_its_row(before: list[str], after: list[str]) -> None:
    db = empty_index()
    replace_with(db, before)
    old = {row["id"]: row["text"] for row in db.fetch("SELECT id, text FROM chunks")}
    replace_with(db, after)
    new = {row["id"]: row["text"] for row in db.fetch("SELECT id, text FROM chunks")}
    for text in {*old.values(), *new.values()}:
        had, has = (sum(value == text for value in rows.values()) for rows in (old, new))
        assert sum(old.get(chunk) == text for chunk, value in new.items() if value == text) == min(had, has)
