"""Replays whole steps of a policy and its simulator from a CUDA graph.

A step of collection launches the kernels of the policy, those of the simulator, and a copy for every tensor that it
stores. A simulator that a graph can contain (`simulators.cuda_graph.Capturable`) needs one launch for all of them, and
three to five copies: the noise in, and one for each type of the results.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from agentpod.capture.graph_replay import Record
from agentpod.models.policy import Policy
from podrace.errors import FailedPrecondition
from simulators.base import Simulator
from simulators.cuda_graph import Capturable, Polled, record_graph

_log = structlog.get_logger(__name__)


class RecordedStep(NamedTuple):
    """Tensors that every replay overwrites; see agentpod.experience.rollout.rollout_fields."""

    outputs: Tensor
    """[N, outputs], of the actor."""
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    observation: Tensor
    """[N, *shape], the observation that follows."""
    final_observation: Tensor
    """[N, *shape]; undefined where no episode was truncated."""


class CapturedSteps:
    """A policy and a simulator that step together.

        steps = CapturedSteps(simulator, policy)
        steps.begin(simulator.reset(seed), state)
        for noise_row in noise:
            step = steps.play(noise_row)

    Attributes:
        state: [N, S], recurrent state after the last step; in place.
        step: What the last step returned; in place.
    """

    def __init__(self, simulator: Capturable, policy: Policy, record: Record | None = None) -> None:
        """Records a step. The simulator must be reset afterwards.

        Args:
            simulator: N lanes, not used by others from now on.
            policy: Its tensors are changed in place only.
            record: How a step is recorded; None: as a CUDA graph.

        Raises:
            FailedPrecondition: The step cannot be recorded.
        """
        inner = simulator.capturable
        observation, device = inner.reset(0), policy.flat.device
        self._simulator, self._policy = inner, policy
        self._polled = inner if isinstance(inner, Polled) else None
        self._observation, self.state = observation.clone(), policy.initial_state(inner.count)
        self._noise = policy.noise((inner.count,), torch.Generator(device).manual_seed(0))
        with torch.no_grad():
            play, step = (record or record_graph)(self._run, simulator.graph_generators, device)
        self._play: Callable[[], None] = play
        self.step: RecordedStep = step

    def _run(self) -> RecordedStep:
        policy = self._policy
        outputs, state = policy.advance(self._observation, self.state)
        action = policy.head.sample(outputs, self._noise)
        step = self._simulator.step(policy.to_environment(action))
        if policy.state_size:
            policy.reset_state(state, step.terminated | step.truncated)
            self.state.copy_(state)
        self._observation.copy_(step.observation)
        return RecordedStep(
            outputs, action, step.reward, step.terminated, step.truncated, step.observation, step.final_observation
        )

    def begin(self, observation: Tensor, state: Tensor) -> None:
        """Makes the next step act on an observation [N, *shape] with a recurrent state [N, S]."""
        self._observation.copy_(observation)
        self.state.copy_(state)

    def play(self, noise: Tensor, rows: Mapping[str, Tensor]) -> RecordedStep:
        """Makes a step and stores its tensors.

        Args:
            noise: Of the policy's actions, [N, ...].
            rows: Memory for fields of the step, by their names.

        Returns:
            The step, which the next call overwrites.
        """
        self._noise.copy_(noise)
        self._play()
        if self._polled:
            self._polled.poll()
        for names in _by_type(rows):
            torch._foreach_copy_([rows[name] for name in names], [getattr(self.step, name) for name in names])
        return self.step


def _by_type(rows: Mapping[str, Tensor]) -> Sequence[Sequence[str]]:
    """Groups names of tensors by type: one operation copies all tensors of a type."""
    names: dict[torch.dtype, list[str]] = {}
    for name, tensor in rows.items():
        names.setdefault(tensor.dtype, []).append(name)
    return list(names.values())


def captured_steps(simulator: Simulator, policy: Policy, record: Record | None = None) -> CapturedSteps | None:
    """Records the steps of a policy and a simulator if that is possible; otherwise the log has the reason.

    The simulator must be reset afterwards.
    """
    reason = "the simulator cannot be part of a CUDA graph"
    if policy.network.network_class:
        reason = "the network of the policy is user code (network_class)"
    elif isinstance(simulator, Capturable):
        try:
            steps = CapturedSteps(simulator, policy, record)
        except FailedPrecondition as error:
            reason = error.message
        else:
            _log.info("steps of policy and simulator", captured=True)
            return steps
    _log.info("steps of policy and simulator", captured=False, reason=reason)
    return None
