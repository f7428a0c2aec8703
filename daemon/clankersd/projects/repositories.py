"""The repository around a path, read from git's own files: no git process runs, and nothing in the files is executed.

A repository on disk may be hostile. Files are opened without following links, up to a size; includes in a configuration
are ignored. Only `read_root_commit` starts git, with a configuration of its own.
"""

import ctypes
import os
import re
import shutil
import stat
import struct
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import anyio

from clankersd.redaction.engine import redact
from clankersd.safe_files import UnsafeFile, open_regular, read_regular
from clankersd.ttl_cache import TtlCache

FOLDER_CACHE_SECONDS = 60.0
MAX_CACHED_FOLDERS = 10_000
MAX_GIT_FILE_BYTES = 4096
MAX_CONFIG_BYTES = 256 * 1024
MAX_PACKED_REFS_BYTES = 16 * 1024 * 1024
MAX_REPOSITORY_CHARACTERS = 500
MAX_LOCAL_CLONES = 4
"""Length of a chain of repositories, each cloned from the next by its path."""

GIT_SECONDS = 20.0
"""Deadline for git to find the root commit, which takes about a second for 100,000 commits."""

MAX_GIT_OUTPUT_BYTES = 64 * 1024
ROOT_COMMIT = "commit:"
"""Prefix of a repository that is identified by its root commit."""

