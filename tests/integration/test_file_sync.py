"""File sync: watched files compared with a real database, changes detected on a real disk."""

import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.daemon import RawConnection, running_daemon
from helpers.waiting import eventually

from clankers_protocol.errors import InvalidParams, NotFound, StorageUnavailable
from clankersd.db import Db, Store
from clankersd.embedders.base import EmbedderSettings
from clankersd.index import generations
from clankersd.index.files import sync as files_module
from clankersd.index.files.sync import FileSync, SyncReport, WatchSettings
from clankersd.index.generations import NO_EMBEDDER, GenerationSpec
from clankersd.index.index import Index

pytestmark = pytest.mark.anyio

LONG = "".join(f"## Section {number}\n\n" + f"word{number} " * 200 + "\n" for number in range(6))
OLD = 1_600_000_000


class World:
    """A workspace, a database, and the sync between them."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.root = home / "work"
        self.memory = self.root / "memory"
        self.memory.mkdir(parents=True, exist_ok=True)
        self.store = Store(home / "test.db", home / "backups", "normal")
        self.index = Index(self.store, EmbedderSettings(provider="none"), 400, 80, ("memory",))
        chosen: dict[str, Any] = {"roots": (self.root,), "debounce_ms": 50} | settings
        self.files = FileSync(self.index, WatchSettings(**chosen))

    def write(self, name: str, text: str, age: bool = True) -> Path:
        """A file, last changed long ago unless it shall look new."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if age:
            os.utime(path, (OLD, OLD))
        return path

    async def fetch(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        return await self.store.read(lambda db: db.fetch(sql, params))

    async def paths(self) -> set[str]:
        rows = await self.fetch("SELECT path FROM files")
        return {os.path.relpath(row["path"], self.root) for row in rows}

    async def chunks(self, name: str) -> dict[int, str]:
        sql = "SELECT chunks.id, text FROM chunks JOIN files ON files.id = file_id WHERE path = :path"
        return {row["id"]: row["text"] for row in await self.fetch(sql, path=str(self.root / name))}

    async def found(self, words: str) -> set[str]:
        """The files that hold these words, or are named so."""
        sql = """
            SELECT DISTINCT path FROM chunks_fts JOIN chunks ON chunks.id = chunks_fts.rowid
            JOIN files ON files.id = file_id WHERE chunks_fts MATCH :words
        """
        assert await self.store.index_full_text() is None
        rows = await self.fetch(sql, words=f'"{words}"')
        return {os.path.relpath(row["path"], self.root) for row in rows}

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for what must come."""
        with anyio.fail_after(30):
            while not await condition():
                await anyio.sleep(0.02)

    async def until_found(self, words: str, *names: str) -> None:
        async def is_so() -> bool:
            return await self.found(words) == set(names)

        await self.until(is_so)

    async def until_resting(self) -> None:
        async def rests() -> bool:
            return not self.files.dirty and self.files.mode != "off"

        await self.until(rests)
        await anyio.sleep(0.3)  # the folders found by the first comparison are listened to a moment later


@asynccontextmanager
async def world(home: Path, **settings: Any) -> AsyncIterator[World]:
    """A world in which commits are made, and nobody watches."""
    one = World(home, **settings)
    await one.store.open()
    assert one.store.problem is None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.store.run)
            yield one
            tasks.cancel_scope.cancel()
    finally:
        await one.store.close()


@asynccontextmanager
async def watched_world(home: Path, **settings: Any) -> AsyncIterator[World]:
    """A world whose files are kept in step."""
    async with world(home, **settings) as one, anyio.create_task_group() as tasks:
        tasks.start_soon(one.store.recover)
        tasks.start_soon(one.files.run)
        yield one
        tasks.cancel_scope.cancel()


@pytest.fixture
def unprivileged(home: Path) -> Iterator[None]:
    """Not even root's eyes see everything inside the block."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(home, 65534, 65534)
    os.seteuid(65534)
    yield
    os.seteuid(0)


def git(*arguments: str, cwd: Path) -> None:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *arguments]
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


