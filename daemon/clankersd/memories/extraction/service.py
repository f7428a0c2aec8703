"""Memories drawn from sessions: in the background once one rests, or when somebody asks; never while it is captured.

A session is marked as read after what it brought is stored. Dying in between makes one part of one session be read
again, which changes nothing: what a session has brought or confirmed once does not count again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import anyio
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.errors import Conflict, InvalidParams, NotFound, StorageUnavailable
from clankers_protocol.events import SessionEvent
from clankers_protocol.memory_maintenance import Candidate, Extraction, MemoryExtract, MemorySummarize
from clankersd.capture.apply import apply_event, prepare_event
from clankersd.capture.events import SessionReported
from clankersd.db import Db
from clankersd.memories.extraction import model, rules
from clankersd.memories.extraction.backlog import Backlog
from clankersd.memories.extraction.candidates import Asker, settle
from clankersd.memories.extraction.chat import (
    Chat,
    ChatRefused,
    ChatSettings,
    ChatUnavailable,
    SessionSpent,
    chat_settings,
)
from clankersd.memories.extraction.model import Found
from clankersd.memories.extraction.sources import (
    BEGINNING,
    MOST_MESSAGES,
    Reading,
    find_session,
    mark,
    read,
    read_ends,
    read_until,
)
from clankersd.projects import project_id
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

By = Literal["rules", "model"]

LOOK_SECONDS = 15.0
SHORTEST_WAIT = 0.2
GIVE_UP_AFTER = 2
"""Questions about one part of a session that come to nothing, before it is let go."""

FIRST_PAUSE = 60.0
LONGEST_PAUSE = 3600.0

_ASKED_FOR = ("remember", "from-now-on")
"""Rules for what somebody wants to be remembered: however much of it there is."""

log = structlog.get_logger(component="extract")


class Extractor:
    """Reads sessions for memories, each by one reader at a time."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._backlog = Backlog()
        self._in_hand: set[str] = set()
        self._later: dict[str, float] = {}
        self._chat: Chat | None = None
        self._pause = FIRST_PAUSE
        self._paused_until = 0.0
        self._paused_with: ChatSettings | None = None

    # -- in the background

    async def run(self) -> None:
        """Read what has come to rest, for as long as the daemon lives; nothing while `extract` is off."""
        try:
            while True:
                await self._read_waiting()
                quiet = self._daemon.config.extract_quiet_minutes * 60
                await anyio.sleep(min(LOOK_SECONDS, max(SHORTEST_WAIT, quiet / 2)))
        finally:
            if self._chat:
                with anyio.move_on_after(1, shield=True):
                    await self._chat.close()

    async def _read_waiting(self) -> None:
        """Read the sessions that have rested, as far as the model can be asked."""
        config = self._daemon.config
        if config.extract == "off":
            self._backlog.forget()
            return
        if config.extract == "model" and self._rests():
            return
        try:
            ready = await self._backlog.ready(self._daemon.store, config.extract_quiet_minutes, config.extract_days)
            for session_id in ready:
                if anyio.current_time() >= self._later.get(session_id, 0):
                    self._later.pop(session_id, None)
                    await self._read_waiting_one(session_id, config.extract)
        except ChatUnavailable as trouble:
            self._rest(trouble)
        except StorageUnavailable as error:
            log.debug("waits", problem=error.message)

    async def _read_waiting_one(self, session_id: str, by: By) -> None:
        try:
            with self._only_reader(session_id):
                await self._read_new(session_id, by)
        except (Conflict, NotFound) as error:  # somebody else reads it, or it is gone
            log.debug("session skipped", session_id=session_id, problem=error.message)

    def _rests(self) -> bool:
        """Whether the model is left alone after trouble; not when the owner has changed something since."""
        if self._paused_with != chat_settings(self._daemon.config):
            self._pause = FIRST_PAUSE
            return False
        return anyio.current_time() < self._paused_until

    def _rest(self, trouble: ChatUnavailable) -> None:
        seconds = LONGEST_PAUSE if trouble.permanent else min(LONGEST_PAUSE, max(self._pause, trouble.retry_after or 0))
        self._paused_until = anyio.current_time() + seconds
        self._paused_with = chat_settings(self._daemon.config)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        log.warning("model not asked for a while", seconds=round(seconds), problem=trouble.reason)

    async def _read_new(self, session_id: str, by: By) -> None:
        """Everything of a session that was not read yet, part by part."""
        after, read_at = await self._daemon.store.read(lambda db: read_until(db, session_id))
        asker = Asker()
        while True:
            reading = await self._read(session_id, after, by)
            if not reading.messages:
                return
            found = await self._found_or_given_up(reading, by, read_at)
            if found is None:
                self._later[session_id] = anyio.current_time() + self._daemon.config.extract_quiet_minutes * 60
                return
            await settle(self._daemon, self._open_chat, reading, found, asker, keep=True)
            self._report(reading, found, by)
            after = reading.until
            await self._mark(session_id, after)
            if not reading.more:
                return

    async def _found_or_given_up(self, reading: Reading, by: By, read_at: int) -> Found | None:
        """What there is; without the model when it cannot make anything of this part; None to try again later."""
        try:
            found = await self._find(reading, by)
        except ChatRefused as refusal:
            assert self._chat
            spent = isinstance(refusal, SessionSpent)
            if not spent and await self._chat.failures(reading.session_id, read_at) < GIVE_UP_AFTER:
                log.warning("model's answer refused", session_id=reading.session_id, problem=refusal.reason)
                return None
            found = Found(_of_tools(reading), notes=[f"not read by the model: {refusal.reason}"])
        else:
            self._pause = FIRST_PAUSE
        return found

    def _report(self, reading: Reading, found: Found, by: By) -> None:
        stored = sum(1 for one in found.candidates if one.outcome in ("created", "superseded"))
        log.info(
            "session read", session_id=reading.session_id, by=by, messages=len(reading.messages),
            memories=stored, calls=found.calls, tokens=found.tokens, notes=found.notes or None,
        )  # fmt: skip

    # -- when somebody asks

    async def extract(self, request: MemoryExtract, by: By) -> Extraction:
        """All of a session, from its first message on."""
        session = await self._daemon.store.read(lambda db: _permitted(db, request))
        asker = Asker(request.scopes, request.agent)
        extraction = Extraction([], by, 0, 0, 0, None)
        notes: dict[str, None] = {}
        with self._only_reader(session["id"]):
            after = BEGINNING
            while (reading := await self._read(session["id"], after, by)).messages:
                found = await self._find_or_note(reading, by, notes if after > BEGINNING else None)
                if found is None:
                    break
                await settle(self._daemon, self._open_chat, reading, found, asker, keep=not request.dry_run)
                _count(extraction, reading, found)
                notes |= dict.fromkeys(found.notes)
                after = reading.until
                if not request.dry_run and by == self._daemon.config.extract:
                    await self._mark(session["id"], after)
                if not reading.more:
                    break
        extraction.note = "; ".join(notes) or None
        return extraction

    async def _find_or_note(self, reading: Reading, by: By, notes: dict[str, None] | None) -> Found | None:
        """Candidates; None when the model fails later than at the beginning, which is noted, not an error."""
        try:
            return await self._find(reading, by)
        except (ChatRefused, ChatUnavailable) as trouble:
            if notes is None:
                raise Conflict(trouble.reason) from trouble
            notes[f"not read to its end: {trouble.reason}"] = None
            return None

    async def summarize(self, session_id: str, progress: Progress) -> dict[str, Any]:
        """Let the model sum a session up, and keep that with the session."""
        config = self._daemon.config
        messages, count = await self._daemon.store.read(lambda db: read_ends(db, session_id, config.chat_messages))
        await progress(0, 1, "asking the model")
        try:
            chat = await self._open_chat()
            summary, tokens = await model.summarize(
                chat, session_id, messages, count, config.chat_messages, config.chat_characters
            )
        except (ChatRefused, ChatUnavailable) as trouble:
            raise Conflict(trouble.reason) from trouble
        event = prepare_event(self._daemon.index, SessionReported(SessionEvent(id=session_id, summary=summary)))

        def keep(db: Db) -> None:
            find_session(db, session_id)  # one that was deleted meanwhile stays so
            apply_event(db, event)

        await self._daemon.store.write(keep)
        await progress(1, 1)
        return {"sessionId": session_id, "summary": summary, "tokens": tokens}

    async def open_chat_or_refuse(self) -> None:
        """Raise Conflict when no model can be asked at all."""
        try:
            await self._open_chat()
        except ChatUnavailable as trouble:
            raise Conflict(trouble.reason) from trouble

    # -- both

    @contextmanager
    def _only_reader(self, session_id: str) -> Iterator[None]:
        if session_id in self._in_hand:
            raise Conflict(f"session {session_id} is being read for memories just now: try again")
        self._in_hand.add(session_id)
        try:
            yield
        finally:
            self._in_hand.discard(session_id)

    async def _open_chat(self) -> Chat:
        """The model of the configuration as it is now; raises ChatUnavailable."""
        settings = chat_settings(self._daemon.config)
        if self._chat is None or self._chat.settings != settings:
            old, self._chat = self._chat, Chat(settings, self._daemon.jobs)
            if old:
                self._daemon.background(old.close)  # once nobody asks it any more
        return self._chat

    async def _read(self, session_id: str, after: tuple[int, str], by: By) -> Reading:
        config = self._daemon.config
        most = config.chat_messages if by == "model" else MOST_MESSAGES
        reading = await self._daemon.store.read(lambda db: read(db, session_id, after, most))
        if by == "rules" or not reading.messages:
            return reading
        return _first(reading, model.that_fit(reading.messages, most, config.chat_characters))

    async def _find(self, reading: Reading, by: By) -> Found:
        """Candidates; raises ChatRefused or ChatUnavailable."""
        most = self._daemon.config.extract_memories
        if by == "rules":
            said = await anyio.to_thread.run_sync(rules.candidates, reading.messages)
            found = Found(said)
        else:
            chat = await self._open_chat()
            found = await model.find_memories(chat, reading.session_id, reading.messages, most)
        found.candidates += _of_tools(reading)
        left_out = len(found.candidates)
        found.candidates = _strongest(found.candidates, most)
        if left_out := left_out - len(found.candidates):
            found.notes.append(f"{left_out} weaker candidates were left out")
        return found

    async def _mark(self, session_id: str, until: tuple[int, str]) -> None:
        await self._daemon.store.write(lambda db: mark(db, session_id, until))


