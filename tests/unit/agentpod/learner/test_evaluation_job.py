"""An ensemble is refused if its members see different observations."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentpod.learner.evaluation_job import PublishedPolicy, evaluate_policies
from agentpod.models.policy import NetworkSpec
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.errors import InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec, TournamentSpec

FRAMES = "environment.options.wrappers.frame_stack.count"


def published(digest: str, frames: int) -> PublishedPolicy:
    manifest = Manifest()
    manifest.hyperparameters.update({FRAMES: frames, "learning_rate": 1e-3})
    return PublishedPolicy(digest, manifest, NetworkSpec((8,), "tanh", True), {})


async def test_members_must_have_been_trained_with_equal_observations() -> None:
    environment = EnvironmentSpec(id="cartpole", count=4)
    environment.options.update({"wrappers": [{"name": "frame_stack", "count": 2}]})
    assignment = pb.Assignment(assignment_id="t-e0.1", spec=TournamentSpec(environment=environment))
    assignment.evaluate.episodes = 4
    unopened = cast(Any, SimpleNamespace(open=None))
    members = [published("aaaa", 2), published("bbbb", 3)]
    with pytest.raises(
        InvalidArgument, match="checkpoint bbbb: was trained with other observations or actions than aaaa"
    ):
        await evaluate_policies(unopened, members, assignment, cast(Any, None))
