"""Settings of clients: theirs, apart from each other's and from the daemon's own."""

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.schedules import change_database

from clankers_protocol.errors import Conflict, InvalidParams

TOKEN = "ghp_frwhFjGH4l9YOgHNj3yitnLWvEf7EvYzn9Xw"


@pytest.fixture(autouse=True)
def _delete_settings(shared_daemon: DaemonProcess) -> Iterator[None]:
    yield
    change_database(shared_daemon, "DELETE FROM config")


def test_setting_is_set_read_changed_and_deleted(rpc: RawConnection) -> None:
    assert rpc.call("config.get", namespace="plugin", key="colour") is None
    rpc.call("config.set", namespace="plugin", key="colour", value="red")
    entry = rpc.call("config.set", namespace="plugin", key="colour", value={"r": [1, None, 2.5]})
    assert rpc.call("config.get", namespace="plugin", key="colour") == entry
    assert entry["value"] == {"r": [1, None, 2.5]}
    assert rpc.call("config.delete", namespace="plugin", key="colour") == {"deleted": 1}
    assert rpc.call("config.delete", namespace="plugin", key="colour") == {"deleted": 0}
    assert rpc.call("config.get", namespace="plugin", key="colour") is None


def test_stored_null_is_not_a_missing_one(rpc: RawConnection) -> None:
    rpc.call("config.set", namespace="plugin", key="nothing", value=None)
    found = rpc.call("config.get", namespace="plugin", key="nothing")
    assert (found["key"], found["value"]) == ("nothing", None)


def test_namespaces_are_apart_and_listed_by_prefix(rpc: RawConnection) -> None:
    for namespace, key in (("a", "x.1"), ("a", "x.2"), ("a", "y"), ("b", "x.1"), ("a", "%")):
        rpc.call("config.set", namespace=namespace, key=key, value=f"{namespace}:{key}")

    def listed(**params: Any) -> list[str]:
        return [entry["value"] for entry in rpc.call("config.list", **params)["entries"]]

    assert listed(namespace="a") == ["a:%", "a:x.1", "a:x.2", "a:y"]
    assert listed(namespace="a", prefix="x.") == ["a:x.1", "a:x.2"]
    assert listed(prefix="%") == ["a:%"]
    assert listed() == ["a:%", "a:x.1", "a:x.2", "a:y", "b:x.1"]
    first = rpc.call("config.list", limit=3)
    assert listed(limit=3, cursor=first["cursor"]) == ["a:y", "b:x.1"]


def test_daemons_own_settings_are_elsewhere(rpc: RawConnection) -> None:
    rpc.call("config.set", namespace="clankersd", key="log_level", value="debug")
    levels = {one["key"]: one["value"] for one in rpc.call("daemon.config")["settings"]}
    assert levels["log_level"] == "info"


def test_namespace_has_a_limit_of_keys(rpc: RawConnection) -> None:
    sets = [{"namespace": "full", "key": f"k{number}", "value": number} for number in range(1000)]
    calls = [{"jsonrpc": "2.0", "id": number, "method": "config.set"} for number in range(1000)]
    rpc.send([call | {"params": params} for call, params in zip(calls, sets, strict=True)])
    assert all("result" in reply for reply in rpc.receive())
    refused = rpc.request("config.set", {"namespace": "full", "key": "one more", "value": 1})
    assert refused["error"]["code"] == Conflict.code
    assert rpc.call("config.set", namespace="full", key="k1", value="changed")["value"] == "changed"
    assert rpc.call("config.set", namespace="other", key="one more", value=1)["value"] == 1
    rpc.call("config.delete", namespace="full", key="k1")
    assert rpc.call("config.set", namespace="full", key="one more", value=1)["value"] == 1


def test_large_settings_come_in_several_pages(rpc: RawConnection) -> None:
    for number in range(150):
        rpc.call("config.set", namespace="large", key=f"k{number:03}", value="x" * 60_000)
    keys: list[str] = []
    cursor = None
    while cursor or not keys:
        page = rpc.call("config.list", namespace="large", limit=1000, **({"cursor": cursor} if cursor else {}))
        keys += [entry["key"] for entry in page["entries"]]
        cursor = page["cursor"]
    assert keys == [f"k{number:03}" for number in range(150)]


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"namespace": "a", "key": "k"}, "value"),
        ({"namespace": "", "key": "k", "value": 1}, "$.namespace"),
        ({"namespace": "a b", "key": "k", "value": 1}, "$.namespace"),
        ({"namespace": "../a", "key": "k", "value": 1}, "$.namespace"),
        ({"namespace": "a\n", "key": "k", "value": 1}, "$.namespace"),
        ({"namespace": "a" * 65, "key": "k", "value": 1}, "$.namespace"),
        ({"namespace": "a", "key": "", "value": 1}, "$.key"),
        ({"namespace": "a", "key": "k" * 257, "value": 1}, "$.key"),
        ({"namespace": "a", "key": "k", "value": "x" * 65_536}, "$.value"),
        ({"namespace": "a", "key": TOKEN, "value": 1}, "$.key"),
        ({"namespace": TOKEN, "key": "k", "value": 1}, "$.namespace"),
    ],
)
def test_invalid_settings_are_refused_and_not_stored(
    shared_daemon: DaemonProcess, params: dict[str, Any], names: str
) -> None:
    with shared_daemon.connect() as connection:
        error = connection.request("config.set", params)["error"]
        assert error["code"] == InvalidParams.code
        assert names in error["message"]
        assert connection.call("config.list")["entries"] == []
