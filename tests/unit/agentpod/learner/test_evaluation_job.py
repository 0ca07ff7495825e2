"""Evaluation assignments: which ensembles are refused, and what memory they free."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fake_cuda import FakeDriver, Gpu

from agentpod.config import PodConfig
from agentpod.experience.slots import PolicyRing
from agentpod.learner.evaluation_job import PublishedPolicy, evaluate_policies
from agentpod.models.description import POLICY_PART
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.session.role_client import SessionSpec
from agentpod.session.session import Roles
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.errors import InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tensor_transport.cuda import CudaPlane
from podrace.tensor_transport.probe import PROBE_SPEC
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec, TournamentSpec
from simulators.base import Space

SPACES = (
    Space("continuous", (3,), torch.float32, (-1.0,) * 3, (1.0,) * 3),
    Space("discrete", (), torch.int64, n=4),
)
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


class EvaluatingRoles(Roles):
    """Roles that are open at once and answer with a score."""

    def __init__(self, plane: CudaPlane) -> None:
        super().__init__(PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp")), [plane])
        self._chosen = self.owner = plane
        self.spare_bytes = -1

    async def open(self, session: SessionSpec) -> tuple[Space, Space]:
        self._rings = [PolicyRing(self.owner, session.name, Policy(*SPACES, session.network).flat.numel())]
        return SPACES

    async def evaluate(self, *held: Any, **_: Any) -> Evaluation:
        self.spare_bytes = self.owner.spare_bytes
        return Evaluation(policy_digest="d")


async def test_memory_of_the_last_assignment_is_freed_before_an_evaluation(tmp_path: Path) -> None:
    plane = CudaPlane("podrace-p-", lambda: FakeDriver(Gpu()), tmp_path)
    plane.create("replay", [PROBE_SPEC]).close()
    network, manifest = NetworkSpec((8,), "tanh", True), Manifest()
    manifest.parts.add(name=POLICY_PART, digest="d")
    policy = PublishedPolicy("aaaa", manifest, network, Policy(*SPACES, network).tensors())
    assignment = pb.Assignment(
        assignment_id="t-e0.1", spec=TournamentSpec(environment=EnvironmentSpec(id="cartpole", count=4))
    )
    assignment.evaluate.episodes = 4
    roles = EvaluatingRoles(plane)
    await evaluate_policies(roles, [policy], assignment, cast(Any, SimpleNamespace(report_evaluator_fault=str)))
    assert roles.spare_bytes == 0
    await roles.close()
