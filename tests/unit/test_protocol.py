"""The declarations: complete, served, documented, and importing nobody above them."""

import ast
from pathlib import Path

import pytest

import clankersd.app  # serves everything
from clankers_protocol.errors import ERRORS, RpcError, error_from
from clankers_protocol.reference import openrpc, page
from clankers_protocol.wire import methods, result_type
from clankersd.wire.rpc import served

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "protocol/clankers_protocol": {"clankers_protocol"},
    "client/clankers": {"clankers", "clankers_protocol"},
    "daemon/clankersd": {"clankersd", "clankers_protocol"},
}


def test_what_is_declared_is_what_is_served() -> None:
    assert clankersd.app.FEATURES
    assert set(served) == set(methods())


def test_every_method_says_what_it_does_and_answers() -> None:
    for method in methods().values():
        assert method.__doc__
        assert result_type(method) is not None


def test_reference_page_is_current() -> None:
    assert (ROOT / "docs" / "rpc.md").read_text() == page(), "run make docs"


def test_discovery_describes_every_method_and_every_reference_resolves() -> None:
    document = openrpc("1")
    assert [method["name"] for method in document["methods"]] == sorted(methods())
    parts = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(_references(document)) <= parts


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for item in value.values() for found in _references(item)]
    if isinstance(value, list):
        return [found for item in value for found in _references(item)]
    return []


@pytest.mark.parametrize("error", list(ERRORS.values()))
def test_error_is_the_same_class_at_the_other_end(error: type[RpcError]) -> None:
    arrived = error_from(error.code, "what happened", {"field": "x"})
    assert type(arrived) is error
    assert (arrived.code, arrived.message, arrived.data) == (error.code, "what happened", {"field": "x"})


def test_unknown_code_is_kept() -> None:
    assert error_from(4999, "from a newer daemon").code == 4999
    assert RpcError.code == -32000


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_is_below_them(package: str) -> None:
    ours = {"clankers", "clankersd", "clankers_protocol"}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported = {name.partition(".")[0] for name in names} & ours
            assert imported <= ALLOWED[package], f"{path} imports {imported}"
