"""API keys: from the environment or from a file that is the owner's alone, and never shown."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clankersd.embedders.base import EmbedderUnavailable

ANY_PROVIDER = "CLANKERS_EMBEDDER_KEY"

_LONGEST = 16_384


@dataclass(frozen=True)
class Key:
    """A secret, and where it came from."""

    source: str
    secret: str = field(repr=False)


def find_key(
    file: str, variables: tuple[str, ...], environ: Mapping[str, str] = os.environ, own: str = ANY_PROVIDER
) -> Key | None:
    """The file's key if one is named, else that of the first variable which is set, `own` before all others."""
    if file:
        return _checked(file, _read(Path(file).expanduser()))
    for variable in (own, *variables):
        if environ.get(variable):
            return _checked(variable, environ[variable])
    return None


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not hold us
        with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
            _check_private(path, os.fstat(descriptor))
            return file.read(_LONGEST)
    except OSError as error:
        raise _wrong(f"the key file {path} cannot be read: {error.strerror}") from error


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _wrong(f"the key file {path} is not a file")
    if found.st_uid != os.geteuid():
        raise _wrong(f"the key file {path} belongs to somebody else: make one that is yours")
    if found.st_mode & 0o077:
        raise _wrong(f"the key file {path} can be read by others: chmod 600 {path}")


def _checked(source: str, text: str) -> Key:
    """A key that can stand in a header: otherwise the error about the header would show it."""
    secret = text.strip()
    if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise _wrong(f"what is in {source} is not an API key: put the key there, and nothing else")
    return Key(source, secret)


def _wrong(reason: str) -> EmbedderUnavailable:
    return EmbedderUnavailable(reason, permanent=True)