_GIT_PROGRAMS = ("/usr/bin/git", "/usr/local/bin/git", "/opt/homebrew/bin/git")
_REMOTE_SECTION = re.compile(r'\[\s*remote\s+"((?:[^"\\]|\\.)*)"\s*\](.*)', re.IGNORECASE)
_URL_KEY = re.compile(r"url\s*=(.*)", re.IGNORECASE)
_TRANSPORT_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")
_SCP = re.compile(r"(?:[^/@]+@)?([^/:@]+):(.+)")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs(?:/[A-Za-z0-9_+@=,#%-][A-Za-z0-9_.+@=,#%-]*)+")

_HOSTS = {"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com", "altssh.bitbucket.org": "bitbucket.org"}
"""Second names of hosts, for SSH over port 443."""

_CASELESS_HOSTS = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org")
_DEFAULT_PORTS = {"http": "80", "https": "443"}

_STATX_BTIME = 0x800
_AT_FDCWD = -100


@dataclass(frozen=True)
class Folder:
    """The folder that a path belongs to: the root of the repository around it, or the path itself.

    `repository` is the address of its remote without scheme and credentials; None if it has none. `git_dir` is where
    the repository keeps its data, shared by all its worktrees. `directory` identifies the directory itself, whatever it
    is called; None where the file system does not record when a directory was created.
    """

    path: str
    repository: str | None = None
    git_dir: str | None = None
    directory: str | None = None


_folders: TtlCache[str, Folder] = TtlCache(FOLDER_CACHE_SECONDS, MAX_CACHED_FOLDERS)


def find_folder(path: str) -> Folder:
    """Return the folder that a path belongs to. A worktree belongs to the folder of its main repository."""
    path = path.rstrip("/") or "/"
    return _folders.get(path) or _folders.put(path, _find_folder(path))


def _find_folder(path: str) -> Folder:
    if not path.startswith("/") or "\0" in path:
        return Folder(path)
    for folder in (Path(path), *Path(path).parents):
        found = _find_git_dir(folder)
        if found is not None:
            root, git_dir = found
            repository = normalize_remote(_read_remote_url(git_dir)) if git_dir else None
            return Folder(str(root), repository, str(git_dir) if git_dir else None, _identify_directory(str(root)))
    return Folder(path, directory=_identify_directory(path))


def _find_git_dir(folder: Path) -> tuple[Path, Path | None] | None:
    """Return the root and the git folder of the repository whose working tree begins at `folder`; None if none does."""
    try:
        own = folder / ".git"
        status = os.lstat(own)
        if stat.S_ISLNK(status.st_mode):
            own = own.resolve()
            status = os.lstat(own)
            if not stat.S_ISDIR(status.st_mode):
                return None
            return (own.parent if own.name == ".git" else folder), own
        if stat.S_ISDIR(status.st_mode):
            return folder, own
        if not stat.S_ISREG(status.st_mode):
            return None
        link = _read(own)
        if not link.startswith("gitdir:"):
            return folder, None
        own = (folder / link.removeprefix("gitdir:").strip()).resolve()
        if own.parent.name != "worktrees":  # a submodule, or a repository whose data is elsewhere
            return folder, own
        shared = (own / (_read(own / "commondir").strip() or "../..")).resolve()
    except (OSError, RuntimeError, ValueError):  # missing, unreadable, a circle of links, or no path at all
        return None
    return (shared.parent if shared.name == ".git" else shared), shared


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(MAX_GIT_FILE_BYTES).decode(errors="replace")
    except (OSError, UnsafeFile, ValueError):
        return ""


def _identify_directory(path: str) -> str | None:
    """Return the inode and time of creation of a directory, which a new directory of the same name does not share."""
    try:
        status = os.stat(path)  # noqa: PTH116  # for every event
    except (OSError, ValueError):
        return None
    created = getattr(status, "st_birthtime_ns", None) or int(getattr(status, "st_birthtime", 0) * 1e9)
    created = created or _read_creation_time(path)
    return f"{status.st_ino}:{created}" if created else None


def _read_creation_time(path: str) -> int:
    """Return the time of creation in nanoseconds as Linux reports it; 0 if it does not."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    buffer = ctypes.create_string_buffer(256)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return 0
    (reported,) = struct.unpack_from("I", buffer, 0)
    seconds, nanoseconds = struct.unpack_from("qI", buffer, 80)
    return seconds * 1_000_000_000 + nanoseconds if reported & _STATX_BTIME else 0


# -- remotes


def find_source_remote(git_dir: str, root: str) -> str | None:
    """Return the remote of the repository on this machine that a repository was cloned from, or of that one's source.

    The path comes from the clone and may lead anywhere, also to a server that is away: this is not for the event loop.
    """
    own, folder = Path(git_dir), Path(root)
    for _ in range(MAX_LOCAL_CLONES):
        url = _read_remote_url(own)
        if not url or _TRANSPORT_HELPER.match(url):
            return None
        if address := normalize_remote(url):
            return address
        source = folder / (unquote(url.removeprefix("file://")) if url.startswith("file://") else url)
        found = _find_git_dir(source) or _find_git_dir(Path(f"{source}.git"))
        folder, own = (found[0], found[1]) if found and found[1] else (source, source)
    return None


def _read_remote_url(git_dir: Path) -> str:
    """Return the URL of `origin`, else of the first remote."""
    try:
        config = read_regular(git_dir / "config", max_bytes=MAX_CONFIG_BYTES).decode(errors="replace")
    except (OSError, UnsafeFile, ValueError):
        return ""
    remotes = parse_remotes(config)
    return remotes.get("origin") or next(iter(remotes.values()), "")


def parse_remotes(config: str) -> dict[str, str]:
    """Return the first URL of each remote in the text of a git configuration, by name."""
    remotes: dict[str, str] = {}
    name: str | None = None
    for line in config.replace("\\\r\n", "").replace("\\\n", "").splitlines():
        text = line.strip()
        if text.startswith("["):
            section = _REMOTE_SECTION.match(text)
            name = re.sub(r"\\(.)", r"\1", section[1]) if section else None
            text = section[2].strip() if section else ""
        if name is not None and (assignment := _URL_KEY.match(text)):
            remotes.setdefault(name, _parse_value(assignment[1].strip()))
    return remotes


def _parse_value(text: str) -> str:
    """Return a value without quotes, escapes and the comment after it."""
    value, is_quoted, is_escaped = [], False, False
    for character in text:
        if is_escaped:
            value.append({"n": "\n", "t": "\t"}.get(character, character))
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif character == '"':
            is_quoted = not is_quoted
        elif character in "#;" and not is_quoted:
            break
        else:
            value.append(character)
    return "".join(value).strip()


def normalize_remote(url: str) -> str | None:
    """Return host and path of a remote, equal for all of its URLs; None for a local path.

    Scheme, user, password, query, the suffix .git and the port of SSH are left out.
    """
    if _TRANSPORT_HELPER.match(url) or len(url) > 2 * MAX_REPOSITORY_CHARACTERS:
        return None
    scheme, separator, rest = url.partition("://")
    if separator:
        scheme = scheme.lower()
        authority, _, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
        match = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
        if scheme == "file" or not match:
            return None
        host, port = match[1].lower(), match[2] or ""
        if scheme in _DEFAULT_PORTS and port not in ("", _DEFAULT_PORTS[scheme]):
            host = f"{host}:{port}"
    else:
        match = _SCP.fullmatch(url)
        if not match or ("@" in match[2] and ":" in match[2]):  # the latter may hold a password
            return None
        host, path = match[1].lower(), match[2]
    host = _HOSTS.get(host, host)
    path = "/".join(part for part in unquote(path).split("/") if part).removesuffix(".git").rstrip("/")
    azure = re.fullmatch(r"v3/([^/]+)/([^/]+)/([^/]+)", path) if host == "ssh.dev.azure.com" else None
    if azure:
        host, path = "dev.azure.com", f"{azure[1]}/{azure[2]}/_git/{azure[3]}"
    if host in _CASELESS_HOSTS:
        path = path.lower()
    address, _ = redact(f"{host}/{path}")
    if not path or len(address) > MAX_REPOSITORY_CHARACTERS or not address.isprintable():
        return None
    return address


# -- the root commit


async def read_root_commit(git_dir: str, head: str) -> str | None:
    """Return the oldest commit without parents that leads to `head`; None if it cannot be found within the deadline.

    Git reads the repository's objects, but its configuration, hooks and references are those of an empty repository.
    """
    git = next((program for program in _GIT_PROGRAMS if os.access(program, os.X_OK)), None) or shutil.which("git")
    if git is None or not git.startswith("/"):
        return None
    output = b""
    with tempfile.TemporaryDirectory(prefix="clankers-git-") as own, anyio.move_on_after(GIT_SECONDS):
        _write_empty_repository(Path(own), is_sha256=len(head) == 64)
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": own,
            "LC_ALL": "C",
            "GIT_DIR": own,
            "GIT_OBJECT_DIRECTORY": str(Path(git_dir, "objects")),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }
        command = [git, "rev-list", "--max-parents=0", head, "--"]
        async with await anyio.open_process(
            command, env=environment, cwd=own, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout
            async for part in process.stdout:
                output += part
                if len(output) > MAX_GIT_OUTPUT_BYTES:
                    process.kill()
                    return None
            is_complete = await process.wait() == 0
        commits = output.decode(errors="replace").split()
        return commits[-1] if is_complete and commits and _COMMIT.fullmatch(commits[-1]) else None
    return None


def _write_empty_repository(folder: Path, *, is_sha256: bool) -> None:
    extension = "[extensions]\n\tobjectformat = sha256\n" if is_sha256 else ""
    version = 1 if is_sha256 else 0
    (folder / "config").write_text(f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n{extension}")
    (folder / "HEAD").write_text("ref: refs/heads/none\n")
    (folder / "objects").mkdir()
    (folder / "refs").mkdir()


def read_head(git_dir: str) -> str | None:
    """Return the commit that HEAD stands for; None if there is none yet, or if the clone lacks the first commits."""
    folder = Path(git_dir)
    if os.path.lexists(folder / "shallow"):
        return None
    head = _read(folder / "HEAD").strip()
    name = head.removeprefix("ref:").strip() if head.startswith("ref:") else None
    if name is not None:
        if not _REF.fullmatch(name) or ".." in name:
            return None
        head = _read(folder / name).strip()
        if not head:
            with suppress(OSError, UnsafeFile, ValueError):
                packed = read_regular(folder / "packed-refs", max_bytes=MAX_PACKED_REFS_BYTES).decode(errors="replace")
                refs = (line.partition(" ") for line in packed.splitlines())
                head = next((commit for commit, _, ref in refs if ref == name), "")
    return head if _COMMIT.fullmatch(head) else None