def counts(report: SyncReport) -> dict[str, int]:
    kinds = ("added", "changed", "removed", "moved", "unchanged")
    return {kind: getattr(report, kind) for kind in kinds if getattr(report, kind)}


# -- the comparison


async def test_sync_adds_changes_and_removes_files_and_touches_no_others(home: Path) -> None:
    async with world(home) as one:
        one.write("MEMORY.md", "we chose sqlite")
        one.write("memory/a.md", "the old plan")
        one.write("memory/b.md", "soon gone")
        assert counts(await one.files.sync()) == {"added": 3}
        assert counts(await one.files.sync()) == {"unchanged": 3}
        one.write("memory/a.md", "the new plan, longer")
        (one.memory / "b.md").unlink()
        assert counts(await one.files.sync()) == {"changed": 1, "removed": 1, "unchanged": 1}
        assert await one.paths() == {"MEMORY.md", "memory/a.md"}
        assert (await one.found("new plan"), await one.found("old plan")) == ({"memory/a.md"}, set())
        assert await one.found("soon") == set()


async def test_touched_file_is_unchanged_and_then_not_read_again(home: Path) -> None:
    async with world(home) as one:
        path = one.write("MEMORY.md", "text")
        await one.files.sync()
        chunks = await one.chunks("MEMORY.md")
        os.utime(path, (OLD + 60, OLD + 60))
        assert counts(await one.files.sync()) == {"unchanged": 1}
        assert await one.chunks("MEMORY.md") == chunks
        assert (await one.fetch("SELECT mtime FROM files")) == [{"mtime": (OLD + 60) * 1000}]


async def test_older_file_that_is_restored_is_a_change(home: Path) -> None:
    async with world(home) as one:
        one.write("MEMORY.md", "newer", age=False)
        await one.files.sync()
        one.write("MEMORY.md", "older")
        assert counts(await one.files.sync()) == {"changed": 1}
        assert await one.found("older") == {"MEMORY.md"}


async def test_change_with_equal_mtime_and_size_is_detected(home: Path) -> None:
    async with world(home) as one:
        path = one.write("MEMORY.md", "first", age=False)
        await one.files.sync()
        before = path.stat()
        path.write_text("later")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert counts(await one.files.sync()) == {"changed": 1}


async def test_changed_file_touches_only_its_own_chunks(home: Path) -> None:
    async with world(home) as one:
        one.write("memory/a.md", LONG)
        one.write("memory/b.md", LONG)
        await one.files.sync()
        a, b = await one.chunks("memory/a.md"), await one.chunks("memory/b.md")
        one.write("memory/a.md", LONG.replace("word3", "other"), age=False)
        await one.files.sync()
        assert await one.chunks("memory/b.md") == b
        after = await one.chunks("memory/a.md")
        assert len(after) == len(a) >= 6
        kept = {chunk for chunk in a if after.get(chunk) == a[chunk]}
        assert kept == {chunk for chunk, text in a.items() if "word3" not in text}


async def test_chunk_moves_when_lines_are_inserted_before_it(home: Path) -> None:
    async with world(home) as one:
        one.write("memory/a.md", LONG)
        await one.files.sync()
        before = await one.chunks("memory/a.md")
        one.write("memory/a.md", "# New\n\n" + "begin " * 200 + "\n" + LONG)
        await one.files.sync()
        after = await one.chunks("memory/a.md")
        assert set(list(before)[1:]) < set(after)
        text = (one.memory / "a.md").read_text()
        for row in await one.fetch("SELECT text, start_line, start_offset, end_offset FROM chunks"):
            assert text[row["start_offset"] : row["end_offset"]] == row["text"]
            assert text.count("\n", 0, row["start_offset"]) + 1 == row["start_line"]


