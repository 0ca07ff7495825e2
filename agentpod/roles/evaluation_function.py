"""Calls a user's own evaluation function, in a process of its own: it may crash, hang or lie without harm to its pod.

The function decides what is worth what; how that becomes a score is the house's:

    def evaluate(simulator: Simulator, actor: Actor, episodes: int, seed: int) -> Tensor:
        played = play(simulator, actor, episodes, seed)       # agentpod.roles.evaluator.play, or steps of its own
        return played.returns - 0.1 * played.lengths          # [E]

`simulator` has lanes of the tournament's environment with the options of the evaluation; `actor` acts in them by the
policy that is to be scored, and is at the beginning of its episodes. What is returned is one finite number for each of
at least `episodes` episodes (a tensor, an array or a list): their mean is the score, their variance makes its standard
error. So a function of the returns' distribution is given by numbers that have it for their mean. The same arguments
should give the same numbers: `seed` is all the randomness there is.
"""

import asyncio
import os
import threading
from contextlib import ExitStack
from typing import Any

import structlog
import torch
from torch import Tensor

from agentpod.compute_thread import ComputeThread
from agentpod.config import FunctionConfig
from agentpod.models.actors import Actor
from agentpod.roles.evaluator import Episodes, EvaluatorServicer
from podrace import rpc, telemetry
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import DataLoss, Internal, InvalidArgument
from podrace.plugins import loader
from podrace.processes import lifeline
from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.remote import GrpcPlane
from simulators import Simulator, Step
from simulators.wrappers.wrapper import Wrapper

_log = structlog.get_logger(__name__)
NICENESS = 5
"""Never at the expense of training."""


class Watched(Wrapper):
    """A simulator that counts the steps of the episodes that end in it.

    Attributes:
        lengths: Of each, in the order in which they ended.
    """

    def __init__(self, inner: Simulator) -> None:
        """Wraps."""
        super().__init__(inner)
        self.lengths: list[int] = []
        self._steps = torch.zeros(inner.count, dtype=torch.int64)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._steps.zero_()
        return super().reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = super().step(action)
        ended = (step.terminated | step.truncated).cpu()
        self._steps += 1
        self.lengths += self._steps[ended].tolist()
        self._steps[ended] = 0
        return step


class FunctionPlay:
    """A user's function in the place of `agentpod.roles.evaluator.play`."""

    def __init__(self, path: str) -> None:
        """Imports nothing yet.

        Args:
            path: `module:function`.
        """
        self._path = path

    def __call__(
        self, simulator: Simulator, actor: Actor, episodes: int, seed: int, *, cancelled: threading.Event | None = None
    ) -> Episodes:
        """See agentpod.roles.evaluator.Play; the lengths are those of the episodes that ended in `simulator`.

        Raises:
            InvalidArgument: The path leads nowhere, or to something that returns no numbers.
            DataLoss: There are fewer numbers than episodes, or one is not finite.
        """
        watched = Watched(simulator)
        module_name, _, name = self._path.partition(":")
        function = loader.load(module_name, name)
        try:
            returned = function(watched, actor, episodes, seed)
        except SystemExit as error:
            raise Internal(f"{self._path} called sys.exit({error.code!r})") from error
        return Episodes(numbers(self._path, returned, episodes), torch.tensor(watched.lengths or [0]))


def numbers(path: str, returned: object, episodes: int) -> Tensor:
    """What a function returned, as [E] float64; raises as FunctionPlay does."""
    try:
        values = torch.as_tensor(returned, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        values = torch.zeros((), dtype=torch.float64)
    if values.dim() != 1:
        raise InvalidArgument(f"{path} returned {type(returned).__name__}: expected one number for each episode")
    if len(values) < episodes:
        raise DataLoss(f"{path} returned {len(values)} numbers for {episodes} episodes")
    if not bool(values.isfinite().all()):
        raise DataLoss(f"{path} returned a number that is not finite", reason="ERROR_REASON_NON_FINITE")
    return values


def run(config: FunctionConfig) -> int:
    """Serves an evaluator that calls the function until the head of the pod is gone. Returns the exit code.

    Raises:
        Unavailable: The socket cannot be bound.
    """
    loader.confine()
    os.nice(NICENESS)
    torch.set_num_threads(config.threads)
    telemetry.configure_logging(config.telemetry)
    structlog.contextvars.bind_contextvars(service="evaluation-function", function=config.function)
    return asyncio.run(_serve(config))


async def _serve(config: FunctionConfig) -> int:
    planes, compute = Planes(GrpcPlane()), ComputeThread()
    servicer: Any = EvaluatorServicer(planes, compute, FunctionPlay(config.function), torch.device(config.device))
    service = Service(
        pb.DESCRIPTOR.services_by_name["EvaluatorService"],
        pb_grpc.add_EvaluatorServiceServicer_to_server,
        servicer,
    )
    with ExitStack() as resources:
        resources.callback(compute.close)
        resources.callback(planes.close)
        server = await Server.start(ServerConfig(listen=f"unix:{config.socket}", grace_seconds=0.0), [service])
        reason = await rpc.shutdown_requested(lifeline.lost(config.lifeline))
        _log.info("evaluation function ends", reason=reason)
        await server.drain()
    return 0
