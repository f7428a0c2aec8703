"""Files that documents are read from."""

import os
from pathlib import Path

import pytest

from clankersd.documents.files import ExtractionError, open_regular


def test_file_that_grows_while_it_is_read_ends_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"abc\ndef")
    with open_regular(str(path), 1000) as file:
        assert file.read(3) == b"abc"
        with path.open("ab") as more:
            more.write(b"x" * 100_000)
        assert file.read() == b"\ndef"
        assert file.seek(0, os.SEEK_END) == 7
        file.seek(0)
        assert list(file) == [b"abc\n", b"def"]


def test_empty_file_on_a_disk_is_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with open_regular(str(tmp_path / "empty"), 1000) as file:
        assert file.read() == b""


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="the kernel shows no files here")
def test_file_generated_by_the_kernel_is_rejected() -> None:
    with pytest.raises(ExtractionError, match=r"the kernel generates it \(proc\)"):
        open_regular("/proc/self/status", 1000)
