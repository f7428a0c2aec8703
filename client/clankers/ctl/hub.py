"""Fetching a sentence encoder from a model hub. Nothing else in the project downloads anything."""

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
"""Small models that find well, by short names."""

WEIGHTS = ("onnx/model.onnx", "model.onnx")
QUANTIZED = ("onnx/model_quantized.onnx", "onnx/model_int8.onnx", "onnx/model_quint8_avx2.onnx", "model_quantized.onnx")

SMALL = 64 * 2**20
"""Bytes that a file beside the weights may have; a tokenizer of many languages has 17 million."""

CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0

ProgressCallback = Callable[[str, int, int | None], None]
"""Told the name of a file, how many bytes of it are here, and how many it has if that is known."""


class PullFailed(Exception):
    """The model could not be fetched; nothing of it is left."""


@dataclass(frozen=True)
class WantedFile:
    """A file of the repository: the first of its `names` that is there, kept as `path`."""

    names: tuple[str, ...]
    path: str
    needed: bool = True


@dataclass(frozen=True)
class FetchedFile:
    """A file that is here now."""

    path: str
    url: str
    size: int
    sha256: str


@dataclass(frozen=True)
class PullPlan:
    """What to fetch, from where, and into which folder."""

    repository: str
    folder: Path
    base: str
    weights: tuple[str, ...]
    most: int

    @property
    def url(self) -> str:
        """What all the files' addresses begin with."""
        return f"{self.base}/{quote(self.repository)}/resolve/main/"

    @property
    def wanted(self) -> list[WantedFile]:
        """The small ones first: what is missing should show before the large one is here."""
        beside = ("1_Pooling/config.json", "tokenizer_config.json", "sentence_bert_config.json")
        return [
            *(WantedFile((name,), name) for name in ("config.json", "tokenizer.json")),
            *(WantedFile((name,), name, needed=False) for name in beside),
            WantedFile(self.weights, "model.onnx"),
        ]


def plan_pull(name: str, models: Path, base: str, quantized: bool, most: int) -> PullPlan:
    """What `name` stands for; raises PullFailed when it names no repository, or `base` no server."""
    repository = MODEL_ALIASES.get(name, name)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repository, re.ASCII):
        raise PullFailed(f"{name!r} is no model: write OWNER/NAME, or one of {', '.join(MODEL_ALIASES)}")
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).hostname:
        raise PullFailed(f"{base!r} is no address: it must begin with https:// or http://")
    folder = models / (name if name in MODEL_ALIASES else repository.partition("/")[2])
    return PullPlan(repository, folder, base.rstrip("/"), QUANTIZED if quantized else WEIGHTS, most)


