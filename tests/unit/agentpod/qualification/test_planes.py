from dataclasses import replace

import pytest

from agentpod.qualification.plane_trials.cases import CASES, spec_of
from agentpod.qualification.planes import PlaneTrial, judge
from agentpod.qualification.trial_pod import specification
from podrace.qualification.findings import Grade
from podrace.specification.catalog import PLANES

GOOD = PlaneTrial("cuda", "cuda", "cuda", "cuda:0", "cuda", 1e5, "", 2.0, True, 1.0, True)


def test_a_pod_on_its_plane_that_survives_its_worker_and_ends_with_its_leader_passes() -> None:
    findings = list(judge(GOOD))
    assert {finding.grade for finding in findings} == {Grade.PASS}
    assert len(findings) == 4


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"scheme": "shared"}, "cuda", "CuPy"),
        ({"device": "cpu"}, "cuda, worker's device", "simulator steps"),
        ({"device": ""}, "cuda, worker's device", "simulator steps"),
        ({"continued_seconds": None}, "cuda, worker killed", "--debug"),
        ({"exited_seconds": None}, "cuda, leader killed", "--debug"),
    ],
)
def test_each_defect_is_the_only_failure(changes: dict[str, object], name: str, remedy: str) -> None:
    (found,) = (one for one in judge(replace(GOOD, **changes)) if one.grade == Grade.FAIL)  # type: ignore[arg-type]
    assert found.name == name
    assert remedy in found.remedy


def test_a_pod_that_does_not_train_is_one_failure_with_its_message() -> None:
    (found,) = judge(replace(GOOD, scheme="", message="no plane connects the roles of this pod"))
    assert (found.grade, found.measured) == (Grade.FAIL, "no plane connects the roles of this pod")


def test_what_was_not_tried_is_not_graded() -> None:
    findings = judge(replace(GOOD, worker_killed=False, leader_killed=False))
    assert [finding.name for finding in findings] == ["cuda", "cuda, worker's device"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_every_specification_is_valid_and_requests_no_more_gpus_than_the_case_needs(case, gpus: int) -> None:  # type: ignore[no-untyped-def]
    if not gpus and not case.scheme_without:
        return
    spec = specification(**spec_of(case, gpus))
    assert spec.pod.gpus == min(gpus, case.gpus)


def test_every_plane_has_a_case() -> None:
    assert {case.plane for case in CASES} == set(PLANES)
