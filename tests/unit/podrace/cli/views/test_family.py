import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podrace.cli.views import family
from podrace.cli.views.family import FamilyMember, HyperparameterChange, OutlineEntry, Position
from podrace.leaderboard.v1 import leaderboard_pb2 as pb


def members(*parents: int | None, **values: Any) -> dict[str, FamilyMember]:
    """Agents a0, a1, ... with these parents."""
    ids = [f"t-a{number}" for number in range(len(parents))]
    return {
        ids[number]: FamilyMember(ids[number], f"a{number}", "ppo", "" if parent is None else ids[parent], **values)
        for number, parent in enumerate(parents)
    }


def places(found: dict[str, Position]) -> list[tuple[int, int]]:
    return [(place.column, place.row) for place in found.values()]


def agent(number: int, parent: int | None = None, *, start: str = "", **hyperparameters: Any) -> pb.Agent:
    entry = pb.Agent(
        agent_id=f"t-a{number}",
        tournament_id="t",
        number=number,
        algorithm="ppo",
        origin=pb.ORIGIN_FRESH if parent is None else pb.ORIGIN_MUTATION,
        parent_agent_ids=[] if parent is None else [f"t-a{parent}"],
        reason=f"reason {number}",
    )
    entry.starting_checkpoint.manifest_digest = start
    entry.hyperparameters.update(hyperparameters)
    return entry


def submission(number: int, name: str, score: float, steps: int, own: int, core: float) -> pb.Candidate:
    return pb.Candidate(
        candidate_id=name,
        tournament_id="t",
        agent_id=f"t-a{number}",
        agent_number=number,
        algorithm="ppo",
        score=score,
        environment_steps=steps,
        agent_environment_steps=own,
        core_seconds=core,
    )


def test_a_member_has_its_best_score_its_compute_and_its_starting_steps() -> None:
    agents = [agent(1, 0, start="second", epochs=4), agent(0, epochs=3), agent(2, 1, start="third")]
    found = family.make_members(
        agents,
        [
            submission(0, "first", 5.0, 100, 100, 1.0),
            submission(0, "second", 9.0, 200, 200, 2.5),
            submission(1, "third", 8.0, 300, 100, 0.5),
            submission(0, "fourth", 7.0, 300, 300, 3.0),
        ],
    )
    first, second, third = found.values()
    assert [first.name, second.name, third.name] == ["a0", "a1", "a2"]
    assert first.best is not None
    assert (first.best.candidate_id, first.core_seconds, first.start_steps) == ("second", 3.0, 0)
    assert (second.parent_id, second.origin, second.start_steps) == ("t-a0", "mutation", 200)
    assert second.hyperparameters == {"epochs": 4}
    assert (third.best, third.start_steps, third.reason) == (None, 300, "reason 2")


def test_agents_may_be_known_only_by_their_submissions() -> None:
    child = submission(3, "b", 8.0, 300, 100, 0.5)
    child.parent_agent_ids.append("t-a1")
    unrelated = submission(4, "c", 1.0, 300, 100, 0.5)
    unrelated.parent_agent_ids.append("t-a2")
    found = family.make_members([], [submission(1, "a", 5.0, 200, 200, 1.0), child, unrelated])
    assert [(one.name, one.parent_id, one.start_steps) for one in found.values()] == [
        ("a1", "", 0), ("a3", "t-a1", 200), ("a4", "", 200),
    ]  # fmt: skip


#     a0 ── a2 ── a5
#      │    └─ a4
#      └─ a3
#     a1 ── a6
FAMILIES = members(None, None, 0, 0, 2, 2, 1)


def test_a_line_leads_from_the_first_ancestor_to_the_agent() -> None:
    assert family.line_of("t-a5", FAMILIES) == ["t-a0", "t-a2", "t-a5"]
    assert family.line_of("t-a1", FAMILIES) == ["t-a1"]
    assert family.line_of("t-a9", FAMILIES) == []


def test_relatives_are_ancestors_and_descendants_but_not_their_other_children() -> None:
    assert [one.name for one in family.relatives_of("t-a2", FAMILIES).values()] == ["a0", "a2", "a4", "a5"]
    assert [one.name for one in family.relatives_of("t-a4", FAMILIES).values()] == ["a0", "a2", "a4"]


def test_a_family_is_laid_out_as_drawn_above() -> None:
    assert places(family.lay_out(FAMILIES, ["t-a0", "t-a2", "t-a5"])) == [
        (0, 0), (1, 3), (2, 0), (3, 2), (4, 1), (5, 0), (6, 3),
    ]  # fmt: skip


def test_without_a_champion_the_larger_or_else_the_older_branch_is_straight() -> None:
    assert places(family.lay_out(members(None, 0, 0, 2, 3), [])) == [(0, 0), (1, 1), (2, 0), (3, 0), (4, 0)]
    assert places(family.lay_out(members(None, 0, 0), [])) == [(0, 0), (1, 0), (2, 1)]


def test_families_share_rows_if_one_ends_before_the_other_begins() -> None:
    # a0-a1, then a2 with two children, then a5 alone: the first row is free again for a5.
    found = family.lay_out(members(None, 0, None, 2, 2, None), [])
    assert places(found) == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 0)]