def fetch_model(pull: PullPlan, seen: ProgressCallback) -> list[FetchedFile]:
    """Bring the model here, whole or not at all; raises PullFailed."""
    import httpx  # slow to load

    home = urlsplit(pull.base).hostname in ("127.0.0.1", "localhost", "::1")
    client = httpx.Client(
        follow_redirects=True,  # a hub keeps large files elsewhere
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        headers={"user-agent": "clankers-ctl", "accept-encoding": "identity"},
        trust_env=not home,  # no proxy can reach our loopback
    )
    try:
        with client, _unfinished(pull.folder) as place:
            found = _fetch_all(client, pull, place, seen)
            _describe(pull, place, found)
            place.rename(pull.folder)
            return found
    except OSError as error:
        raise PullFailed(f"{pull.folder} cannot be written: {error.strerror or error}") from error


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """An empty folder beside the one to be made, for this process alone; gone after the block unless renamed."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = folder.with_name(f".{folder.name}.unfinished")
    place.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise PullFailed(f"{folder.name} is being fetched by another process") from error
    try:
        for left in place.iterdir():  # by a process that was killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(descriptor)


def _fetch_all(client: "httpx.Client", pull: PullPlan, place: Path, seen: ProgressCallback) -> list[FetchedFile]:
    found: list[FetchedFile] = []
    for wanted in pull.wanted:
        file = _fetch_first(client, pull, wanted, place, found, seen)
        if file is None and wanted.needed:
            raise PullFailed(f"{pull.repository} has no {' and no '.join(wanted.names)} at {pull.base}")
        found += [file] if file else []
    # Large models keep their weights apart, in a file that the model itself names.
    name = found[-1].url.removeprefix(pull.url) + "_data"
    data = _fetch_first(client, pull, WantedFile((name,), Path(name).name), place, found, seen)
    return [*found, data] if data else found


def _fetch_first(
    client: "httpx.Client",
    pull: PullPlan,
    wanted: WantedFile,
    place: Path,
    before: list[FetchedFile],
    seen: ProgressCallback,
) -> FetchedFile | None:
    left = pull.most - sum(file.size for file in before)
    most = left if ".onnx" in wanted.path else min(left, SMALL)
    for name in wanted.names:
        target = place / wanted.path
        target.parent.mkdir(exist_ok=True)
        if told := _download(client, pull.url + name, target, most, seen):
            _check_content(target, name)
            return FetchedFile(wanted.path, pull.url + name, *told)
        if target.parent != place:
            target.parent.rmdir()
    return None


def _download(
    client: "httpx.Client", url: str, target: Path, most: int, seen: ProgressCallback
) -> tuple[int, str] | None:
    """The file's size and SHA-256, or nothing when there is no such file."""
    import httpx

    got = 0
    try:
        with client.stream("GET", url) as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                return None
            length = _checked_length(response, url, most)
            digest = hashlib.sha256()
            with target.open("xb") as file:
                for piece in response.iter_bytes():
                    got += len(piece)
                    if got > most:
                        raise PullFailed(f"{url} has more than {format_bytes(most)}: --max-size allows more")
                    digest.update(piece)
                    file.write(piece)
                    seen(target.name, got, length)
                os.fsync(file.fileno())
            _check_promises(response, url, got, digest.hexdigest())
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise PullFailed(f"{urlsplit(url).hostname} cannot be reached: {str(error) or 'no answer'}") from error
    except httpx.TimeoutException as error:
        raise PullFailed(f"{url} stopped answering after {format_bytes(got)}: try again later") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PullFailed(f"{url} broke off after {format_bytes(got)} ({error}): try again") from error
    return got, digest.hexdigest()


def _checked_length(response: "httpx.Response", url: str, most: int) -> int | None:
    """How long the file is said to be; raises PullFailed when it should not be read."""
    if response.status_code in (401, 403):
        raise PullFailed(f"{url} is refused ({response.status_code}): there is no such repository, or it is private")
    if response.status_code != 200:
        raise PullFailed(f"{url} answers with {response.status_code} {response.reason_phrase}")
    if url.startswith("https:") and response.url.scheme != "https":
        raise PullFailed(f"{url} leads to an address without encryption: {response.url.host}")
    said = response.headers.get("content-length", "")
    if not said.isdecimal():
        if "chunked" not in response.headers.get("transfer-encoding", ""):
            raise PullFailed(f"{url} does not say how long it is, so nobody could tell if all of it came")
        return None
    if int(said) > most:
        raise PullFailed(f"{url} has {format_bytes(int(said))}, more than {format_bytes(most)}: --max-size allows more")
    return int(said)


def _check_promises(response: "httpx.Response", url: str, got: int, digest: str) -> None:
    """A hub tells size and SHA-256 of its large files where it sends us on."""
    for headers in (each.headers for each in (*response.history, response)):
        said = headers.get("x-linked-etag", "").removeprefix("W/").strip('"').lower()
        if re.fullmatch(r"[0-9a-f]{64}", said) and said != digest:
            raise PullFailed(f"{url} is not what the hub promised: its SHA-256 is {digest}, not {said}")
        said = headers.get("x-linked-size", "")
        if said.isdecimal() and int(said) != got:
            raise PullFailed(f"{url} is not what the hub promised: it has {got} bytes, not {said}")


def _check_content(file: Path, name: str) -> None:
    """A server that answers with a page instead of the file is not believed."""
    if file.suffix == ".json":
        try:
            json.loads(file.read_bytes())
        except ValueError as error:
            raise PullFailed(f"what came as {name} is not JSON") from error
    elif file.suffix == ".onnx":
        with file.open("rb") as opened:
            beginning = opened.read(64)
        if not beginning.startswith(b"\x08"):  # every ONNX file begins with its version
            raise PullFailed(f"what came as {name} is not an ONNX model")


def _describe(pull: PullPlan, place: Path, found: list[FetchedFile]) -> None:
    """Leave the model's own name, by which the daemon knows how to use it, and where it came from."""
    facts = {
        "name": pull.repository.partition("/")[2],
        "source": pull.url,
        "sha256": {file.path: file.sha256 for file in found},
    }
    (place / "clankers.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
