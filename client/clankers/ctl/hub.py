"""Download a sentence encoder from a model hub. Nothing else in the project downloads anything."""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from clankers.ctl.formatting import format_bytes

if TYPE_CHECKING:
    import httpx

DEFAULT_HUB_URL = "https://huggingface.co"

MODEL_ALIASES = {
    "arctic-embed-s": "Snowflake/snowflake-arctic-embed-s",
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "bge-small": "BAAI/bge-small-en-v1.5",
}
"""Short names of small models with good retrieval quality."""

WEIGHTS = ("onnx/model.onnx", "model.onnx")
QUANTIZED = ("onnx/model_quantized.onnx", "onnx/model_int8.onnx", "onnx/model_quint8_avx2.onnx", "model_quantized.onnx")

MAX_CONFIG_FILE_BYTES = 64 * 2**20
"""For files other than the weights; the tokenizer of a multilingual model has 17 million bytes."""

CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS = 10.0, 30.0

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the name of a file, the bytes downloaded so far, and the total if known."""


class PullFailed(Exception):
    """The model could not be downloaded; no partial files remain."""


@dataclass(frozen=True)
class WantedFile:
    """A file to download: the first of `names` that the repository has, stored as `path`."""

    names: tuple[str, ...]
    path: str
    required: bool = True


@dataclass(frozen=True)
class FetchedFile:
    """A downloaded file."""

    path: str
    url: str
    size: int
    sha256: str


@dataclass(frozen=True)
class PullPlan:
    """The files to download, their address, and the target folder."""

    repository: str
    folder: Path
    base: str
    weights: tuple[str, ...]
    max_bytes: int

    @property
    def url(self) -> str:
        """Common prefix of the addresses of all files."""
        return f"{self.base}/{quote(self.repository)}/resolve/main/"

    @property
    def wanted(self) -> list[WantedFile]:
        """The files to download, small ones first, so that a missing file is noticed before the large download."""
        optional = ("1_Pooling/config.json", "tokenizer_config.json", "sentence_bert_config.json")
        return [
            *(WantedFile((name,), name) for name in ("config.json", "tokenizer.json")),
            *(WantedFile((name,), name, required=False) for name in optional),
            WantedFile(self.weights, "model.onnx"),
        ]


def plan_pull(name: str, models: Path, base: str, quantized: bool, max_bytes: int) -> PullPlan:
    """Resolve a model name; raises PullFailed unless it names a repository and `base` is the address of a server."""
    repository = MODEL_ALIASES.get(name, name)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repository, re.ASCII):
        raise PullFailed(f"{name!r} is not a model name. Write OWNER/NAME, or one of {', '.join(MODEL_ALIASES)}.")
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).hostname:
        raise PullFailed(f"{base!r} is not a valid address. It must start with https:// or http://.")
    folder = models / (name if name in MODEL_ALIASES else repository.partition("/")[2])
    return PullPlan(repository, folder, base.rstrip("/"), QUANTIZED if quantized else WEIGHTS, max_bytes)


def fetch_model(pull: PullPlan, progress: ProgressCallback) -> list[FetchedFile]:
    """Download the model completely, or raise PullFailed and leave nothing."""
    import httpx  # slow to load

    is_local = urlsplit(pull.base).hostname in ("127.0.0.1", "localhost", "::1")
    client = httpx.Client(
        follow_redirects=True,  # hubs redirect large files to other servers
        timeout=httpx.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
        headers={"user-agent": "clankers-ctl", "accept-encoding": "identity"},
        trust_env=not is_local,  # a proxy cannot reach our loopback address
    )
    try:
        with client, _temporary_folder(pull.folder) as folder:
            files = _fetch_all(client, pull, folder, progress)
            _write_description(pull, folder, files)
            folder.rename(pull.folder)
            return files
    except OSError as error:
        raise PullFailed(f"{pull.folder} cannot be written: {error.strerror or error}") from error


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """Create and lock an empty folder next to `target`; it is removed after the block unless it was renamed."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = target.with_name(f".{target.name}.unfinished")
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise PullFailed(f"Another process is downloading {target.name}.") from error
    try:
        for leftover in folder.iterdir():  # of a process that was killed
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _fetch_all(client: "httpx.Client", pull: PullPlan, folder: Path, progress: ProgressCallback) -> list[FetchedFile]:
    files: list[FetchedFile] = []
    for wanted in pull.wanted:
        file = _fetch_first(client, pull, wanted, folder, files, progress)
        if file is not None:
            files.append(file)
        elif wanted.required:
            raise PullFailed(f"{pull.repository} has no {' and no '.join(wanted.names)} at {pull.base}")
    # Large models store their weights in a separate file, which the model file refers to by name.
    name = files[-1].url.removeprefix(pull.url) + "_data"
    if data := _fetch_first(client, pull, WantedFile((name,), Path(name).name), folder, files, progress):
        files.append(data)
    return files


