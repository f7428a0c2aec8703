"""ONNX models in local folders, on the CPU: any sentence encoder as the higher-quality embedder.

Rerankers load their cross-encoders with the same functions.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clankersd.embedders.base import EmbedderSettings, EmbedderUnavailable, Identity, ItemFailed, Outcome, provider_key
from clankersd.embedders.local import Encoder, LocalEmbedder, open_model_file, read_model_file
from clankersd.embedders.memory_headroom import import_numpy, require_headroom
from clankersd.embedders.normalize import parse_embedding
from clankersd.embedders.profiles import Pooling, configured_profile, find_profile

_MISSING_PACKAGES = "ONNX models need onnxruntime and tokenizers: pip install 'clankers[onnx]'"
_REQUIRED_PACKAGES = ("numpy", "onnxruntime", "tokenizers")

MAX_TOKENS = 512
"""Longest input of a model; the cost grows with the square, and chunks are shorter."""

LOAD_BYTES = 192 * 1024 * 1024
"""Free memory required to load a model, in addition to three times the size of its file."""

ENCODE_BYTES = 64 * 1024 * 1024
ENCODE_BYTES_PER_BYTE = 200
"""Free memory required to encode a text; the tokenizer takes up to 175 bytes per byte of text."""

FINGERPRINT_BLOCKS = 16
FINGERPRINT_BLOCK_BYTES = 64 * 1024

_OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_POOLING_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_POOLING_NAMES: dict[Any, Pooling] = {"cls": "cls", "mean": "mean", "last": "last", "lasttoken": "last"}
_LENGTH_SETTINGS = [
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
    ("config.json", "max_position_embeddings"),
]


def onnx_embedder(settings: EmbedderSettings) -> LocalEmbedder:
    """Make the embedder without loading it; raises EmbedderUnavailable when the model's folder cannot be used."""
    folder = read_folder(settings.model)
    profile = configured_profile(folder.all_names, settings)
    key = provider_key(
        checksum=folder.checksum,
        pooling=folder.pooling,
        longest=folder.max_tokens,
        document_prefix=profile.document_prefix,
    )
    identity = Identity("onnx", folder.name, key, settings.dims)

    def load() -> Encoder:
        return _SentenceEncoder(load_model(folder), folder.pooling)

    # One text at a time: an int8 model's vector would depend on its neighbours, and padding costs.
    return LocalEmbedder(identity, profile, load, batch_size=1, preflight=require_packages)


# -- the model's folder


@dataclass(frozen=True)
class OnnxFolder:
    """A folder with a model: its files, and the settings found in them."""

    name: str
    all_names: str  # every name of the model, for the lookup of its profile
    model: Path
    tokenizer: Path
    pooling: Pooling
    max_tokens: int | None  # None: taken from the tokenizer

    @property
    def checksum(self) -> str:
        """A hash that changes with the weights and the tokenizer, not with their location."""
        weights = [self.model, *sorted(self.model.parent.glob("*.onnx?data"))]  # large models store them separately
        return "".join(fingerprint(path) for path in (*weights, self.tokenizer))


