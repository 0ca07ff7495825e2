"""Acts in a simulator outside training: with one policy, or with an ensemble of several."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from agentpod.models.policy import Policy
from agentpod.seeding import derive_seed


class Actor(Protocol):
    """Chooses actions for N lanes (environments of one simulator), step by step.

    observation = simulator.reset(seed)
    while True:
        step = simulator.step(actor.act(observation))
        actor.reset(step.terminated | step.truncated)
        observation = step.observation
    """

    def act(self, observation: Tensor) -> Tensor:
        """Returns actions in the environment's units for observations [N, *shape]."""
        ...

    def reset(self, done: Tensor) -> None:
        """Clears the recurrent state of the lanes whose episode is done: [N] bool."""
        ...

    def begin(self, batch: int) -> None:
        """Starts an episode in every lane; the sampling noise from here on depends only on `batch`."""
        ...


class PolicyActor:
    """Acts with one policy, and keeps its recurrent state for each lane."""

    def __init__(self, policy: Policy, lanes: int, generator: torch.Generator, *, greedy: bool) -> None:
        """Starts an episode in each lane.

        Args:
            policy: Chooses the actions.
            lanes: N.
            generator: Source of the sampling noise.
            greedy: Whether to take the most likely action instead of sampling one.
        """
        self._policy, self._lanes, self._generator, self._greedy = policy, lanes, generator, greedy
        self._seed = generator.initial_seed()
        self._state = policy.initial_state(lanes)

    def act(self, observation: Tensor) -> Tensor:
        """See Actor.act."""
        policy = self._policy
        outputs, self._state = policy.advance(observation, self._state)
        if self._greedy:
            action = policy.head.mode(outputs)
        else:
            action = policy.head.sample(outputs, policy.noise((self._lanes,), self._generator))
        return policy.to_environment(action)

    def reset(self, done: Tensor) -> None:
        """See Actor.reset."""
        self._policy.reset_state(self._state, done)

    def begin(self, batch: int) -> None:
        """See Actor.begin."""
        self._generator.manual_seed(derive_seed(self._seed, "batch", batch))
        self._state = self._policy.initial_state(self._lanes)


class EnsembleActor:
    """Combines several actors: the mean of continuous actions, or the majority vote for each discrete element.

    A tie goes to the choice with the lowest number. Averaging agents that were trained independently is bagging
    (Breiman 1996, "Bagging Predictors", section 1). FinRL's ensemble instead uses the best agent alone.
    """

    def __init__(self, members: Sequence[Actor], choices: int) -> None:
        """Combines the given actors.

        Args:
            members: At least one, all for the same action space.
            choices: Largest number of choices of an element of an action; 0 if actions are continuous.
        """
        self._members, self._choices = members, choices

    def act(self, observation: Tensor) -> Tensor:
        """See Actor.act."""
        proposals = torch.stack([member.act(observation) for member in self._members])
        if not self._choices:
            return proposals.mean(0)
        return torch.nn.functional.one_hot(proposals, self._choices).sum(0).argmax(-1)

    def reset(self, done: Tensor) -> None:
        """See Actor.reset."""
        for member in self._members:
            member.reset(done)

    def begin(self, batch: int) -> None:
        """See Actor.begin."""
        for member in self._members:
            member.begin(batch)
