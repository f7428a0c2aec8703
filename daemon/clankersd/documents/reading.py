"""Files as they are given: regular ones, not too large, and nothing else."""

import hashlib
from typing import BinaryIO

from clankersd import safe_files


class Refused(Exception):
    """The document cannot be taken apart; the message says why and what may be done."""


def open_regular(path: str, largest: int) -> BinaryIO:
    """The regular file at `path`; neither a link nor a pipe leads away or holds anybody up."""
    try:
        return safe_files.open_regular(path, max_bytes=largest)
    except safe_files.SymbolicLink as error:
        raise Refused(f"{error}: name the file itself") from error
    except safe_files.TooLarge as error:
        raise Refused(f"{error}: see document_megabytes") from error
    except safe_files.UnsafeFile as error:
        raise Refused(str(error)) from error


def digest_of(file: BinaryIO) -> str:
    """The SHA-256 of what is left of a file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it is any that can be read into
