"""`make platforms`: what `pip install` of clankers finds on each platform and Python, asked of the package index.

uv resolves the dependencies twice for each: as pip does, which takes the newest release even where it has to be built
from source, and with wheels only. Where both agree, an installation needs no compiler. Nothing is installed.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
DEPENDENCIES = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]
EXTRAS = {name: PROJECT["project"]["optional-dependencies"][name] for name in ("onnx", "documents", "code")}
PLATFORMS = {
    "Linux x86_64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "Alpine x86_64": "x86_64-unknown-linux-musl",
    "Alpine arm64": "aarch64-unknown-linux-musl",
    "macOS arm64": "aarch64-apple-darwin",
    "macOS x86_64": "x86_64-apple-darwin",
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PURE_PYTHON_SOURCES = ("jsonrpcserver",)  # has no wheel, and needs no compiler
AT_ONCE = 2


def main() -> None:
    if shutil.which("uv") is None:
        raise SystemExit("make platforms needs uv: pip install uv")
    table = Table("platform", "Python", "install", "vectors", *EXTRAS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [(platform, python) for platform in PLATFORMS for python in PYTHONS]
        for row in pool.map(lambda pair: row_of(*pair), asked):
            table.add_row(*row)
    Console(highlight=False, width=140).print(table)
    failed = any(cell != "wheels" for cell in table.columns[2].cells)
    sys.exit(1 if failed else 0)


def row_of(platform: str, python: str) -> list[str]:
    """Return the cells for one platform and Python."""
    has_vectors = not PLATFORMS[platform].endswith("musl")
    base = DEPENDENCIES["dependencies"] + (DEPENDENCIES["not-on-musl"] if has_vectors else [])
    installs = [describe(requirements, platform, python) for requirements in (base, *EXTRAS.values())]
    return [platform, python, installs[0], "yes" if has_vectors else "no", *installs[1:]]


def describe(requirements: list[str], platform: str, python: str) -> str:
    """Say whether wheels suffice: `wheels`, or what has none, or what pip would build from source."""
    wheels = resolve(requirements, platform, python, wheels_only=True)
    newest = resolve(requirements, platform, python, wheels_only=False)
    if isinstance(wheels, str) or isinstance(newest, str):
        return f"no wheel: {wheels if isinstance(wheels, str) else newest}"
    built = sorted(f"{name} {version}" for name, version in newest.items() if wheels.get(name) != version)
    return f"builds {', '.join(built)}" if built else "wheels"


def resolve(requirements: list[str], platform: str, python: str, *, wheels_only: bool) -> dict[str, str] | str:
    """Return versions by name, or the name of a package that cannot be had."""
    command = ["uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--no-python-downloads"]
    command += ["--python-platform", PLATFORMS[platform], "--python-version", python]
    if wheels_only:
        command += ["--only-binary", ":all:"]
        for name in PURE_PYTHON_SOURCES:
            command += ["--no-binary", name]
    ran = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True)
    if ran.returncode:
        missing = re.search(r"Because (?:only )?([\w-]+)", ran.stderr)
        return missing[1] if missing else ran.stderr.strip().splitlines()[0]
    return dict(re.findall(r"^([\w.-]+)==(\S+)", ran.stdout, re.MULTILINE))


if __name__ == "__main__":
    main()
