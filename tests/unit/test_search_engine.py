"""Search engine: what was found is returned even if a later step has no time."""

from types import SimpleNamespace
from typing import Any, cast

import anyio

from clankers_protocol.errors import DeadlineExceeded
from clankersd.search.closeness import Calibration
from clankersd.search.engine import CALIBRATION_TIMEOUT_NOTE, SearchEngine
from clankersd.search.vector_search import VectorMatches


def test_hits_are_returned_if_there_is_no_time_to_calibrate() -> None:
    async def take_too_long(*_arguments: Any) -> Calibration:
        raise DeadlineExceeded("the answer took longer than 10 s: ask for less")

    engine = SearchEngine.__new__(SearchEngine)
    engine.vectors = cast(Any, SimpleNamespace(calibrate=take_too_long))
    plan = SimpleNamespace(query="amber", filter=None, compare_elsewhere=True)

    calibration, note = anyio.run(engine._calibrate, cast(Any, plan), VectorMatches())
    assert calibration == Calibration()
    assert note == CALIBRATION_TIMEOUT_NOTE