lists_of_parents = st.lists(st.integers(-1, 60), min_size=1, max_size=60).map(
    lambda numbers: [None if not 0 <= parent < place else parent for place, parent in enumerate(numbers)]
)


def segments(found: dict[str, Position], born: dict[str, FamilyMember]) -> dict[str, set[tuple[int, int]]]:
    """Returns the cells through which the edge to each agent passes, without its two ends."""
    passed = {}
    for agent_id, member in born.items():
        if member.parent_id:
            begin, end = found[member.parent_id], found[agent_id]
            down = {(begin.column, row) for row in range(begin.row, end.row + 1)}
            along = {(column, end.row) for column in range(begin.column, end.column + 1)}
            passed[agent_id] = (down | along) - {(begin.column, begin.row), (end.column, end.row)}
    return passed


@pytest.mark.long
@settings(max_examples=150)
@given(parents=lists_of_parents, champion=st.integers(0, 59))
def test_agents_do_not_overlap_and_no_edge_passes_through_another_agent(
    parents: Sequence[int | None], champion: int
) -> None:
    born = members(*parents)
    found = family.lay_out(born, family.line_of(f"t-a{champion % len(parents)}", born))
    assert sorted(place.column for place in found.values()) == list(range(len(parents)))
    agents_at = {(place.column, place.row): agent_id for agent_id, place in found.items()}
    assert len(agents_at) == len(parents)
    passed = segments(found, born)
    assert not any(cell in agents_at for cells in passed.values() for cell in cells)
    for one, other in itertools.combinations(passed, 2):
        # Only the edges of siblings share cells, below their parent.
        assert born[one].parent_id == born[other].parent_id or not passed[one] & passed[other]


@settings(max_examples=100)
@given(parents=lists_of_parents)
def test_a_list_contains_every_agent_once_after_its_parent(parents: Sequence[int | None]) -> None:
    born = members(*parents)
    entries = family.outline(born, [])
    seen: list[str] = []
    for entry in entries:
        parent = born[entry.agent_id].parent_id
        assert not parent or parent in seen
        assert entry.continues_parent or entry.below == parent
        if entry.continues_parent:
            before = [other for other in entries[: len(seen)] if other.below == entry.below]
            assert before[-1].agent_id == parent
        seen.append(entry.agent_id)
    assert sorted(seen) == sorted(born)


def test_short_families_are_indented_generation_by_generation() -> None:
    assert family.outline(FAMILIES, []) == [
        OutlineEntry(f"t-a{number}", "" if below is None else f"t-a{below}", False)
        for number, below in [(0, None), (2, 0), (4, 2), (5, 2), (3, 0), (1, None), (6, 1)]
    ]


def test_a_long_line_is_not_indented_but_its_side_branches_are() -> None:
    long = members(None, *range(13), 3)
    entries = family.outline(long, [])
    assert {entry.below for entry in entries if entry.agent_id != "t-a14"} == {""}
    assert next(entry for entry in entries if entry.agent_id == "t-a14") == OutlineEntry("t-a14", "t-a3", False)
    # The champion's line is not indented, however short it is.
    entries = family.outline(long, family.line_of("t-a14", long))
    assert next(entry for entry in entries if entry.agent_id == "t-a14") == OutlineEntry("t-a14", "", True)
    assert next(entry for entry in entries if entry.agent_id == "t-a4").below == "t-a3"


def test_a_line_of_thousands_of_agents_needs_no_recursion() -> None:
    long = members(None, *range(2999))
    assert {place.row for place in family.lay_out(long, []).values()} == {0}
    assert len(family.outline(long, [])) == 3000


def test_changes_have_both_values_and_omit_equal_ones() -> None:
    parent = FamilyMember("t-a0", "a0", "ppo", hyperparameters={"epochs": 4, "learning_rate": 0.001})
    child = FamilyMember(
        "t-a1", "a1", "ppo", "t-a0", hyperparameters={"epochs": 4, "learning_rate": 0.002, "clip": 0.1}
    )
    assert family.changes(child, parent) == {"learning_rate": (0.001, 0.002), "clip": (None, 0.1)}
    assert family.changes(child, None) == {}
    assert family.changes(child, FamilyMember("t-a0", "a0", "ppo")) == {}


def test_a_schedule_has_the_step_of_each_change_and_omits_constant_values() -> None:
    rates = [0.001, 0.001, 0.002, 0.002, 0.001]
    line = [
        FamilyMember(
            f"t-a{number}", f"a{number}", "ppo", hyperparameters={"rate": rate, "epochs": 4}, start_steps=100 * number
        )
        for number, rate in enumerate(rates)
    ]
    assert family.schedule(line) == {
        "rate": [HyperparameterChange(0, 0.001), HyperparameterChange(200, 0.002), HyperparameterChange(400, 0.001)]
    }
    assert family.schedule([]) == {}


def test_compute_is_formatted_in_a_suitable_unit() -> None:
    assert [family.compute(seconds) for seconds in (0.04, 4.25, 59.9, 125.0)] == [
        "0.0 core-seconds", "4.2 core-seconds", "59.9 core-seconds", "2:05 core time",
    ]  # fmt: skip
