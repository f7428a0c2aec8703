"""Maintenance of the full-text indexes."""

import anyio
import structlog

from clankers_protocol.errors import StorageUnavailable
from clankersd.db import Store

FIRST_CHECK_SECONDS = 60.0
CHECK_INTERVAL_SECONDS = 3600.0
"""To rewrite the index of a million chunks takes about a minute, so it is not done after each deletion."""

log = structlog.get_logger(component="index")


async def keep_fast(store: Store) -> None:
    """Rewrite full-text indexes that deleted texts have made slow, for as long as the daemon runs."""
    wait = FIRST_CHECK_SECONDS
    while True:
        await anyio.sleep(wait)
        wait = CHECK_INTERVAL_SECONDS
        try:
            if merged := await store.engine.keep_full_text_fast(store):
                log.info("full-text index merged", tables=merged)
        except StorageUnavailable as error:
            log.debug("full-text merge postponed", problem=error.message)
