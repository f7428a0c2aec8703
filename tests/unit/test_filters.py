"""Filters on chunks: labels of vectors, restriction and union."""

import pytest

from clankersd.search.filters import NO_MEMORIES, Criteria, Visibility, build_filter


@pytest.mark.parametrize(
    ("sources", "scopes", "label", "matches"),
    [
        (None, None, "sessions", True),
        (None, None, "memories custom:a", True),
        (None, frozenset({"global"}), "memories global", True),
        (None, frozenset({"global"}), "memories custom:a", False),
        (["memories"], frozenset({"global"}), "sessions", False),
        (["sessions"], frozenset(), "sessions", True),
    ],
)
def test_filter_matches_labels_by_source_and_scope(
    sources: list[str] | None, scopes: frozenset[str] | None, label: str, matches: bool
) -> None:
    chunk_filter = build_filter(Criteria(sources=sources), 1, Visibility("1", {}, scopes))  # type: ignore[arg-type]
    [test] = chunk_filter.label_tests
    assert test.matches_label(label) is matches


def test_filter_by_labels_is_not_narrow_and_any_other_is() -> None:
    by_source = build_filter(Criteria(sources=["skills"]), 1, NO_MEMORIES)
    assert not by_source.is_narrow
    assert by_source.restrict("chunks.role = :role", role="user").is_narrow
    assert build_filter(Criteria(session_id="s"), 1, NO_MEMORIES).is_narrow
    assert not build_filter(Criteria(project="/p"), 1, NO_MEMORIES).is_narrow


def test_filter_restricted_requires_both_conditions() -> None:
    restricted = build_filter(Criteria(), 7, NO_MEMORIES).restrict("chunks.role = :role", role="user")
    assert restricted.condition.endswith(" AND chunks.role = :role")
    assert restricted.params == {"chunking": 7, "role": "user"}


def test_filter_union_accepts_the_labels_of_both() -> None:
    memories = build_filter(Criteria(sources=["memories"]), 1, Visibility("1", {}, frozenset({"global"})))
    both = memories.union(build_filter(Criteria(sources=["sessions"], project="/p"), 1, NO_MEMORIES))
    labels = ["memories global", "memories custom:a", "sessions", "skills"]
    assert [any(test.matches_label(label) for test in both.label_tests) for label in labels] == [
        True, False, True, False,
    ]  # fmt: skip
    assert [test.project and test.project["project_id"] for test in both.label_tests] == [None, "/p"]
    assert not both.is_narrow
    assert both.ids.count("UNION ALL") == 1
