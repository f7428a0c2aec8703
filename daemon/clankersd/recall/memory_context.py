"""`memory.context`: the memories that recall would put into a prompt, as it would put them."""

from typing import TYPE_CHECKING

from clankers_protocol.memories import Context, MemoryContext
from clankersd.memories.scopes import allowed_scopes
from clankersd.memories.scoring import ScoreWeights
from clankersd.recall.block import Block, Item
from clankersd.recall.recall import max_block_characters
from clankersd.recall.skip import why_trivial
from clankersd.recall.sources import (
    MAX_MATCHING_MEMORIES,
    MAX_STRONGEST_MEMORIES,
    matching_items,
    prompt_query,
    strongest_memories,
)
from clankersd.search.limiter import takes_search_slot
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


@handles(MemoryContext)
@takes_search_slot
async def memory_context(daemon: "Daemon", request: MemoryContext) -> Context:
    limit = request.limit or (MAX_STRONGEST_MEMORIES if request.query is None else MAX_MATCHING_MEMORIES)
    candidates = limit + len(request.exclude)
    scopes = list((await daemon.store.read(lambda db: allowed_scopes(db, request))).scopes)
    items: list[Item] = []
    degraded = None
    if request.query is None:  # the pinned and strongest ones
        of_user = request.scopes is None
        items = await daemon.store.read(
            lambda db: strongest_memories(db, scopes, pinned_only=False, of_user=of_user, limit=candidates)
        )
    elif not why_trivial(prompt_query(request.query)):
        weights = ScoreWeights.of(daemon.config)
        found = await matching_items(
            daemon.search_engine, weights, request.query, scopes, None, "", max_memories=candidates
        )
        items, degraded = found.items, found.degraded
    excluded = tuple(request.exclude)
    wanted = [item for item in items if not item.id.startswith(excluded)]
    block = Block(request.max_characters or max_block_characters(daemon.config))
    for item in wanted[:limit]:
        block.add(item)
    return Context(block.text, block.ids, len(wanted) - len(block.ids), degraded)
