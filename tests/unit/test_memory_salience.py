"""Salience: decay, reinforcement and the access bonus, for any values."""

import math

from hypothesis import given
from hypothesis import strategies as st

from clankersd.memories.salience import DAY_MS, DECAY_PER_DAY, MIN_SALIENCE, Salience, deemphasized, reinforced

SHARES = st.floats(0, 1)
SECTORS = st.sampled_from(sorted(DECAY_PER_DAY))
MOMENTS = st.integers(0, 20 * 365 * DAY_MS)
START = 1_700_000_000_000


@st.composite
def saliences(draw: st.DrawFn) -> Salience:
    return Salience(draw(SHARES), START, draw(SECTORS), draw(SHARES), draw(st.integers(0, 10_000)), draw(st.booleans()))


@given(saliences(), MOMENTS, MOMENTS)
def test_salience_never_grows_with_time(one: Salience, early: int, late: int) -> None:
    early, late = sorted((early, late))
    assert one.effective(START + late) <= one.effective(START + early)


@given(saliences(), MOMENTS)
def test_salience_stays_between_the_minimum_and_one(one: Salience, later: int) -> None:
    assert MIN_SALIENCE <= one.effective(START + later) <= 1


@given(SHARES, SHARES, st.integers(0, 1000), MOMENTS)
def test_sectors_decay_at_different_rates(salience: float, importance: float, accesses: int, later: int) -> None:
    found = [
        Salience(salience, START, sector, importance, accesses, False).effective(START + later)
        for sector in DECAY_PER_DAY
    ]
    assert found == sorted(found, reverse=True)


@given(SHARES, SECTORS, SHARES, SHARES, MOMENTS)
def test_important_memories_decay_more_slowly(
    salience: float, sector: str, little: float, much: float, later: int
) -> None:
    little, much = sorted((little, much))
    one, other = (Salience(salience, START, sector, importance, 0, False) for importance in (little, much))
    assert one.effective(START + later) <= other.effective(START + later)


@given(SHARES, SECTORS, SHARES, st.integers(0, 1000), st.integers(0, 1000), MOMENTS)
def test_access_raises_salience(
    salience: float, sector: str, importance: float, seldom: int, often: int, later: int
) -> None:
    seldom, often = sorted((seldom, often))
    one, other = (Salience(salience, START, sector, importance, times, False) for times in (seldom, often))
    assert one.effective(START + later) <= other.effective(START + later)


@given(saliences(), st.integers(0, 3650))
def test_salience_follows_the_formula_and_does_not_compound(one: Salience, days: int) -> None:
    for day in range(0, days, 7):
        one.effective(START + day * DAY_MS)  # reading it changes nothing
    rate = 0 if one.pinned else DECAY_PER_DAY[one.sector] / (one.importance + 0.1)
    formula = one.stored * math.exp(-rate * days) + min(0.1, math.log1p(one.access_count) * 0.02)
    assert math.isclose(one.effective(START + days * DAY_MS), min(1, max(MIN_SALIENCE, formula)), rel_tol=1e-9)


@given(saliences(), MOMENTS)
def test_pinned_memories_do_not_decay(one: Salience, later: int) -> None:
    pinned = Salience(one.stored, one.stored_at, one.sector, one.importance, one.access_count, True)
    assert pinned.effective(START + later) == pinned.effective(START)


@given(SHARES, st.lists(SHARES, max_size=50))
def test_reinforced_is_bounded_and_never_lower(base: float, amounts: list[float]) -> None:
    for amount in amounts:
        stronger = reinforced(base, amount)
        assert base <= stronger <= 1
        base = stronger


@given(SHARES, st.lists(SHARES, max_size=50))
def test_deemphasized_is_bounded_and_never_higher(base: float, amounts: list[float]) -> None:
    for amount in amounts:
        weaker = deemphasized(base, amount)
        assert MIN_SALIENCE <= weaker <= max(base, MIN_SALIENCE)
        base = weaker


def test_salience_examples() -> None:
    assert reinforced(0.5, 0.5) == 0.75
    assert deemphasized(0.5, 0.2) == 0.3
    week = START + 7 * DAY_MS
    emotional, episodic = (
        Salience(0.8, START, sector, 0.5, 0, False).effective(week) for sector in ("emotional", "episodic")
    )
    assert emotional > episodic
    assert math.isclose(episodic, 0.8 * math.exp(-0.02 / 0.6 * 7))
