"""The examination of pods finds each broken one, and nothing wrong with sound ones."""

import asyncio

import foreign_pod_requests
import foreign_pods
import pytest
from reports import assert_found, untested, wrong

from podrace.conformance import pod
from podrace.conformance.examine import judge_of, run_parts
from podrace.conformance.findings import Report, RequirementState, line

LEASE_SECONDS = 1.5
BROKEN = [*foreign_pods.BROKEN, *foreign_pod_requests.BROKEN]


async def examined(pod_type: type[foreign_pods.Pod], *, restarts: bool = True) -> Report:
    judge, pods = judge_of("pod"), []

    def start(line: str = "") -> None:
        if not line or restarts:
            pods.append(pod_type(address))
            pods[-1].start()

    async with pod.opened(
        judge,
        "127.0.0.1:0",
        spec=pod.default_spec("CartPole-v1"),
        store="",
        lease_seconds=LEASE_SECONDS,
        most_seconds=6.0,
        insecure=False,
        notify=start,
    ) as (address, parts):
        start()
        try:
            return await run_parts("pod", address, judge, parts, most_seconds=60.0)
        finally:
            for one in pods:
                one.closing.set()
                await asyncio.to_thread(one.join)


async def test_a_pod_that_keeps_the_contract_passes() -> None:
    report = await examined(foreign_pods.Pod)
    assert wrong(report) == {}
    assert report.conforms
    assert untested(report) == {"evaluates"}


async def test_what_a_pod_that_is_not_started_again_would_show_is_not_examined() -> None:
    report = await examined(foreign_pods.Pod, restarts=False)
    assert wrong(report) == {}
    assert untested(report) == {"evaluates", "incarnation", "unknown-directive"}


@pytest.mark.parametrize("pod_type", BROKEN, ids=lambda pod_type: pod_type.__name__)
async def test_a_violated_pod_is_found_by_the_words_of_the_contract(pod_type: type[foreign_pods.Pod]) -> None:
    report = await examined(pod_type)
    assert not report.conforms
    assert_found(report, pod_type.breaks)


async def test_every_field_that_is_out_of_bounds_is_reported() -> None:
    report = await examined(foreign_pod_requests.OutOfBounds, restarts=False)
    (found,) = [finding for finding in report.findings if finding.grade == RequirementState.VIOLATED]
    assert {problem.partition(": expected")[0] for problem in found.problems} == {
        "RenewAssignment: pod_id = 'a pod'",
        "RenewAssignment: progress.environment_steps = 9223372036854775808",
    }
    assert f"({found.times} times, 2 different, which --json lists); contract, " in line(found)
