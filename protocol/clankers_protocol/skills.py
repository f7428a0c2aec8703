"""Skills: reusable instructions that agents look up by task."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field

from clankers_protocol.search import Embedding, Mode
from clankers_protocol.wire import Cursor, Limit, Method, Wire

SkillName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f/\\]+\Z")]
"""One line without slashes. The folder name is its lower-case form with hyphens for all but letters and digits."""

Description = Annotated[str, Meta(min_length=1, max_length=1024)]
Instructions = Annotated[str, Meta(max_length=262_144)]
Word = Annotated[str, Meta(min_length=1, max_length=256)]
Words = Annotated[list[Word], Meta(max_length=100)]
SkillRef = Annotated[str, Meta(min_length=1, max_length=1024)]


class SkillFile(Wire, forbid_unknown_fields=True):
    """A text file in the folder of a skill, next to SKILL.md; `path` is relative to that folder."""

    path: Annotated[str, Meta(min_length=1, max_length=512)]
    text: str


Files = Annotated[list[SkillFile], Meta(max_length=200)]


class Skill(Wire):
    """A stored skill. `extra` holds further front matter of its SKILL.md."""

    id: str
    name: str
    description: str
    instructions: str
    tools: list[str]
    model: str | None
    tags: list[str]
    references: list[str]
    extra: dict[str, Any]
    files: list[SkillFile]
    created_by: str | None
    version: int
    created_at: int
    updated_at: int


class SkillSummary(Wire):
    """Summary of a skill for lists."""

    id: str
    name: str
    description: str
    tags: list[str]
    version: int
    updated_at: int


class SkillPage(Wire):
    """Skills ordered by name; `cursor` requests the next page and is null on the last one."""

    skills: list[SkillSummary]
    cursor: str | None = None


class SkillCreate(Method[Skill]):
    """Create a skill. Its name must be unique, ignoring case."""

    method: ClassVar[str] = "skill.create"
    name: SkillName
    description: Description
    instructions: Instructions = ""
    tools: Words = field(default_factory=list)
    model: Word | None = None
    tags: Words = field(default_factory=list)
    references: Words = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    files: Files = field(default_factory=list)
    created_by: Word | None = None


class SkillGet(Method[Skill]):
    """Return a skill by id or name, in its current or an earlier `version`."""

    method: ClassVar[str] = "skill.get"
    id: SkillRef
    version: Annotated[int, Meta(ge=1)] | None = None


class SkillList(Method[SkillPage]):
    """List skills by name. With `tags`, list those that have all of them."""

    method: ClassVar[str] = "skill.list"
    tags: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class SkillUpdate(Method[Skill]):
    """Change a skill. Omitted fields stay unchanged. Each change creates a new version and stores the old one."""

    method: ClassVar[str] = "skill.update"
    id: SkillRef
    name: SkillName | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    instructions: Instructions | UnsetType = UNSET
    tools: Words | UnsetType = UNSET
    model: Word | UnsetType | None = UNSET
    tags: Words | UnsetType = UNSET
    references: Words | UnsetType = UNSET
    extra: dict[str, Any] | UnsetType = UNSET
    files: Files | UnsetType = UNSET
    created_by: Word | None = None


class SkillDeleted(Wire):
    """The deleted skill, or with `dryRun` the one that would be deleted."""

    id: str
    name: str
    versions: int
    dry_run: bool = False


class SkillDelete(Method[SkillDeleted]):
    """Delete a skill with all its versions. Scheduled actions that refer to it stay, without the reference."""

    method: ClassVar[str] = "skill.delete"
    id: SkillRef
    dry_run: bool = False


class ScoredSkill(Wire):
    """A skill found by a search; for `score` see `message.search`."""

    skill: SkillSummary
    score: float
    snippet: str


class FoundSkills(Wire):
    """Skills, best first. For `mode`, `pending`, `degraded` and `weak` see `search`."""

    skills: list[ScoredSkill]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float
    weak: bool = False


class SkillSearch(Method[FoundSkills]):
    """Find skills by text or by an embedding of the index's model: exactly one of `query` and `embedding`.

    Vector search covers name and description; keyword search also covers tags and instructions.
    """

    method: ClassVar[str] = "skill.search"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)] | None = None
    embedding: Embedding | None = None
    tags: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    mode: Mode = "hybrid"


class SkillVersion(Wire):
    """One version of a skill."""

    version: int
    created_by: str | None
    created_at: int
    description: str


class SkillVersions(Method[list[SkillVersion]]):
    """List the versions of a skill, newest first; `skill.get` returns one of them."""

    method: ClassVar[str] = "skill.versions"
    id: SkillRef


class SkillImported(Wire):
    """Result of importing a skill."""

    skill: SkillSummary
    outcome: Literal["created", "updated", "unchanged"]


class SkillImport(Method[SkillImported]):
    """Import a skill from the text of its SKILL.md, as Claude Code writes it: YAML front matter, then instructions.

    An existing skill of that name gets a new version; an equal one stays unchanged. `folder` names a skill whose front
    matter has no name. `allowed-tools` becomes `tools`; `tags` and `references` are read from the front matter or its
    `metadata`; all other front matter goes to `extra`.
    """

    method: ClassVar[str] = "skill.import"
    text: Annotated[str, Meta(min_length=1, max_length=300_000)]
    folder: Annotated[str, Meta(max_length=255)] | None = None
    files: Files = field(default_factory=list)
    created_by: Word | None = None


class SkillFolder(Wire):
    """A skill as a folder name and files, SKILL.md first."""

    folder: str
    files: list[SkillFile]


class SkillExport(Method[SkillFolder]):
    """Return a skill as the folder that `skill.import` accepts; the caller writes it to disk."""

    method: ClassVar[str] = "skill.export"
    id: SkillRef
    version: Annotated[int, Meta(ge=1)] | None = None
