"""`make licences`: the licences of everything that an installation of clankers brings, as docs/licences.md.

Reads the metadata of the installed packages: those that clankers needs, and those of its extras.
"""

import re
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

EXTRAS = ("onnx", "documents", "code")
_HEAD = """\
# Licences

clankers itself is under the MIT licence. This page lists the packages that an installation brings, with the licence
that each declares. `make licences` writes it from the metadata of the installed packages; versions are those of the
newest release at that time.

| Package | Version | Licence | Needed by |
|---|---|---|---|
"""


def main() -> None:
    needed: dict[str, str] = {}
    collect("clankers", "", "clankers", needed)
    for extra in EXTRAS:
        collect("clankers", extra, f"`clankers[{extra}]`", needed)
    rows = []
    for name in sorted(needed.keys() - {"clankers"}):
        found = distribution(name)
        rows.append(f"| {found.name} | {found.version} | {licence(name)} | {needed[name]} |")
    print(_HEAD + "\n".join(rows))


def collect(name: str, extra: str, reason: str, needed: dict[str, str]) -> None:
    """Add what a package needs here, and what that needs; the first reason counts."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if key in needed:
            continue
        try:
            distribution(key)
        except PackageNotFoundError:  # an extra that is not installed
            continue
        needed[key] = reason
        for inner in ("", *requirement.extras):
            collect(key, inner, reason, needed)


def licence(name: str) -> str:
    """Return the licence that a package declares: an expression, a classifier, or the first line of its text."""
    metadata = distribution(name).metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or [] if "License" in text]
    declared = metadata["License"].strip().splitlines() if "License" in metadata else []
    return " or ".join(classifiers) or (declared[0][:60] if declared else "not declared")


if __name__ == "__main__":
    main()
