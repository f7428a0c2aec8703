"""Cache whose entries expire."""

import time

import pytest

from clankersd.ttl_cache import TtlCache


def test_ttl_cache_returns_a_value_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    cache: TtlCache[str, int] = TtlCache(10.0, 100)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert cache.get("a") is None
    assert cache.put("a", 1) == 1
    assert cache.get("a") == 1
    monkeypatch.setattr(time, "monotonic", lambda: now + 10.5)
    assert cache.get("a") is None


def test_ttl_cache_that_is_full_is_emptied() -> None:
    cache: TtlCache[int, int] = TtlCache(60.0, 2)
    for number in range(3):
        cache.put(number, number)
    assert [cache.get(number) for number in range(3)] == [None, None, 2]
