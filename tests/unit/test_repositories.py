"""Which folder a path belongs to, and which repository that is."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clankersd.projects import repositories
from clankersd.projects.repositories import (
    Folder,
    find_folder,
    find_source_remote,
    normalize_remote,
    parse_remotes,
    read_head,
    read_root_commit,
)


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    repositories._folders.clear()


def git(*arguments: str, cwd: Path) -> str:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "deep" / "inside").mkdir(parents=True)
    git("init", "-q", cwd=root)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=root)
    return root


def test_a_folder_belongs_to_the_repository_around_it(repository: Path) -> None:
    assert find_folder(str(repository / "deep" / "inside")).path == str(repository)
    assert find_folder(f"{repository}/").path == str(repository)


def test_a_worktree_belongs_to_its_repository(repository: Path, tmp_path: Path) -> None:
    git("remote", "add", "origin", "https://github.com/ada/shop.git", cwd=repository)
    git("worktree", "add", "-q", str(tmp_path / "elsewhere"), cwd=repository)
    (tmp_path / "elsewhere" / "sub").mkdir()
    assert find_folder(str(tmp_path / "elsewhere" / "sub")) == find_folder(str(repository))
    assert find_folder(str(repository)).repository == "github.com/ada/shop"


def test_a_worktree_of_a_bare_repository_belongs_to_it(repository: Path, tmp_path: Path) -> None:
    git("clone", "-q", "--bare", str(repository), str(tmp_path / "bare.git"), cwd=tmp_path)
    git("worktree", "add", "-q", str(tmp_path / "tree"), cwd=tmp_path / "bare.git")
    assert find_folder(str(tmp_path / "tree")).path == str(tmp_path / "bare.git")


def test_a_submodule_is_a_repository_of_its_own(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git("init", "-q", cwd=other)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=other)
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "sub", cwd=repository)
    git("remote", "set-url", "origin", "git@github.com:ada/library", cwd=repository / "sub")
    folder = find_folder(str(repository / "sub" / "below"))
    assert (folder.path, folder.repository) == (str(repository / "sub"), "github.com/ada/library")


def test_a_git_folder_that_is_a_link_belongs_to_the_repository_behind_it(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".git").symlink_to(repository / ".git")
    assert find_folder(str(tmp_path / "linked")) == find_folder(str(repository))


@pytest.mark.parametrize("path", ["/no/such/folder", "relative/path", "/", "/with\0zero", ""])
def test_what_is_in_no_repository_is_a_folder_itself(path: str) -> None:
    assert find_folder(path).path == (path or "/")


def test_a_directory_keeps_its_identity_when_it_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    before = find_folder(str(tmp_path / "before"))
    if before.directory is None:
        pytest.skip("this file system does not record when a directory was created")
    (tmp_path / "before").rename(tmp_path / "after")
    assert find_folder(str(tmp_path / "after")).directory == before.directory
    (tmp_path / "before").mkdir()
    repositories._folders.clear()
    assert find_folder(str(tmp_path / "before")).directory != before.directory


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/ada/shop",
        "https://github.com/ada/shop.git",
        "https://github.com/Ada/Shop.git/",
        "https://ada@github.com/ada/shop.git",
        "https://ada:secret@github.com/ada/shop.git",
        "https://x-access-token:ghp_0123456789@GitHub.com:443/ada/shop?depth=1#main",
        "http://github.com/ada/shop",
        "git://github.com:9418/ada/shop.git",
        "ssh://git@github.com/ada/shop.git",
        "ssh://git@github.com:22//ada/shop.git",
        "ssh://git@ssh.github.com:443/ada/shop.git",
        "git+ssh://git@github.com/ada/shop",
        "git@github.com:ada/shop.git",
        "git@github.com:/ada/shop",
        "github.com:ada/shop",
        "user:secret@github.com:ada/shop.git",
    ],
)
def test_a_remote_is_one_whatever_its_url(url: str) -> None:
    assert normalize_remote(url) == "github.com/ada/shop"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://git.example.org/Ada/Shop.git", "git.example.org/Ada/Shop"),
        ("https://git.example.org:8443/ada/shop", "git.example.org:8443/ada/shop"),
        ("ssh://git@git.example.org:2222/ada/shop", "git.example.org/ada/shop"),
        ("git@ssh.dev.azure.com:v3/org/team/shop", "dev.azure.com/org/team/_git/shop"),
        ("https://org@dev.azure.com/org/team/_git/shop", "dev.azure.com/org/team/_git/shop"),
        ("ssh://git@[::1]:22/ada/shop.git", "[::1]/ada/shop"),
        ("https://gitlab.com/group/sub%20group/shop.git", "gitlab.com/group/sub group/shop"),
        ("/srv/git/shop.git", None),
        ("../shop", None),
        ("file:///srv/git/shop.git", None),
        ("ext::sh -c 'touch /tmp/owned'", None),
        ("user:p@ss:word@example.org:shop", None),
        ("https://user:pass/word@example.org/shop", None),
        ("https://example.org/", None),
        ("https://example.org/" + "a" * 2000, None),
        ("https://example.org/a\x1bb", None),
        ("", None),
    ],
)
def test_normalized_remote_is_host_and_path_or_nothing(url: str, address: str | None) -> None:
    assert normalize_remote(url) == address


def test_remotes_are_read_as_git_reads_them() -> None:
    config = """
        [core]
            url = https://wrong.example/core
        [remote "upstream"]
            url = https://example.org/upstream ; a comment
        [Remote "origin"] URL = "https://example.org/a#b" # another
            url = https://example.org/second
        [remote "with \\"quotes\\""]
            fetch = +refs/heads/*
            url = https://example.org/\\
long
        [include]
            path = /etc/passwd
    """
    assert parse_remotes(config) == {
        "upstream": "https://example.org/upstream",
        "origin": "https://example.org/a#b",
        'with "quotes"': "https://example.org/long",
    }


def test_origin_identifies_a_repository_before_other_remotes(repository: Path) -> None:
    git("remote", "add", "upstream", "https://github.com/boss/shop", cwd=repository)
    assert find_folder(str(repository)).repository == "github.com/boss/shop"
    git("remote", "add", "origin", "https://github.com/ada/shop", cwd=repository)
    repositories._folders.clear()
    assert find_folder(str(repository)).repository == "github.com/ada/shop"


def test_a_clone_by_path_has_the_remote_of_its_source(repository: Path, tmp_path: Path) -> None:
    git("remote", "add", "origin", "https://github.com/ada/shop", cwd=repository)
    git("clone", "-q", str(repository), str(tmp_path / "clone"), cwd=tmp_path)
    git("clone", "-q", "--bare", f"file://{repository}", str(tmp_path / "bare.git"), cwd=tmp_path)
    git("clone", "-q", str(tmp_path / "bare.git"), str(tmp_path / "second"), cwd=tmp_path)
    for clone in (tmp_path / "clone", tmp_path / "second"):
        assert find_folder(str(clone)).repository is None  # its source is not looked at for every event
        assert find_source_remote(str(clone / ".git"), str(clone)) == "github.com/ada/shop"


def make_fifo(root: Path) -> None:
    os.mkfifo(root / ".git")


def make_endless_config(root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").symlink_to("/dev/zero")


def make_huge_config(root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text('[remote "origin"]\n\turl = https://example.org/x\n' + "#" * 300_000)


def make_circle(root: Path) -> None:
    (root / ".git").symlink_to(root / ".git")


def make_clone_of_itself(root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {root}\n')


def make_odd_link(root: Path) -> None:
    (root / ".git").write_bytes(b"gitdir: \0\xff/../../worktrees/x")


@pytest.mark.parametrize(
    "make", [make_fifo, make_endless_config, make_huge_config, make_circle, make_clone_of_itself, make_odd_link]
)
def test_a_hostile_git_folder_is_harmless(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    folder = find_folder(str(tmp_path))
    assert (folder.path, folder.repository) == (str(tmp_path), None)
    assert find_source_remote(folder.git_dir or str(tmp_path), folder.path) is None


async def root_commit(repository: Path) -> str | None:
    git_dir = str(repository / ".git")
    head = read_head(git_dir)
    return head and await read_root_commit(git_dir, head)


@pytest.mark.anyio
async def test_root_commit_is_the_first_one_in_every_copy(repository: Path, tmp_path: Path) -> None:
    root = git("rev-parse", "HEAD", cwd=repository)
    git("commit", "-q", "--allow-empty", "-m", "second", cwd=repository)
    git("clone", "-q", str(repository), str(tmp_path / "clone"), cwd=tmp_path)
    git("pack-refs", "--all", cwd=repository)
    assert await root_commit(repository) == root
    assert await root_commit(tmp_path / "clone") == root


@pytest.mark.anyio
async def test_root_commit_of_a_hostile_repository_runs_nothing(repository: Path, tmp_path: Path) -> None:
    """Neither configuration nor hooks of the repository count, not even to fetch objects that it lacks."""
    root = git("rev-parse", "HEAD", cwd=repository)
    trap = f"touch {tmp_path}/owned"
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "alias.rev-list"):
        git("config", key, trap if "alias" not in key else f"!{trap}", cwd=repository)
    git("config", "include.path", str(tmp_path / "included"), cwd=repository)
    git("config", "remote.origin.url", f"ext::sh -c '{trap}'", cwd=repository)
    git("config", "remote.origin.promisor", "true", cwd=repository)
    git("config", "extensions.partialClone", "origin", cwd=repository)
    assert find_folder(str(repository)) == Folder(
        str(repository), None, str(repository / ".git"), find_folder(str(repository)).directory
    )
    assert await root_commit(repository) == root
    (repository / ".git" / "refs" / "heads").rename(repository / ".git" / "gone")
    (repository / ".git" / "HEAD").write_text("1" * 40)  # a commit that is not there
    assert await root_commit(repository) is None
    (repository / ".git" / "HEAD").write_text("ref: refs/../../../etc/passwd")
    assert await root_commit(repository) is None
    assert not (tmp_path / "owned").exists()


@pytest.mark.anyio
async def test_root_commit_is_unknown_without_commits_or_with_only_the_last_ones(
    repository: Path, tmp_path: Path
) -> None:
    git("commit", "-q", "--allow-empty", "-m", "second", cwd=repository)
    git("clone", "-q", "--depth", "1", f"file://{repository}", str(tmp_path / "shallow"), cwd=tmp_path)
    (tmp_path / "new").mkdir()
    git("init", "-q", cwd=tmp_path / "new")
    assert await root_commit(tmp_path / "shallow") is None
    assert await root_commit(tmp_path / "new") is None
