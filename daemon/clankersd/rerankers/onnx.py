"""Cross-encoder from a local folder: an ONNX model that reads a query and a text together, on the CPU."""

import math
import threading
import time
from typing import Any

import structlog
from anyio import to_thread

from clankersd.embedders.base import EmbedderUnavailable, ItemFailed, to_valid_unicode
from clankersd.embedders.onnx import OnnxFolder, OnnxModel, load_model, read_folder, require_packages
from clankersd.rerankers.base import RerankerSettings, RerankerUnavailable

RETRY_SECONDS = 30.0
"""Pause before retrying a model that could not be loaded or used."""

log = structlog.get_logger(component="reranker")


class CrossEncoder:
    """Scores pairs of a query and a text with a model that is loaded on first use."""

    omission_reason = "time ran out"

    def __init__(self, settings: RerankerSettings) -> None:
        try:
            require_packages()
            self._folder: OnnxFolder = read_folder(settings.model)
        except EmbedderUnavailable as error:
            raise RerankerUnavailable(error.reason, permanent=True) from error
        self.name = f"onnx {self._folder.name}"
        self._model: OnnxModel | None = None
        self._working = threading.Lock()

    async def score(self, query: str, texts: list[str], seconds: float) -> list[float | None]:
        deadline = time.monotonic() + seconds
        try:
            # Loading takes as long as it takes: a search that cannot wait leaves it to the next one.
            return await to_thread.run_sync(self._score, query, texts, deadline, abandon_on_cancel=True)
        except RuntimeError as error:  # "can't start new thread"
            raise RerankerUnavailable(f"no thread to rerank in: {error}", retry_after=RETRY_SECONDS) from error

    async def close(self) -> None:
        self._model = None

    def _score(self, query: str, texts: list[str], deadline: float) -> list[float | None]:
        """Score the texts in order until the deadline, in a worker thread; raises RerankerUnavailable only."""
        if not self._working.acquire(blocking=False):
            raise RerankerUnavailable("it is still being loaded, or busy with an earlier search", retry_after=0.0)
        try:
            if self._model is None:
                self._model = load_model(self._folder)
            scores: list[float | None] = []
            for text in texts:
                if time.monotonic() >= deadline:
                    break
                scores.append(self._score_pair(self._model, query, text))
            return scores + [None] * (len(texts) - len(scores))
        except EmbedderUnavailable as error:
            raise RerankerUnavailable(error.reason, retry_after=RETRY_SECONDS) from error
        except BaseException as error:  # panics of native code are not subclasses of Exception
            self._model = None
            log.exception("reranker failed", model=self.name)
            reason = f"the model cannot be used: {type(error).__name__}: {str(error)[:200]}"
            raise RerankerUnavailable(reason, retry_after=RETRY_SECONDS) from error
        finally:
            self._working.release()

    def _score_pair(self, model: OnnxModel, query: str, text: str) -> float:
        try:
            return _probability(model.run(to_valid_unicode(query), to_valid_unicode(text)))
        except ItemFailed as error:
            raise ValueError(error.reason) from error


def _probability(output: Any) -> float:
    """Turn a model's output for one pair into a probability: one logit, or those of "irrelevant" and "relevant"."""
    logits = [float(number) for number in output.reshape(-1)]
    if len(logits) > 2 or not all(map(math.isfinite, logits)):
        raise ValueError(f"its output is {len(logits)} numbers, where a cross-encoder has one or two finite ones")
    return sigmoid(logits[-1] - (logits[0] if len(logits) == 2 else 0.0))


def sigmoid(logit: float) -> float:
    """Map a logit to a probability."""
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, logit))))
