"""Which project a path belongs to."""

import subprocess
from pathlib import Path

import pytest

from clankersd import projects


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    projects._roots.clear()


def git(*arguments: str, cwd: Path) -> None:
    subprocess.run(
        ["git", "-c", "user.name=me", "-c", "user.email=me@here", *arguments], cwd=cwd, check=True, capture_output=True
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "deep" / "inside").mkdir(parents=True)
    git("init", "-q", cwd=root)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=root)
    return root


def test_folder_belongs_to_the_repository_around_it(repository: Path) -> None:
    assert projects.find_project_root(str(repository / "deep" / "inside")) == str(repository)
    assert projects.find_project_root(f"{repository}/") == str(repository)


def test_worktree_belongs_to_its_repository(repository: Path, tmp_path: Path) -> None:
    git("worktree", "add", "-q", str(tmp_path / "elsewhere"), cwd=repository)
    (tmp_path / "elsewhere" / "sub").mkdir()
    assert projects.find_project_root(str(tmp_path / "elsewhere" / "sub")) == str(repository)


def test_worktree_of_a_bare_repository_belongs_to_it(repository: Path, tmp_path: Path) -> None:
    git("clone", "-q", "--bare", str(repository), str(tmp_path / "bare.git"), cwd=tmp_path)
    git("worktree", "add", "-q", str(tmp_path / "tree"), cwd=tmp_path / "bare.git")
    assert projects.find_project_root(str(tmp_path / "tree")) == str(tmp_path / "bare.git")


def test_submodule_is_a_project_of_its_own(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git("init", "-q", cwd=other)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=other)
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "sub", cwd=repository)
    assert projects.find_project_root(str(repository / "sub")) == str(repository / "sub")


@pytest.mark.parametrize("path", ["/no/such/folder", "relative/path", "/"])
def test_what_is_in_no_repository_is_a_project_itself(path: str) -> None:
    assert projects.find_project_root(path) == path


def test_git_file_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / ".git")
    assert projects.find_project_root(str(tmp_path)) == str(tmp_path)
