"""YAML of the front matter of SKILL.md files. Imported when a skill is read or written: few daemons have any."""

from typing import Any

import yaml
from yaml import YAMLError

__all__ = ["YAMLError", "parse", "write"]


def parse(text: str) -> Any:
    """Parse front matter; raises YAMLError."""
    return yaml.load(text, _Loader)  # noqa: S506  # a stricter SafeLoader


def write(matter: dict[str, Any]) -> str:
    """Write front matter in the order of its keys, each value on one line."""
    return yaml.safe_dump(matter, sort_keys=False, allow_unicode=True, width=1000)


class _Loader(yaml.SafeLoader):
    """Load plain data only: dates stay text, and aliases are rejected."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # a few nested aliases can expand to gigabytes
            raise yaml.YAMLError("an alias (*name) is not allowed here")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
