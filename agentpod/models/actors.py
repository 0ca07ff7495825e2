"""Acts in the lanes of a simulator outside training: one policy alone, or several that decide together."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from agentpod.models.policy import Policy


class Actor(Protocol):
    """Decides for N lanes, step after step.

    observation = simulator.reset(seed)
    while True:
        step = simulator.step(actor.act(observation))
        actor.reset(step.terminated | step.truncated)
        observation = step.observation
    """

    def act(self, observation: Tensor) -> Tensor:
        """Actions in the environment's units for observations [N, *shape]."""
        ...

    def reset(self, done: Tensor) -> None:
        """The episodes of some lanes have done: [N] bool."""
        ...


class PolicyActor:
    """One policy, with what it remembers of each lane."""

    def __init__(self, policy: Policy, lanes: int, generator: torch.Generator, *, greedy: bool) -> None:
        """Begins an episode in each of `lanes`; `greedy` takes the likeliest action instead of drawing one."""
        self._policy, self._lanes, self._generator, self._greedy = policy, lanes, generator, greedy
        self._state = policy.initial_state(lanes)

    def act(self, observation: Tensor) -> Tensor:
        """See Actor."""
        policy = self._policy
        outputs, self._state = policy.advance(observation, self._state)
        if self._greedy:
            action = policy.head.mode(outputs)
        else:
            action = policy.head.sample(outputs, policy.noise((self._lanes,), self._generator))
        return policy.to_environment(action)

    def reset(self, done: Tensor) -> None:
        """See Actor."""
        self._policy.reset_state(self._state, done)


class EnsembleActor:
    """Several policies: the mean of what they would do, or, between choices, what most of them would.

    Equal votes go to the choice of the lowest number. Averaging agents that were trained apart is the bagging of
    Breiman 1996, "Bagging Predictors", section 1; FinRL's ensemble takes the best alone.
    """

    def __init__(self, members: Sequence[Actor], choices: int) -> None:
        """Unites some actors.

        Args:
            members: At least one, all of one action space.
            choices: Of a discrete action space; 0 for a continuous one.
        """
        self._members, self._choices = members, choices

    def act(self, observation: Tensor) -> Tensor:
        """See Actor."""
        proposals = torch.stack([member.act(observation) for member in self._members])
        if not self._choices:
            return proposals.mean(0)
        return torch.nn.functional.one_hot(proposals, self._choices).sum(0).argmax(1)

    def reset(self, done: Tensor) -> None:
        """See Actor."""
        for member in self._members:
            member.reset(done)
