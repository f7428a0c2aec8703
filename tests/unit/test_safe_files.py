"""Reading of planted, replaced and foreign files."""

import os
import socket
from pathlib import Path

import pytest

from clankersd.safe_files import SymbolicLink, TooLarge, UnsafeFile, open_regular, printable_name, read_regular


def test_read_regular_returns_all_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert read_regular(tmp_path / "file", max_bytes=7, owner=os.geteuid(), single_link=True) == b"content"


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "pipe", "socket"])
def test_open_regular_refuses_what_is_no_regular_file_and_does_not_block(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "planted"
    (tmp_path / "target").touch()
    if kind == "link":
        path.symlink_to(tmp_path / "target")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    with pytest.raises(UnsafeFile, match="symbolic link" if "link" in kind or kind == "dangling" else "regular file"):
        open_regular(path)


def test_open_regular_refuses_a_link_that_replaces_the_file_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "file").touch()
    before = os.lstat(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    monkeypatch.setattr(os, "lstat", lambda path: before)
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "link")


def test_open_regular_refuses_another_users_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnsafeFile, match="another user"):
        open_regular(tmp_path / "file", owner=os.geteuid() + 1)


def test_open_regular_refuses_a_file_with_further_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.link(tmp_path / "file", tmp_path / "second")
    with pytest.raises(UnsafeFile, match="2 hard links"):
        open_regular(tmp_path / "file", single_link=True)


def test_read_regular_refuses_a_file_above_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    with pytest.raises(TooLarge, match="7 bytes"):
        read_regular(tmp_path / "file", max_bytes=7)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_read_regular_refuses_a_file_with_more_than_it_claims() -> None:
    assert Path("/proc/self/environ").stat().st_size == 0
    with pytest.raises(TooLarge):
        read_regular("/proc/self/environ", max_bytes=3)


def test_symbolic_link_is_told_apart_for_callers_that_give_advice(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(SymbolicLink):
        open_regular(tmp_path / "link")


def test_printable_name_escapes_bytes_that_are_no_unicode() -> None:
    assert printable_name(os.fsdecode(b"/spool/\xff\xfeevent.json")) == r"\xff\xfeevent.json"
