"""The offline default: one stored vector per token, averaged; the model inside the package `wordllama`."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clankersd.index.embedders.base import (
    EmbedderSettings,
    EmbedderUnavailable,
    Identity,
    ItemFailed,
    Outcome,
    provider_key,
)
from clankersd.index.embedders.files import fingerprint
from clankersd.index.embedders.local import Encoder, LocalEmbedder
from clankersd.index.embedders.models import configured
from clankersd.index.embedders.vectors import received_vector

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MODEL = "l2_supercat_256"
DIMS = 256
AT_ONCE = 64
LONGEST = 100_000  # characters; the mean over more tokens says nothing new

_TENSOR = "embedding.weight"
_DTYPES = {"F16": "<f2", "F32": "<f4"}
_MISSING = "the static embedder needs the package wordllama: pip install wordllama, or set another embedder"
_DAMAGED = "the files of the package wordllama cannot be used: pip install --force-reinstall wordllama"


def static_embedder(settings: EmbedderSettings) -> LocalEmbedder:
    """Raises EmbedderUnavailable when the package is missing or another model is asked for."""
    if settings.model not in ("", MODEL) or settings.dims not in (None, DIMS):
        raise EmbedderUnavailable(
            f"the static embedder has one model, {MODEL}, with {DIMS} dimensions: unset model and dims",
            permanent=True,
        )
    weights, tokenizer = _files()
    model = configured(MODEL, settings)
    key = provider_key(
        weights=fingerprint(weights),
        tokenizer=fingerprint(tokenizer),
        document_prefix=model.document_prefix,
    )
    return LocalEmbedder(
        Identity("static", MODEL, key, DIMS),
        model,
        partial(_load, weights, tokenizer),
        AT_ONCE,
    )


def _files() -> tuple[Path, Path]:
    """The weights and the tokenizer, found without importing the package, which loads much and logs."""
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderUnavailable(_MISSING, permanent=True)
    folder = Path(next(iter(spec.submodule_search_locations)))
    weights = folder / "weights" / f"{MODEL}.safetensors"
    tokenizer = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    if not (weights.is_file() and tokenizer.is_file()):
        raise EmbedderUnavailable(_DAMAGED, permanent=True)
    return weights, tokenizer


def _load(weights: Path, tokenizer_file: Path) -> Encoder:
    try:
        from tokenizers import Tokenizer

        table = _read_table(weights)
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except ImportError as error:
        raise EmbedderUnavailable(_MISSING, permanent=True) from error
    except Exception as error:  # the tokenizer raises plain Exception for a file it cannot read
        raise EmbedderUnavailable(_DAMAGED, permanent=True) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return partial(_encode, tokenizer, table)


def _read_table(path: Path) -> "npt.NDArray[np.floating[Any]]":
    """The one tensor of a safetensors file: header length, JSON header, numbers."""
    import numpy as np

    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        tensor = json.loads(file.read(header_size))[_TENSOR]
        begin, end = tensor["data_offsets"]
        file.seek(8 + header_size + begin)
        numbers = np.frombuffer(file.read(end - begin), dtype=_DTYPES[tensor["dtype"]])
    return numbers.reshape(-1, DIMS)


def _encode(tokenizer: Any, table: "npt.NDArray[np.floating[Any]]", texts: list[str]) -> list[Outcome]:
    short = [text[:LONGEST] for text in texts]
    encodings = tokenizer.encode_batch_fast(short, add_special_tokens=False)
    return [_mean(table, encoding.ids) for encoding in encodings]


def _mean(table: "npt.NDArray[np.floating[Any]]", ids: list[int]) -> Outcome:
    """Each token taken once and weighted by its count, so that memory is bounded by the vocabulary."""
    import numpy as np

    tokens, counts = np.unique(np.minimum(ids, len(table) - 1), return_counts=True)
    if not tokens.size:
        return ItemFailed("it has no words")
    return received_vector(counts.astype(np.float32) @ table[tokens].astype(np.float32))
