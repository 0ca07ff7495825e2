"""The leader decides whether the pod exits after an assignment."""

from types import SimpleNamespace
from typing import Any

import pytest

from agentpod.compute_thread import ComputeThread
from agentpod.learner.ending import EXIT_DONE, EXIT_ROLE_LOST, Ending
from agentpod.learner.leader import Leader
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.mark.parametrize(
    "ending",
    [
        Ending(pb.OUTCOME_FINISHED),
        Ending(pb.OUTCOME_STOPPED, "the trial falls behind"),
        Ending(pb.OUTCOME_DRAINED, "the store does not answer"),
        Ending(pb.OUTCOME_DRAINED, "SIGTERM", EXIT_DONE),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
async def test_a_pod_with_a_stuck_role_that_cannot_be_restarted_exits_however_its_work_ended(
    ending: Ending, broken: bool
) -> None:
    reported: list[tuple[Any, ...]] = []

    async def complete(*outcome: Any, **_: Any) -> None:
        reported.append(outcome)

    lease: Any = SimpleNamespace(complete=complete, held=True, yielded=False, broken=broken, progress=pb.Progress())
    leader: Any = SimpleNamespace(_compute=ComputeThread(), _given_back=0)
    exit_code = await Leader._complete(leader, lease, ending)
    assert exit_code == (EXIT_ROLE_LOST if broken else ending.exit_code)
    assert reported == [(ending.outcome, ending.message, None)]
