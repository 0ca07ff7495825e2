from dataclasses import replace

import pytest

from agentpod.qualification.collectives import Scaling, judge_scaling, sizes
from agentpod.qualification.members import LOST_SECONDS, GroupTrial, group_trial, judge
from agentpod.qualification.nodes import check_address
from podrace.errors import InvalidArgument
from podrace.qualification.findings import Grade

GOOD = GroupTrial("collectives", 8, 3.0, 0.02, 4 << 26, right=True, lost_seconds=1.0)


def test_a_fast_group_that_notices_a_loss_passes() -> None:
    findings = list(judge(GOOD))
    assert {finding.grade for finding in findings} == {Grade.PASS}
    assert {finding.part for finding in judge(replace(GOOD, part="nodes"))} == {"nodes"}


@pytest.mark.parametrize(
    ("changes", "name", "grade"),
    [
        ({"join_seconds": 40.0}, "8 members, join", Grade.SLOW),
        ({"mean_seconds": 1.0}, "8 members, mean", Grade.SLOW),
        ({"right": False}, "8 members, mean", Grade.FAIL),
        ({"lost_seconds": None}, "8 members, member killed", Grade.FAIL),
        ({"lost_seconds": LOST_SECONDS + 1}, "8 members, member killed", Grade.FAIL),
        ({"message": "MemberLost: not all joined"}, "8 members, join", Grade.FAIL),
    ],
)
def test_each_defect_is_the_only_line_that_does_not_pass(changes: dict[str, object], name: str, grade: Grade) -> None:
    (found,) = (one for one in judge(replace(GOOD, **changes)) if one.grade != Grade.PASS)  # type: ignore[arg-type]
    assert (found.name, found.grade) == (name, grade)
    assert found.mend


@pytest.mark.parametrize(("members", "learners"), [(2, [2]), (3, [2, 3]), (4, [2, 4]), (8, [2, 4, 8]), (16, [2, 4, 8])])
def test_powers_of_two_and_all_gpus_are_tried(members: int, learners: list[int]) -> None:
    assert sizes(members) == learners


def test_efficiency_is_the_share_of_one_learner_that_each_of_several_reaches() -> None:
    found = judge_scaling(Scaling(4, 100_000.0, 320_000.0))
    assert found.grade == Grade.PASS
    assert "efficiency 80%" in found.measured
    assert judge_scaling(Scaling(4, 100_000.0, 200_000.0)).grade == Grade.SLOW
    assert judge_scaling(Scaling(4, 100_000.0, 0.0, "no NCCL")).grade == Grade.FAIL


@pytest.mark.long
def test_two_processes_average_and_the_first_notices_that_the_second_was_killed() -> None:
    found = group_trial("nodes", ("cpu", "cpu"), 4096)
    assert (found.message, found.right, found.members) == ("", True, 2)
    assert min(found.join_seconds, found.mean_seconds) > 0
    assert found.lost_seconds is not None


@pytest.mark.parametrize(("meet", "node"), [("10.0.0.1", 0), (":29600", 0), ("host:", 1), ("10.0.0.1:29600", 2)])
def test_a_malformed_address_and_a_third_node_are_refused(meet: str, node: int) -> None:
    with pytest.raises(InvalidArgument, match=r"meet = |node = 2"):
        check_address(meet, node)
