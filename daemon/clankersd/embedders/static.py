"""The offline default: one stored vector per token, averaged; the model's files come with clankers.

They are made from the weights of the package `wordllama` by `make static-model`; docs/decisions/0015 says why.
"""

import hashlib
import json
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clankersd.embedders.base import EmbedderSettings, EmbedderUnavailable, Identity, ItemFailed, Outcome, provider_key
from clankersd.embedders.fingerprint import read_regular_file
from clankersd.embedders.local import Encoder, LocalEmbedder
from clankersd.embedders.memory_headroom import import_numpy, require_headroom
from clankersd.embedders.normalize import received_vector
from clankersd.embedders.profiles import configured

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Codes = npt.NDArray[np.int8]
    Scales = npt.NDArray[np.float32]

MODEL = "l2_supercat_256"
DIMS = 256
AT_ONCE = 64
LONGEST = 100_000  # characters; the mean over more tokens says nothing new

FOLDER = Path(__file__).with_name(MODEL)
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
SHA256 = {
    WEIGHTS: "633a8634d44b43db14e2d65ef5339a8f28140a930d4f9d93966202089a7b28df",
    TOKENIZER: "96b2cb654e53218d1a430561f234b78015c767875e421f2c994abd40e37169a0",
}

# The identity of indexes is that of the files the model is made from. Vectors made from either are the same to four
# digits (cosine above 0.9999), so an index made with the package wordllama stays valid.
_SOURCE_WEIGHTS = "1b3ad51d25eb53e52b4de586232aca5ec78ae0e99b6e6a9042dc1af8057fb636"
_SOURCE_TOKENIZER = "707c4b1d465711d510995de7205601b227ddfff1240f89de527aed6f099a68e1"

LOAD_BYTES = 96 * 1024 * 1024
"""Memory to be free before the model is loaded: half of it stays in use, and importing the tokenizer takes a third."""

ENCODE_BYTES = 64 * 1024 * 1024
ENCODE_BYTES_PER_BYTE = 200
"""Memory to be free before texts are encoded; the tokenizer takes up to 175 bytes for a byte of text."""

_REQUIRED_PACKAGES = ("numpy", "tokenizers")
_REINSTALL = "reinstall clankers, or set another embedder"


def static_embedder(settings: EmbedderSettings) -> LocalEmbedder:
    """Make the embedder without loading it; raises EmbedderUnavailable when another model is asked for."""
    if settings.model not in ("", MODEL) or settings.dims not in (None, DIMS):
        raise EmbedderUnavailable(
            f"the static embedder has one model, {MODEL}, with {DIMS} dimensions: unset model and dims",
            permanent=True,
        )
    model = configured(MODEL, settings)
    key = provider_key(
        weights=_SOURCE_WEIGHTS,
        tokenizer=_SOURCE_TOKENIZER,
        document_prefix=model.document_prefix,
    )
    return LocalEmbedder(Identity("static", MODEL, key, DIMS), model, _load, AT_ONCE, _preflight)


def _preflight() -> None:
    """Raise EmbedderUnavailable when a package or a file of the model is missing."""
    for package in _REQUIRED_PACKAGES:
        if find_spec(package) is None:
            raise EmbedderUnavailable(_missing(package), permanent=True)
    for path in (FOLDER / name for name in SHA256):
        # Not Path.is_file, which raises where a folder may not be searched.
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):  # noqa: PTH113
            raise EmbedderUnavailable(
                f"the static model's file {path} is missing or not readable: {_REINSTALL}", permanent=True
            )


def _missing(package: str) -> str:
    return f"the static embedder needs the package {package}: pip install {package}, or set another embedder"


def _load() -> Encoder:
    _preflight()
    try:
        import_numpy()
        require_headroom(LOAD_BYTES)
        from tokenizers import Tokenizer
    except ImportError as error:
        raise EmbedderUnavailable(f"{_missing(_package_of(error))} ({error})", permanent=True) from error
    codes, scales = _parse_weights(_read_verified(WEIGHTS))
    tokenizer = Tokenizer.from_str(_read_verified(TOKENIZER).decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return partial(_encode, tokenizer, codes, scales)


def _package_of(error: ImportError) -> str:
    """Name the package to install; what fails may be a part of it."""
    return next((package for package in _REQUIRED_PACKAGES if package in str(error.name or error)), "tokenizers")


def _read_verified(name: str) -> bytes:
    """Read a file of the model; a damaged one would give vectors that look right and are not."""
    path = FOLDER / name
    content = read_regular_file(path)
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise EmbedderUnavailable(f"the static model's file {path} is damaged: {_REINSTALL}", permanent=True)
    return content


def _parse_weights(content: bytes) -> "tuple[Codes, Scales]":
    """Read both tensors of a safetensors file: header length, JSON header, numbers."""
    import numpy as np

    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    codes_at, scales_at = header["codes"]["data_offsets"], header["scales"]["data_offsets"]
    scales = np.frombuffer(content, "<f4", header["scales"]["shape"][0], begin + scales_at[0])
    codes = np.frombuffer(content, np.int8, codes_at[1] - codes_at[0], begin + codes_at[0])
    return codes.reshape(-1, DIMS), scales


def _encode(tokenizer: Any, codes: "Codes", scales: "Scales", texts: list[str]) -> list[Outcome]:
    short = [text[:LONGEST] for text in texts]
    require_headroom(ENCODE_BYTES + ENCODE_BYTES_PER_BYTE * sum(len(text.encode()) for text in short))
    encodings = tokenizer.encode_batch_fast(short, add_special_tokens=False)
    return [_mean(codes, scales, encoding.ids) for encoding in encodings]


def _mean(codes: "Codes", scales: "Scales", ids: list[int]) -> Outcome:
    """Take each token once, weighted by its count, so that memory is bounded by the vocabulary."""
    import numpy as np

    tokens, counts = np.unique(np.minimum(ids, len(codes) - 1), return_counts=True)
    if not tokens.size:
        return ItemFailed("it has no words")
    return received_vector((counts * scales[tokens]).astype(np.float32) @ codes[tokens].astype(np.float32))
