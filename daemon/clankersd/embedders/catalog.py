"""`model.list`: which embedders could be used here, told without loading one and without the network."""

import json
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import msgspec

from clankers_protocol.search import Model, ModelList
from clankersd.config import Config
from clankersd.embedders import make_embedder
from clankersd.embedders.base import EmbedderSettings, EmbedderUnavailable
from clankersd.embedders.fingerprint import read_regular_file
from clankersd.embedders.gemini import Gemini
from clankersd.embedders.ollama import Ollama
from clankersd.embedders.onnx_folder import OnnxFolder, read_folder
from clankersd.embedders.openai import OpenAI
from clankersd.embedders.provider import Api
from clankersd.embedders.static import DIMS, MODEL
from clankersd.http.api_keys import find_key
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

REMOTE: tuple[Api, ...] = (OpenAI(), Ollama(), Gemini())
AT_HOME = ("127.0.0.1", "localhost", "::1")

_NO_FOLDER = "no model is here yet: clankers-ctl model pull arctic-embed-s"
_NO_RUNTIME = "onnxruntime is missing: pip install 'clankers[onnx]', then restart the daemon"
_DIMS = [("1_Pooling/config.json", "word_embedding_dimension"), ("config.json", "hidden_size")]


@handles(ModelList)
async def model_list(daemon: "Daemon", request: ModelList) -> list[Model]:
    models = await anyio.to_thread.run_sync(_models, daemon.paths.data / "models", daemon.config)
    return [_in_use(daemon, model) if model.in_use else model for model in models]


def _in_use(daemon: "Daemon", model: Model) -> Model:
    """The same, with what is known from using it."""
    index = daemon.index
    if model.embedder == "none":
        return model
    return msgspec.structs.replace(
        model,
        dims=(index.embedder and index.embedder.identity.dims) or model.dims,
        available=model.available and index.problem is None,
        note=index.paused or model.note,
    )


def _models(folder: Path, config: Config) -> list[Model]:
    """Runs in a worker thread: it reads the models' folders."""
    folders = _folders(folder, config)
    return [
        _static(config),
        *(_onnx(path, config) for path in folders),
        *([] if folders else [Model("onnx", "", None, config.embedder == "onnx", False, _NO_FOLDER)]),
        *(_remote(api, config) for api in REMOTE),
        Model("none", "", None, config.embedder == "none", True, "searches by words alone"),
    ]


def _static(config: Config) -> Model:
    problem = _problem(EmbedderSettings("static"))
    note = problem or "comes with clankers; fast, knows words but not their order"
    return Model("static", MODEL, DIMS, config.embedder == "static", problem is None, note)


def _problem(settings: EmbedderSettings) -> str | None:
    """What keeps the embedder from being made; making one loads nothing and asks nobody."""
    try:
        embedder = make_embedder(settings)
        if embedder is not None:
            embedder.preflight()
    except EmbedderUnavailable as error:
        return error.reason
    return None


def _folders(models: Path, config: Config) -> list[Path]:
    """The models that were pulled or put here, and the one that is configured, wherever it is."""
    found: list[Path] = []
    with suppress(OSError):
        found = sorted(path for path in models.iterdir() if path.is_dir() and not path.name.startswith("."))
    chosen = _configured_folder(config)
    return found if chosen is None or any(_same(chosen, path) for path in found) else [*found, chosen]


def _configured_folder(config: Config) -> Path | None:
    if config.embedder != "onnx" or not config.embedder_model:
        return None
    return Path(os.path.expanduser(config.embedder_model))  # noqa: PTH111 - pathlib's raises for an unknown user


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)  # unlike resolve, no error for links in a circle


def _onnx(path: Path, config: Config) -> Model:
    chosen = _configured_folder(config)
    try:
        note, available = _described(read_folder(str(path))), True
    except EmbedderUnavailable as error:
        note, available = error.reason, False
    if available and find_spec("onnxruntime") is None:
        note, available = _NO_RUNTIME, False
    return Model("onnx", str(path), _dims(path), chosen is not None and _same(chosen, path), available, note)


def _described(folder: OnnxFolder) -> str:
    with suppress(OSError):
        return f"{folder.name}, {folder.model.stat().st_size / 2**20:.0f} MiB; computes on this machine"
    return f"{folder.name}; computes on this machine"


def _dims(folder: Path) -> int | None:
    for file, key in _DIMS:
        with suppress(EmbedderUnavailable, ValueError, RecursionError):
            said: Any = json.loads(read_regular_file(folder / file))
            if isinstance(said, dict) and isinstance(said.get(key), int):
                return int(said[key])
    return None


def _remote(api: Api, config: Config) -> Model:
    in_use = config.embedder == api.provider
    settings = EmbedderSettings(api.provider)
    if in_use:
        settings = EmbedderSettings(api.provider, config.embedder_model, config.embedder_url, config.embedder_key_file)
    problem = _problem(settings) or _missing_key(api, settings)
    note = problem or _destination(settings.url or api.default_url)
    return Model(api.provider, settings.model or api.default_model, None, in_use, problem is None, note)


def _missing_key(api: Api, settings: EmbedderSettings) -> str | None:
    """A key in the environment is for the provider's own address only; others may do without."""
    own = not settings.url or urlsplit(settings.url)[:2] == urlsplit(api.default_url)[:2]
    variables = api.key_variables if own else ()
    try:
        key = find_key(settings.key_file, variables)
    except EmbedderUnavailable as error:
        return error.reason
    if key is None and api.key_needed and own:
        return f"needs a key: set {' or '.join(variables)} for the daemon, or embedder_key_file"
    return None


def _destination(url: str) -> str:
    if urlsplit(url).hostname in AT_HOME:
        return f"asks {url}, if it runs there"
    return f"sends your texts to {urlsplit(url).hostname}"
