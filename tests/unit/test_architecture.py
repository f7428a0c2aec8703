"""docs/architecture.md: the map names every package of the daemon, the walks name functions that call each other."""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAEMON = ROOT / "daemon/clankersd"
PAGE = (ROOT / "docs/architecture.md").read_text()
FOLDERS = {"client": ROOT, "clankers_protocol": ROOT / "protocol"}
"""Where the paths begin that are not relative to the daemon's package."""

STEP = re.compile(r"`(?:(?P<file>[\w/]+\.py): )?(?P<name>\w+(?:\.\w+)?)`")
Step = tuple[str, str]
"""A file, and a function, class or method in it."""


def read_walks() -> list[list[Step]]:
    """Return the chains of steps that arrows join. A step without a file is in the file of the step before it."""
    walks = PAGE.partition("## Six walks")[2].partition("\n## ")[0]
    chains: list[list[Step]] = []
    for item in re.split(r"\n *- ", walks)[1:]:
        end = 0
        for step in STEP.finditer(item):
            if item[end : step.start()].split() == ["→"]:
                chains[-1].append((step["file"] or chains[-1][-1][0], step["name"]))
            elif step["file"]:
                chains.append([(step["file"], step["name"])])
            else:
                continue  # a method of the protocol or another word in code style
            end = step.end()
    return chains


@cache
def definitions(file: str) -> dict[str, str]:
    """Return the source of each function, class and method of a file by its name."""
    source = (FOLDERS.get(file.partition("/")[0], DAEMON) / file).read_text()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = ast.get_source_segment(source, node) or ""
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[f"{node.name}.{inner.name}"] = ast.get_source_segment(source, inner) or ""
    return found


def describe(chain: list[Step]) -> str:
    return " → ".join(f"{file}: {name}" for file, name in chain)


def test_architecture_map_names_every_package_of_the_daemon() -> None:
    table = PAGE.partition("| Package of `clankersd`")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    modules = {path.stem for path in DAEMON.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in DAEMON.glob("*/__init__.py")}
    assert named == modules | packages


def test_architecture_has_the_six_walks() -> None:
    walks = re.findall(r"\n### (.*)", PAGE)
    assert len(walks) == 7, "every request, and the six"
    assert len(read_walks()) > 40


@pytest.mark.parametrize("chain", read_walks(), ids=describe)
def test_architecture_walk_is_true(chain: list[Step]) -> None:
    for file, name in chain:
        assert name in definitions(file), f"{file} has no {name}"
    for (file, caller), (_, called) in pairwise(chain):
        last = called.rpartition(".")[2]
        assert re.search(rf"\b{last}\b", definitions(file)[caller]), f"{caller} in {file} does not name {last}"
