"""How memories fade and grow: the formulas, whatever the figures."""

import math

from hypothesis import given
from hypothesis import strategies as st

from clankersd.memories.salience import DAY_MS, DECAY, FLOOR, Strength, deemphasized, reinforced

SHARES = st.floats(0, 1)
SECTORS = st.sampled_from(sorted(DECAY))
MOMENTS = st.integers(0, 20 * 365 * DAY_MS)
START = 1_700_000_000_000


@st.composite
def strengths(draw: st.DrawFn) -> Strength:
    return Strength(draw(SHARES), START, draw(SECTORS), draw(SHARES), draw(st.integers(0, 10_000)), draw(st.booleans()))


@given(strengths(), MOMENTS, MOMENTS)
def test_a_memory_only_ever_fades(one: Strength, early: int, late: int) -> None:
    early, late = sorted((early, late))
    assert one.now(START + late) <= one.now(START + early)


@given(strengths(), MOMENTS)
def test_it_stays_between_the_floor_and_one(one: Strength, later: int) -> None:
    assert FLOOR <= one.now(START + later) <= 1


@given(SHARES, SHARES, st.integers(0, 1000), MOMENTS)
def test_sectors_fade_in_their_order(salience: float, importance: float, accesses: int, later: int) -> None:
    found = [Strength(salience, START, sector, importance, accesses, False).now(START + later) for sector in DECAY]
    assert found == sorted(found, reverse=True)


@given(SHARES, SECTORS, SHARES, SHARES, MOMENTS)
def test_what_is_important_fades_more_slowly(
    salience: float, sector: str, little: float, much: float, later: int
) -> None:
    little, much = sorted((little, much))
    one, other = (Strength(salience, START, sector, importance, 0, False) for importance in (little, much))
    assert one.now(START + later) <= other.now(START + later)


@given(SHARES, SECTORS, SHARES, st.integers(0, 1000), st.integers(0, 1000), MOMENTS)
def test_what_is_used_is_stronger(
    salience: float, sector: str, importance: float, seldom: int, often: int, later: int
) -> None:
    seldom, often = sorted((seldom, often))
    one, other = (Strength(salience, START, sector, importance, times, False) for times in (seldom, often))
    assert one.now(START + later) <= other.now(START + later)


@given(strengths(), st.integers(0, 3650))
def test_it_is_what_the_closed_formula_says_however_often_it_is_asked(one: Strength, days: int) -> None:
    for day in range(0, days, 7):
        one.now(START + day * DAY_MS)  # asking changes nothing: there is nothing to compound
    rate = 0 if one.pinned else DECAY[one.sector] / (one.importance + 0.1)
    formula = one.salience * math.exp(-rate * days) + min(0.1, math.log1p(one.accesses) * 0.02)
    assert math.isclose(one.now(START + days * DAY_MS), min(1, max(FLOOR, formula)), rel_tol=1e-9)


@given(strengths(), MOMENTS)
def test_a_pinned_memory_does_not_fade(one: Strength, later: int) -> None:
    pinned = Strength(one.salience, one.at, one.sector, one.importance, one.accesses, True)
    assert pinned.now(START + later) == pinned.now(START)


@given(SHARES, st.lists(SHARES, max_size=50))
def test_reinforcing_is_bounded_and_never_weakens(base: float, amounts: list[float]) -> None:
    for amount in amounts:
        stronger = reinforced(base, amount)
        assert base <= stronger <= 1
        base = stronger


@given(SHARES, st.lists(SHARES, max_size=50))
def test_deemphasizing_is_bounded_and_never_strengthens_what_is_above_the_floor(
    base: float, amounts: list[float]
) -> None:
    for amount in amounts:
        weaker = deemphasized(base, amount)
        assert FLOOR <= weaker <= max(base, FLOOR)
        base = weaker


def test_examples() -> None:
    assert reinforced(0.5, 0.5) == 0.75
    assert deemphasized(0.5, 0.2) == 0.3
    week = START + 7 * DAY_MS
    emotional, episodic = (
        Strength(0.8, START, sector, 0.5, 0, False).now(week) for sector in ("emotional", "episodic")
    )
    assert emotional > episodic
    assert math.isclose(episodic, 0.8 * math.exp(-0.02 / 0.6 * 7))
