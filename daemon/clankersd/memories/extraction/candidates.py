"""Decisions on candidates: skip those found in the session before, compare the rest with known memories, store them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clankers_protocol.entities import RelationAdd
from clankers_protocol.errors import RpcError, StorageUnavailable
from clankers_protocol.memories import Memory, MemoryAdd, MemorySearch, Scoped
from clankers_protocol.memory_maintenance import Candidate
from clankersd.db import Db
from clankersd.memories.add import add_memory
from clankersd.memories.extraction import model
from clankersd.memories.extraction.chat import Chat, ChatRefused, ChatUnavailable
from clankersd.memories.extraction.model import Comparison, ExtractionResult
from clankersd.memories.extraction.session_parts import Session, SessionPart, linked_memories
from clankersd.memories.relations import add_relation
from clankersd.memories.scopes import scope_to_write
from clankersd.memories.search import best_memories

if TYPE_CHECKING:
    from clankersd.app import Daemon

BY = "extraction"
MAX_SIMILAR_MEMORIES = 4

OpenChat = Callable[[], Awaitable[Chat]]


@dataclass(frozen=True)
class Caller:
    """On whose behalf memories are stored: the scopes and agent of a request, or neither in the background."""

    scopes: list[str] | None = None
    agent: str | None = None

    def scope_for(self, db: Db, project_id: str | None) -> str:
        """Return the scope of memories of a session in this project; raises InvalidParams."""
        request: Scoped[Any] = MemoryAdd(content="-", scopes=self.scopes, agent=self.agent, project=project_id)
        return scope_to_write(db, request, None, project_id)

    def add_request(self, session: Session, candidate: Candidate) -> MemoryAdd:
        """Return the request that adds a candidate."""
        return MemoryAdd(
            content=candidate.content, category=candidate.category, sector=candidate.sector, tier="session",
            importance=candidate.importance, confidence=candidate.confidence, files=candidate.files,
            metadata={"extractedBy": candidate.rule}, session_id=session.id, message_id=candidate.message_id,
            supersedes=candidate.supersedes, project=session.project_id, scopes=self.scopes, agent=self.agent,
        )  # fmt: skip


async def resolve_candidates(
    daemon: "Daemon", open_chat: OpenChat, part: SessionPart, result: ExtractionResult, caller: Caller, store: bool
) -> None:
    """Decide on each candidate and set its outcome; without `store`, change nothing in the database."""
    linked = await daemon.store.read(lambda db: linked_memories(db, part.session.id))
    new: list[Candidate] = []
    for candidate in result.candidates:
        if known := next((memory for memory in linked if memory.is_of(candidate)), None):
            candidate.outcome, candidate.memory_id = "known", known.id
        else:
            new.append(candidate)
    scope = await daemon.store.read(lambda db: caller.scope_for(db, part.session.project_id))
    comparisons = await _compare_with_known(daemon, open_chat, part.session, new, result, scope)
    for position, candidate in enumerate(new):
        comparison = comparisons.get(position)
        if comparison:
            known_id = comparison.known.id
            if comparison.verdict != "confirms":
                # A memory that the owner has pinned is never superseded by extraction.
                is_certain = candidate.confidence >= model.MIN_CONFIDENCE_TO_SUPERSEDE
                if is_certain and not comparison.known.pinned:
                    candidate.supersedes = known_id
            elif any(memory.id == known_id for memory in linked):
                candidate.outcome, candidate.memory_id = "known", known_id
                continue
        if store:
            await _store_candidate(daemon, part.session, candidate, comparison, caller, result)


async def _compare_with_known(
    daemon: "Daemon",
    open_chat: OpenChat,
    session: Session,
    candidates: list[Candidate],
    result: ExtractionResult,
    scope: str,
) -> dict[int, Comparison]:
    """Let the model compare its own candidates, by position, with similar memories in their scope."""
    similar: dict[int, list[Memory]] = {}
    for position, candidate in enumerate(candidates):
        if candidate.rule == model.MODEL_RULE:
            search = MemorySearch(query=candidate.content, scopes=[scope], limit=MAX_SIMILAR_MEMORIES)
            hits, _ = await best_memories(daemon, search)
            if hits:
                similar[position] = [hit.memory for hit in hits]
    if not similar:
        return {}
    try:
        return await model.compare(await open_chat(), session.id, candidates, similar, result)
    except (ChatRefused, ChatUnavailable) as error:
        result.notes.append(f"not compared with what is known: {error.reason}")
        return {}


async def _store_candidate(
    daemon: "Daemon",
    session: Session,
    candidate: Candidate,
    comparison: Comparison | None,
    caller: Caller,
    result: ExtractionResult,
) -> None:
    """Store a candidate. If it fails, as when the memory to supersede was deleted, note that and go on."""
    try:
        if comparison and comparison.verdict == "confirms":
            known = comparison.known
            # Adding the known text again reinforces that memory.
            confirming = Candidate(
                known.content, known.category, known.sector, candidate.importance, candidate.confidence,
                candidate.rule, candidate.message_id,
            )  # fmt: skip
            await add_memory(daemon, caller.add_request(session, confirming), by=BY)
            candidate.outcome, candidate.memory_id = "confirmed", known.id
            return
        added = await add_memory(daemon, caller.add_request(session, candidate), by=BY)
        candidate.outcome, candidate.memory_id = added.outcome, added.memory.id
        if comparison and added.outcome == "created":  # both remain, with a relation that they disagree
            new, old = added.memory, comparison.known
            relation = RelationAdd(
                source=new.id, target=old.id, type="CONTRADICTS", confidence=candidate.confidence,
                extracted_by="llm", scopes=[new.scope, old.scope],
            )  # fmt: skip
            await add_relation(daemon, relation)
    except StorageUnavailable:
        raise
    except RpcError as error:
        result.notes.append(f"not stored: {error.message}")