async def test_moved_file_keeps_its_chunks_and_is_found_by_its_new_name(home: Path) -> None:
    async with world(home) as one:
        path = one.write("memory/apples.md", LONG)
        await one.files.sync()
        chunks = await one.chunks("memory/apples.md")
        (one.memory / "deep").mkdir()
        path.rename(one.memory / "deep/pears.md")
        assert counts(await one.files.sync()) == {"moved": 1}
        assert await one.chunks("memory/deep/pears.md") == chunks
        assert (await one.found("apples"), await one.found("pears")) == (set(), {"memory/deep/pears.md"})


async def test_copy_at_the_old_path_of_a_moved_file_is_another_file(home: Path) -> None:
    async with world(home) as one:
        path = one.write("memory/a.md", LONG)
        await one.files.sync()
        path.rename(one.memory / "b.md")
        await one.files.sync()
        shutil.copy(one.memory / "b.md", path)
        report = await one.files.sync()
        assert (counts(report), report.failed) == ({"added": 1, "unchanged": 1}, [])
        assert len(await one.chunks("memory/a.md")) == len(await one.chunks("memory/b.md"))


async def test_equal_files_can_move_together(home: Path) -> None:
    async with world(home) as one:
        for name in "ab":
            one.write(f"memory/{name}.md", "the same")
        await one.files.sync()
        one.memory.rename(one.root / "aside")
        one.memory.mkdir()
        (one.root / "aside").rename(one.memory / "deep")
        assert counts(await one.files.sync()) == {"moved": 2}


async def test_file_names_and_dates_are_searchable_and_date_the_chunks(home: Path) -> None:
    async with world(home) as one:
        one.write("memory/2026-11-16.md", "we met")
        one.write("memory/apiDesign.md", "we thought")
        await one.files.sync()
        for words in ("2026-11-16", "November", "Monday"):
            assert await one.found(words) == {"memory/2026-11-16.md"}
        assert await one.found("design") == {"memory/apiDesign.md"}
        moments = await one.fetch("SELECT created_at FROM chunks ORDER BY created_at")
        day = datetime(2026, 11, 16).astimezone()
        assert [row["created_at"] for row in moments] == [OLD * 1000, day.timestamp() * 1000]


async def test_file_belongs_to_its_workspaces_project(home: Path) -> None:
    async with world(home, extra=(home / "notes",)) as one:
        one.write("MEMORY.md", "text")
        (home / "notes").mkdir()
        (home / "notes/a.md").write_text("other text")
        await one.files.sync()
        rows = await one.fetch("SELECT p.path, p.name FROM files LEFT JOIN projects p ON p.id = project_id ORDER BY 1")
        assert rows == [{"path": None, "name": None}, {"path": str(one.root), "name": "work"}]
        await one.files.apply_settings(WatchSettings(roots=(one.root,), extra=(one.root / "MEMORY.md",)))
        await one.files.sync()
        await one.files.apply_settings(WatchSettings(extra=(one.root / "MEMORY.md",)))
        assert counts(await one.files.sync()) == {"changed": 1}
        assert await one.fetch("SELECT project_id FROM files") == [{"project_id": None}]


@pytest.mark.parametrize("kind", ["subfolder", "worktree"])
async def test_files_below_a_repository_or_in_its_worktree_belong_to_the_repositorys_project(
    home: Path, kind: str
) -> None:
    repository = home / "repository"
    repository.mkdir()
    git("init", "-q", cwd=repository)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=repository)
    workspace = repository / "packages" / "app"
    if kind == "worktree":
        workspace = home / "worktree"
        git("worktree", "add", "-q", str(workspace), cwd=repository)
    async with world(home, roots=(workspace,)) as one:
        (workspace / "memory").mkdir(parents=True)
        (workspace / "memory" / "a.md").write_text("the cache is warmed at night")
        await one.files.sync()
        rows = await one.fetch("SELECT p.path, p.name FROM files JOIN projects p ON p.id = project_id")
        assert rows == [{"path": str(repository), "name": "repository"}]
        assert await one.fetch("SELECT count(*) AS count FROM projects") == [{"count": 1}]


