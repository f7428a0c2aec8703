"""The full-text index of chunks, compared with the chunks."""

import apsw

from clankersd.db.connection import Db
from clankersd.index.repair import FULL_TEXT


def find_fault(db: apsw.Connection) -> str | None:
    """Compare the words of the index with those of the texts, as the doctor does; on each connection only once."""
    store = Db(db)
    return store.engine.find_fault(store, FULL_TEXT, store.engine.last_indexed_chunk(store))