def _count(extraction: Extraction, reading: Reading, found: Found) -> None:
    extraction.candidates += found.candidates
    extraction.read_messages += len(reading.messages)
    extraction.calls += found.calls
    extraction.tokens += found.tokens


def _permitted(db: Db, request: MemoryExtract) -> dict[str, Any]:
    """The session, if memories of it may be stored where the caller may write."""
    session = find_session(db, request.session_id)
    if request.project is not None and project_id(db, request.project) != session["project_id"]:
        raise InvalidParams("invalid params: the session is of another project - at `$.project`")
    try:
        Asker(request.scopes, request.agent).scope(session["project_id"])
    except InvalidParams as error:
        raise InvalidParams(error.message.replace("$.scope`", "$.scopes`")) from error
    return session


def _first(reading: Reading, count: int) -> Reading:
    """The reading up to a message."""
    if count == len(reading.messages):
        return reading
    messages = reading.messages[:count]
    calls = [call for call in reading.calls if call.at <= messages[-1].at]
    return replace(reading, messages=messages, calls=calls, groups=[], more=True)


def _of_tools(reading: Reading) -> list[Candidate]:
    return rules.fixes(reading.calls) + rules.together(reading.groups, reading.project_path)


def _strongest(candidates: list[Candidate], most: int) -> list[Candidate]:
    """What was asked to be remembered, and of the rest the best, in the order they were found."""
    others = [one for one in candidates if one.rule not in _ASKED_FOR]
    best = sorted(others, key=lambda one: -one.importance * one.confidence)[:most]
    return [one for one in candidates if one.rule in _ASKED_FOR or one in best]


@handles(MemoryExtract)
async def memory_extract(daemon: "Daemon", request: MemoryExtract) -> Extraction:
    configured = daemon.config.extract
    return await daemon.extractor.extract(request, request.by or ("rules" if configured == "off" else configured))


@handles(MemorySummarize)
async def memory_summarize(daemon: "Daemon", request: MemorySummarize) -> JobStarted:
    await daemon.store.read(lambda db: find_session(db, request.session_id))
    await daemon.extractor.open_chat_or_refuse()

    async def work(progress: Progress) -> dict[str, Any]:
        return await daemon.extractor.summarize(request.session_id, progress)

    return JobStarted(await daemon.jobs.start("summarize", work))
