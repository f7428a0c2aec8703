"""What becomes of candidates: known ones are told from new ones, the model compares its own with what is known, and
what is left is remembered."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from clankers_protocol.entities import RelationAdd
from clankers_protocol.errors import RpcError, StorageUnavailable
from clankers_protocol.memories import Memory, MemoryAdd, MemorySearch, Scoped
from clankers_protocol.memory_maintenance import Candidate
from clankersd.memories.add import add_memory
from clankersd.memories.extraction import model
from clankersd.memories.extraction.chat import Chat, ChatRefused, ChatUnavailable
from clankersd.memories.extraction.model import Comparison, ExtractionResult
from clankersd.memories.extraction.session_parts import LinkedMemory, SessionPart, learnt
from clankersd.memories.relations import add_relation
from clankersd.memories.scopes import scope_to_write
from clankersd.memories.search import best_memories

if TYPE_CHECKING:
    from clankersd.app import Daemon

BY = "extraction"
NEAREST = 4

OpenChat = Callable[[], Awaitable[Chat]]


class Caller:
    """For whom memories are stored: a caller with its scopes, or nobody in particular."""

    def __init__(self, scopes: list[str] | None = None, agent: str | None = None) -> None:
        self._scopes = scopes
        self._agent = agent

    def scope(self, project: str | None) -> str:
        """Where memories of a session in this project go; raises InvalidParams."""
        asked: Scoped[Any] = MemoryAdd(content="-", scopes=self._scopes, agent=self._agent, project=project)
        return scope_to_write(asked, None, project)

    def request(self, reading: SessionPart, candidate: Candidate) -> MemoryAdd:
        """The candidate as an addition."""
        return MemoryAdd(
            content=candidate.content, category=candidate.category, sector=candidate.sector, tier="session",
            importance=candidate.importance, confidence=candidate.confidence, files=candidate.files,
            metadata={"extractedBy": candidate.rule}, session_id=reading.session_id, message_id=candidate.message_id,
            supersedes=candidate.supersedes, project=reading.project_id, scopes=self._scopes, agent=self._agent,
        )  # fmt: skip


async def settle(
    daemon: "Daemon", open_chat: OpenChat, reading: SessionPart, found: ExtractionResult, asker: Caller, keep: bool
) -> None:
    """Decide on each candidate, and without `keep` leave it at that."""
    before = await daemon.store.read(lambda db: learnt(db, reading.session_id))
    fresh = [one for one in found.candidates if not _is_known(one, before)]
    judged = await _judge(daemon, open_chat, reading, fresh, found, asker.scope(reading.project_id))
    for position, candidate in enumerate(fresh):
        verdict = judged.get(position)
        if verdict and verdict.verdict == "confirms" and any(one.id == verdict.known.id for one in before):
            candidate.outcome, candidate.memory_id = "known", verdict.known.id
            continue
        if verdict and _replaces(candidate, verdict):
            candidate.supersedes = verdict.known.id
        if keep:
            await _keep(daemon, reading, candidate, verdict, asker, found)


def _is_known(candidate: Candidate, before: list[LinkedMemory]) -> bool:
    """Whether the session brought it before; in other words now, when a model puts it so or somebody corrected it."""
    for memory in before:
        again = candidate.rule == memory.rule and candidate.message_id == memory.source_message_id
        in_other_words = again and (memory.corrected or memory.rule == model.RULE)
        if in_other_words or memory.says(candidate.content):
            candidate.outcome, candidate.memory_id = "known", memory.id
            return True
    return False


def _replaces(candidate: Candidate, judged: Comparison) -> bool:
    """A candidate that the model is sure of takes a memory's place; never that of one which the owner has pinned."""
    sure = candidate.confidence >= model.REPLACES_FROM
    return judged.verdict != "confirms" and sure and not judged.known.pinned


async def _judge(
    daemon: "Daemon",
    open_chat: OpenChat,
    reading: SessionPart,
    fresh: list[Candidate],
    found: ExtractionResult,
    scope: str,
) -> dict[int, Comparison]:
    """How the model sees its own candidates, by position, beside what is known in their scope."""
    known: dict[int, list[Memory]] = {}
    for position, candidate in enumerate(fresh):
        if candidate.rule == model.RULE:
            alike = MemorySearch(query=candidate.content, scopes=[scope], limit=NEAREST)
            near, _ = await best_memories(daemon, alike)
            if near:
                known[position] = [hit.memory for hit in near]
    if not known:
        return {}
    try:
        return await model.compare(await open_chat(), reading.session_id, fresh, known, found)
    except (ChatRefused, ChatUnavailable) as trouble:
        found.notes.append(f"not compared with what is known: {trouble.reason}")
        return {}


async def _keep(
    daemon: "Daemon",
    reading: SessionPart,
    candidate: Candidate,
    judged: Comparison | None,
    asker: Caller,
    found: ExtractionResult,
) -> None:
    """Remember one candidate. One that cannot be stored, since what it would replace is gone, is lost alone."""
    try:
        if judged and judged.verdict == "confirms":
            await add_memory(daemon, asker.request(reading, _in_known_words(candidate, judged.known)), by=BY)
            candidate.outcome, candidate.memory_id = "confirmed", judged.known.id
            return
        added = await add_memory(daemon, asker.request(reading, candidate), by=BY)
        candidate.outcome, candidate.memory_id = added.outcome, added.memory.id
        if judged and added.outcome == "created":
            await _contradict(daemon, added.memory, judged.known, candidate.confidence)
    except StorageUnavailable:
        raise
    except RpcError as error:
        found.notes.append(f"not stored: {error.message}")


def _in_known_words(candidate: Candidate, known: Memory) -> Candidate:
    """What the known memory says, so that adding it makes that one stronger."""
    return Candidate(
        known.content, known.category, known.sector, candidate.importance, candidate.confidence, candidate.rule,
        candidate.message_id,
    )  # fmt: skip


async def _contradict(daemon: "Daemon", new: Memory, old: Memory, confidence: float) -> None:
    """Both stay, and it is seen that they do not agree."""
    relation = RelationAdd(
        source=new.id, target=old.id, type="CONTRADICTS", confidence=confidence, extracted_by="llm",
        scopes=[new.scope, old.scope],
    )  # fmt: skip
    await add_relation(daemon, relation)