async def test_project_that_exists_keeps_its_name_when_its_files_are_indexed(home: Path) -> None:
    async with world(home) as one:
        row = {"path": str(one.root), "now": 1}
        sql = "INSERT INTO projects (id, path, name, created_at, updated_at) VALUES ('p', :path, 'Named', :now, :now)"
        await one.store.write(lambda db: db.execute(sql, row))
        one.write("MEMORY.md", "text")
        await one.files.sync()
        rows = await one.fetch("SELECT p.id, p.name FROM files JOIN projects p ON p.id = project_id")
        assert rows == [{"id": "p", "name": "Named"}]


async def test_file_that_cannot_be_indexed_is_reported_and_stops_nothing(home: Path) -> None:
    async with world(home) as one:
        one.write("memory/good.md", "good")
        (one.memory / "binary.md").write_bytes(b"\x00\x01")
        with (one.memory / "large.md").open("wb") as file:
            file.truncate(11 * 1024 * 1024)
        report = await one.files.sync()
        assert await one.paths() == {"memory/good.md"}
        assert sorted(report.failed) == [
            f"{one.memory}/binary.md: it is not text: it holds a zero byte",
            f"{one.memory}/large.md: it is larger than 10 MiB",
        ]
        assert one.files.problem == f"2 not indexed: {report.failed[0]}"
        (one.memory / "good.md").write_bytes(b"now\x00binary")
        assert counts(await one.files.sync()) == {"removed": 1}
        assert await one.found("good") == set()


@pytest.mark.usefixtures("unprivileged")
async def test_file_that_cannot_be_read_is_reported_and_stays_indexed(home: Path) -> None:
    async with world(home) as one:
        path = one.write("memory/a.md", "first")
        inside = one.write("memory/closed/b.md", "second")
        await one.files.sync()
        one.write("memory/a.md", "first, changed")
        path.chmod(0)
        inside.parent.chmod(0)
        report = await one.files.sync()
        assert counts(report) == {}
        assert sorted(report.failed) == [f"{path}: Permission denied", f"{inside.parent}: Permission denied"]
        assert await one.paths() == {"memory/a.md", "memory/closed/b.md"}
        path.chmod(0o600)
        inside.parent.chmod(0o700)
        assert counts(await one.files.sync()) == {"changed": 1, "unchanged": 1}


async def test_watched_path_can_be_added_and_removed(home: Path) -> None:
    notes = home / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("noted")
    async with world(home) as one:
        assert counts(await one.files.add(notes)) == {"added": 1}
        assert one.files.watched == [str(one.root), str(notes)]
        assert counts(await one.files.remove(notes)) == {"removed": 1}
        with pytest.raises(NotFound):
            await one.files.remove(notes)
        for wrong in (home / "nowhere", Path("notes"), home / "test.db"):
            with pytest.raises(InvalidParams, match="path") as refused:
                await one.files.add(wrong)
            assert refused.value.data == {"field": "path"}


async def test_sync_is_shared_by_concurrent_callers(home: Path) -> None:
    async with world(home) as one:
        for number in range(5):
            one.write(f"memory/{number}.md", f"text {number}")
        reports: list[SyncReport] = []

        async def sync() -> None:
            reports.append(await one.files.sync())

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(sync)
        assert [report is reports[0] for report in reports] == [True] * 5
        assert counts(reports[0]) == {"added": 5}


