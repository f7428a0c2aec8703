"""Skills: instructions that agents look up when a task calls for them."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field

from clankers_protocol.search import Embedding, Mode
from clankers_protocol.wire import Cursor, Limit, Method, Wire

SkillName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f/\\]+\Z")]
"""One line without slashes. As a folder's name it is lowered, and what is neither letter nor digit becomes a hyphen."""

Description = Annotated[str, Meta(min_length=1, max_length=1024)]
Instructions = Annotated[str, Meta(max_length=262_144)]
Word = Annotated[str, Meta(min_length=1, max_length=256)]
Words = Annotated[list[Word], Meta(max_length=100)]
SkillRef = Annotated[str, Meta(min_length=1, max_length=1024)]


class SkillFile(Wire, forbid_unknown_fields=True):
    """A text file of a skill's folder beside its SKILL.md; `path` is relative to the folder."""

    path: Annotated[str, Meta(min_length=1, max_length=512)]
    text: str


Files = Annotated[list[SkillFile], Meta(max_length=200)]


class Skill(Wire):
    """A skill as stored. `extra` is what else stood in the front matter of its SKILL.md."""

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
    """What a list shows of a skill."""

    id: str
    name: str
    description: str
    tags: list[str]
    version: int
    updated_at: int


class SkillPage(Wire):
    """Skills by name; `cursor` asks for the next page and is null on the last one."""

    skills: list[SkillSummary]
    cursor: str | None = None


class SkillCreate(Method[Skill]):
    """Store a new skill. Its name must be free, without regard to case."""

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
    """One skill by its id or its name, as it is now or as it was in an earlier `version`."""

    method: ClassVar[str] = "skill.get"
    id: SkillRef
    version: Annotated[int, Meta(ge=1)] | None = None


class SkillList(Method[SkillPage]):
    """Skills by name. With `tags`, those that have all of them."""

    method: ClassVar[str] = "skill.list"
    tags: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class SkillUpdate(Method[Skill]):
    """Change a skill; what is left out stays. A change makes a new version, and the old one is kept."""

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
    """What was deleted, or with `dryRun` would be."""

    id: str
    name: str
    versions: int
    dry_run: bool = False


class SkillDelete(Method[SkillDeleted]):
    """Delete a skill and all its versions; scheduled actions that used it stay, without it."""

    method: ClassVar[str] = "skill.delete"
    id: SkillRef
    dry_run: bool = False


class ScoredSkill(Wire):
    """A skill that was found; `score` is as in `message.search`."""

    skill: SkillSummary
    score: float
    snippet: str


class FoundSkills(Wire):
    """Skills, best first. `mode`, `pending` and `degraded` are as in `search`."""

    skills: list[ScoredSkill]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float


class SkillSearch(Method[FoundSkills]):
    """Find skills by a text, or by an embedding of the index's own model: one of `query` and `embedding`.

    The meaning is that of name and description; words are found in the tags and the instructions too.
    """

    method: ClassVar[str] = "skill.search"
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)] | None = None
    embedding: Embedding | None = None
    tags: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    mode: Mode = "hybrid"


class SkillVersion(Wire):
    """One state a skill was in."""

    version: int
    created_by: str | None
    created_at: int
    description: str


class SkillVersions(Method[list[SkillVersion]]):
    """Every version of a skill, newest first; `skill.get` shows one."""

    method: ClassVar[str] = "skill.versions"
    id: SkillRef


class SkillImported(Wire):
    """What an import came to."""

    skill: SkillSummary
    outcome: Literal["created", "updated", "unchanged"]


class SkillImport(Method[SkillImported]):
    """Take a skill from the text of its SKILL.md, as Claude Code writes them: YAML front matter, then instructions.

    A skill of that name gets a new version; an equal one is left alone. `folder` is the name of one whose front
    matter has none. `allowed-tools` becomes `tools`; `tags` and `references` stand in the front matter or in its
    `metadata`; everything else there is kept in `extra`.
    """

    method: ClassVar[str] = "skill.import"
    text: Annotated[str, Meta(min_length=1, max_length=300_000)]
    folder: Annotated[str, Meta(max_length=255)] | None = None
    files: Files = field(default_factory=list)
    created_by: Word | None = None


class SkillFolder(Wire):
    """A skill as a folder: its name, and its files, SKILL.md first."""

    folder: str
    files: list[SkillFile]


class SkillExport(Method[SkillFolder]):
    """A skill as the folder that `skill.import` takes, for the caller to write."""

    method: ClassVar[str] = "skill.export"
    id: SkillRef
    version: Annotated[int, Meta(ge=1)] | None = None
