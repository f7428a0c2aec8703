"""The quality upgrade: any ONNX sentence encoder from a local folder, on the CPU."""

import os
from functools import partial
from importlib.util import find_spec
from typing import Any

from clankersd.embedders.base import EmbedderSettings, EmbedderUnavailable, Identity, ItemFailed, Outcome, provider_key
from clankersd.embedders.local import Encoder, LocalEmbedder
from clankersd.embedders.memory_headroom import import_numpy, require_headroom
from clankersd.embedders.normalize import received_vector
from clankersd.embedders.onnx_folder import LONGEST, OnnxFolder, read_folder
from clankersd.embedders.profiles import Pooling, configured

_MISSING = "the onnx embedder needs onnxruntime and tokenizers: pip install 'clankers[onnx]'"
_REQUIRED_PACKAGES = ("numpy", "onnxruntime", "tokenizers")
LOAD_BYTES = 192 * 1024 * 1024
"""Memory to be free before a model is loaded, besides three times the size of its file."""

ENCODE_BYTES = 64 * 1024 * 1024
ENCODE_BYTES_PER_BYTE = 200
"""Memory to be free before a text is encoded; the tokenizer takes up to 175 bytes for a byte of text."""
_OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


def onnx_embedder(settings: EmbedderSettings) -> LocalEmbedder:
    """Raises EmbedderUnavailable when the folder that `model` names cannot be used."""
    folder = read_folder(settings.model)
    model = configured(folder.described, settings)
    key = provider_key(
        checksum=folder.checksum,
        pooling=folder.pooling,
        longest=folder.longest,
        document_prefix=model.document_prefix,
    )
    identity = Identity("onnx", folder.name, key, settings.dims)
    # One text at a time: an int8 model's vector would depend on its neighbours, and padding costs.
    return LocalEmbedder(identity, model, partial(_load, folder), at_once=1, preflight=_preflight)


def _preflight() -> None:
    if any(find_spec(package) is None for package in _REQUIRED_PACKAGES):
        raise EmbedderUnavailable(_MISSING, permanent=True)


def _load(folder: OnnxFolder) -> Encoder:
    try:
        import_numpy()
        require_headroom(LOAD_BYTES + 3 * folder.model.stat().st_size)
        import onnxruntime
        from tokenizers import Tokenizer
    except OSError as error:
        raise EmbedderUnavailable(f"{folder.model} cannot be read: {error.strerror}", permanent=True) from error
    except ImportError as error:
        raise EmbedderUnavailable(_MISSING, permanent=True) from error
    try:
        tokenizer = Tokenizer.from_file(str(folder.tokenizer))
        session = onnxruntime.InferenceSession(
            str(folder.model), _options(onnxruntime), providers=["CPUExecutionProvider"]
        )
    except MemoryError:
        raise
    except BaseException as error:  # both raise classes of their own, and a panic of the tokenizer is no Exception
        raise EmbedderUnavailable(
            f"the model in {folder.model.parent} cannot be loaded: {str(error)[:200]}", permanent=True
        ) from error
    longest = folder.longest or (tokenizer.truncation or {}).get("max_length") or LONGEST
    tokenizer.enable_truncation(min(longest, LONGEST))
    tokenizer.no_padding()
    return _SentenceEncoder(session, tokenizer, folder.pooling)


def _options(onnxruntime: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2 if (os.cpu_count() or 1) >= 4 else 1  # the rest is for the daemon
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # texts of many lengths would make it grow and never shrink
    options.log_severity_level = 4  # what matters is raised; the rest would land on stderr
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class _SentenceEncoder:
    """A loaded model with its tokenizer; safe to call from two threads."""

    def __init__(self, session: Any, tokenizer: Any, pooling: Pooling) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._pooling = pooling
        self._inputs = {given.name: given.type for given in session.get_inputs()}
        if unknown := set(self._inputs) - _INPUTS:
            names = ", ".join(sorted(unknown))
            raise EmbedderUnavailable(f"the model wants inputs no text has: {names}", permanent=True)
        outputs = [output.name for output in session.get_outputs()]
        self._output = next((name for name in _OUTPUTS if name in outputs), outputs[0])

    def __call__(self, texts: list[str]) -> list[Outcome]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Outcome:
        require_headroom(ENCODE_BYTES + ENCODE_BYTES_PER_BYTE * len(text.encode()))
        encoding = self._tokenizer.encode(text)
        if not any(special == 0 for special in encoding.special_tokens_mask):
            return ItemFailed("it has no words")
        try:
            [output] = self._session.run([self._output], self._feed(encoding))
        except Exception as error:  # onnxruntime's own classes
            if _out_of_memory(error):
                raise MemoryError(str(error)[:200]) from error
            return ItemFailed(f"the model failed on it: {str(error)[:200]}")
        return received_vector(self._pooled(output[0]))

    def _feed(self, encoding: Any) -> dict[str, Any]:
        import numpy as np

        given = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        kinds = {name: np.int32 if "int32" in kind else np.int64 for name, kind in self._inputs.items()}
        return {name: np.array([given[name]], dtype=kind) for name, kind in kinds.items()}

    def _pooled(self, output: Any) -> Any:
        """One row of numbers: the output itself when the model pools, else one of its rows or their mean."""
        if output.ndim == 1:
            return output
        if self._pooling == "mean":
            return output.mean(axis=0)
        return output[0 if self._pooling == "cls" else -1]


def _out_of_memory(error: Exception) -> bool:
    """Recognise a failed allocation, which onnxruntime reports like any other failure."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in ("bad_alloc", "allocate memory"))
