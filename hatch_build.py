"""What hatchling cannot say in pyproject.toml: the dependencies of a build for musl, which no marker can tell apart.

A wheel for musl (Alpine Linux) does not depend on packages that have wheels for glibc only, and carries a platform tag,
so that pip prefers it there and never takes it elsewhere.
"""

import os
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

PLATFORM_VARIABLE = "CLANKERS_WHEEL_PLATFORM"
"""Names the platform to build for, such as musllinux_1_2_x86_64, where it is not the one that builds."""


def musl_platform() -> str | None:
    """Return the platform tag of a build for musl; None for every other build."""
    chosen = os.environ.get(PLATFORM_VARIABLE)
    if chosen is None and sys.platform == "linux":
        chosen = next((tag for tag in platform_tags() if tag.startswith("musllinux")), None)
    return chosen if chosen and chosen.startswith("musllinux") else None


class Dependencies(MetadataHookInterface):
    """Leaves out `not-on-musl` in a build for musl."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = self.config["dependencies"] + ([] if musl_platform() else self.config["not-on-musl"])


class PlatformTag(BuildHookInterface[Any]):
    """Marks a wheel for musl."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard" and (platform := musl_platform()):
            build_data["tag"] = f"py3-none-{platform}"
