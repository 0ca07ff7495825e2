"""Defines what an on-policy algorithm trains on: the steps of a rollout with their values, and minibatches of them."""

import math
from collections.abc import Iterator
from itertools import starmap
from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.models.mlp import Sequences

STEP_FIELDS = 6
"""Tensors that every batch has, with one row for each step."""


class RecurrentStates(NamedTuple):
    """Recurrent states for a batch of T steps of L whole lanes; row t L + l is step t of lane l.

    Backpropagation through time stops at the first step: the states before it are constants.
    """

    keep: Tensor
    """[T, L, 1], see agentpod.models.mlp.Sequences."""
    actor: Tensor
    """[L, H], state of the actor before the first step, as when it acted."""
    critic: Tensor
    """[L, H], state of the critic before the first step."""
    next_critic: Tensor
    """[L, H], state of the critic after the last step, for the next rollout; zero where the episode ended there."""

    def select(self, lanes: Tensor) -> "RecurrentStates":
        """Returns the states of some lanes, given as int64 indices."""
        return RecurrentStates(self.keep.index_select(1, lanes), *(state.index_select(0, lanes) for state in self[1:]))


class RolloutBatch(NamedTuple):
    """Steps of all environments, with B rows in all fields but the last; in any order unless recurrent."""

    observation: Tensor
    """[B, D] float32, as the networks receive it."""
    action: Tensor
    """[B] int64, [B, A] int64 or [B, A] float32; see Policy."""
    log_prob: Tensor
    """[B], under the acting policy."""
    advantage: Tensor
    """[B]."""
    value: Tensor
    """[B], V(s) before the update."""
    target: Tensor
    """[B], target of V(s): advantage + value."""
    recurrent_states: RecurrentStates | None = None
    """Only for recurrent networks."""
    critic_inputs: Tensor | None = None
    """[B, S] float32, what the critic receives; None: the observations, like the actor."""

    def diagnostics(self) -> dict[str, float]:
        """Returns metrics of the batch itself."""
        return {"explained_variance": explained_variance(self.value, self.target)}

    @property
    def units(self) -> int:
        """Number of units that minibatches are composed of: steps, or whole lanes of recurrent networks."""
        return len(self.value) if self.recurrent_states is None else len(self.recurrent_states.actor)

    def minibatches(self, order: Tensor, minibatch_size: int, steps: int = 0) -> Iterator["RolloutBatch"]:
        """Yields every unit once, in the order of `order` [units] int64.

        Minibatches have nearly equal sizes of at most `minibatch_size` steps. Unless the batch is recurrent, there are
        as many as for `steps` steps, so some of them may be empty; 0: as many as for the steps of the batch.
        """
        if self.recurrent_states is not None:
            return self._lane_minibatches(self.recurrent_states, order, minibatch_size)
        pieces = math.ceil((steps or len(order)) / minibatch_size)
        shuffled = [tensor.index_select(0, order).tensor_split(pieces) for tensor in self._steps()]
        return starmap(RolloutBatch.of, zip(*shuffled, strict=True))

    def _lane_minibatches(
        self, recurrent_states: RecurrentStates, order: Tensor, minibatch_size: int
    ) -> Iterator["RolloutBatch"]:
        steps, lanes = recurrent_states.keep.shape[:2]
        first_of_step = torch.arange(0, steps * lanes, lanes, device=order.device).unsqueeze(1)
        for chosen in order.tensor_split(math.ceil(lanes / max(1, minibatch_size // steps))):
            rows = (first_of_step + chosen).flatten()
            fields = [tensor.index_select(0, rows) for tensor in self._steps()]
            yield RolloutBatch.of(*fields, *recurrent_states.select(chosen))

    def rows(self, chosen: Tensor) -> "RolloutBatch":
        """Returns some steps, given as int64 indices, of a batch that is not recurrent."""
        return RolloutBatch.of(*(tensor.index_select(0, chosen) for tensor in self._steps()))

    def tensors(self) -> tuple[Tensor, ...]:
        """Returns all tensors of the batch; `of` makes a batch of them."""
        return *self._steps(), *(self.recurrent_states or ())

    @classmethod
    def of(cls, *tensors: Tensor) -> "RolloutBatch":
        """Makes a batch of what `tensors` returned."""
        has_inputs = (len(tensors) - STEP_FIELDS) % len(RecurrentStates._fields)
        states = tensors[STEP_FIELDS + has_inputs :]
        recurrent_states = RecurrentStates(*states) if states else None
        inputs = tensors[STEP_FIELDS] if has_inputs else None
        return cls._make((*tensors[:STEP_FIELDS], recurrent_states, inputs))

    def _steps(self) -> tuple[Tensor, ...]:
        inputs = () if self.critic_inputs is None else (self.critic_inputs,)
        return self.observation, self.action, self.log_prob, self.advantage, self.value, self.target, *inputs

    @property
    def seen_by_critic(self) -> Tensor:
        """What the critic receives: [B, S] or [B, D]."""
        return self.observation if self.critic_inputs is None else self.critic_inputs

    @property
    def actor_sequences(self) -> Sequences | None:
        """Sequences over which the actor is unrolled; None without recurrence."""
        states = self.recurrent_states
        return None if states is None else Sequences(states.keep, states.actor)

    @property
    def critic_sequences(self) -> Sequences | None:
        """Sequences over which the critic is unrolled; None without recurrence."""
        states = self.recurrent_states
        return None if states is None else Sequences(states.keep, states.critic)


def explained_variance(value: Tensor, target: Tensor) -> float:
    """Returns the fraction of the variance of targets [B] that values [B] explain; 1 is perfect, 0 a constant."""
    return 1.0 - float((target - value).var(correction=0) / target.var(correction=0).clamp(min=1e-8))