async def test_sync_called_after_the_scan_runs_again(home: Path) -> None:
    async with world(home) as one:
        for number in range(5):
            one.write(f"memory/{number}.md", f"text {number}")
        late: list[SyncReport] = []

        async def come_late(done: int, _total: int | None, _note: str | None) -> None:
            async def sync() -> None:
                late.append(await one.files.sync())

            if done == 2:
                one.write("memory/late.md", "late")
                tasks.start_soon(sync)
                tasks.start_soon(sync)
                await anyio.sleep(0.05)

        async with anyio.create_task_group() as tasks:
            assert counts(await one.files.sync(come_late)) == {"added": 5}
        assert [counts(report) for report in late] == [{"added": 1, "unchanged": 5}] * 2
        assert late[0] is late[1]


async def test_rechunk_chunks_every_file_for_the_generation_being_built(home: Path) -> None:
    async with world(home) as one:
        one.write("memory/a.md", LONG)
        await one.files.sync()
        live = await one.chunks("memory/a.md")
        wanted = GenerationSpec(NO_EMBEDDER, 40, 8, ("memory",))
        one.index.building = await one.store.write(lambda db: generations.create(db, wanted, "building", 2))
        await one.files.rechunk()
        per_chunking = "SELECT chunking, count(*) AS chunks FROM chunks GROUP BY chunking ORDER BY chunking"
        first, second = await one.fetch(per_chunking)
        assert first["chunks"] == len(live) < second["chunks"]
        assert set(live) < set(await one.chunks("memory/a.md"))
        assert counts(await one.files.sync()) == {"unchanged": 1}
        one.write("memory/b.md", LONG)
        await one.files.sync()
        again = await one.fetch(per_chunking)
        assert [row["chunks"] for row in again] == [2 * first["chunks"], 2 * second["chunks"]]


async def test_sync_stopped_by_a_storage_error_is_completed_by_the_next(home: Path) -> None:
    async with world(home) as one:
        for number in range(10):
            one.write(f"memory/{number}.md", f"text {number}")

        async def lose_database(done: int, _total: int | None, _note: str | None) -> None:
            if done == 5:
                (home / "test.db").unlink()

        with pytest.raises(StorageUnavailable):
            await one.files.sync(lose_database)
        assert one.files.dirty
        await one.store.create_if_missing()
        assert counts(await one.files.sync()) == {"added": 10}
        assert not one.files.dirty


# -- the service


