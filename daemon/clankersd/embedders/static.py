"""The default embedder, which works offline: the mean of one stored vector per token.

The model's files come with clankers. They are made from the weights of the package `wordllama` by
`make static-model`; docs/decisions/0015 says why.
"""

import hashlib
import json
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clankersd.embedders.base import EmbedderSettings, EmbedderUnavailable, Identity, ItemFailed, Outcome, provider_key
from clankersd.embedders.local import Encoder, LocalEmbedder, read_model_file
from clankersd.embedders.memory_headroom import import_numpy, require_headroom
from clankersd.embedders.normalize import parse_embedding
from clankersd.embedders.profiles import configured_profile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Codes = npt.NDArray[np.int8]
    Scales = npt.NDArray[np.float32]

MODEL = "l2_supercat_256"
DIMS = 256
BATCH_TEXTS = 64
MAX_TEXT_CHARS = 100_000
"""Longer texts are truncated: the mean over more tokens says nothing new."""

FOLDER = Path(__file__).with_name(MODEL)
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
SHA256 = {
    WEIGHTS: "633a8634d44b43db14e2d65ef5339a8f28140a930d4f9d93966202089a7b28df",
    TOKENIZER: "96b2cb654e53218d1a430561f234b78015c767875e421f2c994abd40e37169a0",
}

# The model's identity is that of the files it is made from. The vectors of both are the same to four digits (cosine
# above 0.9999), so an index made with the package wordllama stays valid.
_SOURCE_WEIGHTS = "1b3ad51d25eb53e52b4de586232aca5ec78ae0e99b6e6a9042dc1af8057fb636"
_SOURCE_TOKENIZER = "707c4b1d465711d510995de7205601b227ddfff1240f89de527aed6f099a68e1"

LOAD_BYTES = 96 * 1024 * 1024
"""Free memory required to load the model: half of it stays in use, and importing the tokenizer takes a third."""

ENCODE_BYTES = 64 * 1024 * 1024
ENCODE_BYTES_PER_BYTE = 200
"""Free memory required to encode texts; the tokenizer takes up to 175 bytes per byte of text."""

_REQUIRED_PACKAGES = ("numpy", "tokenizers")
_REINSTALL = "reinstall clankers, or set another embedder"


def static_embedder(settings: EmbedderSettings) -> LocalEmbedder:
    """Make the embedder without loading it; raises EmbedderUnavailable when another model is configured."""
    if settings.model not in ("", MODEL) or settings.dims not in (None, DIMS):
        raise EmbedderUnavailable(
            f"the static embedder has one model, {MODEL}, with {DIMS} dimensions: unset model and dims",
            permanent=True,
        )
    profile = configured_profile(MODEL, settings)
    key = provider_key(
        weights=_SOURCE_WEIGHTS,
        tokenizer=_SOURCE_TOKENIZER,
        document_prefix=profile.document_prefix,
    )
    return LocalEmbedder(Identity("static", MODEL, key, DIMS), profile, _load, BATCH_TEXTS, _preflight, is_instant=True)


def _preflight() -> None:
    """Raise EmbedderUnavailable when a package or a file of the model is missing."""
    for package in _REQUIRED_PACKAGES:
        if find_spec(package) is None:
            raise EmbedderUnavailable(_missing_package(package), permanent=True)
    for path in (FOLDER / name for name in SHA256):
        # Not Path.is_file, which raises where a folder may not be searched.
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):  # noqa: PTH113
            raise EmbedderUnavailable(
                f"the static model's file {path} is missing or not readable: {_REINSTALL}", permanent=True
            )


def _missing_package(package: str) -> str:
    return f"the static embedder needs the package {package}: pip install {package}, or set another embedder"


def _load() -> Encoder:
    _preflight()
    try:
        import_numpy()
        require_headroom(LOAD_BYTES)
        from tokenizers import Tokenizer
    except ImportError as error:
        failed = str(error.name or error)  # it may be a submodule of the package to install
        package = next((package for package in _REQUIRED_PACKAGES if package in failed), "tokenizers")
        raise EmbedderUnavailable(f"{_missing_package(package)} ({error})", permanent=True) from error
    codes, scales = _parse_weights(_read_verified(WEIGHTS))
    tokenizer = Tokenizer.from_str(_read_verified(TOKENIZER).decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return partial(_encode, tokenizer, codes, scales)


def _read_verified(name: str) -> bytes:
    """Read a file of the model and check its hash: a damaged file would give plausible but wrong vectors."""
    path = FOLDER / name
    content = read_model_file(path)
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
    import numpy as np

    short = [text[:MAX_TEXT_CHARS] for text in texts]
    require_headroom(ENCODE_BYTES + ENCODE_BYTES_PER_BYTE * sum(len(text.encode()) for text in short))
    outcomes: list[Outcome] = []
    for encoding in tokenizer.encode_batch_fast(short, add_special_tokens=False):
        # The mean of the tokens' vectors, each once and weighted by its count, which bounds memory by the vocabulary.
        tokens, counts = np.unique(np.minimum(encoding.ids, len(codes) - 1), return_counts=True)
        if tokens.size:
            total = (counts * scales[tokens]).astype(np.float32) @ codes[tokens].astype(np.float32)
            outcomes.append(parse_embedding(total))
        else:
            outcomes.append(ItemFailed("it has no words"))
    return outcomes
