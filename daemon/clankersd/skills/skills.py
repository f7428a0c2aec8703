"""Skills: stored with all their versions, and searchable by vector and keyword."""

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from clankers_protocol.errors import Conflict, InvalidParams, NotFound
from clankers_protocol.skills import (
    FoundSkills,
    ScoredSkill,
    Skill,
    SkillCreate,
    SkillDelete,
    SkillDeleted,
    SkillExport,
    SkillFile,
    SkillFolder,
    SkillGet,
    SkillImport,
    SkillImported,
    SkillList,
    SkillPage,
    SkillSearch,
    SkillSummary,
    SkillUpdate,
    SkillVersion,
    SkillVersions,
)
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.index.backlog import TEXT_KINDS, TextKind, add_to_backlog
from clankersd.index.chunks import Owner, replace_chunks
from clankersd.index.index import Index, chunk_inline
from clankersd.redaction.engine import count_redactions, refuse_secret, without_secrets
from clankersd.search.filters import NO_MEMORIES, Criteria
from clankersd.search.limiter import takes_search_slot
from clankersd.search.plan import Page, SearchPlan
from clankersd.search.rows import CHUNK_ROWS
from clankersd.skills import skill_md
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_JSON_FIELDS = ("tools", "tags", "references", "extra", "files")
_SELECT = """
    SELECT id, name, description, instructions, tools_json, model, tags_json, references_json, extra_json, files_json,
           created_by, version, created_at, updated_at
    FROM skills
"""
_UPSERT_SKILL = """
    INSERT INTO skills (id, name, description, instructions, tools_json, model, tags_json, references_json, extra_json,
                        files_json, created_by, version, created_at, updated_at)
    VALUES (:id, :name, :description, :instructions, :tools_json, :model, :tags_json, :references_json, :extra_json,
            :files_json, :created_by, :version, :created_at, :updated_at)
    ON CONFLICT (id) DO UPDATE SET name = :name, description = :description, instructions = :instructions,
        tools_json = :tools_json, model = :model, tags_json = :tags_json, references_json = :references_json,
        extra_json = :extra_json, files_json = :files_json, version = :version, updated_at = :updated_at
"""
_INSERT_VERSION = """
    INSERT INTO skill_versions (skill_id, version, skill_json, created_by, created_at)
    VALUES (:skill_id, :version, :skill_json, :created_by, :created_at)
"""
_HAS_TAGS = """
    NOT EXISTS (SELECT 1 FROM json_each(:tags) AS required
                WHERE required.value NOT IN (SELECT value FROM json_each(skills.tags_json)))
"""
_SELECT_SUMMARY = "SELECT id, name, description, tags_json, version, updated_at FROM skills"
# Name and description are the text that is embedded; tags and instructions are searched by keyword only.
_SELECT_TEXT = """
    SELECT id, created_at, name || char(10) || description AS text,
           (SELECT group_concat(value, ' ') FROM json_each(tags_json)) AS tags, instructions
    FROM skills WHERE id = :id
"""


def _owner(row: dict[str, Any]) -> Owner:
    header = "\n".join(part for part in (row["tags"], row["instructions"]) if part)
    return Owner("skill_id", row["id"], "skills", f"skills/{row['id']}", row["created_at"], header=header)


TEXT_KINDS["skill"] = TextKind(_SELECT_TEXT, _owner, "SELECT id FROM skills WHERE id > :after ORDER BY id LIMIT :limit")


@handles(SkillCreate)
async def create(daemon: "Daemon", request: SkillCreate) -> Skill:
    request, secrets = await prepare(partial(without_secrets, request))
    skill = _new_skill(request)

    def store(db: Db) -> tuple[Skill, str]:
        count_redactions(db, secrets, skill.created_at)
        _check_name_is_free(db, skill)
        return _store(db, daemon.index, skill, request.created_by), "created"

    return (await _write(daemon, store))[0]


@handles(SkillGet)
async def get(daemon: "Daemon", request: SkillGet) -> Skill:
    return await daemon.store.read(lambda db: _find(db, request.id, request.version))


@handles(SkillList)
async def list_skills(daemon: "Daemon", request: SkillList) -> SkillPage:
    (after,) = decode_cursor(request.cursor, str) if request.cursor else ("",)
    conditions = ["name > :after"]
    if request.tags is not None:
        conditions.append(_HAS_TAGS)
    sql = f"{_SELECT_SUMMARY} WHERE {' AND '.join(conditions)} ORDER BY name LIMIT :limit"
    params = {"after": after, "tags": json.dumps(request.tags), "limit": request.limit + 1}
    rows = await daemon.store.read(lambda db: db.fetch(sql, params))
    shown = [_summary(row) for row in rows[: request.limit]]
    return SkillPage(shown, encode_cursor(shown[-1].name) if len(rows) > len(shown) else None)


