"""An evaluator keeps the memory of opponents open only during the evaluation in which they play."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.experience.slots import PolicyRing
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.session.opponents import OpponentPolicy, OpponentSlots
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import PROBE_SPEC
from podrace.tensor_transport.shared import SharedPlane
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import make

GAME = EnvironmentSpec(id="game:tic-tac-toe", count=2)
NETWORK = NetworkSpec(hidden_sizes=(4,))


class Evaluator:
    """An evaluator of a game, and the learner whose memory it opens."""

    def __init__(self, folder: Path) -> None:
        self.learner, self._plane = SharedPlane("learner-", folder), SharedPlane("evaluator-", folder)
        self._folder, self._compute = folder, ComputeThread()
        self._servicer: Any = EvaluatorServicer(Planes(self._plane), self._compute, allowed=EVERYTHING)
        simulator = make(GAME.id, GAME.count)
        self._policy = Policy(simulator.observation_space, simulator.action_space, NETWORK)
        self._policy.initialize(torch.Generator().manual_seed(0))
        self._ring = PolicyRing(self.learner, "policy", self._policy.flat.numel())
        self._ring.publish(self._policy.flat, 1)

    async def open(self) -> None:
        probe = self.learner.create("probe", [PROBE_SPEC])
        request = pb.OpenEvaluatorRequest(
            session="s", environment=GAME, policy=policy_message(NETWORK), probe=probe.refs()[0]
        )
        await self._servicer.OpenEvaluator(request, None)

    async def evaluate(self, number: int, objective: str = "") -> None:
        """Evaluates against two opponents in memory of their own, which is unlinked at once."""
        opponents = [OpponentPolicy(NETWORK, self._policy.flat)] * 2
        slots, held = OpponentSlots(self.learner, f"s_{number}", opponents), self._ring.hold()
        try:
            with slots.reading() as messages:
                request = pb.EvaluatePolicyRequest(
                    session="s", policy=held.ref(), episodes=2, seed=1, objective=objective, opponents=messages
                )
                await self._servicer.EvaluatePolicy(request, None)
        finally:
            slots.retire()
            held.release()

    def mapped_opponents(self) -> int:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return sum(str(self._folder) in line and "_opponent_" in line for line in maps)

    async def close(self) -> None:
        await self._servicer.CloseEvaluator(pb.CloseEvaluatorRequest(session="s"), None)
        for one in (self._compute, self._plane, self.learner):
            one.close()


@pytest.fixture
async def evaluator(tmp_path: Path) -> AsyncIterator[Evaluator]:
    made = Evaluator(tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_the_memory_of_opponents_is_unmapped_after_each_evaluation(evaluator: Evaluator) -> None:
    for number in range(2):
        await evaluator.evaluate(number)
        assert evaluator.mapped_opponents() == 0


async def test_the_memory_of_opponents_is_unmapped_after_a_failed_evaluation(evaluator: Evaluator) -> None:
    with pytest.raises(InvalidArgument, match="objective"):
        await evaluator.evaluate(0, objective="unknown")
    assert evaluator.mapped_opponents() == 0