def read_folder(path: str) -> OnnxFolder:
    """Read a model's folder; raises EmbedderUnavailable when something is missing, ambiguous or unreadable."""
    try:
        return _read_folder(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: an unknown home folder, a loop of links
        raise _unusable(f"the model's folder {path} cannot be read: {error}") from error


def fingerprint(path: Path) -> str:
    """Hash the file's size and blocks spread evenly over it, which identifies weights without reading gigabytes."""
    with open_model_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for block in range(FINGERPRINT_BLOCKS):
            file.seek(max(0, size - FINGERPRINT_BLOCK_BYTES) * block // (FINGERPRINT_BLOCKS - 1))
            digest.update(file.read(FINGERPRINT_BLOCK_BYTES))
    return digest.hexdigest()


def _read_folder(path: str) -> OnnxFolder:
    if not path:
        raise _unusable("no ONNX model is set: set the model to a folder with model.onnx and tokenizer.json")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise _unusable(f"there is no folder {folder}: set the model to one with model.onnx")
    tokenizers = _find_files(folder, "tokenizer.json")
    if not tokenizers:
        raise _unusable(f"there is no tokenizer.json in {folder}: put the model's there")
    models = _find_files(folder, "model.onnx") or _find_files(folder, "*.onnx")
    if not models:
        raise _unusable(f"there is no model.onnx in {folder}: export the model to ONNX and put it there")
    if len(models) > 1 and models[0].name != "model.onnx":
        names = ", ".join(sorted(file.name for file in models))
        raise _unusable(f"{folder} holds several models ({names}): name the one to use model.onnx")
    own_settings = _read_json(folder / "clankers.json")
    name = str(own_settings.get("name") or folder.resolve().name)
    all_names = f"{name} {_read_json(folder / 'config.json').get('_name_or_path', '')}"
    lengths = (_read_json(folder / file).get(key) for file, key in _LENGTH_SETTINGS)
    max_tokens = next((int(min(one, MAX_TOKENS)) for one in lengths if isinstance(one, int | float) and one > 0), None)
    return OnnxFolder(
        name=name,
        all_names=all_names,
        model=models[0],
        tokenizer=tokenizers[0],
        pooling=_configured_pooling(folder, own_settings) or find_profile(all_names).pooling,
        max_tokens=max_tokens,
    )


def _find_files(folder: Path, pattern: str) -> list[Path]:
    """List matching files at the top, then in `onnx/`, where exporters put them."""
    return [file for place in (folder, folder / "onnx") for file in sorted(place.glob(pattern))]


def _configured_pooling(folder: Path, own_settings: dict[str, Any]) -> Pooling | None:
    pooling = own_settings.get("pooling")
    if pooling in _POOLING_NAMES:
        return _POOLING_NAMES[pooling]
    if pooling is not None:
        raise _unusable(f"{folder / 'clankers.json'}: pooling must be mean, cls or last, not {pooling!r}")
    pooling_folder = "1_Pooling"
    for module in _read_json(folder / "modules.json", list):
        if str(module.get("type")).endswith("Pooling"):
            pooling_folder = str(module.get("path"))
            break
    config = _read_json(folder / pooling_folder / "config.json")
    if config.get("pooling_mode") in _POOLING_NAMES:
        return _POOLING_NAMES[config["pooling_mode"]]
    return next((name for flag, name in _POOLING_FLAGS.items() if config.get(flag) is True), None)


def _read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Read a JSON object or list; a missing file reads as an empty one."""
    try:
        if not path.exists():
            return kind()
        content = json.loads(read_model_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(f"{path} cannot be read: {error}") from error
    if not isinstance(content, kind):
        raise _unusable(f"{path} cannot be read: it is not a JSON {kind.__name__}")
    return content


def _unusable(reason: str) -> EmbedderUnavailable:
    return EmbedderUnavailable(reason, permanent=True)


# -- the model


def require_packages() -> None:
    """Raise EmbedderUnavailable if a package that ONNX models need is missing."""
    if any(find_spec(package) is None for package in _REQUIRED_PACKAGES):
        raise _unusable(_MISSING_PACKAGES)


def load_model(folder: OnnxFolder) -> "OnnxModel":
    """Load the model in a folder; raises EmbedderUnavailable or MemoryError."""
    try:
        import_numpy()
        require_headroom(LOAD_BYTES + 3 * folder.model.stat().st_size)
        import onnxruntime
        from tokenizers import Tokenizer
    except OSError as error:
        raise _unusable(f"{folder.model} cannot be read: {error.strerror}") from error
    except ImportError as error:
        raise _unusable(_MISSING_PACKAGES) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2 if (os.cpu_count() or 1) >= 4 else 1  # the rest is for the daemon
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # texts of many lengths would make it grow and never shrink
    options.log_severity_level = 4  # errors that matter are raised; the others would go to stderr
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        tokenizer = Tokenizer.from_file(str(folder.tokenizer))
        session = onnxruntime.InferenceSession(str(folder.model), options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except BaseException as error:  # both raise classes of their own, and a tokenizer's panic is not an Exception
        raise _unusable(f"the model in {folder.model.parent} cannot be loaded: {str(error)[:200]}") from error
    max_tokens = folder.max_tokens or (tokenizer.truncation or {}).get("max_length") or MAX_TOKENS
    tokenizer.enable_truncation(min(max_tokens, MAX_TOKENS))
    tokenizer.no_padding()
    return OnnxModel(session, tokenizer)


class OnnxModel:
    """A loaded model with its tokenizer; safe to call from two threads."""

    def __init__(self, session: Any, tokenizer: Any) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._inputs = {node.name: node.type for node in session.get_inputs()}
        if unknown := set(self._inputs) - _INPUTS:
            raise _unusable(f"the model wants inputs no text has: {', '.join(sorted(unknown))}")
        outputs = [node.name for node in session.get_outputs()]
        self._output = next((name for name in _OUTPUTS if name in outputs), outputs[0])

    def run(self, *texts: str) -> Any:
        """Return the output for a text, or for a pair of texts; raises ItemFailed for one without words."""
        require_headroom(ENCODE_BYTES + ENCODE_BYTES_PER_BYTE * sum(len(text.encode()) for text in texts))
        encoding = self._tokenizer.encode(*texts)
        if not any(special == 0 for special in encoding.special_tokens_mask):
            raise ItemFailed("it has no words")
        try:
            [output] = self._session.run([self._output], self._input_arrays(encoding))
        except Exception as error:  # onnxruntime's own classes
            text = str(error).lower()
            # onnxruntime reports a failed allocation like any other failure.
            if isinstance(error, MemoryError) or "bad_alloc" in text or "allocate memory" in text:
                raise MemoryError(str(error)[:200]) from error
            raise ItemFailed(f"the model failed on it: {str(error)[:200]}") from error
        return output[0]

    def _input_arrays(self, encoding: Any) -> dict[str, Any]:
        import numpy as np

        values = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        arrays = {}
        for name, node_type in self._inputs.items():
            arrays[name] = np.array([values[name]], dtype=np.int32 if "int32" in node_type else np.int64)
        return arrays


class _SentenceEncoder:
    """A model whose output becomes one vector a text."""

    def __init__(self, model: OnnxModel, pooling: Pooling) -> None:
        self._model = model
        self._pooling = pooling

    def __call__(self, texts: list[str]) -> list[Outcome]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Outcome:
        try:
            return parse_embedding(self._pool(self._model.run(text)))
        except ItemFailed as error:
            return error

    def _pool(self, output: Any) -> Any:
        """Reduce the output to one row: itself if the model pools, else one of its rows or their mean."""
        if output.ndim == 1:
            return output
        if self._pooling == "mean":
            return output.mean(axis=0)
        return output[0 if self._pooling == "cls" else -1]