def _fetch_first(
    client: "httpx.Client",
    pull: PullPlan,
    wanted: WantedFile,
    folder: Path,
    fetched: list[FetchedFile],
    progress: ProgressCallback,
) -> FetchedFile | None:
    """Download the first file of `wanted.names` that exists, or return None."""
    max_bytes = pull.max_bytes - sum(file.size for file in fetched)
    if ".onnx" not in wanted.path:
        max_bytes = min(max_bytes, MAX_CONFIG_FILE_BYTES)
    for name in wanted.names:
        target = folder / wanted.path
        target.parent.mkdir(exist_ok=True)
        if downloaded := _download(client, pull.url + name, target, max_bytes, progress):
            _check_content(target, name)
            size, sha256 = downloaded
            return FetchedFile(wanted.path, pull.url + name, size, sha256)
        if target.parent != folder:
            target.parent.rmdir()
    return None


def _download(
    client: "httpx.Client", url: str, target: Path, max_bytes: int, progress: ProgressCallback
) -> tuple[int, str] | None:
    """Return the size and SHA-256 of the downloaded file, or None if it does not exist."""
    import httpx  # slow to load

    received = 0
    try:
        with client.stream("GET", url) as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                return None
            length = _checked_length(response, url, max_bytes)
            digest = hashlib.sha256()
            with target.open("xb") as file:
                for piece in response.iter_bytes():
                    received += len(piece)
                    if received > max_bytes:
                        raise PullFailed(f"{url} is larger than {format_bytes(max_bytes)}. Allow more with --max-size.")
                    digest.update(piece)
                    file.write(piece)
                    progress(target.name, received, length)
                os.fsync(file.fileno())
            _check_announced_digest(response, url, received, digest.hexdigest())
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise PullFailed(f"{urlsplit(url).hostname} cannot be reached: {str(error) or 'no answer'}") from error
    except httpx.TimeoutException as error:
        raise PullFailed(f"{url} stopped responding after {format_bytes(received)}. Try again later.") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PullFailed(f"{url} was interrupted after {format_bytes(received)} ({error}). Try again.") from error
    return received, digest.hexdigest()


def _checked_length(response: "httpx.Response", url: str, max_bytes: int) -> int | None:
    """Return the announced length of the file, if any; raises PullFailed if it must not be downloaded."""
    if response.status_code in (401, 403):
        raise PullFailed(f"{url} is refused ({response.status_code}): there is no such repository, or it is private.")
    if response.status_code != 200:
        raise PullFailed(f"{url} answers with {response.status_code} {response.reason_phrase}.")
    if url.startswith("https:") and response.url.scheme != "https":
        raise PullFailed(f"{url} redirects to an unencrypted address: {response.url.host}.")
    content_length = response.headers.get("content-length", "")
    if not content_length.isdecimal():
        if "chunked" not in response.headers.get("transfer-encoding", ""):
            raise PullFailed(f"{url} does not announce its length, so a truncated download could not be detected.")
        return None
    if int(content_length) > max_bytes:
        length, allowed = format_bytes(int(content_length)), format_bytes(max_bytes)
        raise PullFailed(f"{url} is {length}, more than {allowed}. Allow more with --max-size.")
    return int(content_length)


def _check_announced_digest(response: "httpx.Response", url: str, received: int, digest: str) -> None:
    """Check the size and SHA-256 that a hub announces for large files when it redirects."""
    for headers in (each.headers for each in (*response.history, response)):
        announced_digest = headers.get("x-linked-etag", "").removeprefix("W/").strip('"').lower()
        if re.fullmatch(r"[0-9a-f]{64}", announced_digest) and announced_digest != digest:
            raise PullFailed(f"{url} is not what the hub announced: its SHA-256 is {digest}, not {announced_digest}.")
        announced_size = headers.get("x-linked-size", "")
        if announced_size.isdecimal() and int(announced_size) != received:
            raise PullFailed(f"{url} is not what the hub announced: it has {received} bytes, not {announced_size}.")


def _check_content(file: Path, name: str) -> None:
    """Check the file type, because some servers answer with a web page instead of the file."""
    if file.suffix == ".json":
        try:
            json.loads(file.read_bytes())
        except ValueError as error:
            raise PullFailed(f"The downloaded {name} is not JSON.") from error
    elif file.suffix == ".onnx":
        with file.open("rb") as opened:
            start = opened.read(64)
        if not start.startswith(b"\x08"):  # every ONNX file starts with its version
            raise PullFailed(f"The downloaded {name} is not an ONNX model.")


def _write_description(pull: PullPlan, folder: Path, files: list[FetchedFile]) -> None:
    """Write the name of the model, from which the daemon knows how to use it, and its origin."""
    facts = {
        "name": pull.repository.partition("/")[2],
        "source": pull.url,
        "sha256": {file.path: file.sha256 for file in files},
    }
    (folder / "clankers.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
