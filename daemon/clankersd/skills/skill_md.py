"""SKILL.md: a skill as a text with YAML front matter, read and written as Claude Code has them."""

import re
from pathlib import PurePosixPath
from typing import Any

import msgspec
import yaml

from clankers_protocol.agent_text import strip_invisible
from clankers_protocol.errors import InvalidParams
from clankers_protocol.skills import Skill, SkillCreate, SkillFile, SkillFolder

NAME = "SKILL.md"
LONGEST_FRONT_MATTER = 32 * 1024
MOST_TEXT = 4 * 1024 * 1024
"""Characters in all files of a skill together."""

_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
OWN_FIELDS = ("name", "description", "allowed-tools", "model", "tags", "references")
"""What of the front matter a skill has fields for; the rest is kept as it is."""

_TOOL = re.compile(r"[^\s,(]+(?:\([^)]*\))?")


class _Loader(yaml.SafeLoader):
    """Plain data only: a date stays the text it is, and nothing stands for something else."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # a few of them make gigabytes of nothing
            raise yaml.YAMLError("an alias (*name) is not taken here")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(text: str, folder: str | None, files: list[SkillFile], created_by: str | None) -> SkillCreate:
    """The skill that a SKILL.md describes; raises InvalidParams, which names what is wrong with it."""
    matter, instructions = _split(text)
    metadata = matter.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidParams(f"invalid params: {NAME}: metadata is a list of `name: value` lines - at `$.text`")
    extra = {key: value for key, value in matter.items() if key not in (*OWN_FIELDS, "metadata")}
    kept = {key: value for key, value in metadata.items() if key not in ("tags", "references")}
    given = {
        "name": matter.get("name") or folder,
        "description": matter.get("description") or _first_paragraph(instructions),
        "instructions": instructions,
        "tools": _tools(matter.get("allowed-tools")),
        "model": matter.get("model"),
        "tags": _list("tags", matter.get("tags") or metadata.get("tags")),
        "references": _list("references", matter.get("references") or metadata.get("references")),
        "extra": extra | ({"metadata": kept} if kept else {}),
        "files": files,
        "createdBy": created_by,
    }
    try:
        return msgspec.convert(given, SkillCreate, from_attributes=True)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {NAME}: {error}") from error


def write(skill: Skill) -> SkillFolder:
    """The folder of a skill. Tags and references go into `metadata`, where other readers let them be."""
    matter: dict[str, Any] = {"name": skill.name, "description": skill.description}
    if skill.tools:
        joined = ", ".join(skill.tools)
        matter["allowed-tools"] = joined if _tools(joined) == skill.tools else skill.tools
    if skill.model:
        matter["model"] = skill.model
    listed = {"tags": skill.tags, "references": skill.references}
    metadata = dict(skill.extra.get("metadata") or {}) | {key: value for key, value in listed.items() if value}
    matter |= {key: value for key, value in skill.extra.items() if key != "metadata"}
    if metadata:
        matter["metadata"] = metadata
    front = yaml.safe_dump(matter, sort_keys=False, allow_unicode=True, width=1000)
    text = strip_invisible(f"---\n{front}---\n\n{skill.instructions}")  # its owner sees all that an agent reads
    return SkillFolder(folder_name(skill), [SkillFile(NAME, text), *skill.files])


def folder_name(skill: Skill) -> str:
    """The name as a folder can have it everywhere."""
    return re.sub(r"[\W_]+", "-", skill.name.lower()).strip("-") or f"skill-{skill.id[:8]}"


def check_files(files: list[SkillFile]) -> None:
    """Refuse paths that would leave the skill's folder, and folders that are too large; raises InvalidParams."""
    seen = set()
    for number, file in enumerate(files):
        path = PurePosixPath(file.path)
        inside = not path.is_absolute() and ".." not in path.parts and "\\" not in file.path and "\0" not in file.path
        if not inside or str(path) != file.path or path.name in ("", "."):
            raise InvalidParams(f"invalid params: not a path inside the skill's folder - at `$.files[{number}].path`")
        if file.path.lower() in seen or file.path.lower() == NAME.lower():
            raise InvalidParams(f"invalid params: {file.path} is there already - at `$.files[{number}].path`")
        seen.add(file.path.lower())
    if sum(len(file.text) for file in files) > MOST_TEXT:
        raise InvalidParams(f"invalid params: the files hold more than {MOST_TEXT} characters - at `$.files`")


def _split(text: str) -> tuple[dict[str, Any], str]:
    found = _FRONT_MATTER.match(text)
    if not found:
        raise InvalidParams(f"invalid params: {NAME} begins with front matter between two lines of --- - at `$.text`")
    if len(found[1]) > LONGEST_FRONT_MATTER:
        raise InvalidParams(f"invalid params: the front matter is longer than {LONGEST_FRONT_MATTER} - at `$.text`")
    try:
        matter = yaml.load(found[1], _Loader)  # noqa: S506  # a SafeLoader that is stricter still
        matter = msgspec.json.decode(msgspec.json.encode(matter))  # as it will be stored
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InvalidParams(f"invalid params: the front matter is no YAML: {problem} - at `$.text`") from error
    if not isinstance(matter, dict):
        raise InvalidParams("invalid params: the front matter is a list of `name: value` lines - at `$.text`")
    return matter, text[found.end() :].lstrip("\r\n")


def _first_paragraph(instructions: str) -> str:
    """What a skill without a description is about, as far as its text tells."""
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", instructions))
    return next((" ".join(part.split())[:1024] for part in paragraphs if part and not part.startswith("#")), "")


def _tools(given: Any) -> Any:
    """Tools by commas, by spaces or as a list; what stands in brackets belongs to the tool."""
    return _TOOL.findall(given) if isinstance(given, str) else given or []


def _list(name: str, given: Any) -> list[str]:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    if given is not None and not isinstance(given, list):
        raise InvalidParams(f"invalid params: {NAME}: {name} is a list - at `$.text`")
    return given or []
