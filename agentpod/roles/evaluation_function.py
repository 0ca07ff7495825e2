"""Serves a user's evaluation function as an EvaluatorService, in the child process that a pod starts for it.

The function decides what each episode is worth; the score is computed from that as for the built-in evaluator:

    def evaluate(simulator: Simulator, actor: Actor, episodes: int, seed: int) -> Tensor:
        played = play(simulator, actor, episodes, seed)       # agentpod.roles.evaluator.play, or its own steps
        return played.returns - 0.1 * played.lengths          # [E]

`simulator` has lanes of the tournament's environment with the options of the evaluation. `actor` acts in these lanes
with the policy to be scored, and is at the beginning of its episodes. The function returns one finite number for each
of at least `episodes` episodes (a tensor, an array or a list). Their mean is the score; their variance gives its
standard error. To score another statistic of the returns (a quantile, say), return numbers whose mean it is. All
randomness must come from `seed`: the same arguments should give the same numbers. Number i of one policy is compared
with number i of another for the same seed. They should belong to the same episode, as they do with `play`; if they do
not, the measured correlation is low and the comparison is unpaired.
"""

import asyncio
import importlib
import os
import threading
from typing import Any

import torch
from torch import Tensor

from agentpod.compute_thread import ComputeThread
from agentpod.config import FunctionConfig
from agentpod.models.actors import Actor
from agentpod.roles.episodes import Episodes
from agentpod.roles.evaluator import EvaluatorServicer
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import DataLoss, InvalidArgument, Unimplemented
from podrace.plugins import server
from podrace.plugins.server import LoadedFunction
from podrace.rpc import Service
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.remote import GrpcPlane
from simulators import Simulator, Step
from simulators.wrappers.wrapper import Wrapper

NICENESS = 5
"""Evaluation must not take processor time from training."""


class LengthCounter(Wrapper):
    """A simulator that counts the steps of the episodes that end in it.

    The episode of a team ends in the step in which all lanes of its environment end; agents may leave before.

    Attributes:
        lengths: Steps of each finished episode, in the order in which they ended.
    """

    def __init__(self, inner: Simulator) -> None:
        super().__init__(inner)
        self.lengths: list[int] = []
        self._steps = torch.zeros(inner.count // inner.observation_space.lanes, dtype=torch.int64)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._steps.zero_()
        return super().reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = super().step(action)
        ended = (step.terminated | step.truncated).cpu().view(len(self._steps), -1).all(1)
        self._steps += 1
        self.lengths += self._steps[ended].tolist()
        self._steps[ended] = 0
        return step


class FunctionPlay:
    """Scores episodes with a user's function, where the built-in evaluator uses agentpod.roles.episodes.play."""

    def __init__(self, function: LoadedFunction) -> None:
        self._function = function

    def __call__(
        self,
        simulator: Simulator,
        actor: Actor,
        episodes: int,
        seed: int,
        *,
        first_episode: int = 0,
        cancelled: threading.Event | None = None,
    ) -> Episodes:
        """See agentpod.roles.episodes.Play; the lengths are those of the episodes that ended in `simulator`.

        A function cannot continue an evaluation, so `first_episode` must be 0.

        Raises:
            FailedPrecondition: The function could not be imported.
            Internal: The function raised.
            InvalidArgument: It returned something else than a row of numbers.
            DataLoss: There are fewer numbers than episodes, or one is not finite.
            Unimplemented: `first_episode` is not 0.
        """
        if first_episode:
            raise Unimplemented("an evaluation function cannot continue an evaluation")
        counted = LengthCounter(simulator)
        returned = self._function(counted, actor, episodes, seed)
        return Episodes(numbers(returned, episodes), torch.tensor(counted.lengths or [0]))


def numbers(returned: object, episodes: int) -> Tensor:
    """Converts what a function returned to [E] float64; raises as FunctionPlay does."""
    try:
        values = torch.as_tensor(returned, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        values = torch.zeros((), dtype=torch.float64)
    if values.dim() != 1:
        raise InvalidArgument(f"the function returned {type(returned).__name__}: expected one number for each episode")
    if len(values) < episodes:
        raise DataLoss(f"the function returned {len(values)} numbers for {episodes} episodes")
    if not bool(values.isfinite().all()):
        raise DataLoss("the function returned a number that is not finite", reason="ERROR_REASON_NON_FINITE")
    return values


def run(config: FunctionConfig) -> int:
    """Serves the function until the leader of the pod is gone. Returns the exit code.

    Raises:
        Unavailable: The socket cannot be bound.
    """
    os.nice(NICENESS)
    torch.set_num_threads(config.threads)
    if config.user_id:
        # Before the process becomes one of that user, who may be unable to read the folder of Python.
        importlib.import_module("simulators.gym.simulator")

    def make_service(function: LoadedFunction) -> Service:
        device = torch.device(config.device)
        servicer: Any = EvaluatorServicer(
            Planes(GrpcPlane()),
            ComputeThread(str(device)),
            FunctionPlay(function),
            place=lambda *_: device,
            allowed=config.allow,
        )
        descriptor = pb.DESCRIPTOR.services_by_name["EvaluatorService"]
        return Service(descriptor, pb_grpc.add_EvaluatorServiceServicer_to_server, servicer)

    asyncio.run(server.serve(config, make_service))
    return 0
