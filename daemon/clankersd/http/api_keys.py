"""API keys, read from the environment or from a file that only its owner can read, and never shown."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clankersd.http.responses import ServiceUnavailable
from clankersd.safe_files import UnsafeFile, open_regular

KEY_VARIABLE = "CLANKERS_EMBEDDER_KEY"
"""The environment variable with the embedder's key, whichever provider is configured."""

FALLBACK_KEY_VARIABLE = "CLANKERS_EMBEDDER_FALLBACK_KEY"
"""The environment variable with the key of the fallback embedder, which is at another address."""

_MAX_KEY_FILE_BYTES = 16_384


@dataclass(frozen=True)
class Key:
    """A secret, and where it came from."""

    source: str
    secret: str = field(repr=False)


def find_key(
    file: str, variables: tuple[str, ...], environ: Mapping[str, str] = os.environ, first_variable: str = KEY_VARIABLE
) -> Key | None:
    """Read the key from `file` if it is set, else from the first set variable, `first_variable` before the others."""
    if not file:
        variable = next((name for name in (first_variable, *variables) if environ.get(name)), None)
        return _validate(variable, environ[variable]) if variable else None
    path = Path(file).expanduser()
    try:
        # The owner may point to the file through a link, which `open_regular` does not follow.
        with open_regular(os.path.realpath(path), owner=os.geteuid()) as opened:
            if os.fstat(opened.fileno()).st_mode & 0o077:
                raise _unusable(f"the key file {path} can be read by others: chmod 600 {path}")
            return _validate(file, opened.read(_MAX_KEY_FILE_BYTES).decode("ascii", "replace"))
    except UnsafeFile as error:
        raise _unusable(f"the key file {path} cannot be used: {error}") from error
    except OSError as error:
        raise _unusable(f"the key file {path} cannot be read: {error.strerror}") from error


def _validate(source: str, text: str) -> Key:
    """Check that the key can be sent in a header: otherwise the error about the header would show it."""
    secret = text.strip()
    if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise _unusable(f"what is in {source} is not an API key: put the key there, and nothing else")
    return Key(source, secret)


def _unusable(reason: str) -> ServiceUnavailable:
    return ServiceUnavailable(reason, permanent=True)