@handles(SkillUpdate)
async def update(daemon: "Daemon", request: SkillUpdate) -> Skill:
    request, secrets = await prepare(partial(without_secrets, request))
    changes = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
    del changes["id"], changes["created_by"]
    refuse_secret(changes.get("name", ""), "$.name")
    skill_md.check_files(changes.get("files", []))
    _check_extra(changes.get("extra", {}))

    def store(db: Db) -> tuple[Skill, str]:
        count_redactions(db, secrets, clock.now())
        return _update(db, daemon.index, _find(db, request.id), changes, request.created_by)

    return (await _write(daemon, store))[0]


@handles(SkillDelete)
async def delete(daemon: "Daemon", request: SkillDelete) -> SkillDeleted:
    def count(db: Db) -> SkillDeleted:
        skill = _find(db, request.id)
        versions = db.value("SELECT count(*) FROM skill_versions WHERE skill_id = :id", {"id": skill.id})
        return SkillDeleted(skill.id, skill.name, versions, request.dry_run)

    def remove(db: Db) -> SkillDeleted:
        deleted = count(db)
        db.execute("DELETE FROM skills WHERE id = :id", {"id": deleted.id})
        db.after_commit(Notification("skill", "deleted", deleted.id, {"name": deleted.name}))
        return deleted

    if request.dry_run:
        return await daemon.store.read(count)
    return await daemon.store.write(remove)


@handles(SkillSearch)
@takes_search_slot
async def search(daemon: "Daemon", request: SkillSearch) -> FoundSkills:
    engine = daemon.search_engine
    chunk_filter = engine.build_filter(Criteria(sources=["skills"]), NO_MEMORIES)
    if request.tags is not None:
        has_tags = f"chunks.skill_id IN (SELECT id FROM skills WHERE {_HAS_TAGS})"
        chunk_filter = chunk_filter.restrict(has_tags, tags=json.dumps(request.tags))
    plan = SearchPlan(
        query=request.query,
        embedding=request.embedding,
        filter=chunk_filter,
        rows=CHUNK_ROWS,
        page=Page(request.limit),
        mode=request.mode,
        prefer_named_speakers=False,
        group_of=lambda row: row.skill_id,
    )
    outcome = await engine.run(plan)
    ids = {"ids": json.dumps([candidate.row.skill_id for candidate in outcome.candidates])}
    sql = f"{_SELECT_SUMMARY} WHERE id IN (SELECT value FROM json_each(:ids))"
    rows = {row["id"]: row for row in await daemon.store.read(lambda db: db.fetch(sql, ids))}
    found = [
        ScoredSkill(_summary(rows[candidate.row.skill_id]), candidate.wire_score, outcome.snippet(candidate))
        for candidate in outcome.candidates
        if candidate.row.skill_id in rows
    ]
    return FoundSkills(found, outcome.mode, outcome.pending, outcome.degraded, outcome.took_ms, outcome.weak)


@handles(SkillVersions)
async def versions(daemon: "Daemon", request: SkillVersions) -> list[SkillVersion]:
    def fetch(db: Db) -> list[SkillVersion]:
        sql = """
            SELECT version, created_by, created_at, skill_json ->> '$.description' AS description
            FROM skill_versions WHERE skill_id = :id ORDER BY version DESC
        """
        return [SkillVersion(**row) for row in db.fetch(sql, {"id": _find(db, request.id).id})]

    return await daemon.store.read(fetch)


@handles(SkillImport)
async def import_skill(daemon: "Daemon", request: SkillImport) -> SkillImported:
    parse = partial(skill_md.parse_skill, request.text, request.folder, request.files, request.created_by)
    parsed = await prepare(parse)
    parsed, secrets = await prepare(partial(without_secrets, parsed))
    imported = _new_skill(parsed)
    fields = ("description", "instructions", "model", *_JSON_FIELDS)

    def store(db: Db) -> tuple[Skill, str]:
        count_redactions(db, secrets, imported.created_at)
        existing = db.fetch_one(f"{_SELECT} WHERE name = :name", {"name": imported.name})
        if existing is None:
            return _store(db, daemon.index, imported, parsed.created_by), "created"
        changes = {name: getattr(imported, name) for name in fields}
        return _update(db, daemon.index, _skill_from_row(existing), changes, parsed.created_by)

    skill, outcome = await _write(daemon, store)
    summary = SkillSummary(skill.id, skill.name, skill.description, skill.tags, skill.version, skill.updated_at)
    return SkillImported(summary, outcome)  # type: ignore[arg-type]  # one of the three above


@handles(SkillExport)
async def export(daemon: "Daemon", request: SkillExport) -> SkillFolder:
    return skill_md.write_folder(await daemon.store.read(lambda db: _find(db, request.id, request.version)))


