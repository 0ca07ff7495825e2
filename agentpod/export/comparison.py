"""Compares an exported policy with the torch policies that it was made from, on random and on recorded observations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentpod.models.actors import EnsembleActor, PolicyActor
from agentpod.models.description import random_observations, space_description
from agentpod.models.policy import Policy
from podrace.errors import DataLoss
from podrace.policy import runtime
from simulators.base import Simulator

LANES, STEPS = 16, 100

Exported = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(observation [N, ...], state [N, S]) -> (action [N, ...], next state [N, S])."""


@dataclass(frozen=True)
class Comparison:
    """How an exported policy compares with the torch policy."""

    actions: int
    """Number of actions that were compared."""
    worst: float
    """Largest difference: relative to the range of a continuous action, or the share of other choices in a step."""

    def checked(self, what: str) -> "Comparison":
        """Returns itself; raises DataLoss if the difference is larger than the contract of checkpoints allows."""
        if not self.worst <= runtime.ACTION_TOLERANCE:
            raise DataLoss(
                f"{what}: the exported policy acts differently from the torch policy (difference {self.worst:.2g}, at"
                f" most {runtime.ACTION_TOLERANCE:g}); nothing was exported"
            )
        return self


class Reference:
    """The torch policies as the evaluator of a pod runs them, with the choices that are too close to compare."""

    def __init__(self, policies: Sequence[Policy], lanes: int) -> None:
        """Starts an episode in each lane."""
        self.policies, self.lanes = policies, lanes
        self._states = [policy.initial_state(lanes) for policy in policies]
        actors = [PolicyActor(policy, lanes, torch.Generator(), greedy=True) for policy in policies]
        self._actor = EnsembleActor(actors, policies[0].action_space.most_choices) if len(actors) > 1 else actors[0]

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the actions [N, ...] of a step, and which lanes [N] have a clear choice in every policy."""
        clear = torch.ones(self.lanes, dtype=torch.bool)
        for index, policy in enumerate(self.policies):
            outputs, self._states[index] = policy.advance(observation, self._states[index])
            if policy.action_space.kind != "continuous":
                values = outputs[:, int(policy.network.head == "dueling") :].numpy()
                described = space_description(policy.action_space)
                clear &= torch.from_numpy(runtime.clear_choices(described, values)).all(1)
        return self._actor.act(observation), clear

    def reset(self, done: Tensor) -> None:
        """Begins an episode in the lanes that are done: [N] bool."""
        self._actor.reset(done)
        for policy, state in zip(self.policies, self._states, strict=True):
            policy.reset_state(state, done)


def compare_random(policies: Sequence[Policy], exported: Exported) -> Comparison:
    """Compares on observations drawn from the statistics of the first policy, over 100 steps of each lane."""
    generator, reference = torch.Generator().manual_seed(1), Reference(policies, LANES)
    tally = _Tally(reference, exported)
    for _ in range(STEPS):
        tally.step(random_observations(policies[0], LANES, generator))
    return tally.comparison()


def compare_recorded(policies: Sequence[Policy], exported: Exported, simulator: Simulator) -> Comparison:
    """Compares on the observations of episodes that the torch policies play in a simulator."""
    reference = Reference(policies, simulator.count)
    tally = _Tally(reference, exported)
    observation = simulator.reset(1)
    for _ in range(STEPS):
        step = simulator.step(tally.step(observation.clone()))
        tally.reset(step.terminated | step.truncated)
        observation = step.observation
    return tally.comparison()


class _Tally:
    def __init__(self, reference: Reference, exported: Exported) -> None:
        self._reference, self._exported = reference, exported
        size = sum(policy.state_size for policy in reference.policies)
        self._state = torch.zeros(reference.lanes, size)
        self._actions, self._worst = 0, 0.0

    def step(self, observation: Tensor) -> Tensor:
        """Compares one step and returns the actions of the torch policies."""
        wanted, clear = self._reference.act(observation)
        found, self._state = self._exported(observation, self._state)
        bounds = self._reference.policies[0].action_bounds
        if bounds is None:
            differences = (found != wanted)[clear].double()
            worst = float(differences.mean()) if len(differences) else 0.0
        else:
            spans = 2.0 * bounds.scale.abs().double()
            worst = float(((found.double() - wanted.double()).flatten(1).abs() / spans).max())
        self._actions += int(clear.sum())
        self._worst = max(self._worst, worst) if worst == worst else float("nan")
        return wanted

    def reset(self, done: Tensor) -> None:
        self._reference.reset(done)
        self._state = self._state.masked_fill(done.unsqueeze(1), 0.0)

    def comparison(self) -> Comparison:
        return Comparison(self._actions, self._worst)


def of_onnx(policy: runtime.Policy) -> Exported:
    """Returns a loaded ONNX policy as a function of tensors."""

    def exported(observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        found = policy.run(np.ascontiguousarray(observation.numpy()), np.ascontiguousarray(state.numpy()))
        following = torch.from_numpy(found["next_state"]) if policy.state_size else state
        return torch.from_numpy(found["action"]), following

    return exported