@pytest.fixture(params=[False, True], ids=["watching", "polling"])
def poll(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(files_module, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(files_module, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(files_module, "RETRY_SECONDS", 0.2)
    return bool(request.param)


async def test_service_indexes_existing_files_at_the_start(home: Path, poll: bool) -> None:
    World(home).write("MEMORY.md", "from before")
    async with watched_world(home, poll=poll) as one:
        await one.until_found("before", "MEMORY.md")
        await one.until_resting()
        assert one.files.mode == ("polling" if poll else "watching")
        assert one.files.problem is None
        assert one.files.last_sync is not None


async def test_service_detects_every_kind_of_change(home: Path, poll: bool) -> None:
    async with watched_world(home, poll=poll) as one:
        await one.until_resting()
        one.write("memory/a.md", "created")
        await one.until_found("created", "memory/a.md")
        one.write("memory/a.md", "modified", age=False)
        await one.until_found("modified", "memory/a.md")
        (one.memory / "a.md").rename(one.memory / "renamed.md")
        await one.until_found("modified", "memory/renamed.md")
        one.write("memory/new/deep/b.md", "in a new folder")
        await one.until_found("folder", "memory/new/deep/b.md")
        await one.until_resting()
        one.write("memory/new/deep/c.md", "later in that folder")
        await one.until_found("later", "memory/new/deep/c.md")
        (one.memory / "renamed.md").unlink()
        await one.until_found("modified")
        shutil.rmtree(one.memory)
        await one.until_found("folder")
        one.write("memory/a.md", "put back")
        await one.until_found("put", "memory/a.md")


async def test_service_detects_a_file_saved_by_renaming(home: Path, poll: bool) -> None:
    single = home / "notes.md"
    single.write_text("first")
    async with watched_world(home, roots=(), extra=(single,), poll=poll) as one:
        for words in ("first", "second", "third"):
            (home / ".notes.swp").write_text(words)
            (home / ".notes.swp").rename(single)
            await one.until_found(words, "../notes.md")


async def test_service_detects_a_workspace_created_later_and_its_removal(home: Path, poll: bool) -> None:
    later = home / "later"
    async with watched_world(home, roots=(later,), poll=poll) as one:
        await one.until_resting()
        for words in ("first", "again"):
            (later / "memory").mkdir(parents=True)
            (later / "memory/a.md").write_text(words)
            await one.until_found(words, "../later/memory/a.md")
            (later / "MEMORY.md").write_text(f"{words} at the top")
            await one.until_found("top", "../later/MEMORY.md")
            shutil.rmtree(later)
            await one.until_found(words)


async def test_service_applies_added_paths_and_changed_settings(home: Path, poll: bool) -> None:
    notes = home / "notes"
    notes.mkdir()
    async with watched_world(home, roots=(), poll=poll) as one:
        assert one.files.mode == "off"
        await one.files.add(notes)
        await one.until_resting()
        (notes / "a.md").write_text("noted")
        await one.until_found("noted", "../notes/a.md")
        one.write("MEMORY.md", "remembered")
        await one.files.apply_settings(WatchSettings(roots=(one.root,), debounce_ms=50, poll=poll))
        await one.until_found("remembered", "MEMORY.md")
        await one.files.remove(notes)
        await one.until_found("noted")


async def test_service_waits_until_a_file_is_quiet(home: Path) -> None:
    async with watched_world(home, debounce_ms=1000) as one:
        await one.until_resting()
        await anyio.sleep(1)
        for number in range(50):
            one.write("memory/a.md", f"version {number}", age=False)
            await anyio.sleep(0.02)
        assert one.files.dirty
        assert await one.paths() == set()
        await one.until_found("version 49", "memory/a.md")
        await one.until_resting()


async def test_service_ignores_unrelated_changes_in_a_workspace(home: Path) -> None:
    async with watched_world(home) as one:
        await one.until_resting()
        before = one.files.last_sync
        for number in range(50):
            one.write(f"file{number}.md", "no memory")
            one.write(f"src/{number}/MEMORY.md", "no memory either")
            one.write(f"memory/picture{number}.png", "")
            one.write(f"memory/node_modules/{number}.md", "ignored")
        await anyio.sleep(0.5)
        assert one.files.last_sync == before
        assert not one.files.dirty


async def test_service_polls_when_the_system_reports_no_changes_and_says_so(
    home: Path, poll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise OSError("OS file watch limit reached")

    with monkeypatch.context() as limits:
        limits.setattr("watchfiles._rust_notify.RustNotify", exhausted)
        async with watched_world(home, poll=poll) as one:
            await one.until_resting()
            one.write("MEMORY.md", "found all the same")
            await one.until_found("same", "MEMORY.md")
            assert one.files.mode == "polling"
            assert poll or "watch limit reached" in (one.files.problem or "")
            limits.undo()
            await one.files.apply_settings(WatchSettings(roots=(one.root,), debounce_ms=50))
            await one.until_resting()
            assert (one.files.mode, one.files.problem) == ("watching", None)


async def test_service_compares_again_after_the_interval(home: Path, poll: bool) -> None:
    async with watched_world(home, poll=poll, sync_minutes=0.002) as one:
        await one.until_resting()
        first = one.files.last_sync

        async def compared_again() -> bool:
            return one.files.last_sync != first

        await one.until(compared_again)


async def test_service_survives_a_storage_outage(home: Path, poll: bool) -> None:
    async with watched_world(home, poll=poll) as one:
        one.write("memory/a.md", "kept")
        await one.until_found("kept", "memory/a.md")
        await one.until_resting()
        (home / "test.db").unlink()
        one.write("memory/b.md", "written meanwhile")

        async def is_told() -> bool:
            return one.files.dirty and "the file sync is waiting" in (one.files.problem or "")

        await one.until(is_told)
        await one.store.create_if_missing()
        await one.until_found("meanwhile", "memory/b.md")
        await one.until_found("kept", "memory/a.md")
        await one.until_resting()
        assert one.files.problem is None


async def test_service_fills_a_replaced_database(home: Path) -> None:
    async with watched_world(home) as one:
        one.write("memory/a.md", "text")
        await one.until_found("text", "memory/a.md")
        await one.until_resting()

        def forget(db: Db) -> None:
            db.execute("DELETE FROM files")

        await one.store.write(forget)
        for told in one.store.on_open:  # what the store does when it opens a file
            await one.store.run_exclusive(told)
        await one.until_found("text", "memory/a.md")


# -- a daemon


def status_when(connection: RawConnection, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    for _ in range(600):
        status = dict(connection.call("index.status")["files"])
        if condition(status):
            return status
        time.sleep(0.05)
    raise AssertionError(f"it did not come to be: {status}")


async def test_daemon_syncs_files_and_reports_their_status(home: Path) -> None:
    root, notes = home / "work", home / "notes"
    for folder in (root / "memory", notes):
        folder.mkdir(parents=True)
    (root / "MEMORY.md").write_text("there from the start")
    (notes / "a.md").write_text("a note")
    settings = f'watch_roots = ["{root}"]\nwatch_debounce_ms = 50\nembedder = "none"\n'
    (home / "clankers.toml").write_text(settings)
    with running_daemon(home) as daemon, daemon.connect() as connection:
        status = status_when(connection, lambda status: status["files"] == 1 and not status["dirty"])
        assert (status["mode"], status["problem"], status["watched"]) == ("watching", None, [str(root)])
        assert connection.call("index.add", path=str(notes))["failed"] == []
        assert connection.call("index.status")["files"]["files"] == 2
        (root / "memory/b.md").write_text("noticed")
        status_when(connection, lambda status: status["files"] == 3)
        connection.call("index.remove", path=str(notes))
        assert connection.call("index.status")["files"]["files"] == 2
        refused = connection.request("index.add", {"path": "notes"})["error"]
        assert (refused["code"], refused["data"]) == (InvalidParams.code, {"field": "path"})
        assert connection.call("index.sync")["unchanged"] == 2
        assert daemon.stop() == 0
    with running_daemon(home) as daemon, daemon.connect() as connection:
        assert connection.call("index.sync")["unchanged"] == 2


# --- Projects


def test_memory_files_of_a_project_are_indexed_when_a_session_runs_there(home: Path, tmp_path: Path) -> None:
    project, ignored = tmp_path / "shop", tmp_path / "private"
    for folder in (project, ignored):
        (folder / "memory").mkdir(parents=True)
        (folder / "MEMORY.md").write_text(f"# Notes\n\nThe quartz of {folder.name}.\n")
        (folder / "memory" / "deploy.md").write_text("We deploy feldspar.\n")
    (project / "README.md").write_text("quartz\n")
    (ignored / ".clankers-ignore").touch()
    with running_daemon(home) as daemon, daemon.connect() as connection:

        def files() -> list[str]:
            hits = connection.call("search", query="quartz feldspar", sources=["memory"], mode="keyword")["hits"]
            return sorted(hit["ref"]["path"] for hit in hits)

        for number, folder in enumerate((ignored, project)):
            connection.call("upsertSession", session={"id": f"s{number}", "projectPath": str(folder)})
        found = [str(project / "MEMORY.md"), str(project / "memory" / "deploy.md")]
        eventually(lambda: files() == found, "the project's files are indexed")
        (project / "memory" / "deploy.md").unlink()
        eventually(lambda: files() == found[:1], "a removed file is gone")
        connection.call("daemon.configure", key="watch_projects", value=False)
        eventually(lambda: files() == [], "nothing is watched")