def _new_skill(request: SkillCreate) -> Skill:
    refuse_secret(request.name, "$.name")
    skill_md.check_files(request.files)
    _check_extra(request.extra)
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    now = clock.now()
    return Skill(id=clock.new_id(), version=1, created_at=now, updated_at=now, **fields)


def _check_extra(extra: dict[str, Any]) -> None:
    if not isinstance(extra.get("metadata", {}), dict):
        raise InvalidParams("invalid params: metadata must be an object - at `$.extra.metadata`")
    if reserved := set(skill_md.OWN_FIELDS) & set(extra):
        raise InvalidParams(f"invalid params: {sorted(reserved)[0]} has its own field in a skill - at `$.extra`")
    if len(msgspec.json.encode(extra)) > skill_md.MAX_FRONT_MATTER_CHARACTERS:
        raise InvalidParams(f"invalid params: more than {skill_md.MAX_FRONT_MATTER_CHARACTERS} bytes - at `$.extra`")


async def _write(daemon: "Daemon", transaction: Callable[[Db], tuple[Skill, str]]) -> tuple[Skill, str]:
    """Run the transaction; if the skill changed, announce it and wake the indexer."""

    def store(db: Db) -> tuple[Skill, str]:
        skill, outcome = transaction(db)
        if outcome != "unchanged":
            db.after_commit(Notification("skill", outcome, skill.id, {"name": skill.name, "version": skill.version}))
        return skill, outcome

    skill, outcome = await daemon.store.write(store)
    if outcome != "unchanged":
        daemon.index.wake()
    return skill, outcome


def _store(db: Db, index: Index, skill: Skill, by: str | None) -> Skill:
    """Store a skill and its version, and index it, in the caller's transaction."""
    row: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(skill).items():
        if name in _JSON_FIELDS:
            row[f"{name}_json"] = msgspec.json.encode(value).decode()
        else:
            row[name] = value
    db.execute(_UPSERT_SKILL, row)
    version = {
        "skill_id": skill.id,
        "version": skill.version,
        "skill_json": msgspec.json.encode(skill).decode(),
        "created_by": by,
        "created_at": skill.updated_at,
    }
    db.execute(_INSERT_VERSION, version)
    indexed = db.fetch_one(_SELECT_TEXT, {"id": skill.id})
    assert indexed
    prepared = chunk_inline(indexed["text"], index.chunkings())
    if prepared is None:
        add_to_backlog(db, "skill", skill.id)
    for chunks in prepared or ():
        replace_chunks(db, _owner(indexed), chunks)
    return skill


def _update(db: Db, index: Index, skill: Skill, changes: dict[str, Any], by: str | None) -> tuple[Skill, str]:
    """Store the changes as a new version, unless they change nothing."""
    changed = msgspec.structs.replace(skill, **changes)
    if changed == skill:
        return skill, "unchanged"
    _check_name_is_free(db, changed)
    changed.version, changed.updated_at = skill.version + 1, clock.now()
    return _store(db, index, changed, by), "updated"


def _check_name_is_free(db: Db, skill: Skill) -> None:
    if db.value("SELECT 1 FROM skills WHERE name = :name AND id <> :id", {"name": skill.name, "id": skill.id}):
        raise Conflict(f"a skill named {skill.name!r} exists already: change it with skill.update")


def _find(db: Db, id_or_name: str, version: int | None = None) -> Skill:
    """Return a skill by id or name, in its current or an older version; raises NotFound."""
    row = db.fetch_one(f"{_SELECT} WHERE id = :id", {"id": id_or_name})
    if row is None:
        row = db.fetch_one(f"{_SELECT} WHERE name = :name", {"name": id_or_name})
    if row is None:
        raise NotFound(f"skill not found: {id_or_name}")
    if version is None or version == row["version"]:
        return _skill_from_row(row)
    sql = "SELECT skill_json FROM skill_versions WHERE skill_id = :id AND version = :version"
    text = db.value(sql, {"id": row["id"], "version": version})
    if text is None:
        raise NotFound(f"the skill {row['name']} has no version {version}")
    return msgspec.json.decode(text, type=Skill)


def _skill_from_row(row: dict[str, Any]) -> Skill:
    fields = {name: value for name, value in row.items() if not name.endswith("_json")}
    decoded = {name: msgspec.json.decode(row[f"{name}_json"]) for name in _JSON_FIELDS}
    decoded["files"] = msgspec.convert(decoded["files"], list[SkillFile])
    return Skill(**fields, **decoded)


def _summary(row: dict[str, Any]) -> SkillSummary:
    tags = msgspec.json.decode(row["tags_json"])
    return SkillSummary(row["id"], row["name"], row["description"], tags, row["version"], row["updated_at"])
