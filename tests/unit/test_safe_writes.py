"""Writing where somebody may have planted a link."""

import os
import stat
from pathlib import Path

import pytest

from clankers_protocol.safe_writes import LinkRefused, writable_path, write_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and a file in it that nobody wants to be overwritten."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "precious").write_text("as it was")
    return tmp_path


@pytest.fixture
def repository(home: Path) -> Path:
    (home / "project" / ".git").mkdir(parents=True)
    return home / "project"


def test_file_and_its_folders_are_made(home: Path) -> None:
    write_file(home / "a" / "b" / "file", b"content", mode=0o600)
    assert (home / "a" / "b" / "file").read_bytes() == b"content"
    assert stat.S_IMODE((home / "a" / "b" / "file").stat().st_mode) == 0o600
    assert [path.name for path in (home / "a" / "b").iterdir()] == ["file"]


def test_existing_file_keeps_its_mode(home: Path) -> None:
    (home / "precious").chmod(0o640)
    write_file(home / "precious", b"new")
    assert (home / "precious").read_bytes() == b"new"
    assert stat.S_IMODE((home / "precious").stat().st_mode) == 0o640


def test_link_of_dotfiles_is_followed_and_stays(home: Path) -> None:
    (home / "dotfiles" / ".git").mkdir(parents=True)
    (home / "dotfiles" / "claude").mkdir()
    (home / ".claude").symlink_to("dotfiles/claude")
    (home / "dotfiles" / "claude" / "settings.json").write_text("{}")
    write_file(home / ".claude" / "settings.json", b"{1}")
    assert (home / ".claude").is_symlink()
    assert (home / "dotfiles" / "claude" / "settings.json").read_bytes() == b"{1}"


def test_link_of_dotfiles_is_followed_where_home_is_a_repository(home: Path) -> None:
    (home / ".git").mkdir()
    (home / "link").symlink_to(home / "precious")
    write_file(home / "link", b"new")
    assert (home / "precious").read_bytes() == b"new"


@pytest.mark.parametrize("link", ["file", "folder", "dangling"])
def test_link_in_a_repository_is_refused(home: Path, repository: Path, link: str) -> None:
    place = repository / ".claude" / "skills"
    place.parent.mkdir()
    if link == "folder":
        place.symlink_to(home)
    else:
        place.mkdir()
        (place / "precious").symlink_to(home / ("precious" if link == "file" else "new"))
    with pytest.raises(LinkRefused, match="repository"):
        write_file(place / "precious", b"overwritten")
    assert (home / "precious").read_text() == "as it was"
    assert not (home / "new").exists()


def test_no_link_below_the_given_folder_is_followed(home: Path) -> None:
    (home / "skills" / "one").mkdir(parents=True)
    (home / "skills" / "one" / "SKILL.md").symlink_to(home / "precious")
    (home / "skills" / "two").symlink_to(home)
    for path in ("one/SKILL.md", "two/precious"):
        with pytest.raises(LinkRefused, match="no link below"):
            write_file(home / "skills" / path, b"overwritten", inside=home / "skills")
    assert (home / "precious").read_text() == "as it was"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant a link as somebody else")
def test_link_of_another_user_is_refused(home: Path) -> None:
    (home / "link").symlink_to(home / "precious")
    os.chown(home / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(LinkRefused, match="another user"):
        write_file(home / "link", b"overwritten")


def test_link_in_a_folder_that_others_can_change_is_refused(home: Path) -> None:
    (home / "shared").mkdir()
    (home / "shared").chmod(0o777)
    (home / "shared" / "link").symlink_to(home / "precious")
    with pytest.raises(LinkRefused, match="others can change"):
        writable_path(home / "shared" / "link")


def test_links_in_a_circle_are_refused(home: Path) -> None:
    (home / "one").symlink_to(home / "two")
    (home / "two").symlink_to(home / "one")
    with pytest.raises(LinkRefused, match="circle"):
        write_file(home / "one", b"")


def test_what_is_no_regular_file_is_refused(home: Path) -> None:
    os.mkfifo(home / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_file(home / "pipe", b"")
