"""Rerankers: judge how well each text answers a query, on this machine or through a service on the network."""

from clankersd.rerankers.base import Reranker, RerankerSettings, RerankerUnavailable
from clankersd.rerankers.onnx import CrossEncoder
from clankersd.rerankers.remote import SERVICES, RemoteReranker

__all__ = ["Reranker", "RerankerSettings", "RerankerUnavailable", "make_reranker"]


def make_reranker(settings: RerankerSettings) -> Reranker | None:
    """Make the reranker that the settings describe, None for "none"; raises RerankerUnavailable if it cannot."""
    if settings.provider == "none":
        return None
    if settings.provider == "onnx":
        return CrossEncoder(settings)
    return RemoteReranker(SERVICES[settings.provider], settings)
