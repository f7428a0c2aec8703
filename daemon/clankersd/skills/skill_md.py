"""Parse and write SKILL.md files: instructions with YAML front matter, in the format of Claude Code."""

import re
from pathlib import PurePosixPath
from typing import Any

import msgspec

from clankers_protocol.agent_text import strip_invisible
from clankers_protocol.errors import InvalidParams
from clankers_protocol.skills import Skill, SkillCreate, SkillFile, SkillFolder

FILE_NAME = "SKILL.md"
MAX_FRONT_MATTER_CHARACTERS = 32 * 1024
MAX_FILES_CHARACTERS = 4 * 1024 * 1024
"""Limit for all files of a skill together."""

_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
OWN_FIELDS = ("name", "description", "allowed-tools", "model", "tags", "references")
"""Front matter keys that have their own field in a skill; others are stored in `extra`."""

_TOOL = re.compile(r"[^\s,(]+(?:\([^)]*\))?")


def parse_skill(text: str, folder: str | None, files: list[SkillFile], created_by: str | None) -> SkillCreate:
    """Parse a SKILL.md file; raises InvalidParams, which names the problem."""
    matter, instructions = _split_front_matter(text)
    metadata = matter.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidParams(f"invalid params: {FILE_NAME}: metadata must consist of `name: value` lines - at `$.text`")
    extra = {key: value for key, value in matter.items() if key not in (*OWN_FIELDS, "metadata")}
    other_metadata = {key: value for key, value in metadata.items() if key not in ("tags", "references")}
    if other_metadata:
        extra["metadata"] = other_metadata
    description = matter.get("description")
    if not description:  # the first paragraph that is not a heading
        paragraphs = (part.strip() for part in re.split(r"\n\s*\n", instructions))
        description = next(
            (" ".join(part.split())[:1024] for part in paragraphs if part and not part.startswith("#")), ""
        )
    fields = {
        "name": matter.get("name") or folder,
        "description": description,
        "instructions": instructions,
        "tools": _parse_tools(matter.get("allowed-tools")),
        "model": matter.get("model"),
        "tags": _parse_list("tags", matter.get("tags") or metadata.get("tags")),
        "references": _parse_list("references", matter.get("references") or metadata.get("references")),
        "extra": extra,
        "files": files,
        "createdBy": created_by,
    }
    try:
        return msgspec.convert(fields, SkillCreate, from_attributes=True)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {FILE_NAME}: {error}") from error


def write_folder(skill: Skill) -> SkillFolder:
    """Return the files of a skill's folder. Tags and references go into `metadata`, which other readers ignore."""
    from clankersd.skills import front_matter  # loads yaml, which few daemons need

    matter: dict[str, Any] = {"name": skill.name, "description": skill.description}
    if skill.tools:
        joined = ", ".join(skill.tools)
        matter["allowed-tools"] = joined if _parse_tools(joined) == skill.tools else skill.tools
    if skill.model:
        matter["model"] = skill.model
    listed = {"tags": skill.tags, "references": skill.references}
    metadata = dict(skill.extra.get("metadata") or {}) | {key: value for key, value in listed.items() if value}
    matter |= {key: value for key, value in skill.extra.items() if key != "metadata"}
    if metadata:
        matter["metadata"] = metadata
    front = front_matter.write(matter)
    text = strip_invisible(f"---\n{front}---\n\n{skill.instructions}")  # people must see all that an agent reads
    return SkillFolder(folder_name(skill), [SkillFile(FILE_NAME, text), *skill.files])


def folder_name(skill: Skill) -> str:
    """Convert the skill's name to a folder name that is valid on every system."""
    return re.sub(r"[\W_]+", "-", skill.name.lower()).strip("-") or f"skill-{skill.id[:8]}"


def check_files(files: list[SkillFile]) -> None:
    """Reject paths outside the skill's folder, and folders that are too large; raises InvalidParams."""
    seen = set()
    for number, file in enumerate(files):
        path = PurePosixPath(file.path)
        inside = not path.is_absolute() and ".." not in path.parts and "\\" not in file.path and "\0" not in file.path
        if not inside or str(path) != file.path or path.name in ("", "."):
            raise InvalidParams(f"invalid params: not a path inside the skill's folder - at `$.files[{number}].path`")
        if file.path.lower() in seen or file.path.lower() == FILE_NAME.lower():
            problem = f"{file.path} is listed twice or reserved"
            raise InvalidParams(f"invalid params: {problem} - at `$.files[{number}].path`")
        seen.add(file.path.lower())
    if sum(len(file.text) for file in files) > MAX_FILES_CHARACTERS:
        problem = f"the files have more than {MAX_FILES_CHARACTERS} characters"
        raise InvalidParams(f"invalid params: {problem} - at `$.files`")


def _split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    from clankersd.skills import front_matter  # loads yaml, which few daemons need

    match = _FRONT_MATTER.match(text)
    if not match:
        problem = f"{FILE_NAME} must begin with front matter between two lines of ---"
        raise InvalidParams(f"invalid params: {problem} - at `$.text`")
    if len(match[1]) > MAX_FRONT_MATTER_CHARACTERS:
        problem = f"the front matter is longer than {MAX_FRONT_MATTER_CHARACTERS} characters"
        raise InvalidParams(f"invalid params: {problem} - at `$.text`")
    try:
        matter = front_matter.parse(match[1])
        matter = msgspec.json.decode(msgspec.json.encode(matter))  # convert to the form in which it is stored
    except (front_matter.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InvalidParams(f"invalid params: the front matter is not valid YAML: {problem} - at `$.text`") from error
    if not isinstance(matter, dict):
        raise InvalidParams("invalid params: the front matter must consist of `name: value` lines - at `$.text`")
    return matter, text[match.end() :].lstrip("\r\n")


def _parse_tools(value: Any) -> Any:
    """Split tools separated by commas or spaces, but not inside parentheses; a list is returned as it is."""
    return _TOOL.findall(value) if isinstance(value, str) else value or []


def _parse_list(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if value is not None and not isinstance(value, list):
        raise InvalidParams(f"invalid params: {FILE_NAME}: {name} must be a list - at `$.text`")
    return value or []
