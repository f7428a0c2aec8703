"""What the files beside an ONNX model say about how to use it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clankersd.embedders.base import EmbedderUnavailable
from clankersd.embedders.fingerprint import fingerprint, read_regular_file
from clankersd.embedders.profiles import Pooling, known

LONGEST = 512  # tokens; the cost grows with the square, and chunks are shorter

_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_POOLING_NAMES: dict[Any, Pooling] = {"cls": "cls", "mean": "mean", "last": "last", "lasttoken": "last"}
_LENGTHS = [
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
    ("config.json", "max_position_embeddings"),
]


@dataclass(frozen=True)
class OnnxFolder:
    """A folder with a sentence encoder: its files, and what is said of them."""

    name: str
    described: str  # all its names, to look it up by
    model: Path
    tokenizer: Path
    pooling: Pooling
    longest: int | None  # None: as the tokenizer says

    @property
    def checksum(self) -> str:
        """Changes with the weights and the tokenizer, not with where they lie."""
        weights = [self.model, *sorted(self.model.parent.glob("*.onnx?data"))]  # large models keep them apart
        return "".join(fingerprint(path) for path in (*weights, self.tokenizer))


def read_folder(path: str) -> OnnxFolder:
    """Raises EmbedderUnavailable when something is missing, ambiguous or unreadable."""
    try:
        return _read_folder(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: an unknown home folder, links that lead in a circle
        raise _unusable(f"the model's folder {path} cannot be read: {error}") from error


def _read_folder(path: str) -> OnnxFolder:
    if not path:
        raise _unusable("the onnx embedder needs a model: set it to a folder with model.onnx and tokenizer.json")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise _unusable(f"there is no folder {folder}: set the embedder's model to one with model.onnx")
    tokenizer = next((file for file in _both(folder, "tokenizer.json")), None)
    if tokenizer is None:
        raise _unusable(f"there is no tokenizer.json in {folder}: put the model's there")
    ours = _read_json(folder / "clankers.json")
    name = str(ours.get("name") or folder.resolve().name)
    described = f"{name} {_read_json(folder / 'config.json').get('_name_or_path', '')}"
    return OnnxFolder(
        name=name,
        described=described,
        model=_model_file(folder),
        tokenizer=tokenizer,
        pooling=_said_pooling(folder, ours) or known(described).pooling,
        longest=_longest(folder),
    )


def _model_file(folder: Path) -> Path:
    found = _both(folder, "model.onnx") or _both(folder, "*.onnx")
    if not found:
        raise _unusable(f"there is no model.onnx in {folder}: export the model to ONNX and put it there")
    if len(found) > 1 and found[0].name != "model.onnx":
        names = ", ".join(sorted(file.name for file in found))
        raise _unusable(f"{folder} holds several models ({names}): name the one to use model.onnx")
    return found[0]


def _both(folder: Path, pattern: str) -> list[Path]:
    """Files at the top, then in `onnx/`, where exporters put them."""
    return [file for place in (folder, folder / "onnx") for file in sorted(place.glob(pattern))]


def _said_pooling(folder: Path, ours: dict[str, Any]) -> Pooling | None:
    said = ours.get("pooling")
    if said in _POOLING_NAMES:
        return _POOLING_NAMES[said]
    if said is not None:
        raise _unusable(f"{folder / 'clankers.json'}: pooling must be mean, cls or last, not {said!r}")
    config = _read_json(folder / _pooling_folder(folder) / "config.json")
    if config.get("pooling_mode") in _POOLING_NAMES:
        return _POOLING_NAMES[config["pooling_mode"]]
    return next((pooling for key, pooling in _POOLINGS.items() if config.get(key) is True), None)


def _pooling_folder(folder: Path) -> str:
    modules = _read_json(folder / "modules.json", list)
    said = [module.get("path") for module in modules if str(module.get("type")).endswith("Pooling")]
    return str(said[0]) if said else "1_Pooling"


def _longest(folder: Path) -> int | None:
    for file, key in _LENGTHS:
        said = _read_json(folder / file).get(key)
        if isinstance(said, int | float) and said > 0:
            return int(min(said, LONGEST))
    return None


def _read_json(path: Path, kind: type[Any] = dict) -> Any:
    """What the file holds, or nothing when there is none."""
    try:
        if not path.exists():
            return kind()
        found = json.loads(read_regular_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(f"{path} cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise _unusable(f"{path} cannot be read: it is not a JSON {kind.__name__}")
    return found


def _unusable(reason: str) -> EmbedderUnavailable:
    return EmbedderUnavailable(reason, permanent=True)
