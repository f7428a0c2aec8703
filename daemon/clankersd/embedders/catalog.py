"""`model.list`: the embedders that can be used on this machine, listed without loading one or using the network."""

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
from clankersd.embedders.local import read_model_file
from clankersd.embedders.onnx import read_folder
from clankersd.embedders.providers import PROVIDERS, ProviderApi, is_default_host
from clankersd.embedders.static import DIMS, MODEL
from clankersd.http.api_keys import find_key
from clankersd.http.client import LOOPBACK_HOSTS
from clankersd.http.responses import ServiceUnavailable
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_NO_MODEL_PULLED = "no model is downloaded: clankers-ctl model pull arctic-embed-s"
_NO_RUNTIME = "onnxruntime is missing: pip install 'clankers[onnx]', then restart the daemon"
_DIMS_SETTINGS = [("1_Pooling/config.json", "word_embedding_dimension"), ("config.json", "hidden_size")]


@handles(ModelList)
async def model_list(daemon: "Daemon", request: ModelList) -> list[Model]:
    models = await anyio.to_thread.run_sync(_list_models, daemon.paths.data / "models", daemon.config)
    index = daemon.index
    for number, model in enumerate(models):
        if model.in_use and model.embedder != "none":  # more is known of it, from its use
            models[number] = msgspec.structs.replace(
                model,
                dims=(index.embedder and index.embedder.identity.dims) or model.dims,
                available=model.available and index.problem is None,
                note=index.vector_problem or model.note,
            )
    return models


def _list_models(models_folder: Path, config: Config) -> list[Model]:
    """List all models, in a worker thread: it reads the folders of models that were pulled or copied there."""
    problem = _problem(EmbedderSettings("static"))
    note = problem or "comes with clankers; fast, knows words but not their order"
    models = [Model("static", MODEL, DIMS, config.embedder == "static", problem is None, note)]
    folders: list[Path] = []
    with suppress(OSError):
        folders = sorted(path for path in models_folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    configured = _configured_folder(config)
    if configured is not None and not any(_is_same_folder(configured, folder) for folder in folders):
        folders.append(configured)
    models += [_onnx_model(folder, config) for folder in folders]
    if not folders:
        models.append(Model("onnx", "", None, config.embedder == "onnx", False, _NO_MODEL_PULLED))
    models += [_remote_model(api, config) for api in PROVIDERS.values()]
    models.append(Model("none", "", None, config.embedder == "none", True, "keyword search only"))
    return models


def _problem(settings: EmbedderSettings) -> str | None:
    """Return why the embedder cannot be made; making one loads nothing and sends no request."""
    try:
        embedder = make_embedder(settings)
        if embedder is not None:
            embedder.preflight()
    except EmbedderUnavailable as error:
        return error.reason
    return None


def _configured_folder(config: Config) -> Path | None:
    if config.embedder != "onnx" or not config.embedder_model:
        return None
    return Path(os.path.expanduser(config.embedder_model))  # noqa: PTH111 - pathlib's raises for an unknown user


def _is_same_folder(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)  # unlike resolve, no error for a loop of links


def _onnx_model(path: Path, config: Config) -> Model:
    available = True
    try:
        folder = read_folder(str(path))
        note = f"{folder.name}; computes on this machine"
        with suppress(OSError):
            size_mib = folder.model.stat().st_size / 2**20
            note = f"{folder.name}, {size_mib:.0f} MiB; computes on this machine"
    except EmbedderUnavailable as error:
        note, available = error.reason, False
    if available and find_spec("onnxruntime") is None:
        note, available = _NO_RUNTIME, False
    configured = _configured_folder(config)
    in_use = configured is not None and _is_same_folder(configured, path)
    return Model("onnx", str(path), _onnx_dims(path), in_use, available, note)


def _onnx_dims(folder: Path) -> int | None:
    for file, key in _DIMS_SETTINGS:
        with suppress(EmbedderUnavailable, ValueError, RecursionError):
            content: Any = json.loads(read_model_file(folder / file))
            if isinstance(content, dict) and isinstance(content.get(key), int):
                return int(content[key])
    return None


def _remote_model(api: ProviderApi, config: Config) -> Model:
    in_use = config.embedder == api.provider
    settings = EmbedderSettings(api.provider)
    if in_use:
        settings = EmbedderSettings(api.provider, config.embedder_model, config.embedder_url, config.embedder_key_file)
    problem = _problem(settings) or _missing_key(api, settings)
    url = settings.url or api.default_url
    if problem:
        note = problem
    elif urlsplit(url).hostname in LOOPBACK_HOSTS:
        note = f"asks {url}, if it runs there"
    else:
        note = f"sends your texts to {urlsplit(url).hostname}"
    return Model(api.provider, settings.model or api.default_model, None, in_use, problem is None, note)


def _missing_key(api: ProviderApi, settings: EmbedderSettings) -> str | None:
    """Return why there is no key; a service at another address than the provider's own may need none."""
    is_default = is_default_host(api, settings.url)
    variables = api.key_variables if is_default else ()
    try:
        key = find_key(settings.key_file, variables)
    except ServiceUnavailable as error:
        return error.reason
    if key is None and api.key_needed and is_default:
        return f"needs a key: set {' or '.join(variables)} for the daemon, or embedder_key_file"
    return None
