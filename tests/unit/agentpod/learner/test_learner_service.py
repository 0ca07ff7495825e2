"""Tests what the leader's service accepts from the followers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.duration_pb2 import Duration

from agentpod.learner.leader import LONGEST_WAIT_SECONDS, LearnerServicer
from podrace.agentpod.v1 import agentpod_pb2 as pb


class RecordedWaits:
    """Answers at once and records how long it may have waited."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def wait_for_change(self, session: str, wait_seconds: float, learner: int) -> pb.GetTrainingResponse:
        self.seconds.append(wait_seconds)
        return pb.GetTrainingResponse(session=session)


@pytest.mark.parametrize(
    ("seconds", "nanos", "expected"),
    [
        (2, 500_000_000, 2.5),
        (0, 0, 0.0),
        (-5, 0, 0.0),
        (-(2**63), 0, 0.0),
        (31, 0, LONGEST_WAIT_SECONDS),
        (2**63 - 1, 2**31 - 1, LONGEST_WAIT_SECONDS),
    ],
)
async def test_get_training_limits_the_wait_that_a_follower_asks_for(seconds: int, nanos: int, expected: float) -> None:
    waits = RecordedWaits()
    servicer = LearnerServicer(cast(Any, SimpleNamespace(shared_training=waits)))
    request = pb.GetTrainingRequest(session="s", wait_duration=Duration(seconds=seconds, nanos=nanos))
    response = await servicer.GetTraining(request, cast(Any, None))
    assert response.session == "s"
    assert waits.seconds == [expected]
