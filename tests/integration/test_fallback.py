"""An outage of the embedder: a fallback with the same model takes over, and one with another model does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, running_daemon
from helpers.embedding_service import Answer, Request, embeddings, numbers, say, served
from helpers.waiting import eventually

pytest.importorskip("httpx")


class Switch:
    """A service that can be switched off."""

    is_on = True

    def __call__(self, request: Request) -> Answer:
        return embeddings(request) if self.is_on else say({"error": "switched off"}, 503)


@contextmanager
def outage(home: Path, fallback: Any) -> Iterator[DaemonProcess]:
    """A daemon with one embedded message, whose embedder has stopped answering."""
    first = Switch()
    with served(first) as one, served(fallback) as other:
        settings = {
            "CLANKERS_EMBEDDER": "openai", "CLANKERS_EMBEDDER_MODEL": "tiny", "CLANKERS_EMBEDDER_URL": one.url,
            "CLANKERS_EMBEDDER_FALLBACK": "ollama", "CLANKERS_EMBEDDER_FALLBACK_URL": other.url,
        }  # fmt: skip
        with running_daemon(home, **settings) as daemon, daemon.connect() as connection:
            say_message(connection, "m1", "the quick brown fox")
            eventually(lambda: connection.call("index.status")["live"]["vectors"] == 1, "it has a vector")
            first.is_on = False
            yield daemon


def say_message(connection: Any, name: str, text: str) -> None:
    connection.call("upsertMessage", message={"id": name, "sessionId": name, "role": "user", "textContent": text})


def test_fallback_makes_vectors_of_texts_and_queries(home: Path) -> None:
    with outage(home, embeddings) as daemon, daemon.connect() as connection:
        found = connection.call("search", query="anything at all", mode="vector")
        assert found["degraded"] is None
        assert found["hits"][0]["ref"]["messageId"] == "m1"
        say_message(connection, "m2", "a lazy dog")
        eventually(lambda: connection.call("index.status")["live"]["vectors"] == 2, "the second has a vector, too")
        status = connection.call("index.status")
        assert status["vectors"] == "ready"
        assert "ollama tiny makes the vectors meanwhile" in status["fallback"]
        assert "fallback" in ctl(daemon, "index", "status").out
        checks = ctl(daemon, "doctor", "--json").json["checks"]
        [found] = [one for one in checks if one["name"] == "embedder"]
        assert found["state"] == "warning"
        assert "switched off" in found["finding"]


def test_fallback_with_another_model_leaves_keyword_search(home: Path) -> None:
    def other_model(request: Request) -> Answer:
        return embeddings(request, [[-number for number in numbers(text)] for text in request.texts])

    with outage(home, other_model) as daemon, daemon.connect() as connection:
        found = connection.call("search", query="brown fox")
        assert found["mode"] == "keyword"
        assert "it is another model" in found["degraded"]
        assert found["hits"][0]["ref"]["messageId"] == "m1"
